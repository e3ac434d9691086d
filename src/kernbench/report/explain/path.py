"""The critical path of a run or of one launch: from its completion backwards along the releases of ops.

Going backwards, each segment ends where the previous one began, so the segments sum to the scope exactly. An op is
split into transfer, latency and queue as saved; the time between the end of the releasing op and the start of the
released one is `issue`, or the flight of a message. At the first op of a kernel the path continues at the launch, and
from there at the host request that ended last before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from kernbench.report.explain.classes import CREDIT, HOST, ISSUE, LATENCY, LAUNCH, OF_KIND, QUEUE, TRANSFER
from kernbench.report.runs.parts import PeRun, RunOps, SavedLane, SavedLaunch, SavedPlace, SourceLine
from kernbench.topology.graph import TopologyGraph


class RunData(Protocol):
    """The parts of a run that are needed: of a saved run, or of one that has just ended."""

    @property
    def is_triton(self) -> bool: ...
    @property
    def graph(self) -> TopologyGraph: ...
    @property
    def total_ns(self) -> float: ...
    @property
    def ops(self) -> RunOps: ...
    @property
    def lanes(self) -> Sequence[SavedLane]: ...
    @property
    def launches(self) -> Sequence[SavedLaunch]: ...
    @property
    def places(self) -> Sequence[SavedPlace]: ...
    @property
    def lines(self) -> Sequence[SourceLine]: ...


@dataclass(frozen=True, slots=True)
class PathScope:
    """An interval of a run: all of it, or one launch from the host's request to its completion."""

    begin_ns: float
    end_ns: float
    launch: int = -1

    @property
    def total_ns(self) -> float:
        return self.end_ns - self.begin_ns


def scope_of(run: RunData, launch: int | None = None) -> PathScope:
    """The whole run, or one launch."""
    if launch is None:
        return PathScope(0.0, run.total_ns)
    chosen = run.launches[launch]
    return PathScope(chosen.start_ns, min(chosen.end_ns, run.total_ns), launch)


@dataclass(frozen=True, slots=True)
class PathSegment:
    """A segment of the critical path. -1 if it has no op, place, line or launch.

    `via` is the release of the next op on the path; empty at the end of the path.
    """

    t0: float
    t1: float
    cls: str
    op: int  # id
    place: int
    line: int
    launch: int
    lane: int
    via: str

    @property
    def ns(self) -> float:
        return self.t1 - self.t0


def critical_path(run: RunData, scope: PathScope, last: PeRun | None = None) -> list[PathSegment]:
    """The segments of the path, in order of time, without gaps; for a launch, of the PE `last`, which ended last."""
    walk = _Walk(run, scope)
    if scope.launch >= 0:
        walk.launch(scope.launch, last)
    else:
        walk.host()
    walk.fill(HOST)
    return walk.segments[::-1]


def last_pes(launch: SavedLaunch, until_ns: float) -> list[PeRun]:
    """The PEs of a launch that ended last, by `until_ns`; the path shown is that of the first."""
    ran = [pe for pe in launch.pes if pe.end_ns <= until_ns]
    end = max((pe.end_ns for pe in ran), default=0.0)
    return sorted((pe for pe in ran if pe.end_ns == end), key=lambda pe: (pe.sip, pe.cube, pe.pe))


