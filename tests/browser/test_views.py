"""Every view on real runs: what it shows is what the run's files say, read with pyarrow and not with our reader."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from tests.browser.conftest import MIDDLE, NARROW, WIDE, Opened, Served, opened

KINDS = {"GEMM": "G", "MATH": "M", "DMA read": "R", "DMA write": "W", "fetch and store": "F", "communication": "C"}


def ops_of(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    table = pq.read_table(folder / "ops.parquet")
    names = ("id", "lane", "kind", "t_start", "t_end", "line", "nbytes", "queue_ns")
    return {name: np.array(table[name].to_pylist()) for name in names}


def busy_in(ops: dict[str, np.ndarray[Any, Any]], chosen: np.ndarray[Any, Any], t0: float, t1: float) -> float:
    inside = np.minimum(ops["t_end"], t1) - np.maximum(ops["t_start"], t0)
    return float(np.clip(inside, 0, None)[chosen].sum())


def test_the_timeline_draws_as_much_as_each_lane_was_busy(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['qkv']}")
    ops = ops_of(served.folder / "qkv")
    lanes = pq.read_table(served.folder / "qkv" / "lanes.parquet")["name"].to_pylist()
    scope = page.ask("kb.run.a.scopes.find(s => s.id === 'launch:0')")
    for t0, t1 in ((scope["t0"], scope["t1"]), (scope["t0"] + 300.0, scope["t0"] + 420.0)):
        page.change(w=[t0, t1])
        drawn = page.ask("kb.drawn()")
        width = 2.0 ** drawn["k"]
        assert len(drawn["lanes"]) >= 8
        for name, found in drawn["lanes"].items():
            if found["items"]:
                expected = busy_in(ops, ops["lane"] == lanes.index(name), t0, t1)
                # A bin is right to 1/255; the first and last bin reach over the window.
                assert found["busy"] == pytest.approx(expected, abs=2 * width + expected / 255), name


def test_the_slice_under_the_pointer_is_the_op_and_has_the_colour_of_its_kind(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}&path=0")
    ops = ops_of(served.folder / "flash")
    lane = page.ask("(() => { const r = kb.tl.rows.find(r => r.lane?.kind === 'R'); return {i: r.lane.i, y: r.y}; })()")
    row = int(np.flatnonzero(ops["lane"] == lane["i"])[2])
    middle = (ops["t_start"][row] + ops["t_end"][row]) / 2
    place = page.ask(
        f"(() => {{ const c = kb.tl.canvas.getBoundingClientRect(), p = kb.place({middle}, {lane['i']});"
        "return {x: c.left + p.x, y: c.top + p.y, px: p.x, py: p.y}; })()"
    )
    picked = page.page.evaluate("([x, y]) => kb.pick(x, y)", [place["px"], place["py"]])
    assert picked["op"]["id"] == ops["id"][row]
    pixel = page.page.evaluate(
        "([x, y]) => [...kb.tl.canvas.getContext('2d').getImageData(x * devicePixelRatio, (y - 6) * devicePixelRatio,"
        " 1, 1).data].slice(0, 3)", [place["px"] + 4, place["py"]]
    )  # fmt: skip
    assert pixel == [0x0A, 0x6A, 0x50]  # DMA read, light
    page.page.mouse.click(place["x"], place["y"])
    page.settle()
    assert page.ask("kb.state.sel") == f"op:{ops['id'][row]}"
    details = page.page.inner_text("#pane-details")
    assert f"op {ops['id'][row]}" in details
    assert f"{ops['t_end'][row] - ops['t_start'][row]:g} ns" in details


def test_the_table_of_a_range_is_what_the_log_says(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    scope = page.ask("kb.run.a.scopes.find(s => s.id === 'launch:0')")
    t0, t1 = scope["t0"] + 200.0, scope["t0"] + 500.0
    page.change(range=[t0, t1])
    ops = ops_of(served.folder / "flash")
    rows = page.page.eval_on_selector_all(
        "#pane-details tbody tr", "rows => rows.map(r => [...r.children].map(c => c.textContent))"
    )
    assert rows
    for name, count, busy, *_ in rows:
        mine = (ops["kind"] == KINDS[name]) & (ops["t_start"] < t1) & (ops["t_end"] > t0)
        assert int(count.replace(",", "")) == mine.sum()
        value, unit = busy.split()
        ns = float(value.replace(",", "")) * {"ns": 1, "µs": 1e3}[unit]
        assert ns == pytest.approx(busy_in(ops, mine, t0, t1), rel=0.006)  # three digits
    assert "adds up to 300 ns" in page.page.inner_text("#pane-details")


def test_the_heat_map_adds_up_to_the_bytes_of_each_link(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['qkv']}&scope=run&root=sip0.cube0")
    places = pq.read_table(served.folder / "qkv" / "places.parquet").to_pylist()
    shown = page.ask(
        "(() => { const h = kb.machine().heat, b = [0, h.header.bins - 1];"
        "return Object.fromEntries(h.header.rows.filter(r => r.kind === 'link').map(r =>"
        "[r.id, h.value(r.id, 'util', b) * r.gbs * h.header.bin_ns * h.header.bins])); })()"
    )
    compared = 0
    for place in places:
        name = f"{place['src']}>{place['dst']}".replace(".pe_dma", "")
        if place["kind"] == "link" and name in shown:
            assert shown[name] == pytest.approx(place["nbytes"], rel=0.15)  # bytes of 0 to 255 in each bin
            compared += 1
    assert compared >= 16  # each PE's port and each memory's


def test_a_line_has_its_share_of_the_path_and_shares_sum_to_all(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}&pane=source")
    shares = page.page.eval_on_selector_all(
        "#pane-source .share .num", "cells => cells.map(c => parseFloat(c.textContent))"
    )
    assert sum(shares) == pytest.approx(100.0, abs=0.05 * len(shares) + 0.05)
    sources = json.loads((served.folder / "flash" / "sources.json").read_text())
    lines = sources["lines"]
    page.page.click(f"#pane-source [data-line='{lines[1][1]}']")
    page.settle()
    name = f"{sources['files'][lines[1][0]]['name']}:{lines[1][1]}"
    assert page.ask("kb.state.sel") == f"line:{name}"
    ops = ops_of(served.folder / "flash")
    mine = ops["line"] == 1
    counted = page.page.eval_on_selector_all(
        "#pane-details tbody tr td:nth-child(2)", "c => c.map(x => +x.textContent)"
    )
    assert sum(counted) == mine.sum()


def test_source_and_details_have_the_programs_line_of_a_collective(page: Opened, served: Served) -> None:
    launches = json.loads((served.folder / "ccl" / "launches.json").read_text())
    place, _, text = launches[1]["called_at"].partition("  ")
    assert "all_reduce" in text
    page.go(f"#/run?a={served.ids['ccl']}&pane=source")
    rows = page.page.locator("#pane-source .call")
    numbers = [at for at, launch in enumerate(launches) if launch["called_at"] == launches[1]["called_at"]]
    shown = " ".join(rows.nth(0).inner_text().split())
    assert f"{place.rpartition('/')[2]} {text} {' '.join(map(str, numbers[:4]))}" in shown
    rows.nth(0).get_by_role("button", name="launch 1 alone").click()
    page.settle()
    assert page.ask("kb.state.scope") == "launch:1"
    assert [button.inner_text() for button in rows.get_by_role("button").all()] == ["1"]
    page.change(sel="launch:1")
    assert f"{place.rpartition('/')[2]} {text}" in page.page.inner_text("#pane-details")
    page.go(f"#/run?a={served.ids['flash']}&pane=source")
    assert page.page.locator("#pane-source .calls").is_hidden()


def test_explain_says_what_the_command_says(page: Opened, served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    from kernbench.report.explain.headline import headline
    from kernbench.report.runs.saved_run import open_run

    page.go(f"#/explain?a={served.ids['qkv']}")
    said = page.page.inner_text("#answer .say").replace("\n", " ")
    expected = headline(open_run(served.folder / "qkv"))
    assert " ".join(said.split()).split("Try:")[1] == expected.split("Try:")[1]
    for n, by in enumerate(("class", "lane", "link", "place", "line", "launch", "wait")):
        page.change(by=by)
        page.page.locator("#view-explain .switch button").nth(n).click()
        cells = page.page.eval_on_selector_all(
            "#view-explain table.bars tbody tr td:nth-child(4)", "c => c.map(x => parseFloat(x.textContent))"
        )
        assert sum(cells) == pytest.approx(100.0, abs=0.05 * len(cells) + 0.1), by


def test_a_what_if_that_was_measured_stands_beside_what_the_path_foresaw(page: Opened, served: Served) -> None:
    page.go(f"#/explain?a={served.ids['flash']}")
    rows = page.page.eval_on_selector_all(
        "#view-explain tr:has(button[title^=Compare])", "rows => rows.map(r => [...r.children].map(c => c.textContent))"
    )
    launch = json.loads((served.folder / "free" / "hbm" / "launches.json").read_text())[0]
    before = json.loads((served.folder / "flash" / "launches.json").read_text())[0]
    took, took_before = launch["end_ns"] - launch["start_ns"], before["end_ns"] - before["start_ns"]
    assert [row[0] for row in rows] == ["hbm"]
    assert rows[0][2] == f"{took:.2f} ns, −{100 * (1 - took / took_before):.1f} %"
    assert "8 of 8 PEs end last" in page.page.inner_text("#view-explain")
    page.page.click("button[title^=Compare]")
    page.settle()
    assert (page.ask("kb.state.view"), page.ask("kb.state.b")) == ("diff", served.ids["hbm"])


@pytest.mark.parametrize("scope", ["run", "launch:0"])
def test_diff_rows_sum_to_the_change(page: Opened, served: Served, scope: str) -> None:
    page.go(f"#/diff?a={served.ids['flash']}&b={served.ids['flash-short']}&scope={scope}")
    totals = []
    for name in ("flash", "flash-short"):
        total = json.loads((served.folder / name / "manifest.json").read_text())["total_ns"]
        launch = json.loads((served.folder / name / "launches.json").read_text())[0]
        totals.append(total if scope == "run" else launch["end_ns"] - launch["start_ns"])
    delta = totals[1] - totals[0]
    assert "faster" in page.page.inner_text("#view-diff h2 >> nth=0")
    for n in range(5):
        page.page.locator("#view-diff [role=group] button").nth(n).click()
        titles = page.page.eval_on_selector_all(
            "#view-diff table.diff tbody td:nth-child(4)", "c => c.map(x => x.title)"
        )
        found = [float(title.replace(",", "").removesuffix(" ns")) for title in titles]
        assert sum(found) == pytest.approx(delta, abs=1e-3)
    sides = page.ask("kb.stacked.sides")
    assert [side["letter"] for side in sides] == ["A", "B"]
    assert [side["part"]["t1"] - side["part"]["t0"] for side in sides] == pytest.approx(totals)


def test_timelines_of_two_runs_are_zoomed_together_and_are_a_table_too(page: Opened, served: Served) -> None:
    page.go(f"#/diff?a={served.ids['flash']}&b={served.ids['flash-short']}")
    page.page.keyboard.press("+")
    page.settle()
    page.until("kb.stacked.window[1] - kb.stacked.window[0] < 0.7 * kb.stacked.sides[0].t1")
    from_, to = page.ask("kb.state.dw")
    page.until(
        f"kb.stacked.sides.every(s => Math.abs(s.part.t0 - s.t0 - {from_}) < 1e-6 && s.part.t1 - s.t0 <= {to} + 1e-6)"
    )
    assert f"dw={from_:.3f}".rstrip("0").rstrip(".") in page.ask(
        "new Promise(r => setTimeout(() => r(location.hash), 200))"
    )
    page.page.keyboard.press("0")
    page.page.keyboard.press("t")
    page.settle()
    rows = page.page.eval_on_selector_all(
        "#view-diff .card:nth-child(2) tbody tr", "rows => rows.map(r => [...r.children].map(c => c.textContent))"
    )
    for name, *cells in rows:
        for n, folder in enumerate(("flash", "flash-short")):
            ops = ops_of(served.folder / folder)
            kind = {"fetch, store": "F"}.get(name) or KINDS[name]
            assert int(cells[2 * n].replace(",", "")) == (ops["kind"] == kind).sum()
    assert len(rows) == 4  # GEMM, MATH, DMA read and write
    page.page.keyboard.press("t")


def test_the_machine_as_a_table_has_the_longest_queue_first(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['qkv']}&scope=run&root=sip0&r=0-2000")
    page.page.focus("#pane-machine")
    page.page.keyboard.press("t")
    page.settle()
    rows = page.page.eval_on_selector_all(
        "#pane-machine table tbody tr", "rows => rows.map(r => [...r.children].map(c => c.textContent))"
    )
    queues = [float(row[2]) for row in rows]
    assert queues == sorted(queues, reverse=True)
    assert queues[0] > 0
    shown = page.ask("kb.machine().heat.longest(kb.machine().heat.bins(0, [0, 2000]), 1)[0]")
    assert queues[0] == pytest.approx(shown["queue"], rel=0.05)
    page.page.locator("#pane-machine th button").nth(3).click()
    used = page.page.eval_on_selector_all(
        "#pane-machine tbody td:nth-child(4)", "c => c.map(x => parseFloat(x.textContent))"
    )
    assert used == sorted(used)
    page.page.locator("#pane-machine tbody button").first.click()
    assert page.ask("kb.state.sel").startswith(("link:", "node:"))
    page.page.keyboard.press("t")
    assert page.page.locator("#pane-machine table").is_hidden()


def test_results_sort_filter_and_plot_the_rows_of_the_sweep(page: Opened, served: Served) -> None:
    page.go("#/results")
    rows = json.loads((served.folder / "sweep" / "results.json").read_text())["rows"]
    assert page.page.locator("#view-results circle.dot").count() == len([row for row in rows if row["ok"]]) == 3
    page.page.fill("#view-results .filter", "m >= 64 and total_ns > 0")
    page.page.press("#view-results .filter", "Enter")
    page.page.locator("#view-results .filter").blur()
    assert page.page.locator("#view-results table.results tbody tr").count() == 2
    page.page.fill("#view-results .filter", "total_ns is 5")
    page.page.locator("#view-results .filter").blur()
    assert "no comparison" in page.page.inner_text("#view-results [role=alert]")
    page.page.fill("#view-results .filter", "")
    page.page.locator("#view-results .filter").blur()
    page.page.locator("#view-results circle.dot").nth(1).click(force=True)
    assert "kernbench run --bench gemm-single-pe" in page.page.inner_text("#view-results .chosen")


def test_points_that_do_other_work_have_plots_of_their_own_and_the_base_machine_its_mark(
    page: Opened, served: Served
) -> None:
    page.go(f"#/results?res={served.ids['z-evaluation']}")
    assert page.page.locator("#view-results .plots figcaption").all_inner_texts() == ["phase prefill", "phase decode"]
    assert page.page.locator("#view-results .plots svg").count() == 2
    assert page.page.locator("#view-results .dot.base").count() == page.page.locator(".basemark").count() == 2
    assert page.page.locator("table.results td .badge").all_inner_texts() == ["base", "base"]
    page.page.select_option("[aria-label='A plot for each']", "-")
    page.settle()
    assert (page.page.locator("#view-results .plot svg").count(), page.page.locator(".basemark").count()) == (1, 2)
    assert page.ask("kb.state.panels") == "-"
    # Prefill and decode differ in colour, and each has a front of its own: none leads from one to the other.
    assert (
        page.page.locator("#view-results .dot.cat0").count() > 0 < page.page.locator("#view-results .dot.cat1").count()
    )
    assert page.page.locator("#view-results .front").count() == 2


def test_an_evaluation_opens_on_its_own_figures(page: Opened, served: Served) -> None:
    page.go(f"#/results?res={served.ids['z-evaluation']}")
    first = page.page.locator("#view-results .card").first
    assert "How many UCIe connections?" in first.inner_text()
    page.until("document.querySelector('figure.own img').naturalWidth > 100")


def test_lists_of_machine_name_sip_and_cube(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    assert page.page.locator(".queues .row").first.inner_text().startswith("S0 C0 ")


def test_two_nodes_give_the_route_between_them(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}&root=sip0.cube0")
    page.page.locator("[data-id='sip0.cube0.pe0']").click()
    page.page.locator("[data-id='sip0.cube0.hbm_ctrl.pe7']").click()
    page.settle()
    text = page.page.inner_text("#pane-details")
    assert page.ask("kb.state.sel") == "route:sip0.cube0.pe0>sip0.cube0.hbm_ctrl.pe7"
    assert "24.2 ns" in text  # 11 routers of 2 ns and 22 mm of 0.1 ns
    assert "12 links, 22.00 mm" in text
    assert page.page.locator(".level .way").count() == 12


def test_a_chosen_launch_shows_its_messages_as_flows_and_as_routes(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['ccl']}&open=")
    box, launches = page.ask("(() => { const b = kb.tl.canvas.getBoundingClientRect(); return [b.x, b.y]; })()"), 18
    assert page.ask("kb.tl.launchRows") == 2  # one for each rank: they overlap
    assert page.ask("kb.tl.messages || null") is None
    page.page.mouse.click(box[0] + 600, box[1] + launches + 14 + 7)  # the second row
    page.settle()
    page.until("kb.tl.messages")
    assert (page.ask("kb.state.sel"), page.ask("kb.state.scope")) == ("launch:1", "launch:1")
    table = pq.read_table(served.folder / "ccl" / "ops.parquet").to_pylist()
    sends = {op["id"]: op for op in table if op["name"] == "ipcq_send"}
    pairs = [(sends[dep], op) for op in table if op["name"] == "ipcq_recv" for dep in op["deps"]]
    mine = [pair for pair in pairs if 1 in (pair[0]["launch"], pair[1]["launch"])]
    shown = page.ask("kb.tl.messages.bundles")
    assert sorted((one["from"], one["to"]) for one in shown) == sorted((a["lane"], b["lane"]) for a, b in mine)
    text = page.page.inner_text("#pane-details")
    assert f"{len(mine)}, {sum(a['nbytes'] for a, _ in mine) / 1024:.0f} KiB total" in text
    page.change(root="tray")
    page.until("document.querySelectorAll('.level .way').length >= 2")  # from SIP to SIP by the switch
    page.page.keyboard.press("Escape")
    page.page.keyboard.press("a")  # all of them
    page.settle()
    page.until("kb.tl.messages && kb.tl.messages.count")
    assert page.ask("kb.tl.messages.count") == len(pairs)
    page.page.keyboard.press("a")
    page.until("!kb.tl.messages")


@pytest.mark.parametrize(("size", "theme"), [(WIDE, "dark"), (MIDDLE, "light"), (NARROW, "dark")])
def test_every_view_fits(browser: Any, served: Served, shots: Path | None, size: tuple[int, int], theme: str) -> None:
    """Nothing is wider than the page, and each view has something in it. Screenshots are for looking at."""
    a, b = served.ids["flash"], served.ids["flash-short"]
    places = {
        "timeline": f"#/run?a={a}&sel=op:92", "machine": f"#/run?a={a}&pane=machine",
        "source": f"#/run?a={a}&pane=source", "explain": f"#/explain?a={a}",
        "diff": f"#/diff?a={a}&b={b}", "results": "#/results", "collective": f"#/run?a={served.ids['ccl']}",
    }  # fmt: skip
    with opened(browser, served.url, size, theme) as page:
        page.go(places["timeline"])
        for name, hash_ in places.items():
            page.follow(hash_)
            assert page.ask("document.documentElement.scrollWidth") <= size[0], name
            view = "run" if "/run" in hash_ else name
            assert len(page.page.inner_text(f"#view-{view}")) > 40, name
            if shots:
                page.page.screenshot(path=shots / f"{name}-{size[0]}-{theme}.png")


def test_tensors_say_where_they_are_who_reads_them_and_how_full_memories_are(page: Opened, served: Served) -> None:
    from kernbench.report.explain.tensor_use import tensor_uses
    from kernbench.report.runs.saved_run import open_run

    page.go(f"#/tensors?a={served.ids['flash']}")
    uses = {use.name: use for use in tensor_uses(open_run(served.folder / "flash"), 0)}
    rows = page.page.eval_on_selector_all(
        "#view-tensors table tbody tr", "rows => rows.map(r => [...r.children].map(c => c.textContent))"
    )
    assert {row[0] for row in rows} == set(uses) == {"q", "k", "v", "out"}
    for row in rows:
        use = uses[row[0]]
        assert f"{len(use.memories)} slice" in row[1]
        assert row[6].strip() == f"{100 * use.home_bytes / use.moved:.1f} %"
    assert [row[8] for row in rows] == sorted((row[8] for row in rows), key=_size, reverse=True)
    labels = page.page.eval_on_selector_all("#view-tensors .strip svg", "all => all.map(x => x.ariaLabel)")
    assert sum(label.startswith("tcm of sip0.cube0.pe") for label in labels) == 8
    assert sum(label.startswith("hbm of sip0.cube0") for label in labels) == 1
    assert "% of the roof" in page.page.inner_text("#view-tensors .roofline")
    page.page.click("#view-tensors tbody button:text-is('k')")
    page.settle()
    assert (page.ask("kb.state.view"), page.ask("kb.state.sel")) == ("run", "q:k")


def _size(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1, "KiB": 2**10, "MiB": 2**20}[unit]


def test_nodes_and_points_are_one_stop_of_tab_each_with_arrows_among_them(page: Opened, served: Served) -> None:
    page.go(f"#/run?a={served.ids['flash']}")
    stops = "[...document.querySelectorAll('#pane-machine .node')].filter(one => one.tabIndex === 0).length"
    assert (page.ask("document.querySelectorAll('#pane-machine .node').length") > 20, page.ask(stops)) == (True, 1)
    page.ask("document.querySelector('#pane-machine .node[tabindex=\"0\"]').focus()")
    first = page.ask("document.activeElement.dataset.id")
    page.page.keyboard.press("ArrowRight")
    second = page.ask("document.activeElement.dataset.id")
    assert second not in (first, None)
    assert page.ask(stops) == 1
    page.page.keyboard.press("End")
    page.page.keyboard.press("Home")
    assert page.ask("document.activeElement.dataset.id") == first
    lines = page.ask(
        "[...document.querySelectorAll('#pane-source .line')]"
        ".map(one => [one.matches('.has, .foot'), one.querySelector('.share') !== null])"
    )
    assert {tuple(one) for one in lines} == {(True, True), (False, False)}  # a line without ops has the whole width
    page.follow("#/results")
    dots = (
        "[...document.querySelectorAll('#view-results .plot svg')]"
        ".map(plot => [...plot.querySelectorAll('.dot')].filter(one => one.tabIndex === 0).length)"
    )
    assert set(page.ask(dots)) == {1}


def test_every_pane_says_that_it_loads(page: Opened, served: Served) -> None:
    """What the server has not answered yet is held here until all have said so; a new document has nothing loaded."""
    held: list[Any] | None = []
    a_run = re.compile(r"/api/runs/[^/]+/\w+")
    page.page.route(a_run, lambda route: route.continue_() if held is None else held.append(route))
    page.page.goto("about:blank")
    page.page.goto(f"{page.url}#/run?a={served.ids['flash']}&pane=source")
    for place, what in (("#answer", "verdict"), ("#pane-machine", "machine"), ("#pane-source", "source")):
        page.page.wait_for_selector(f"{place} .loading >> text=Loading the {what} ...")
    late, held = held, None
    for route in late or ():
        route.continue_()
    page.settle()
    page.until("[...document.querySelectorAll('.loading')].every(e => e.offsetParent === null)")
    page.page.unroute(a_run)
