"""The critical path of a run or of one launch: from the completion that ended it back along what let each op start.

Going back, each piece ends where the last one began, so the pieces sum to the scope exactly. An op is cut into
transfer, latency and queue as it was saved; between the end of what released an op and its start lies `issue`, or the
flight of a message. Where the chain of causes leaves the kernel it goes on at the launch, and from there at the request
of the host that ended last before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

import numpy as np

from kernbench.report.explain.classes import CREDIT, HOST, ISSUE, LATENCY, LAUNCH, OF_KIND, QUEUE, TRANSFER
from kernbench.report.runs.parts import Lane, Ops, PeRun, Place, SavedLaunch, SourceLine


class RunData(Protocol):
    """What of a run is looked at: a saved one, or one that has just ended."""

    @property
    def total_ns(self) -> float: ...
    @property
    def ops(self) -> Ops: ...
    @property
    def lanes(self) -> Sequence[Lane]: ...
    @property
    def launches(self) -> Sequence[SavedLaunch]: ...
    @property
    def places(self) -> Sequence[Place]: ...
    @property
    def lines(self) -> Sequence[SourceLine]: ...


@dataclass(frozen=True, slots=True)
class Scope:
    """A stretch of a run: all of it, or one launch from when the host asked for it to its completion."""

    begin_ns: float
    end_ns: float
    launch: int = -1

    @property
    def total_ns(self) -> float:
        return self.end_ns - self.begin_ns


def scope_of(run: RunData, launch: int | None = None) -> Scope:
    """The whole run, or one launch."""
    if launch is None:
        return Scope(0.0, run.total_ns)
    chosen = run.launches[launch]
    return Scope(chosen.start_ns, min(chosen.end_ns, run.total_ns), launch)


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the critical path. -1 where it has no op, place, line or launch.

    `via` is what the op behind it waited for meanwhile, as a release; empty at the end of the path.
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


def critical_path(run: RunData, scope: Scope, last: PeRun | None = None) -> list[Piece]:
    """The pieces of the path, in order of time, without a gap; of a launch, that of `last`, which ended last."""
    walk = _Walk(run, scope)
    if scope.launch >= 0:
        walk.launch(scope.launch, last)
    else:
        walk.host()
    walk.fill(HOST)
    return walk.pieces[::-1]


def last_pes(launch: SavedLaunch, until_ns: float) -> list[PeRun]:
    """The PEs of a launch that ended last by then; the path is that of the first."""
    ran = [pe for pe in launch.pes if pe.end_ns <= until_ns]
    end = max((pe.end_ns for pe in ran), default=0.0)
    return sorted((pe for pe in ran if pe.end_ns == end), key=lambda pe: (pe.sip, pe.cube, pe.pe))


class _Walk:
    """Goes back from the end of a scope. `t` is where the path has come to."""

    def __init__(self, run: RunData, scope: Scope) -> None:
        self._ops = run.ops
        self._launches = run.launches
        self._begin = scope.begin_ns
        self.t = scope.end_ns
        self.pieces: list[Piece] = []
        self._via = ""
        self._seen: set[int] = set()  # rows of ops on the path
        self._pe_of = [lane.component.rpartition(".")[0] for lane in run.lanes]
        self._lanes_of: dict[str, list[Lane]] = {}
        for lane, pe in zip(run.lanes, self._pe_of, strict=True):
            self._lanes_of.setdefault(pe, []).append(lane)
        self._by_launch: dict[tuple[int, str], list[int]] = {}
        self._ends: dict[tuple[str, str, float], int] = {}  # by PE, stream and when: the launch that ended there
        for launch in run.launches:
            for part in launch.pes:
                if part.end_ns > part.start_ns:
                    self._ends.setdefault((part.name, launch.stream, part.end_ns), launch.index)

    # ---- pieces

    def back_to(self, time: float, cls: str, *, row: int = -1, place: int = -1, launch: int = -1) -> None:
        """The path comes from `time`."""
        time = max(time, self._begin)
        if time >= self.t:
            return
        ops, op, lane, line = self._ops, -1, -1, -1
        if row >= 0:
            op, lane, launch, line = int(ops.id[row]), int(ops.lane[row]), int(ops.launch[row]), int(ops.line[row])
        self.pieces.append(Piece(time, self.t, cls, op, place, line, launch, lane, self._via))
        self.t = time

    def fill(self, cls: str) -> None:
        self.back_to(self._begin, cls)

    @property
    def is_over(self) -> bool:
        return self.t <= self._begin

    # ---- the host

    def host(self) -> None:
        """From now back: the request of the host that ended last, what came before it, and so on."""
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
        """From the completion of a launch back to when the host asked for it."""
        launch = self._launches[index]
        last = last or next(iter(last_pes(launch, self.t)), None)
        if last is None:
            self.back_to(launch.start_ns, LAUNCH, launch=index)
            return
        self.back_to(last.end_ns, LAUNCH, launch=index)
        self._via = "program"
        row = self._last_op(index, last.name)
        if row is None:
            self._begin_of(index, last)
            return
        self.back_to(float(self._ops.t_end[row]), ISSUE, launch=index)
        self._follow(row)

    def _begin_of(self, index: int, pe: PeRun) -> None:
        """From a kernel's first command back to its launch, or to the kernel that its PE was busy with before."""
        self._via = "launch"
        self.back_to(pe.start_ns, ISSUE, launch=index)
        launch = self._launches[index]
        before = self._ends.get((pe.name, launch.stream, pe.start_ns), index)
        if before != index and pe.start_ns > launch.start_ns and not self.is_over:
            row = self._last_op(before, pe.name)
            if row is not None and row not in self._seen:
                self._via = "lane"
                self.back_to(float(self._ops.t_end[row]), ISSUE, launch=before)
                self._follow(row)
                return
        self.back_to(launch.start_ns, LAUNCH, launch=index)

    def _last_op(self, launch: int, pe: str, before: float = float("inf")) -> int | None:
        """Of a PE's ops for a launch, that which ended last, by now and by `before`; of several the first."""
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

    def _follow(self, row: int) -> None:
        """From the end of an op back along what let each start."""
        ops = self._ops
        while not self.is_over:
            self._seen.add(row)
            self._op(row)
            release, by = ops.release[row], int(ops.released_by[row])
            self._via = release
            following = None if by < 0 else self._work_of(int(ops.row_of[by]))
            if following is None and release not in ("launch", "host"):  # nobody is named: what its PE did last
                pe = self._pe_of[ops.lane[row]]
                following = self._last_op(int(ops.launch[row]), pe, float(ops.t_start[row]))
            if following is None or following in self._seen:
                self._leave(row)
                return
            self._gap(following, release)
            row = following

    def _work_of(self, row: int) -> int:
        """The op itself; of a composite as a whole, the op that ended it."""
        ops = self._ops
        while ops.kind[row] == "S" and len(ops.deps.of(row)):
            row = int(ops.row_of[int(ops.deps.of(row)[0])])
        return row

    def _gap(self, by: int, release: str) -> None:
        """Between the end of what released an op and the op."""
        ops = self._ops
        end = float(ops.t_end[by])
        if end >= self.t:
            return
        if release != "message":
            self.back_to(end, CREDIT if release == "credit" else ISSUE, row=by)
            return
        queue = min(float(ops.queue_ns[by]), self.t - end)
        for place, ns in _shares(ops, by, queue):
            self.back_to(self.t - ns, QUEUE, row=by, place=place)
        self.back_to(end, LATENCY, row=by)

    def _leave(self, row: int) -> None:
        """The chain of causes leaves the kernel."""
        index = int(self._ops.launch[row])
        if index < 0:
            return
        pe = self._pe_of[self._ops.lane[row]]
        own = next((part for part in self._launches[index].pes if part.name == pe), None)
        if own is None:
            self.back_to(self._launches[index].start_ns, LAUNCH, launch=index)
        else:
            self._begin_of(index, own)

    def _op(self, row: int) -> None:
        """An op, as far as it lies before where the path has come to: transfer, latency, queue in this order."""
        ops = self._ops
        start, end = float(ops.t_start[row]), float(ops.t_end[row])
        kind = ops.kind[row]
        queue, latency = float(ops.queue_ns[row]), float(ops.latency_ns[row])
        if kind == "C":
            queue = 0.0  # a send's queue is its message's, after it
        at = end
        for place, ns in _shares(ops, row, queue):
            at -= ns
            self.back_to(at, QUEUE, row=row, place=place)
        if kind == "H":
            self.back_to(start, HOST, row=row)
            return
        self.back_to(end - queue - latency, LATENCY, row=row)
        self.back_to(start, OF_KIND.get(kind, TRANSFER), row=row)


def _shares(ops: Ops, row: int, queue: float) -> Iterator[tuple[int, float]]:
    """Where an op was held up, as far as `queue` goes."""
    for place, ns in zip(ops.wait_places.of(row), ops.wait_ns.of(row), strict=True):
        part = min(float(ns), queue)
        if part > 0.0:
            yield int(place), part
        queue -= part


def clipped(path: Sequence[Piece], t0: float, t1: float) -> list[Piece]:
    """The part of a path between two times."""
    found = []
    for piece in path:
        a, b = max(piece.t0, t0), min(piece.t1, t1)
        if a < b:
            found.append(Piece(a, b, piece.cls, piece.op, piece.place, piece.line, piece.launch, piece.lane, piece.via))
    return found


def ops_on_path(path: Sequence[Piece]) -> list[int]:
    """Ids of ops, each once, in the order in which the path passes them."""
    return [op for op, _ in groupby(piece.op for piece in path) if op >= 0]
