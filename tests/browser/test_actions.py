"""What the page does besides showing: it copies the advised command, and measures a what-if in the background."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import Opened, Served, opened, serve, stop


@pytest.fixture(scope="module")
def own(saved: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server on one run, by its own folder, which these tests write beside."""
    folder = tmp_path_factory.mktemp("actions") / "flash"
    shutil.copytree(saved / "flash-short", folder)
    server = serve(folder)
    yield server
    stop(server)


@pytest.fixture(scope="module")
def own_page(browser: Any, own: Served) -> Iterator[Opened]:
    with opened(browser, own.url) as found:
        yield found


def test_the_strip_has_the_command_of_explain_and_copies_it(own_page: Opened, own: Served) -> None:
    own_page.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    own_page.go("#/run")
    explain = [sys.executable, "-m", "kernbench", "explain", str(own.folder), "--json"]
    verdict = json.loads(subprocess.run(explain, capture_output=True, check=True).stdout)["verdict"]
    shown = own_page.page.inner_text("#answer .next code")
    assert shown == verdict["command"]
    own_page.page.click("#answer .next button")
    own_page.until("document.querySelector('#answer .next button').textContent === 'Copied'")
    assert own_page.page.evaluate("navigator.clipboard.readText()") == shown
    assert shlex.split(shown)[0] == "kernbench"


def test_measure_runs_in_the_background_and_the_run_is_kept_beside(own_page: Opened, own: Served) -> None:
    own_page.go("#/explain")
    row = "#view-explain tr:has(td:text-is('pe_math'))"
    assert own_page.page.inner_text(f"{row} td:nth-child(3)") == "Measure"
    own_page.page.click(f"{row} button")
    own_page.page.wait_for_selector(f"{row} progress")
    own_page.page.wait_for_selector(f"{row} button[title^=Compare]", timeout=60_000)
    free = own.folder.with_name("flash-free") / "pe_math"
    launch = json.loads((free / "launches.json").read_text())[0]
    took = launch["end_ns"] - launch["start_ns"]
    text = own_page.page.inner_text(f"{row} td:nth-child(3)")
    assert float(text.split()[0]) * (1000 if "µs" in text else 1) == pytest.approx(took, rel=0.005)
    own_page.page.click(f"{row} button")
    own_page.settle()
    assert own_page.ask("kb.state.view") == "diff"


def test_a_run_that_is_saved_again_is_offered_with_the_difference(own_page: Opened, own: Served, saved: Path) -> None:
    own_page.go("#/run")
    before = own_page.ask("kb.run.a.id")
    shutil.move(own.folder, own.folder.with_name("former"))
    shutil.copytree(saved / "flash", own.folder)
    banner = own_page.page.locator("#banner")
    own_page.until("!document.getElementById('banner').hidden")
    assert "flash was saved again" in banner.inner_text()
    assert own_page.ask("document.title").startswith("● saved again: ")
    chosen = "document.querySelector('#pickers select').selectedOptions[0].textContent"
    own_page.until(f"{chosen}.includes('(before it was saved again)')")  # the menu names what is shown
    banner.get_by_text("What changed").click()
    own_page.settle()
    own_page.until("document.querySelector('#view-diff table.diff') !== null")
    assert own_page.ask("[kb.state.view, kb.state.a]") == ["diff", before]
    assert own_page.ask("kb.run.b.params.seq_k") == 256
    titles = own_page.page.eval_on_selector_all(
        "#view-diff table.diff tbody td:nth-child(4)", "c => c.map(x => x.title)"
    )
    a, b = (
        json.loads((folder / "launches.json").read_text())[0] for folder in (saved / "flash-short", saved / "flash")
    )
    delta = (b["end_ns"] - b["start_ns"]) - (a["end_ns"] - a["start_ns"])
    found = [float(title.replace(",", "").removesuffix(" ns")) for title in titles]
    assert sum(found) == pytest.approx(delta, abs=1e-3)


def test_a_link_that_is_opened_in_the_same_tab_may_name_a_folder_too(own_page: Opened, own: Served) -> None:
    own_page.go("#/run")
    own_page.page.evaluate("location.hash = '#/explain?a=pe_math'")
    own_page.until("kb.run.a?.dir.endsWith('flash-free/pe_math')")
    own_page.settle()
    assert own_page.ask("document.querySelector('#banner').hidden")
    own_page.page.evaluate("location.hash = '#/explain?a=nowhere'")
    own_page.until("document.querySelector('#banner').textContent.includes('nowhere, is not here')")
    assert own_page.ask("kb.run.a.dir").endswith("flash-free/pe_math")  # what was shown stays


def test_a_link_names_its_run_by_folder_too(own_page: Opened, own: Served) -> None:
    own_page.go("#/explain?a=flash")
    shown = own_page.ask("kb.run.a.id")
    assert own_page.ask("[kb.run.a.dir, kb.state.view]") == [str(own.folder), "explain"]
    own_page.go("#/run?a=000000000000&f=flash")
    assert own_page.ask("kb.run.a.id") == shown
    assert "saved again" in own_page.page.inner_text("#banner")
