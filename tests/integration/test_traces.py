"""The trace of a run keeps to the rules of the trace event format, and its slices are the run's ops."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import pytest
from click.testing import CliRunner
from tests.integration.conftest import RUNS

from kernbench.cli.main import kernbench
from kernbench.common.errors import UsageError
from kernbench.report.explain.classes import LABELS
from kernbench.report.explain.headline import main_scope

OTHER = {"HBM request", "critical path"}  # categories of slices that are not the ops themselves
SPLIT = ("transfer_ns", "latency_ns", "queue_ns")
PHASES = {"M", "X", "b", "e", "s", "f", "C"}


def trace_of(run, folder) -> dict:
    file = folder / "trace.json.gz"
    done = CliRunner().invoke(kernbench, ["trace", str(run.path), "-o", str(file)], catch_exceptions=False)
    assert "open it in ui.perfetto.dev" in done.output
    with gzip.open(file, "rt") as text:
        return json.load(text)


def ns(us: float) -> int:
    found = us * 1000
    assert abs(found - round(found)) < 1e-6  # whole ns
    return round(found)


def checked_slices(events: list[dict]) -> dict[tuple[int, int], list[tuple[int, int, dict]]]:
    """By thread: begin, end and event; every event is looked at."""
    threads: dict[tuple[int, int], list[tuple[int, int, dict]]] = defaultdict(list)
    for event in events:
        assert event["ph"] in PHASES
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0
        assert event["name"]
        if event["ph"] == "X":
            begin = ns(event["ts"])
            assert event["dur"] >= 0
            threads[event["pid"], event["tid"]].append((begin, begin + ns(event["dur"]), event))
        elif event["ph"] == "C":
            assert isinstance(event["args"]["value"], int | float)
        elif event["ph"] in "sf":
            assert event["cat"] in ("message", "request")
            assert event["ph"] == "s" or event["bp"] == "e"
    return threads


@pytest.mark.parametrize("name", RUNS)
def test_a_trace_keeps_to_the_rules_and_has_every_op_once(saved_runs, tmp_path, name):
    run = saved_runs[name]
    trace = trace_of(run, tmp_path)
    assert trace["displayTimeUnit"] == "ns"
    events = trace["traceEvents"]
    threads = checked_slices(events)
    named = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert set(threads) <= named
    for slices in threads.values():
        assert all(earlier[1] <= later[0] for earlier, later in pairwise(sorted(slices, key=lambda s: s[:2])))
    ops = [(b, e, event) for slices in threads.values() for b, e, event in slices if event["cat"] not in OTHER]
    assert sorted(event["args"]["op"] for _, _, event in ops) == list(range(len(run.ops)))
    for begin, end, event in ops:
        row = run.ops.row_of[event["args"]["op"]]
        assert (begin, end) == (round(run.ops.t_start[row]), round(run.ops.t_end[row]))
        assert event["name"] == run.ops.label(row)
        split = [float(getattr(run.ops, name)[row]) for name in SPLIT]
        assert [event["args"].get(name, 0.0) for name in SPLIT] == split


def test_sums_by_name_count_an_op_once(saved_runs, tmp_path):
    run = saved_runs["qkv"]
    sums: dict[str, int] = defaultdict(int)
    for event in trace_of(run, tmp_path)["traceEvents"]:
        if event["ph"] == "X":
            sums[event["name"]] += ns(event["dur"])
    expected: dict[str, int] = defaultdict(int)
    for row in range(len(run.ops)):
        expected[run.ops.label(row)] += round(run.ops.t_end[row]) - round(run.ops.t_start[row])
    assert {name: sums[name] for name in expected} == expected
    assert sums["HBM request: load wq"] == expected["load wq"] > 0


@pytest.mark.parametrize("name", RUNS)
def test_the_critical_path_is_a_track_without_gaps(saved_runs, tmp_path, name):
    explanation = main_scope(saved_runs[name])
    events = trace_of(saved_runs[name], tmp_path)["traceEvents"]
    track = [event for event in events if event.get("cat") == "critical path"]
    assert len({(event["pid"], event["tid"]) for event in track}) == 1
    assert len({event["pid"] for event in events if event["pid"] == track[0]["pid"] and event["ph"] == "X"}) == 1
    edges = [(ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])) for event in track]
    assert all(earlier[1] == later[0] for earlier, later in pairwise(edges))
    scope = explanation.scope
    assert (edges[0][0], edges[-1][1]) == (round(scope.begin_ns), round(scope.end_ns))
    sums: dict[str, float] = defaultdict(float)
    for event in track:
        sums[event["name"]] += event["args"]["exact_ns"]
    assert sums == pytest.approx({LABELS[name]: total for name, total in explanation.by_class.items()})


@pytest.mark.parametrize("name", RUNS)
def test_flows_come_in_pairs_that_begin_and_end_in_a_slice(saved_runs, tmp_path, name):
    run = saved_runs[name]
    events = trace_of(run, tmp_path)["traceEvents"]
    threads = checked_slices(events)
    ends: dict[tuple[str, int], list[dict]] = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["cat"], event["id"]].append(event)
    for pair in ends.values():
        begin, end = pair
        assert (begin["ph"], end["ph"]) == ("s", "f")
        assert begin["ts"] <= end["ts"]
        for event in pair:
            at = ns(event["ts"])
            assert any(b <= at < e or b == at == e for b, e, _ in threads[event["pid"], event["tid"]])
    requests = sum(kind == "request" for kind, _ in ends)
    assert requests == run.ops.kind.are("R", "W").sum()  # all of these lie in HBM
    messages = sum(kind == "message" for kind, _ in ends)
    assert messages == sum(lane.ops for lane in run.lanes if lane.port == "recv")
    assert (messages > 0) == (name == "ccl")


def test_counters_of_utilisation_stay_below_100_and_processes_are_cubes(saved_runs, tmp_path):
    events = trace_of(saved_runs["ccl"], tmp_path)["traceEvents"]
    processes = {e["args"]["name"]: e["pid"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert {"host", "sip0.cube0", "sip0.cube1", "sip1.cube1"} <= set(processes)
    counters = [event for event in events if event["ph"] == "C"]
    names = {event["name"] for event in counters if event["pid"] == processes["sip0.cube0"]}
    assert {"router utilisation %", "router queue flits", "hbm channel utilisation %"} <= names
    assert all(0 <= e["args"]["value"] <= 100.01 for e in counters if e["name"].endswith("%"))
    last = {(e["pid"], e["name"]): e["args"]["value"] for e in counters}
    assert set(last.values()) == {0.0}


@pytest.mark.parametrize("name", RUNS)
def test_spans_are_closed_once_processes_are_named_once_and_tracks_go_forward(saved_runs, tmp_path, name):
    run = saved_runs[name]
    events = trace_of(run, tmp_path)["traceEvents"]
    spans: dict[tuple[str, int], list[str]] = defaultdict(list)
    tracks: dict[tuple[int, int, str], list[float]] = defaultdict(list)
    for event in events:
        if event["ph"] in "be":
            spans[event["cat"], event["id"]].append(event["ph"])
        if event["ph"] in "XC":  # viewers sort, but a track that is in order needs no sorting
            tracks[event["pid"], event["tid"], event["name"] if event["ph"] == "C" else ""].append(event["ts"])
    assert list(spans.values()) == [["b", "e"]] * len(run.launches)
    assert all(times == sorted(times) for times in tracks.values())
    named = [event["pid"] for event in events if event["name"] == "process_name"]
    assert sorted(named) == sorted({event["pid"] for event in events})
    threads = [(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"]
    assert len(threads) == len(set(threads))


def test_same_run_same_bytes_and_a_wrong_place_is_said(saved_runs, tmp_path):
    path = str(saved_runs["va"].path)
    for name in ("a", "b"):
        CliRunner().invoke(kernbench, ["trace", path, "-o", str(tmp_path / f"{name}.json.gz")], catch_exceptions=False)
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    for wrong in (tmp_path / "no" / "x.json.gz", tmp_path / "x.txt"):
        done = CliRunner().invoke(kernbench, ["trace", path, "-o", str(wrong)])
        assert isinstance(done.exception, UsageError)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.json.gz", "b.json.gz"]
