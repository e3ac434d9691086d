"""The report as a whole: choice of cases, sweep, routes, JSON, text."""

from __future__ import annotations

import json
from functools import cache

import pytest

from kernbench.common.errors import UsageError
from kernbench.probes.as_json import report_as_json
from kernbench.probes.as_text import report_as_text
from kernbench.probes.probe import MAX_BYTES, SWEEP_SIZES, run_probe
from kernbench.topology import load_topology


@cache
def graph():
    return load_topology(None, {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1})


@cache
def report():
    return run_probe(graph(), nbytes=4096)


def test_one_case_is_measured_by_its_name():
    found = run_probe(graph(), "pe-same-half-hbm", 512, sweep=False)
    assert [(result.name, result.nbytes) for result in found.cases] == [("pe-same-half-hbm", 512)]
    assert found.sweep == ()


def test_an_unknown_case_is_refused_with_a_near_name():
    with pytest.raises(UsageError) as caught:
        run_probe(graph(), "pe-local-hmb")
    assert "did you mean 'pe-local-hbm'?" in caught.value.what
    assert "contention-cube-to-next" in str(caught.value.hint)


@pytest.mark.parametrize("nbytes", [0, -1, MAX_BYTES + 1, True, 1.5])
def test_a_size_out_of_range_is_refused(nbytes):
    with pytest.raises(UsageError):
        run_probe(graph(), nbytes=nbytes)


def test_a_case_too_large_for_its_memory_is_refused_as_such():
    with pytest.raises(UsageError, match="33 MiB do not fit"):
        run_probe(graph(), "pe-sram", 33 << 20)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_the_sweep_measures_every_lone_case_at_every_size():
    lone = [result.name for result in report().cases if result.category != "contention"]
    assert [(point.name, point.nbytes) for point in report().sweep] == [(n, size) for n in lone for size in SWEEP_SIZES]
    local = [point.total_ns for point in report().sweep if point.name == "pe-local-hbm"]
    assert local == [size / 256 + 13 for size in SWEEP_SIZES]  # router 4, one flit 1, burst 8


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_route_tells_hops_in_order_of_time_and_marks_the_narrowest_link():
    (route,) = run_probe(graph(), "pe-cross-cube-hbm-best", 4096, sweep=False, detail=True).routes
    request, data = route.legs
    assert (request.nbytes, data.nbytes) == (0, 4096)
    assert request.start_ns == 0.0
    assert request.end_ns == data.start_ns
    assert data.end_ns == route.total_ns
    departures = [hop.first_departure_ns for hop in data.hops]
    assert departures == sorted(departures)
    marked = [hop for hop in data.hops if hop.is_bottleneck]
    assert [hop.link_gbs for hop in marked] == [128.0]
    assert not any(hop.is_bottleneck for hop in request.hops)


def test_progress_counts_every_step():
    seen = []
    run_probe(graph(), "pe-local-hbm", 256, sweep=False, progress=lambda *step: seen.append(step))
    assert seen == [(0, 2, "pe-local-hbm"), (1, 2, "checks")]


def test_json_has_the_keys_of_the_contract():
    data = json.loads(json.dumps(report_as_json(report()), allow_nan=False))
    assert list(data) == ["schema", "command", "topology", "nbytes", "ok", "cases", "checks", "sweep", "notes"]
    assert (data["schema"], data["command"], data["topology"]) == (1, "probe", "default")
    assert list(data["cases"][0]) == [
        "name", "category", "direction", "nbytes", "issuers", "total_ns", "overhead_ns", "wire_ns", "drain_ns",
        "flit_ns", "memory_ns", "formula_ns", "bottleneck_gbs", "aggregate_peak_gbs", "effective_gbs", "utilization",
        "utilization_aggregate", "path", "breakdown",
    ]  # fmt: skip
    assert list(data["checks"][0]) == ["name", "ok", "detail"]
    assert list(data["sweep"][0]) == [
        "name", "category", "direction", "nbytes", "total_ns", "formula_ns", "effective_gbs", "utilization",
    ]  # fmt: skip


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_utilization_of_one_path_and_of_all_paths():
    cases = {case["name"]: case for case in report_as_json(report())["cases"]}
    local, many = cases["pe-local-hbm"], cases["contention-cube-to-next"]
    assert local["utilization"] == local["utilization_aggregate"] == 4096 / 29.0 / 256
    assert many["issuers"] == 8
    assert many["effective_gbs"] == 8 * 4096 / many["total_ns"]
    assert many["aggregate_peak_gbs"] == 4 * 128.0  # four connections of the port between the cubes
    assert many["utilization"] == 4 * many["utilization_aggregate"]


def test_text_fits_the_terminal_and_has_an_anchor_for_each_check():
    text = report_as_text(run_probe(graph(), nbytes=4096, detail=True))
    assert max(len(line) for line in text.splitlines()) <= 120
    assert text.count("[v] PASS") == len(report().checks)
    assert "[x] FAIL" not in text
    assert "<BN:128GB/s>" in text


def test_text_of_large_transfers_still_fits():
    text = report_as_text(run_probe(graph(), "pe-cross-cube-hbm-best-write", MAX_BYTES, sweep=False))
    assert max(len(line) for line in text.splitlines()) <= 120


def test_two_runs_give_the_same_bytes():
    again = run_probe(graph(), nbytes=4096)
    assert json.dumps(report_as_json(again)) == json.dumps(report_as_json(report()))
    assert report_as_text(again) == report_as_text(report())


def test_cases_of_stacks_say_that_they_move_one_block() -> None:
    """32 KiB are eight blocks, on other stacks each. Far memory has the sizes that fit it."""
    stacks = {
        "places": [{"id": "s0", "side": "W"}, {"id": "s1", "side": "E"}],
        "gb": 8, "channels": 32, "channel_bw_gbs": 32.0, "link_bw_gbs": 256.0,
    }  # fmt: skip
    far = {"at": "switch", "gb": 64, "bw_gbs": 64.0, "distance_mm": 100, "channels": 4, "channel_bw_gbs": 32.0}
    keys = {"system.sips.count": 1, "sip.cube_mesh": {"w": 1, "h": 1}, "cube.memory_map.hbm_mapping_mode": "n_to_one"}
    graph = load_topology(None, keys | {"sip.hbm_stacks": stacks, "system.far_memory": far})
    report = run_probe(graph, ["pe-stack-s0", "pe-stack-s1", "pe-sram", "pe-far"])
    note = "4 KiB per transfer, one block of a stack (sip.hbm_stacks.interleave_bytes): pe-stack-s0, pe-stack-s1"
    assert report.notes == (note,)
    assert report_as_json(report)["notes"] == [note]
    text = report_as_text(report)
    assert text.startswith("machine default, 32 KiB per transfer; another size in 2 cases, see the notes\n")
    sizes = {
        name: [point.nbytes >> 10 for point in report.sweep if point.name == name] for name in ("pe-stack-s0", "pe-far")
    }
    assert sizes == {"pe-stack-s0": [4], "pe-far": [4, 16, 64, 256, 1024]}
