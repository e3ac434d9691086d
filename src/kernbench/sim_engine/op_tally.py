"""Sums over the op log for each launch: how long every engine was busy, how many ops it served, how many flops.

A PE runs one launch at a time and ends what it has begun before the next, so what its engines write down after it began
with a launch was done for that one, however launches overlap elsewhere. Sums are made from records as they come, so a
log that streams to a file has them too. A multiply-accumulate is two flops, a math op one for each element. A
composite's own record is left out: its tiles have theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.messages import RequestId
from kernbench.components.base import OpHead, Param
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_stream import StreamingOpLog

IntArray = NDArray[np.int64]


class Work(NamedTuple):
    """What one engine did."""

    ops: int = 0
    busy_ns: float = 0.0
    flops: int = 0

    def plus(self, more: Work) -> Work:
        return Work(self.ops + more.ops, self.busy_ns + more.busy_ns, self.flops + more.flops)


class Mark(NamedTuple):
    """From record `first` on, a PE works for a launch."""

    first: int
    launch: RequestId


class Part(NamedTuple):
    """Records of one head, and the launch that they are of: places among records that are sorted by head."""

    start: int
    stop: int
    launch: RequestId | None


class OpTally:
    """Sums for each engine of a log."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        self._next = 0  # id of the first record not yet in the sums
        self._heads: dict[int, _Head] = {}  # by identity
        self._launches: dict[RequestId, dict[str, Work]] = {}  # those that are watched, by component
        self._marks: dict[str, list[Mark]] = {}  # by PE, in order; all but the last are for records not yet in the sums
        if isinstance(log, StreamingOpLog):
            log.before_write = self._update

    def watch(self, launch: RequestId) -> None:
        """Keep sums for a launch, from now on and until they are taken."""
        self._launches[launch] = {}

    def begin(self, pe: str, launch: RequestId) -> None:
        """A PE begins with a launch now."""
        mark, marks = Mark(len(self._log), launch), self._marks.get(pe)
        if marks is None:
            self._marks[pe] = [mark]
        elif marks[-1].first == mark.first:  # nothing was done for the one before
            marks[-1] = mark
        else:
            marks.append(mark)

    def take(self, launch: RequestId) -> dict[str, Work]:
        """What every engine has done for a launch that was watched, by component id; the sums are then forgotten."""
        self._update()
        return self._launches.pop(launch)

    # ---- sums

    def _update(self) -> None:
        first_id, self._next = self._next, len(self._log)
        heads, t_start, t_end, values = self._log.columns_since(first_id)
        if not heads:
            return
        # By identity of the head: there may be millions of records, and few heads.
        _, firsts, which, ops = np.unique(
            np.fromiter(map(id, heads), np.int64, len(heads)),
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        order = np.argsort(which, kind="stable")  # records head by head, and by id where they have the same
        kinds = [self._head(heads[at]) for at in firsts.tolist()]
        widths = np.array([kind.width for kind in kinds])[which]
        offsets = (np.cumsum(widths) - widths)[order]
        parts = [
            (kind, part)
            for kind, stop, n in zip(kinds, np.cumsum(ops).tolist(), ops.tolist(), strict=True)
            for part in self._parts(kind.pe, order, stop - n, stop, first_id)
        ]
        lasted_ns = np.subtract(t_end, t_start)[order]
        busy_ns = np.add.reduceat(lasted_ns, [part.start for _, part in parts])  # exact: times are on the grid
        for (kind, (start, stop, launch)), busy in zip(parts, busy_ns.tolist(), strict=True):
            own = self._launches.get(launch) if launch is not None else None
            if kind.counts and own is not None:
                flops = kind.flops(values, offsets[start:stop].tolist()) if kind.factors else 0
                own[kind.component] = own.get(kind.component, _NOTHING).plus(Work(stop - start, busy, flops))
        self._marks = {pe: marks[-1:] for pe, marks in self._marks.items()}

    def _head(self, head: OpHead) -> _Head:
        known = self._heads.get(id(head))
        if known is None:
            known = self._heads[id(head)] = _Head(head)
        return known

    def _parts(self, pe: str, order: IntArray, start: int, stop: int, first_id: int) -> Iterator[Part]:
        """The records of one head, cut where its PE began with another launch."""
        launch: RequestId | None = None
        for mark in self._marks.get(pe, ()):
            if mark.first > first_id:
                cut = start + int(np.searchsorted(order[start:stop], mark.first - first_id))
                if cut > start:
                    yield Part(start, cut, launch)
                    start = cut
            launch = mark.launch
        if stop > start:
            yield Part(start, stop, launch)


class _Head:
    """What records with one head have in common."""

    __slots__ = ("component", "counts", "factors", "head", "pe", "width")

    def __init__(self, head: OpHead) -> None:
        self.head = head  # kept, so that no other head gets its identity
        self.component, kind, name, names = head
        self.pe = self.component.rpartition(".")[0]
        self.counts = not name.startswith("composite")
        self.width = len(names)
        said = () if kind == "memory" else ("m", "k", "n", "batch") if "m" in names else ("elements",)
        self.factors = [names.index(name) for name in said if name in names]  # of flops, among a record's values

    def flops(self, values: Sequence[Param], offsets: Sequence[int]) -> int:
        """Of records whose values begin at `offsets`."""
        twice = 2 if len(self.factors) > 1 else 1
        total = 0
        for offset in offsets:
            flops = twice
            for factor in self.factors:
                said = values[offset + factor]
                assert isinstance(said, int)
                flops *= said
            total += flops
        return total


_NOTHING = Work()
