"""A saved run as a trace for Perfetto and chrome://tracing: JSON, compressed with gzip.

A process is a cube (`sip0.cube3`), the tray's host, an IO chiplet, or the critical path of the scope that `explain`
shows; a thread is a lane of an engine, or a slot of an HBM controller's queue. Slices of a thread never overlap. Slices
are named as in the page; a request at an HBM controller has a name and a category of its own, so that sums by name
count an op once. Flows lead from a send to its receive and from a DMA request
to the controller that serves it. Counters show the utilisation of the links of a cube and the number of waiting flits.
Times are rounded to whole ns, as Perfetto counts them: begin and end each, so that neighbours stay neighbours.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernbench.common.ids import Place
from kernbench.report.explain.classes import LABELS
from kernbench.report.explain.headline import main_scope, scope_name
from kernbench.report.runs.parts import Ints, SavedActivity, SavedLane
from kernbench.report.runs.saved_run import SavedRun

LEVEL = 5  # of gzip
COUNTER_BINS = 512
PER_WRITE = 1 << 13  # events
HOST_PID = 1
LAUNCH_TID = 1


def write_trace(run: SavedRun, path: Path) -> int:
    """Write the trace atomically; returns the number of events."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as raw, gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) as file:
            events = _write(run, file)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return events


def _write(run: SavedRun, file: gzip.GzipFile) -> int:
    about = {"tool": f"kernbench {run.manifest.version}", "run": run.id, "name": run.name, "total_ns": run.total_ns}
    file.write(f'{{"displayTimeUnit":"ns","otherData":{json.dumps(about)},"traceEvents":[\n'.encode())
    total, pending = 0, list[str]()
    for event in trace_events(run):
        pending.append(event)
        if len(pending) >= PER_WRITE:
            file.write((",\n" if total else "").encode() + ",\n".join(pending).encode())
            total += len(pending)
            pending.clear()
    if pending:
        file.write((",\n" if total else "").encode() + ",\n".join(pending).encode())
        total += len(pending)
    file.write(b"\n]}\n")
    return total


def trace_events(run: SavedRun) -> Iterator[str]:
    """Every event, as JSON text."""
    processes = _processes(run)
    tids = _Threads()
    yield from _names(run, processes, tids)
    yield from _launches(run)
    yield from _critical_path(run, max(processes.values()) + 1)
    yield from _slices(run, processes, tids)
    yield from _messages(run, processes, tids)
    yield from _requests(run, processes, tids)
    yield from _counters(run, processes)


class _Threads:
    """Numbers of threads within a process; 1 to n are its lanes, in their order."""

    def __init__(self) -> None:
        self.of_lane: dict[int, int] = {}
        self._next: dict[int, int] = {HOST_PID: LAUNCH_TID + 1}

    def new(self, pid: int) -> int:
        tid = self._next.get(pid, 1)
        self._next[pid] = tid + 1
        return tid


def _process_of(component: str) -> str:
    """`sip0.cube3`, `sip0.io0`, or `host`."""
    place = Place.of(component)
    if place.cube >= 0:
        return f"sip{place.sip}.cube{place.cube}"
    return f"sip{place.sip}.{place.io}" if place.io else "host"


def _processes(run: SavedRun) -> dict[str, int]:
    names = ["host", *(_process_of(lane.component) for lane in run.lanes)]
    names += [_process_of(place.src) for place in run.places]
    return {name: pid for pid, name in enumerate(dict.fromkeys(names), HOST_PID)}


def _meta(kind: str, pid: int, tid: int, value: object) -> str:
    key = "sort_index" if kind.endswith("sort_index") else "name"
    return json.dumps({"ph": "M", "name": kind, "pid": pid, "tid": tid, "ts": 0, "args": {key: value}})


def _names(run: SavedRun, processes: dict[str, int], tids: _Threads) -> Iterator[str]:
    for name, pid in processes.items():
        yield _meta("process_name", pid, 0, name)
        yield _meta("process_sort_index", pid, 0, pid)
    yield _meta("thread_name", HOST_PID, LAUNCH_TID, "launches")
    for lane in run.lanes:
        pid = processes[_process_of(lane.component)]
        tids.of_lane[lane.index] = tid = tids.new(pid)
        yield _meta("thread_name", pid, tid, lane.name.removeprefix(_process_of(lane.component)).lstrip("."))
        yield _meta("thread_sort_index", pid, tid, tid)


def _ns(times: NDArray[np.float64]) -> Ints:
    return np.rint(times).astype(np.int64)


