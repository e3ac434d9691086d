"""The page of one run opens from a file, without a server, and draws."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.browser.conftest import NARROW, WIDE

from kernbench.cli.main import main

INKED = """(() => {
  const canvas = document.getElementById('timeline');
  const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
  let inked = 0;
  for (let at = 3; at < data.length; at += 4) inked += data[at] > 0;
  return inked / (data.length / 4);
})()"""


HOTTEST = """[...document.querySelectorAll('.hottest')].every(line => {
  const [own, box] = [line, line.closest('.scroll')].map(one => one.getBoundingClientRect());
  return own.top >= box.top && own.bottom <= box.bottom;
})"""


@pytest.mark.parametrize(("size", "theme"), [(WIDE, "dark"), (NARROW, "light")])
def test_an_exported_run_opens_from_its_file(
    browser: Any, saved: Path, tmp_path: Path, shots: Path | None, size: tuple[int, int], theme: str
) -> None:
    target = tmp_path / "run.html"
    with pytest.raises(SystemExit) as ended:
        main(["explain", str(saved / "flash"), "--html", str(target)])
    assert ended.value.code == 0
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=theme, offline=True)
    page = context.new_page()
    faults: list[str] = []
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("request", lambda request: faults.append(request.url) if not request.url.startswith("file:") else None)
    page.goto(target.as_uri())
    page.wait_for_selector("#timeline")
    whole = page.evaluate(INKED)
    assert whole > 0.02  # ops are drawn
    page.click("[data-zoom='0.5']")
    assert page.evaluate("view[1] - view[0]") == pytest.approx(page.evaluate("(whole[1] - whole[0]) / 2"))
    page.click("[data-zoom='all']")
    assert page.evaluate(INKED) == whole
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
    assert page.evaluate("document.querySelector('.picture svg').clientWidth") >= 640  # texts can be read: it scrolls
    assert page.evaluate(HOTTEST)  # the line with most of the time is in sight
    if shots:
        page.screenshot(path=str(shots / f"exported-{size[0]}-{theme}.png"), full_page=True)
    assert faults == []
    context.close()


def test_an_exported_run_has_the_programs_lines_of_its_collectives(browser: Any, saved: Path, tmp_path: Path) -> None:
    target = tmp_path / "run.html"
    with pytest.raises(SystemExit):
        main(["web", str(saved / "ccl"), "--export", str(target)])
    launches = json.loads((saved / "ccl" / "launches.json").read_text())
    place, _, text = launches[1]["called_at"].partition("  ")
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto(target.as_uri())
    cells = [cell.inner_text() for cell in page.locator("#calls tbody tr").nth(0).locator("td").all()]
    assert cells[:2] == [place.rpartition("/")[2], text]
    assert cells[2].startswith("launches ")
    context.close()
