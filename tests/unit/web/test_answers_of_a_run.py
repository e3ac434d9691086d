"""Tiles, group rows, heat map, path and totals of a run whose every time can be worked out by hand.

A round of the generated run takes 40 ns: load 20 (8 transfer, 4 latency, 8 queue), product 8, math 6, store 4, issue 2.
PE p starts at p ns.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("starlette")

from click.testing import CliRunner
from tests.browser.generated_run import write_generated_run

from kernbench.cli.main import kernbench
from kernbench.common.errors import UsageError
from kernbench.report.runs.saved_run import open_run
from kernbench.topology import load_topology
from kernbench.web.flows import flows, message_totals, messages
from kernbench.web.heat import heat, totals_of_link
from kernbench.web.machine_map import MachineMap
from kernbench.web.op_view import line_index, op_at, op_details, selected_rows, totals
from kernbench.web.path_view import answer, flags_of, line_shares, path, path_sums
from kernbench.web.results_view import ResultsView
from kernbench.web.run_view import LETTERS, RunView
from kernbench.web.source_view import search
from kernbench.web.tiles import BINS, ON_PATH, group_rows, tiles

ROUNDS = 50


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    folder = tmp_path_factory.mktemp("run") / "generated"
    write_generated_run(folder, pes=8, rounds=ROUNDS)
    return RunView(open_run(folder))


def busy_in_tile(arrays: dict[str, np.ndarray], k: int) -> float:
    """What a tile of one lane adds up to."""
    width = 2.0**k
    begin = np.maximum(arrays["start"], 0.0)
    end = np.minimum(arrays["start"] + arrays["dur"], BINS * width)
    return float((end - begin).sum() + (arrays["busy"] / 255.0 * width).sum())


@pytest.mark.parametrize("k", [-2, 0, 1, 3, 5])
def test_tiles_of_any_width_add_up_to_the_lane(view: RunView, k: int) -> None:
    flags = np.zeros(len(view.run.ops), np.uint8)
    count = int(np.ceil(view.t_end / (BINS * 2.0**k)))
    busy = 0.0
    for number in range(count):
        header, arrays = tiles(view, k, [number], [0], flags)
        assert len(arrays["start"]) <= 343
        assert header["counts"] == [[len(arrays["start"]), len(arrays["index"])]]
        busy += busy_in_tile(arrays, k)
    assert busy == pytest.approx(ROUNDS * 20.0, rel=1 / 255)  # loads of PE 0


def test_slices_are_sent_as_themselves_from_three_bins_on(view: RunView) -> None:
    flags = np.zeros(len(view.run.ops), np.uint8)
    _, whole = tiles(view, 2, [0], [0], flags)  # bins of 4 ns: loads of 20 ns are slices
    assert whole["start"].tolist() == [40.0 * n for n in range(ROUNDS)]
    assert set(whole["dur"].tolist()) == {20.0}
    assert set(whole["queue"].tolist()) == {102}  # 8 of 20 ns
    assert set(whole["latency"].tolist()) == {51}  # 4 of 20 ns
    assert len(whole["index"]) == 0
    _, binned = tiles(view, 3, [0], [0], flags)  # bins of 8 ns: 20 ns are less than three
    assert len(binned["start"]) == 0
    assert (binned["index"][:4].tolist(), binned["busy"][:4].tolist()) == ([0, 1, 2, 5], [255, 255, 128, 255])
    assert {LETTERS[kind] for kind in binned["bkind"]} == {"R"}


def test_bins_are_never_more_than_full(view: RunView) -> None:
    flags = np.zeros(len(view.run.ops), np.uint8)
    _, arrays = tiles(view, 4, [0], list(range(32)), flags)
    assert arrays["busy"].max() <= 255


def test_a_group_is_the_mean_of_its_lanes_by_kind(view: RunView) -> None:
    loads = [lane.index for lane in view.run.lanes if lane.kind == "R"]
    _, arrays = group_rows(view, [loads], 40.0, 120.0, 2)
    # PE p loads from 40 + p to 60 + p, so 20 of the 40 ns of each bin.
    assert arrays["busy"][0, LETTERS.index("R")].tolist() == [128, 128]


def test_a_lane_is_busy_for_what_its_slices_have_of_a_window(view: RunView) -> None:
    assert view.busy_in(0.0, view.t_end)[:4] == [ROUNDS * 20.0, ROUNDS * 8.0, ROUNDS * 6.0, ROUNDS * 4.0]
    assert view.busy_in(10.0, 24.0)[:4] == [10.0, 4.0, 0.0, 0.0]


def test_the_path_adds_up_to_the_scope_and_to_any_window(view: RunView) -> None:
    whole: Any = path(view, "launch:0", 0.0, view.t_end, 1000)
    assert sum(part["ns"] for part in whole["sums"]) == view.t_end
    pieces = whole["pieces"]
    assert pieces["t0"][1:] == pieces["t1"][:-1]
    for t0, t1 in np.random.default_rng(0).uniform(0, view.t_end, (20, 2)):
        low, high = sorted((t0, t1))
        sums: Any = path_sums(view, "launch:0", low, high)
        assert sum(part["ns"] for part in sums) == pytest.approx(high - low, abs=1e-9)
        shares: Any = line_shares(view, "launch:0", low, high)
        assert sum(share["ns"] for share in shares.values()) == pytest.approx(high - low, abs=1e-9)


def test_the_answer_names_the_lane_of_a_pe_that_the_path_is_on_longest(view: RunView) -> None:
    number = answer(view, "launch:0")["lane"]
    lane = view.run.lanes[number]
    assert (lane.pe, lane.kind) == (7, "R")  # the last PE to start; loads are 20 of its 40 ns
    assert number == int(max(path(view, "launch:0", 0.0, view.t_end, 100)["lane"].items(), key=lambda one: one[1])[0])


def test_short_pieces_of_a_long_path_fill_their_pixel_columns_without_a_gap(
    view: RunView, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernbench.web.path_view.MOST_SEGMENTS", 10)
    found = path(view, "launch:0", 100.0, 900.0, 50)  # 16 ns a column; no piece takes two
    assert found["pieces"]["t0"] == []
    assert np.sum(found["columns"], axis=0) == pytest.approx(np.ones(50), abs=0.005)  # rounded, by class


def test_ops_on_the_path_are_marked(view: RunView) -> None:
    flags = flags_of(view, "launch:0")
    on_path = view.run.ops.lane[flags == ON_PATH]
    assert set(on_path.tolist()) == {28, 29, 30, 31}  # the four lanes of PE 7, which ends last


def test_totals_of_a_window_are_of_that_window(view: RunView) -> None:
    whole: Any = totals(view, 40.0, 80.0, None)
    rows = {row["kind"]: row for row in whole["engines"]}
    # PE p loads from 40 + p to 60 + p: all 8 loads, whole; the loads before end at 20 + p.
    assert (rows["R"]["ops"], rows["R"]["busy_ns"], rows["R"]["nbytes"]) == (8, 160.0, 8 * 2048)
    assert (rows["R"]["mean_ns"], rows["R"]["min_ns"], rows["R"]["max_ns"]) == (20.0, 20.0, 20.0)
    # Stores: 34 + p to 38 + p and 74 + p to 78 + p; those of PE 3 to 7 reach, from before or whole, into the window.
    before = sum(38 + p - max(34 + p, 40) for p in range(8) if 38 + p > 40)
    after = sum(min(78 + p, 80) - (74 + p) for p in range(8) if 74 + p < 80)
    assert rows["W"]["busy_ns"] == before + after


def test_details_of_an_op_say_what_let_it_start_and_what_it_let_start(view: RunView) -> None:
    found: Any = op_details(view, 33)  # round 1, PE 0, product
    assert (found["t0"], found["t1"], found["release"]) == (60.0, 68.0, "data")
    assert found["released_by"]["id"] == 32
    assert [one["id"] for one in found["released"]] == [34]
    load: Any = op_details(view, 32)
    assert load["split"] == {"transfer": 8.0, "latency": 4.0, "queue": 8.0}
    assert load["queued_at"][0]["ns"] == 8.0
    assert (load["before"], load["after"]) == (0, 64)


def test_a_selection_names_its_engines_lines_and_where_it_waited(view: RunView) -> None:
    found: Any = totals(view, 0.0, view.t_end, "kind:R")
    assert found["lines"] == [0]
    assert found["components"] == [f"sip0.cube0.pe{p}.pe_dma" for p in range(8)]
    assert found["held_up_at"][0] == "sip0.cube0.hbm_ctrl.pe0#0"


def test_the_op_at_a_time_is_the_one_there_or_the_nearest(view: RunView) -> None:
    assert op_at(view, 0, 50.0)["id"] == 32
    assert op_at(view, 0, 22.0)["id"] == 0
    assert op_at(view, 0, 39.0)["id"] == 32


def test_selections_by_line_lane_kind_node_and_words_agree(view: RunView) -> None:
    loads = selected_rows(view, "kind:R")
    assert loads.sum() == 8 * ROUNDS
    assert (selected_rows(view, f"line:{view.run.lines[0].name}") == loads).all()
    assert (selected_rows(view, "q:dma_read") == loads).all()
    assert (selected_rows(view, "q:x") == (loads | selected_rows(view, "kind:M"))).all()  # tensor x, and exp
    assert selected_rows(view, "node:sip0.cube0.pe3").sum() == 4 * ROUNDS
    found: Any = search(view, "exp")
    assert found["ops"]["count"] == 8 * ROUNDS


def test_a_line_is_named_by_its_file_or_the_end_of_its_path_and_a_wrong_name_by_what_there_is(view: RunView) -> None:
    line = view.run.lines[0]
    assert line_index(view, line.name) == 0
    assert line_index(view, line.name.rpartition("/")[2]) == 0
    silent = next(n for n in range(1, 99) if all(one.number != n for one in view.run.lines))
    assert not selected_rows(view, f"line:{line.file.name}:{silent}").any()
    for wrong in ("nofile.py:1", f"{line.file.name}:x", "3", f"{line.file.name}:100000"):
        with pytest.raises(UsageError, match=r"no (source )?line") as caught:
            selected_rows(view, f"line:{wrong}")
        assert "lines 1 to" in str(caught.value.hint) or line.file.name in str(caught.value.hint)


def test_what_a_selection_adds_up_to_is_that_of_the_window(view: RunView) -> None:
    rows = np.flatnonzero(selected_rows(view, "kind:R"))
    t0, t1 = float(view.run.ops.t_start[rows].min()), float(view.run.ops.t_end[rows].min())
    found = totals(view, t0, t1, "kind:R")
    begun = [row for row in rows if view.run.ops.t_start[row] < t1]  # none has ended before t0
    assert found["ops"] == len(begun) < len(rows)
    assert all(one["t0"] < t1 for one in found["slowest"])


def test_heat_is_bytes_over_bandwidth_and_queue_is_flits_waiting(view: RunView) -> None:
    header: Any
    header, arrays = heat(view, "sip0.cube0", 0.0, view.t_end, 512)
    rows = [row["id"] for row in header["rows"]]
    at = rows.index("sip0.cube0.hbm_ctrl.pe0#0")
    assert set(arrays["util"][at].tolist()) == {128}  # half
    scale = header["scale"]["queue"]
    assert arrays["queue"][at][0] / 255 * scale == pytest.approx(8.0 / view.run.activity.bin_ns, rel=0.01)
    assert header["pes"] == [f"sip0.cube0.pe{p}" for p in range(8)]
    exact = totals_of_link(view, "sip0.cube0.hbm_ctrl.pe0#0", 0.0, view.t_end)
    assert exact["util"] == 0.5


@pytest.mark.parametrize("root", ["tray", "sip0"])
def test_the_heat_of_a_block_is_that_of_its_links_summed_one_by_one(view: RunView, root: str) -> None:
    header: Any
    header, arrays = heat(view, root, 0.0, view.t_end, 16)
    activity, bins, width = view.run.activity, header["bins"], header["bin_ns"]
    merged = round(width / activity.bin_ns)
    at = next(n for n, row in enumerate(header["rows"]) if row["kind"] == "block")
    name, gbs = header["rows"][at]["id"], header["rows"][at]["gbs"]
    inside = [
        p for p in view.run.places if p.src.startswith(f"{name}.") and (not p.dst or p.dst.startswith(f"{name}."))
    ]
    assert len(inside) == header["rows"][at]["count"] > 8
    sums = {metric: np.zeros((len(inside), bins)) for metric in ("nbytes", "contended_ns")}
    for metric, found in sums.items():
        for n, place in enumerate(inside):
            padded = np.zeros(bins * merged)
            padded[: activity.bins] = activity.of(place.index, metric)
            found[n] = padded.reshape(bins, merged).sum(axis=1)
    single = np.array([[place.gbs] for place in inside])
    expected = {
        "util": sums["nbytes"].sum(axis=0) / (gbs * width),
        "queue": sums["contended_ns"].sum(axis=0) / width,
        "peak": (sums["nbytes"] / (single * width)).max(axis=0),
    }
    for metric, values in expected.items():
        assert arrays[metric][at] / 255 * header["scale"][metric] == pytest.approx(
            values, abs=header["scale"][metric] / 254
        )
        assert values.max() > 0


# ---- the machine


def test_every_level_draws_each_link_between_its_boxes_once() -> None:
    graph = load_topology()
    machine = MachineMap(graph)
    cube = machine.links("sip1.cube5")
    members = [edge for link in cube for edge in link.members]
    assert len(members) == len(set(members))
    inside = [
        edge for edge in graph.edges
        if edge.bw_gbs is not None and edge.kind not in ("pe_internal", "ucie_mesh", "io_to_cube", "cube_to_io")
        and edge.src.startswith("sip1.cube5.") and edge.dst.startswith("sip1.cube5.")
    ]  # fmt: skip
    assert {edge for edge in members if edge.bw_gbs is not None} >= set(inside)
    assert {link.id for link in machine.links("tray")} == {
        "host>fabric.switch0", "fabric.switch0>host", "fabric.switch0>sip0", "sip0>fabric.switch0",
        "fabric.switch0>sip1", "sip1>fabric.switch0",
    }  # fmt: skip


def test_channel_routers_are_one_box_of_a_cube_and_a_box_each_of_a_pe() -> None:
    machine = MachineMap(load_topology(None, {"cube.memory_map.hbm_mapping_mode": "one_to_one"}))
    links = {link.id: len(link.members) for link in machine.links("sip1.cube5")}
    assert links["sip1.cube5.pe3.ch_r>sip1.cube5.hbm_ctrl.pe3"] == links["sip1.cube5.noc.r1c5>sip1.cube5.pe3.ch_r"] == 8
    inside = {link.id for link in machine.links("sip1.cube5.pe3")}
    assert {f"sip1.cube5.pe3.ch_r{n}>sip1.cube5.hbm_ctrl.pe3" for n in range(8)} < inside
    found: Any = machine.route("sip0.cube0.pe0", "sip0.cube0.hbm_ctrl.pe0")
    assert found["narrowest"]["gbs"] == 256.0


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_route_adds_up_nodes_and_wires() -> None:
    machine = MachineMap(load_topology())
    found: Any = machine.route("sip0.cube0.pe0", "sip0.cube0.hbm_ctrl.pe0")
    # PE 0, its router (2 ns), its memory; no distance between them.
    assert [node["id"] for node in found["nodes"]] == [
        "sip0.cube0.pe0.pe_dma", "sip0.cube0.noc.r0c0", "sip0.cube0.hbm_ctrl.pe0",
    ]  # fmt: skip
    assert (found["nodes_ns"], found["ns"]) == (2.0, 2.0 + found["wire_ns"])
    far: Any = machine.route("sip0.cube0", "sip1.cube3")
    assert far["narrowest"]["gbs"] == 128.0


# ---- messages


REDUCE = """
from kernbench.benches.registry import bench
from kernbench.policy.placement.dp import DPPolicy


