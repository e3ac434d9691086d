"""One state: links, Back, keys, linked selection, and what is shown when there is nothing or something is wrong."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from tests.browser.conftest import NARROW, Opened, Served, opened, serve, stop


def state_of(page: Opened) -> dict[str, Any]:
    return page.ask("(({theme, loaded, matched, ...rest}) => rest)(kb.state)")


def test_a_link_opens_the_same_state_and_back_goes_back(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}&w=2900-3100&t=3000&sel=op:92&m=queue&open=sip0.cube0.pe3&q=exp")
    before = state_of(page)
    page.page.wait_for_timeout(200)
    page.page.reload()
    page.page.wait_for_selector("html[data-ready]")
    page.settle()
    assert state_of(page) | {"open": None} == before | {"open": None}
    assert set(page.ask("kb.state.open")) >= {"sip0.cube0.pe3"}
    line = f"line:{page.ask('kb.run.a.files[0].name')}:2"
    page.change(sel=line)
    page.page.click("#tab-explain")
    page.settle()
    page.page.go_back()
    page.settle()
    assert (page.ask("kb.state.view"), page.ask("kb.state.sel")) == ("run", line)
    page.page.go_back()
    page.settle()
    assert page.ask("kb.state.sel") == "op:92"


def test_what_is_selected_in_one_view_is_shown_in_all(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    op = page.ask("kb.tl.path.pieces.op.find((id, n) => id >= 0 && kb.tl.path.pieces.letter[n] === 'R')")
    page.change(sel=f"op:{op}")
    assert page.page.locator(".level .node.on").count() >= 1  # its PE and its memory
    assert page.page.locator(".level .way").count() == 2  # memory to router to PE
    assert page.page.locator("#pane-source .line.on").count() == 1
    line = page.ask("kb.run.a.files.length") and page.page.get_attribute("#pane-source .line.on", "data-line")
    page.page.click(f"#pane-source [data-line='{line}']")
    page.settle()
    assert page.ask("kb.tl.tiles.mark").startswith("line:")
    assert page.page.locator(".level .node.on").count() == 8  # PEs that ran the line
    page.page.locator("#answer .parts button[title^=Transfer]").click()  # its ops on the path, loads and stores
    page.settle()
    assert page.ask("kb.state.sel") == "class:transfer@launch:0"
    page.until("document.querySelector('#pane-details').textContent.includes('below are the whole ops')")
    assert "transfer on the critical path" in page.page.inner_text("#pane-details")
    assert page.page.locator("#pane-details tbody tr").count() == 2
    page.change(sel="link:sip0.cube0.hbm_ctrl.pe0>sip0.cube0.noc.r0c0")
    assert "256.0 GB/s" in page.page.inner_text("#pane-details")
    assert page.page.locator("#pane-source .line.used").count() >= 1  # lines whose bytes passed it


def test_a_link_to_a_source_line_shows_it_in_all_panes_and_back_clears_it(page: Opened, served: Served) -> None:
    flash = served.ids["flash"]
    page.go(f"#/run?a={flash}&open=")
    file = page.ask("kb.run.a.files[0].name").rpartition("/")[2]
    number = page.page.get_attribute("#pane-source .line.has", "data-line")
    page.follow(f"#/run?a={flash}&open=&sel=line:{file}:{number}")
    chosen = page.page.locator("#pane-source .line.on")
    assert (chosen.count(), chosen.get_attribute("data-line")) == (1, number)
    assert page.page.inner_text("#pane-details h3") == f"{file}:{number}"
    text = page.page.inner_text("#pane-details")
    assert "critical path" in text
    assert page.page.locator("#pane-details tbody tr").count() >= 1
    assert page.page.locator("#pane-details ol.ops li").count() >= 1
    marked = page.ask(
        "[...kb.tl.tiles.kept].filter(([key]) => key.endsWith(kb.state.sel)).flatMap(([, t]) => [...t.flags])"
    )
    assert any(flag & 2 for flag in marked)  # its slices; the others are drawn at 35 %
    assert any(not flag & 2 for flag in marked)
    assert page.ask("kb.tl.open.size") >= 1  # nothing of it was in view: the PE of its longest op opened
    page.page.go_back()
    page.settle()
    assert (page.ask("kb.state.sel"), chosen.count()) == (None, 0)
    page.page.go_forward()
    page.settle()
    assert (page.ask("kb.state.sel"), chosen.count()) == (f"line:{file}:{number}", 1)


def test_every_key_of_the_help_page_does_something(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}&sel=op:92&q=exp")
    press, state = page.page.keyboard.press, lambda key: page.ask(f"kb.state.{key}")

    def after(key: str) -> None:
        press(key)
        page.settle()

    before = page.ask("kb.tl.drawn.k")
    after("+")
    assert page.ask("kb.tl.drawn.k") <= before
    window = state("w")
    after("ArrowRight")
    assert state("w")[0] >= window[0]
    after("ArrowLeft")
    after("-")
    after("0")
    assert state("w") is None
    after("c")
    assert state("sel") == "op:84"  # released by
    after("e")
    assert state("sel") == "op:92"
    after("]")
    assert state("sel") != "op:92"
    after("[")
    assert state("sel") == "op:92"
    after("m")
    assert state("range")[1] - state("range")[0] == pytest.approx(8.0)
    after("z")
    assert state("w") is not None
    after("p")
    assert state("path") is False
    after("o")
    assert state("only") is True
    after("o")
    after("a")
    assert state("flows") is True
    after("a")
    after("w")
    assert state("waits") is True
    after("n")
    assert state("t") is not None
    after("t")
    assert page.page.locator("table.ops tbody tr").count() > 10
    after("t")
    after("u")
    assert state("root") == "sip0"
    after("2")
    assert page.ask("document.activeElement.id") == "pane-source"
    after("f")
    assert page.page.locator(".pane.maxed").count() == 1
    after("f")
    after("Escape")
    assert state("range") is None
    after("Escape")
    assert state("sel") is None
    after("/")
    assert page.ask("document.activeElement.type") == "search"
    page.page.keyboard.press("Escape")
    after("?")
    listed = page.page.inner_text("#help")
    assert all(word in listed for word in ("search", "zoom in", "cause", "effect", "critical path", "copy a link"))
    page.page.keyboard.press("Escape")


def test_pointer_zooms_pans_and_selects_a_range(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    box = page.page.locator("#pane-timeline .lanes canvas").bounding_box()
    x, y = box["x"] + 500, box["y"] + 70
    page.page.mouse.move(x, y)
    page.page.mouse.down()
    page.page.mouse.move(x + 200, y + 3, steps=4)
    page.page.mouse.up()
    page.settle()
    low, high = page.ask("kb.state.range")
    assert high > low
    assert "selected" in page.page.inner_text("#pane-details h3")
    page.page.keyboard.down("Control")
    page.page.mouse.wheel(0, -300)
    page.page.keyboard.up("Control")
    page.settle()
    scope = page.ask("kb.run.a.scopes.find(s => s.id === 'launch:0')")
    w = page.ask("kb.state.w")
    assert w[1] - w[0] < scope["t1"] - scope["t0"]
    bins = page.ask("Math.max(0, ...[...kb.tl.tiles.kept.values()].flatMap(t => [...t.busy]))")
    assert bins <= 255


def test_search_finds_ops_lines_and_nodes(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    page.page.keyboard.press("/")
    page.page.keyboard.type("hbm_ctrl.pe3")
    page.page.wait_for_selector("#hits .hit")
    page.page.click("#hits .hit")
    page.settle()
    assert page.ask("kb.state.sel") == "node:sip0.cube0.hbm_ctrl.pe3"
    assert page.page.locator(".level .node.on").count() == 1


def test_search_says_how_many_there_are_and_its_first_fifty_are_reached_by_keys(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    page.page.keyboard.press("/")
    page.page.keyboard.type("pe")  # not all fit on the screen
    page.page.wait_for_selector("#hits .hit")
    counts = page.ask(f"fetch('api/runs/{served.ids['flash']}/search?q=pe').then(r => r.json())")
    total = sum(found["count"] for found in counts.values() if isinstance(found, dict))
    assert page.page.inner_text("#hits .total").startswith(f"{total:,} found")
    assert f"first 50 of {counts['nodes']['count']:,}" in page.page.inner_text("#hits").lower()
    shown = sum(min(found["count"], 50) for found in counts.values() if isinstance(found, dict))
    assert page.page.locator("#hits .hit").count() == shown
    at = "[...document.querySelectorAll('#hits .hit')].indexOf(document.activeElement)"
    for key, place in (
        ("ArrowDown", 0),
        ("ArrowDown", 1),
        ("PageDown", 11),
        ("End", shown - 1),
        ("ArrowDown", shown - 1),
    ):
        page.page.keyboard.press(key)
        assert page.ask(at) == place
    box = page.ask(
        "(() => { const a = document.activeElement.getBoundingClientRect(), b = hits.getBoundingClientRect();"
        "return [a.top >= b.top, a.bottom <= b.bottom + 1, hits.scrollTop > 0]; })()"
    )
    assert box == [True, True, True]
    page.page.keyboard.press("Home")
    page.page.keyboard.press("ArrowUp")
    assert page.ask("document.activeElement.type") == "search"
    page.page.keyboard.press("Escape")


def test_the_machine_is_played_through(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}&w=2900-2930")
    page.page.click("#pane-machine .foot button")
    page.page.wait_for_timeout(400)
    page.page.click("#pane-machine .foot button")
    t = page.ask("kb.state.t")
    assert 2900 < t < 2930


def test_two_runs_stand_side_by_side_or_as_difference(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}&b={served.ids['flash-short']}&mode=side")
    assert page.page.locator("#pane-machine svg.level").count() == 2
    page.change(mode="diff")
    assert page.page.locator("#pane-machine svg.level").count() == 1
    assert "B − A" in page.page.inner_text("#pane-machine .legend")


def test_a_damaged_folder_says_so_and_the_others_work(page: Opened, served: Served) -> None:
    page.go("")
    options = page.page.eval_on_selector_all("#pickers option", "all => all.map(o => [o.textContent, o.disabled])")
    damaged = [text for text, disabled in options if disabled]
    assert damaged
    assert "ops.parquet has 4 bytes" in damaged[0]
    assert page.ask("kb.run.a.kind") == "run"


def test_a_link_to_a_run_that_is_not_here_says_so_and_shows_another(page: Opened) -> None:
    page.go("#/run?a=0123456789ab&sel=op:5&w=99990-99999")
    assert "0123456789ab, is not here" in page.page.inner_text("#banner")
    assert page.ask("[kb.state.sel, kb.state.w]") == [None, None]
    assert page.ask("kb.run.a.kind") == "run"


def test_nothing_given_shows_the_machine_and_what_to_do(browser: Any) -> None:
    server = serve(None)
    try:
        with opened(browser, server.url, NARROW) as page:
            page.go("")
            text = page.page.inner_text("#view-run")
            assert "kernbench run --bench qkv-gemm --save" in text
            assert page.page.locator("svg.level [data-id='sip0']").count() == 1
            page.page.locator("[data-id='sip0']").dblclick()
            page.settle()
            assert page.ask("kb.state.root") == "sip0"
            server.process.send_signal(signal.SIGINT)  # Ctrl-C
            assert server.process.wait(10) == 0
            page.page.evaluate("fetch('api/runs').catch(() => 0)")
            page.page.evaluate("kb.change({root: 'sip0.cube3'})")
            page.page.wait_for_selector("#banner:not([hidden])")
            assert "does not answer" in page.page.inner_text("#banner")
            page.errors.clear()  # the browser itself notes refused connections
    finally:
        stop(server)


def test_search_ranks_tensors_and_kernels_before_ops(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    page.page.keyboard.press("/")
    page.page.keyboard.type("k")
    page.page.wait_for_selector("#hits .hit")
    order = page.page.eval_on_selector_all("#hits h4", "all => all.map(x => x.dataset.group)")
    assert order == sorted(order, key=["tensors", "launches", "lines", "ops", "nodes"].index)
    assert order[0] == "tensors"
    assert "ops" in order


def test_lanes_are_pinned_and_hidden_and_the_link_keeps_it(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    names = "[...new Set(kb.tl.rows.filter(r => r.group).map(r => r.group.name))]"
    before = page.ask(names)
    page.page.click(".lanemenu summary")
    page.page.click("[aria-label='Pin PE5']")
    page.page.click("[aria-label='Hide PE2']")
    page.settle()
    kept = [name for name in before if name not in ("PE2", "PE5")]
    assert page.ask(names) == ["PE5", *kept]
    page.page.wait_for_timeout(150)
    page.go("#" + page.page.url.partition("#")[2])
    assert page.ask(names) == ["PE5", *kept]


def test_tab_reaches_the_view_in_one_step_and_source_lines_are_one_stop(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    page.page.keyboard.press("Tab")
    assert page.ask("document.activeElement.id") == "skip"
    page.page.keyboard.press("Enter")
    assert page.ask("[document.activeElement.id, kb.state.view]") == ["main", "run"]
    stops = "[...document.querySelectorAll('#pane-source .line.has')].filter(x => x.tabIndex === 0).length"
    assert page.ask(stops) == 1
    page.page.locator("#pane-source .line.has").first.focus()
    first = page.ask("document.activeElement.dataset.line")
    page.page.keyboard.press("ArrowDown")
    assert int(page.ask("document.activeElement.dataset.line")) > int(first)
    assert page.ask(stops) == 1


def test_times_have_two_decimals_as_the_command_prints_them(page: Opened, served: Served) -> None:
    page.go(f"#/explain?a={served.ids['flash']}")
    shown = page.page.inner_text("#answer .total")
    assert shown.split()[0].partition(".")[2].isdigit()
    assert len(shown.split()[0].partition(".")[2]) == 2


def test_machine_shows_an_instant_a_range_or_the_whole_launch(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    mode = page.page.locator("[aria-label='Time that the colours show']")
    assert mode.input_value() == "instant"
    mode.select_option("whole")
    page.settle()
    scope = page.ask("kb.run.a.scopes.find(s => s.id === kb.run.a.main)")
    assert page.ask("kb.state.range") == [scope["t0"], scope["t1"]]
    page.change(range=[scope["t0"], scope["t0"] + 100.0])
    assert mode.input_value() == "range"
    mode.select_option("instant")
    page.settle()
    assert page.ask("kb.state.range") is None


def test_what_is_not_work_is_hatched_in_every_bar(page: Opened, served: Served) -> None:
    page.go(f"#/explain?a={served.ids['flash']}")
    looks = page.page.eval_on_selector_all(
        "#answer .parts > *",
        "all => all.map(x => [x.title.split(':')[0], getComputedStyle(x).backgroundImage !== 'none'])",
    )
    work = {"GEMM", "Math", "Transfer", "Fetch, store", "Communication"}
    assert {name for name, hatched in looks if hatched} == {name for name, _ in looks} - work
    assert any(hatched for _, hatched in looks)
