"""A server on real runs and a real Chromium, one of each for a worker; what it needs is made once for all workers."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.browser.generated_run import write_generated_run
from tests.package import SOURCE

from kernbench.cli.main import main
from kernbench.sweep.results import results_as_json, write_results
from kernbench.sweep.rows import SweepRow

ROOT = Path(__file__).parents[2]
BROWSERS = ("/usr/bin/chromium-headless-shell", "/usr/bin/chromium")  # the first takes less time, and shows the same
CHROMIUM = next((path for path in BROWSERS if Path(path).exists()), BROWSERS[-1])
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
]  # fmt: skip
WIDE, MIDDLE, NARROW = (1280, 800), (800, 600), (390, 844)
ONE_CUBE = ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = None if Path(CHROMIUM).exists() else f"no {CHROMIUM}: scripts/setup installs it where it can"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        missing = "no playwright: pip install 'kernbench[dev]'"
    if missing:
        for item in items:
            if "browser" in Path(item.path).parts:
                item.add_marker(pytest.mark.skip(reason=missing))


@dataclass
class Served:
    """A server and the runs it has, by the name of their folder."""

    url: str
    folder: Path
    ids: dict[str, str]
    process: subprocess.Popen[str]


@dataclass
class Opened:
    """A page, with what went wrong in it."""

    page: Any
    url: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, hash_: str) -> None:
        """Open the page at a state, from nothing."""
        if self.page.url != "about:blank":
            self.page.goto("about:blank")
        self.page.goto(self.url + hash_)
        self.page.wait_for_selector("html[data-ready]")
        self.settle()

    def follow(self, hash_: str) -> None:
        """Follow a link of the page, in the page that is open."""
        self.page.evaluate("hash => { location.hash = hash; }", hash_)
        self.page.wait_for_timeout(50)
        self.settle()

    def settle(self) -> None:
        """Until nothing is asked for any more and the timeline is drawn."""
        quiet = 0
        for _ in range(1200):
            busy = self.page.evaluate(
                "kb.busy() || (kb.tl?.canvas?.clientWidth > 0 && (kb.tl.frame || kb.tl.drawn.missing))"
            )
            quiet = 0 if busy else quiet + 1
            if quiet == 3:
                return
            self.page.wait_for_timeout(25)
        raise AssertionError("the page is still loading after 30 s")

    def until(self, script: str) -> None:
        """Until an expression holds. (playwright's own wait evaluates text in the page, which its policy forbids.)"""
        for _ in range(400):
            if self.page.evaluate(script):
                return
            self.page.wait_for_timeout(25)
        raise AssertionError(script)

    def change(self, **patch: object) -> None:
        self.page.evaluate("patch => kb.change(patch)", patch)
        self.settle()

    def ask(self, script: str) -> Any:
        return self.page.evaluate(script)


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Saved runs, a sweep, a damaged folder: made by the worker that comes first."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "browser-runs"
    done = folder / "done"
    try:
        folder.mkdir()
    except FileExistsError:
        for _ in range(1200):
            if done.exists():
                return folder / "runs"
            time.sleep(0.1)
        raise
    runs = folder / "runs"
    runs.mkdir()
    _kernbench("run", "--bench", "qkv-gemm-multi-pe", "--device", "sip:0", "--save", str(runs / "qkv"))
    flash = ("run", "--bench", "flash-attention", "--param", "pes=0", "--device", "sip:0")
    _kernbench(*flash, "--save", str(runs / "flash"))
    _kernbench(*flash, "--param", "seq_k=128", "--save", str(runs / "flash-short"))
    _kernbench("explain", str(runs / "flash"), "--what-if", "hbm", "--save", str(runs / "free"), "--json")
    _kernbench("run", "--bench", "ccl-allreduce", *ONE_CUBE, "--save", str(runs / "ccl"))
    _write_sweep(runs / "sweep")
    (runs / "z-evaluation").mkdir()  # the last of its kind: the sweep is what Results opens on
    for name in ("results.json", "01-question-ucie.svg", "01-question-ucie.md"):
        shutil.copy(ROOT / "docs/results/design-space" / name, runs / "z-evaluation")
    shutil.copytree(runs / "ccl", runs / "damaged")
    (runs / "damaged" / "ops.parquet").write_bytes(b"PAR1")
    write_generated_run(folder / "large" / "million", pes=128, rounds=1954)
    done.touch()
    return runs


def _write_sweep(folder: Path) -> None:
    """The results of a sweep of three points, one of which failed, as `kernbench sweep` writes them."""
    rows = [
        SweepRow(0, {"m": 32}, {}, ok=True, total_ns=862.4, cost=1.0),
        SweepRow(1, {"m": 64}, {}, ok=True, total_ns=1126.4, cost=0.5),
        SweepRow(2, {"m": 96}, {}, ok=True, total_ns=1300.0, cost=0.8),
        SweepRow(3, {"m": 33}, {}, error="m must be a multiple of 32"),
    ]
    folder.mkdir()
    write_results(folder, results_as_json({"bench": "gemm-single-pe"}, {}, rows, [], rows[:1], rows[:2]), rows)


def _kernbench(*args: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()), pytest.raises(SystemExit) as stopped:
        main(list(args))
    assert not stopped.value.code, args


def serve(folder: Path | None) -> Served:
    """`kernbench web` in a process of its own."""
    given = [str(folder)] if folder else []
    command = [sys.executable, "-m", "kernbench", "web", *given, "--no-open", "--port", "0"]
    path = os.pathsep.join([SOURCE, os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"http://\S+", line):
            listed = json.load(urllib.request.urlopen(f"{found[0]}api/runs"))["runs"]
            return Served(
                found[0], folder or Path(), {Path(entry["dir"]).name: entry["id"] for entry in listed}, process
            )
    raise AssertionError("the server did not start")


def stop(served: Served) -> None:
    served.process.terminate()
    served.process.wait(10)
    assert served.process.stdout is not None
    served.process.stdout.close()


@pytest.fixture(scope="session")
def served(saved: Path) -> Iterator[Served]:
    server = serve(saved)
    yield server
    stop(server)


@pytest.fixture(scope="session")
def large(saved: Path) -> Iterator[Served]:
    server = serve(saved.parent / "large")
    yield server
    stop(server)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@contextlib.contextmanager
def opened(browser: Any, url: str, size: tuple[int, int] = WIDE, theme: str = "light") -> Iterator[Opened]:
    """A page of its own; afterwards: no console error, no request to another server."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme)
    page = context.new_page()
    found = Opened(page, url)
    page.on("console", lambda message: message.type == "error" and found.errors.append(message.text))
    page.on("pageerror", lambda error: found.errors.append(str(error)))
    page.on("request", lambda request: found.requests.append(request.url))
    try:
        yield found
        assert found.errors == []
        outside = [url_ for url_ in found.requests if not url_.startswith((url, "data:", "about:", "blob:"))]
        assert outside == []
    finally:
        context.close()


@pytest.fixture(scope="module")
def page(browser: Any, served: Served) -> Iterator[Opened]:
    """One wide page for the tests of a module."""
    with opened(browser, served.url) as found:
        yield found


@pytest.fixture(scope="session")
def shots() -> Path | None:
    """Where screenshots go: $KERNBENCH_SHOTS. They are for looking at, so without it there are none."""
    kept = os.environ.get("KERNBENCH_SHOTS")
    if kept:
        Path(kept).mkdir(parents=True, exist_ok=True)
    return Path(kept) if kept else None