class _Walk:
    """Walks backwards from the end of a scope. `t` is the begin of the path so far."""

    def __init__(self, run: RunData, scope: PathScope) -> None:
        self._ops = run.ops
        self._launches = run.launches
        self._begin = scope.begin_ns
        self.t = scope.end_ns
        self.segments: list[PathSegment] = []
        self._via = ""
        self._seen: set[int] = set()  # rows of ops on the path
        self._pe_of = [lane.component.rpartition(".")[0] for lane in run.lanes]
        self._lanes_of: dict[str, list[SavedLane]] = {}
        for lane, pe in zip(run.lanes, self._pe_of, strict=True):
            self._lanes_of.setdefault(pe, []).append(lane)
        self._by_launch: dict[tuple[int, str], list[int]] = {}
        self._ends: dict[tuple[str, str, float], int] = {}  # (PE, stream, time) -> launch that ended there then
        for launch in run.launches:
            for part in launch.pes:
                if part.end_ns > part.start_ns:
                    self._ends.setdefault((part.name, launch.stream, part.end_ns), launch.index)

    # ---- segments

    def back_to(self, time: float, cls: str, *, row: int = -1, place: int = -1, launch: int = -1) -> None:
        """Extend the path backwards to `time`."""
        time = max(time, self._begin)
        if time >= self.t:
            return
        ops, op, lane, line = self._ops, -1, -1, -1
        if row >= 0:
            op, lane, launch, line = int(ops.id[row]), int(ops.lane[row]), int(ops.launch[row]), int(ops.line[row])
        self.segments.append(PathSegment(time, self.t, cls, op, place, line, launch, lane, self._via))
        self.t = time

    def fill(self, cls: str) -> None:
        self.back_to(self._begin, cls)

    @property
    def is_over(self) -> bool:
        return self.t <= self._begin

    # ---- the host

    def host(self) -> None:
        """Walk backwards over host requests and launches: the one that ended last, the one before it, and so on."""
        ops = self._ops
        rows = np.flatnonzero(ops.kind.are("H"))
        items = [(float(ops.t_end[row]), int(ops.id[row]), int(row), -1) for row in rows]
        items += [(launch.end_ns, -1, -1, launch.index) for launch in self._launches]
        items.sort(key=lambda item: (-item[0], item[3] < 0, item[1], item[3]))  # latest first; a launch before others
        for end, _, row, launch in items:
            if self.is_over:
                return
            if end > self.t:
                continue
            begin = float(ops.t_start[row]) if row >= 0 else self._launches[launch].start_ns
            if begin >= self.t:
                continue
            self._via = "host"
            self.back_to(end, HOST)
            if row >= 0:
                self._op(row)
            else:
                self.launch(launch)

    # ---- a launch

    def launch(self, index: int, last: PeRun | None = None) -> None:
        """From the completion of a launch back to the host's request."""
        launch = self._launches[index]
        last = last or next(iter(last_pes(launch, self.t)), None)
        if last is None:
            self.back_to(launch.start_ns, LAUNCH, launch=index)
            return
        self.back_to(last.end_ns, LAUNCH, launch=index)
        self._via = "program"
        row = self._last_op(index, last.name)
        if row is None:
            self._kernel_begin(index, last)
            return
        self.back_to(float(self._ops.t_end[row]), ISSUE, launch=index)
        self._walk_ops(row)

    def _kernel_begin(self, index: int, pe: PeRun) -> None:
        """From a kernel's first command back to its launch, or to the previous kernel on its PE."""
        self._via = "launch"
        self.back_to(pe.start_ns, ISSUE, launch=index)
        launch = self._launches[index]
        before = self._ends.get((pe.name, launch.stream, pe.start_ns), index)
        if before != index and pe.start_ns > launch.start_ns and not self.is_over:
            row = self._last_op(before, pe.name)
            if row is not None and row not in self._seen:
                self._via = "lane"
                self.back_to(float(self._ops.t_end[row]), ISSUE, launch=before)
                self._walk_ops(row)
                return
        self.back_to(launch.start_ns, LAUNCH, launch=index)

    def _last_op(self, launch: int, pe: str, before: float = float("inf")) -> int | None:
        """The last op of a PE for a launch that ended by `t` and by `before`; of equals, the first."""
        ops, best = self._ops, None
        for row in self._rows_of(launch, pe):
            end = float(ops.t_end[row])
            if end <= self.t and end <= before and row not in self._seen:
                key = (end, -int(ops.id[row]))
                if best is None or key > best[0]:
                    best = (key, row)
        return None if best is None else best[1]

    def _rows_of(self, launch: int, pe: str) -> list[int]:
        if (launch, pe) not in self._by_launch:
            ops = self._ops
            rows = [np.arange(lane.first, lane.stop) for lane in self._lanes_of.get(pe, ())]
            found = np.concatenate(rows) if rows else np.zeros(0, np.int64)
            self._by_launch[launch, pe] = found[ops.is_work[found] & (ops.launch[found] == launch)].tolist()
        return self._by_launch[launch, pe]

    # ---- ops

    def _walk_ops(self, row: int) -> None:
        """From the end of an op backwards along the releases."""
        ops = self._ops
        while not self.is_over:
            self._seen.add(row)
            self._op(row)
            release, by = ops.release[row], int(ops.released_by[row])
            self._via = release
            previous = None if by < 0 else self._work_of(int(ops.row_of[by]))
            if previous is None and release not in (
                "launch",
                "host",
            ):  # no releasing op is recorded: take the last op of its PE
                pe = self._pe_of[ops.lane[row]]
                previous = self._last_op(int(ops.launch[row]), pe, float(ops.t_start[row]))
            if previous is None or previous in self._seen:
                self._leave_kernel(row)
                return
            self._gap(previous, release)
            row = previous

    def _work_of(self, row: int) -> int:
        """The op itself; for the span of a composite, the op that ended it."""
        ops = self._ops
        while ops.kind[row] == "S" and len(ops.deps.of(row)):
            row = int(ops.row_of[int(ops.deps.of(row)[0])])
        return row

    def _gap(self, by: int, release: str) -> None:
        """The time between the end of the releasing op and the released op."""
        ops = self._ops
        end = float(ops.t_end[by])
        if end >= self.t:
            return
        if release != "message":
            self.back_to(end, CREDIT if release == "credit" else ISSUE, row=by)
            return
        queue = min(float(ops.queue_ns[by]), self.t - end)
        for place, ns in _queueing(ops, by, queue):
            self.back_to(self.t - ns, QUEUE, row=by, place=place)
        self.back_to(end, LATENCY, row=by)

    def _leave_kernel(self, row: int) -> None:
        """Continue at the launch: the chain of releases leaves the kernel."""
        index = int(self._ops.launch[row])
        if index < 0:
            return
        pe = self._pe_of[self._ops.lane[row]]
        own = next((part for part in self._launches[index].pes if part.name == pe), None)
        if own is None:
            self.back_to(self._launches[index].start_ns, LAUNCH, launch=index)
        else:
            self._kernel_begin(index, own)

    def _op(self, row: int) -> None:
        """The part of an op before `t`: transfer, latency and queue, in this order of time."""
        ops = self._ops
        start, end = float(ops.t_start[row]), float(ops.t_end[row])
        kind = ops.kind[row]
        queue, latency = float(ops.queue_ns[row]), float(ops.latency_ns[row])
        if kind == "C":
            queue = 0.0  # a send's queue is its message's, after it
        at = end
        for place, ns in _queueing(ops, row, queue):
            at -= ns
            self.back_to(at, QUEUE, row=row, place=place)
        if kind == "H":
            self.back_to(start, HOST, row=row)
            return
        self.back_to(end - queue - latency, LATENCY, row=row)
        self.back_to(start, OF_KIND.get(kind, TRANSFER), row=row)


def _queueing(ops: RunOps, row: int, queue: float) -> Iterator[tuple[int, float]]:
    """The places where an op queued, up to `queue` ns."""
    for place, ns in zip(ops.wait_places.of(row), ops.wait_ns.of(row), strict=True):
        part = min(float(ns), queue)
        if part > 0.0:
            yield int(place), part
        queue -= part