def _us(ns: int) -> str:
    """Whole ns as the us of the format."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _slices(run: SavedRun, processes: dict[str, int], tids: _Threads) -> Iterator[str]:
    ops = run.ops
    start, end = _ns(ops.t_start), _ns(ops.t_end)
    lines = [json.dumps(line.name) for line in run.lines]
    releases = [json.dumps(word) for word in ops.release.words]
    for lane in run.lanes:
        head = f'{{"ph":"X","pid":{processes[_process_of(lane.component)]},"tid":{tids.of_lane[lane.index]},'
        head += f'"cat":{json.dumps(lane.kind_name)},"name":'
        rows = slice(lane.first, lane.stop)
        columns = (start, end, ops.id, ops.line, ops.nbytes, ops.release.codes, ops.released_by)
        split = (ops.transfer_ns, ops.latency_ns, ops.queue_ns)
        for row, (begin, stop, op, line, nbytes, release, by, transfer, latency, queue) in enumerate(
            zip(*(column[rows].tolist() for column in (*columns, *split)), strict=True), lane.first
        ):
            args = f'"op":{op},"release":{releases[release]}'
            if transfer or latency or queue:
                args += f',"transfer_ns":{transfer},"latency_ns":{latency},"queue_ns":{queue}'
            if by >= 0:
                args += f',"released_by":{by}'
            if line >= 0:
                args += f',"line":{lines[line]}'
            if nbytes:
                args += f',"bytes":{nbytes}'
            name = json.dumps(ops.label(row))
            yield f'{head}{name},"ts":{_us(begin)},"dur":{_us(stop - begin)},"args":{{{args}}}}}'


def _critical_path(run: SavedRun, pid: int) -> Iterator[str]:
    """The critical path as a process with one thread, above all others; its slices follow each other without a gap."""
    found = main_scope(run)
    yield _meta("process_name", pid, 0, "critical path")
    yield _meta("process_sort_index", pid, 0, 0)
    yield _meta("thread_name", pid, 1, scope_name(run, found.scope) or "whole run")
    for segment in found.path:
        args: dict[str, object] = {"exact_ns": segment.ns}
        if segment.op >= 0:
            args |= {"op": segment.op, "of": run.ops.label(int(run.ops.row_of[segment.op]))}
        if segment.line >= 0:
            args["line"] = run.lines[segment.line].name
        if segment.place >= 0:
            args["place"] = run.places[segment.place].name
        begin, end = round(segment.t0), round(segment.t1)
        shared = {"ph": "X", "pid": pid, "tid": 1, "cat": "critical path", "name": LABELS[segment.cls]}
        yield json.dumps({**shared, "ts": begin / 1000, "dur": (end - begin) / 1000, "args": args})


def _launches(run: SavedRun) -> Iterator[str]:
    """Launches as asynchronous slices, which may overlap."""
    for launch in run.launches:
        shared = {"cat": "launch", "name": launch.name, "pid": HOST_PID, "tid": LAUNCH_TID, "id": launch.index}
        args = {"launch": launch.index, "kernel": launch.kernel, "pes": len(launch.pes), "flops": launch.flops}
        begin, end = round(launch.start_ns), round(launch.end_ns)
        yield json.dumps({"ph": "b", "ts": begin / 1000, **shared, "args": args})
        yield json.dumps({"ph": "e", "ts": end / 1000, **shared})


def _flow(phase: str, kind: str, number: int, pid: int, tid: int, ns: int) -> str:
    bind = ',"bp":"e"' if phase == "f" else ""
    return (
        f'{{"ph":"{phase}","cat":"{kind}","name":"{kind}","id":{number},"pid":{pid},"tid":{tid},"ts":{_us(ns)}{bind}}}'
    )


def _inside(start: int, end: int) -> int:
    """A time within a slice, near its end."""
    return max(start, end - 1)


def _messages(run: SavedRun, processes: dict[str, int], tids: _Threads) -> Iterator[str]:
    """From every send to its receive."""
    ops = run.ops
    start, end = _ns(ops.t_start), _ns(ops.t_end)
    pid_of = [processes[_process_of(lane.component)] for lane in run.lanes]
    receives = [row for lane in run.lanes if lane.port == "recv" for row in range(lane.first, lane.stop)]
    for row in receives:
        for dep in ops.deps.of(row):
            sent = int(ops.row_of[int(dep)])
            here, there = int(ops.lane[sent]), int(ops.lane[row])
            number = int(ops.id[row])
            when = _inside(int(start[sent]), int(end[sent]))
            yield _flow("s", "message", number, pid_of[here], tids.of_lane[here], when)
            # A receive may begin with the first chunk, before the send of the last has ended: flows go forward.
            arrives = max(when, int(start[row]))
            yield _flow("f", "message", number, pid_of[there], tids.of_lane[there], arrives)


def _requests(run: SavedRun, processes: dict[str, int], tids: _Threads) -> Iterator[str]:
    """Every DMA request at its HBM controller, on as many rows as are in flight at a time, and a flow to it."""
    ops = run.ops
    controllers = _controllers(run)
    rows = np.flatnonzero(ops.kind.are("R", "W"))
    served: dict[str, list[int]] = {}
    for row in rows.tolist():
        for place in ops.route.of(row).tolist():
            if place in controllers:
                served.setdefault(controllers[place], []).append(row)
                break
    start, end = _ns(ops.t_start), _ns(ops.t_end)
    lane_pid = [processes[_process_of(lane.component)] for lane in run.lanes]
    names = [json.dumps(_pe_of(lane)) for lane in run.lanes]
    for node, own in served.items():
        pid = processes[_process_of(node)]
        label = node.removeprefix(_process_of(node)).lstrip(".")
        free: list[int] = []
        taken: list[tuple[int, int]] = []
        own.sort(key=lambda row: (int(start[row]), int(end[row]), int(ops.id[row])))
        slots = 0
        for row in own:
            begin, stop = int(start[row]), int(end[row])
            while taken and taken[0][0] <= begin:
                heappush(free, heappop(taken)[1])
            if free:
                tid = heappop(free)
            else:
                tid = tids.new(pid)
                yield _meta("thread_name", pid, tid, f"{label} requests" + (f" #{slots}" if slots else ""))
                yield _meta("thread_sort_index", pid, tid, 10_000 + tid)
                slots += 1
            heappush(taken, (stop, tid))
            op, lane, name = int(ops.id[row]), int(ops.lane[row]), json.dumps(f"HBM request: {ops.label(row)}")
            yield (
                f'{{"ph":"X","pid":{pid},"tid":{tid},"cat":"HBM request","name":{name},'
                f'"ts":{_us(begin)},"dur":{_us(stop - begin)},"args":{{"op":{op},"for":{names[lane]}}}}}'
            )
            yield _flow("s", "request", op, lane_pid[lane], tids.of_lane[lane], begin)
            yield _flow("f", "request", op, pid, tid, begin)


def _controllers(run: SavedRun) -> dict[int, str]:
    """By link: the HBM controller at one of its ends."""
    found = {}
    for place in run.places:
        if place.link_class == "hbm port":
            found[place.index] = place.src if ".hbm_ctrl" in place.src else place.dst
    return found


def _pe_of(lane: SavedLane) -> str:
    return lane.component.rpartition(".")[0]


# ---- counters


def _counters(run: SavedRun, processes: dict[str, int]) -> Iterator[str]:
    """For every process and class of link: utilisation in %, and the number of waiting flits."""
    groups: dict[tuple[str, str], list[int]] = {}
    for place in run.places:
        groups.setdefault((_process_of(place.src), place.link_class), []).append(place.index)
    activity = run.activity
    merged = max(1, -(-activity.bins // COUNTER_BINS))
    width_ns = activity.bin_ns * merged
    for (process, link_class), members in groups.items():
        pid = processes[process]
        capacity = sum(run.places[place].gbs for place in members) * width_ns
        nbytes = _merged(activity, members, "nbytes", merged)
        waiting = _merged(activity, members, "wait_ns", merged)
        busy = [round(100 * part / capacity, 2) for part in nbytes]
        yield from _counter(pid, f"{link_class} utilisation %", width_ns, busy)
        yield from _counter(pid, f"{link_class} queue flits", width_ns, [round(part / width_ns, 2) for part in waiting])


def _merged(activity: SavedActivity, members: Iterable[int], metric: str, merged: int) -> list[float]:
    total = np.zeros(-(-activity.bins // merged) * merged)
    for place in members:
        total[: activity.bins] += activity.of(place, metric)
    found: list[float] = total.reshape(-1, merged).sum(axis=1).tolist()
    return found


def _counter(pid: int, name: str, width_ns: float, values: Sequence[float]) -> Iterator[str]:
    """A value when it changes, and 0 at the end."""
    head = f'{{"ph":"C","pid":{pid},"tid":0,"name":{json.dumps(name)},"ts":'
    last = None
    for at, value in enumerate([*values, 0.0]):
        if value != last:
            yield f'{head}{_us(round(at * width_ns))},"args":{{"value":{value}}}}}'
            last = value
