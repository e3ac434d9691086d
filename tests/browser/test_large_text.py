"""Text of twice the size (the browser's font size, or its zoom) at 1280 x 800: nothing overlaps, nothing is cut off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.browser.conftest import CHROMIUM, FLAGS, WIDE, Opened, Served, opened

# Elements that stand side by side in a bar and meet, and text that is cut off where neither a scroll bar nor an
# ellipsis shows that there is more of it.
FAULTS = """(() => {
  const seen = e => { const r = e.getBoundingClientRect(), s = getComputedStyle(e);
    return r.width > 1 && r.height > 1 && s.visibility !== 'hidden' && s.clipPath === 'none' && e.checkVisibility(); };
  const name = e => `${e.tagName}.${e.className}#${e.id} "${e.textContent.slice(0, 40)}"`, found = [];
  const bars = '#top, #tools, #answer .line, .pane > .head, .pane > .foot, .switch, .pathrow';
  for (const bar of document.querySelectorAll(bars)) {
    const own = [...bar.children].filter(seen);
    for (const a of own) for (const b of own) {
      const p = a.getBoundingClientRect(), q = b.getBoundingClientRect();
      if (a !== b && p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 1 && q.top < p.bottom - 1)
        found.push(`${name(a)} meets ${name(b)}`);
    }
  }
  for (const e of document.querySelectorAll('body *:not(svg *, option, script, noscript, [hidden] *)')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim()) || !seen(e)) continue;
    const range = document.createRange();
    range.selectNodeContents(e);
    const r = range.getBoundingClientRect();
    for (let up = e; up !== document.body; up = up.parentElement) {
      const s = getComputedStyle(up), b = up.getBoundingClientRect();
      if (s.textOverflow === 'ellipsis' || up.tagName === 'SELECT') break;
      if (/auto|scroll/.test(s.overflowX + s.overflowY)) break;
      if (s.overflowX === 'visible') continue;
      if (r.left < b.left - 1 || r.right > b.right + 1 || r.top < b.top - 3 || r.bottom > b.bottom + 3)
        { found.push(`${name(e)} is cut off by ${name(up).slice(0, 60)}`); break; }
    }
  }
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) found.push(`the page is ${wide} px wide`);
  return found;
})()"""


@pytest.fixture(scope="module")
def large_text(browser: Any) -> Iterator[Any]:
    """A Chromium whose reader chose text of 32 px in place of 16."""
    setting = "--blink-settings=defaultFontSize=32"
    found = browser.browser_type.launch(executable_path=CHROMIUM, args=[*FLAGS, setting])
    yield found
    found.close()


def hashes(served: Served) -> dict[str, str]:
    a, b = served.ids["flash"], served.ids["flash-short"]
    return {
        "timeline": f"#/run?a={a}", "details": f"#/run?a={a}&sel=op:92", "machine": f"#/run?a={a}&pane=machine",
        "source": f"#/run?a={a}&pane=source", "explain": f"#/explain?a={a}", "diff": f"#/diff?a={a}&b={b}",
        "results": f"#/results?res={served.ids['z-evaluation']}",
    }  # fmt: skip


def test_nothing_overlaps_or_is_cut_off_with_text_of_twice_the_size(large_text: Any, served: Served) -> None:
    views = hashes(served)
    with opened(large_text, served.url, WIDE) as page:
        page.go(views["timeline"])
        assert page.ask("getComputedStyle(document.body).fontSize") == "26px"  # 13 px of text of 16
        for name, hash_ in views.items():
            page.follow(hash_)
            assert page.ask(FAULTS) == [], name
        page.follow(views["timeline"])
        # What is under the pointer is what is drawn there, twice as large.
        lane, t0, t1 = page.ask(
            "(() => { const r = kb.tl.rows.find(r => r.lane?.kind === 'R');"
            "const t = [...kb.tl.tiles.kept].find(([key, t]) => key.split('/')[2] == r.lane.i && t.start.length)[1];"
            "return [r.lane.i, t.begin + t.start[0], t.begin + t.start[0] + t.dur[0]]; })()"
        )
        click_lane(page, lane, (t0 + t1) / 2)
        assert page.ask("kb.tl.flows.t0") == pytest.approx(t0, abs=1e-3)


def click_lane(page: Opened, lane: int, t: float) -> None:
    page.ask(f"kb.tl.canvas.scrollIntoView(), kb.tl.scroll = kb.tl.rows.find(r => r.lane?.i === {lane}).y")
    page.change(t=t)
    x, y = page.ask(
        f"(() => {{ const b = kb.tl.canvas.getBoundingClientRect(), p = kb.place({t}, {lane});"
        "return [b.left + 2 * p.x, b.top + 2 * p.y]; })()"
    )
    page.page.mouse.click(x, y)
    page.settle()


def test_nothing_overlaps_or_is_cut_off_at_twice_the_zoom(browser: Any, served: Served) -> None:
    """A zoom of 200 % leaves 640 x 400 px of CSS."""
    with opened(browser, served.url, (WIDE[0] // 2, WIDE[1] // 2)) as page:
        page.go("#/run")
        for name, hash_ in hashes(served).items():
            page.follow(hash_)
            assert page.ask(FAULTS) == [], name