def worker(rank, torch):
    x = torch.full((1024,), rank + 1, dtype="f32", dp=DPPolicy(cube="row_wise", pe="row_wise"))
    torch.distributed.all_reduce(x)


@bench(name="reduce", description="for a test")
def run(torch):
    torch.distributed.init_process_group("ahbm")
    torch.multiprocessing.spawn(worker, args=(torch,), nprocs=2)
"""


@pytest.fixture(scope="module")
def collective(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    """An all-reduce by the eight PEs of a cube on each of two SIPs."""
    folder = tmp_path_factory.mktemp("run") / "collective"
    bench = folder.with_name("reduce.py")
    bench.write_text(REDUCE)
    args = ["run", "--bench", str(bench), "--device", "whole"]
    args += ["--set", "sip.cube_mesh.w=1", "--set", "sip.cube_mesh.h=1"]
    done = CliRunner().invoke(kernbench, [*args, "--save", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    return RunView(open_run(folder))


def test_a_class_of_the_path_is_the_ops_that_have_a_piece_of_it(view: RunView) -> None:
    queue = selected_rows(view, "class:queue@launch:0")
    assert {view.run.ops.kind[int(row)] for row in np.flatnonzero(queue)} == {"R"}
    on_path = flags_of(view, "launch:0") == ON_PATH
    assert queue.sum() == ROUNDS == (on_path & view.run.ops.kind.are("R")).sum()
    assert not selected_rows(view, "class:credit@launch:0").any()
    with pytest.raises(UsageError, match="no class 'queues'"):
        selected_rows(view, "class:queues@launch:0")


def test_a_selection_that_does_not_exist_is_refused_with_all_that_do(view: RunView) -> None:
    with pytest.raises(UsageError, match="no selection 'colour:red'") as caught:
        selected_rows(view, "colour:red")
    for what in ("op:", "line:", "lane:", "launch:", "kind:", "class:", "node:", "link:", "q:"):
        assert what in str(caught.value.hint)


def test_every_receive_has_the_send_of_its_message(collective: RunView) -> None:
    found, ops = messages(collective), collective.run.ops
    assert len(found) == (ops.name.codes == ops.name.words.index("ipcq_recv")).sum() > 0
    for sent, received in zip(found.sent[:40], found.received[:40], strict=True):
        assert (ops.name[int(sent)], ops.name[int(received)]) == ("ipcq_send", "ipcq_recv")
        there = collective.run.lanes[int(ops.lane[received])].component
        assert ops.params(int(sent))["peer"] == there.rpartition(".")[0]
    assert (found.arrived >= found.left).all()


def test_messages_of_a_collective_are_few_bundles_and_fall_apart_in_a_short_window(
    collective: RunView, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = messages(collective)
    cubes = frozenset(("sip0.cube0", "sip1.cube0"))
    t0, t1 = collective.scope("kernels")
    monkeypatch.setattr("kernbench.web.flows.WANTED_BUNDLES", 6)  # of sixteen
    whole = flows(collective, t0, t1, 1000, None, cubes)
    assert whole["count"] == len(every) == sum(one["count"] for one in whole["bundles"])
    assert 2 <= len(whole["bundles"]) <= 6 < len(every) == 16
    assert sum(one["nbytes"] for one in whole["bundles"]) == collective.run.ops.nbytes[every.sent].sum()
    left, arrived = float(every.left.min()), float(every.arrived.min())
    near = flows(collective, left, arrived, 100_000 // 16, None, frozenset())
    assert {one["count"] for one in near["bundles"]} == {1}
    first = min(near["bundles"], key=lambda one: one["t0"])
    assert first["t0"] == left
    far = flows(collective, t0, t1, 1, None, cubes)  # all of it in a pixel
    assert [(one["count"], one["from"] == one["to"]) for one in far["bundles"]] == [(len(every) / 2, False)] * 2
    assert message_totals(collective, "kind:G") is None  # nothing of it sends


def test_a_run_without_messages_has_no_flows(view: RunView) -> None:
    found = flows(view, 0.0, 100.0, 1000, None, frozenset())
    assert (found["count"], found["bundles"], found["rest"]) == (0, [], 0)
    assert message_totals(view, "launch:0") is None


def test_a_launch_has_the_messages_it_sent_or_received_and_their_links(collective: RunView) -> None:
    last = len(collective.run.launches) - 1
    found = message_totals(collective, f"launch:{last}")
    assert found is not None
    every = messages(collective)
    launches = collective.run.ops.launch
    assert found["count"] == ((launches[every.sent] == last) | (launches[every.received] == last)).sum()
    assert found["max_ns"] == found["slowest"][0]["ns"] >= found["mean_ns"] > 0
    assert ["sip0.io0.pcie_ep", "fabric.switch0"] in found["links"]  # SIP to SIP


def test_channels_in_routes_take_no_place_among_the_links(collective: RunView, monkeypatch: pytest.MonkeyPatch) -> None:
    every = message_totals(collective, "node:sip0")
    assert every is not None
    places = collective.run.places
    busiest, second = (
        next(n for n, place in enumerate(places) if [place.src, place.dst] == link) for link in every["links"][:2]
    )
    channel = replace(places[busiest], kind="channel")
    monkeypatch.setattr(collective.run, "places", [*places[:busiest], channel, *places[busiest + 1 :]])
    monkeypatch.setattr("kernbench.web.flows.MOST_LINKS", 1)
    found = message_totals(collective, "node:sip0")
    assert found is not None
    assert found["links"] == [[places[second].src, places[second].dst]]


def test_points_on_the_base_machine_are_known_where_machines_differ(tmp_path: Path) -> None:
    rows = [{"point": n, "ok": True, "machine_hash": name} for n, name in enumerate(("a", "b", "a"))]
    (tmp_path / "results.json").write_text(json.dumps({"machine": "a", "rows": rows}))
    assert ResultsView(tmp_path).as_json()["base"] == [0, 2]
    (tmp_path / "results.json").write_text(json.dumps({"machine": "a", "rows": rows[::2]}))
    assert ResultsView(tmp_path).as_json()["base"] == []


def test_the_base_of_an_evaluation_sets_what_all_points_set_or_what_the_machine_has(tmp_path: Path) -> None:
    one_sip: dict[str, object] = {"machine:system.sips.count": 1, "machine:cube.named": [1, 2]}
    own: list[dict[str, object]] = [{}, {"machine:cube.ucie.n": 2}, {"machine:cube.ucie.n": 4}]
    rows = [{"point": n, "machine_hash": f"m{n}", **one_sip, **settings} for n, settings in enumerate(own)]
    machine = {"system": {"sips": {"count": 2}}, "cube": {"ucie": {"n": 4}}}
    (tmp_path / "results.json").write_text(json.dumps({"machine": machine, "rows": rows}))
    assert ResultsView(tmp_path).as_json()["base"] == [0, 2]
