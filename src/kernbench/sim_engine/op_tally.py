"""Sums over the op log for each launch: how long every engine was busy, how many ops it served, how much it did.

A PE runs one launch of each stream at a time and ends what it has begun before the next, and a record says for which
stream its op was done. So what its engines write down for a stream after it began with a launch there was done for that
one, however launches overlap. Sums are made from records as they come, so a
log that streams to a file has them too. An engine's work
is kept by its unit (`common/work_units.py`). A composite's own record is left out: its tiles have theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.messages import LaunchStream, RequestId
from kernbench.components.recording import OpDescriber
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_rows import FoldedRows

IntArray = NDArray[np.int64]
WorkKey = tuple[str, str]  # component id, unit


class EngineWork(NamedTuple):
    """What one engine did, in one unit."""

    ops: int = 0
    busy_ns: float = 0.0
    amount: int = 0

    def plus(self, more: EngineWork) -> EngineWork:
        return EngineWork(self.ops + more.ops, self.busy_ns + more.busy_ns, self.amount + more.amount)


class LaunchMark(NamedTuple):
    """From record `first` on, what a PE does for a stream it does for a launch."""

    first: int
    launch: RequestId


class OpTally:
    """Sums for each engine of a log."""

    def __init__(self, log: OpLog) -> None:
        self._log = log
        self._next = 0  # id of the first record not yet in the sums
        self._launches: dict[RequestId, dict[WorkKey, EngineWork]] = {}  # those that are watched
        # By PE and stream, in order; all but the last are for records not yet in the sums.
        self._marks: dict[tuple[str, LaunchStream], list[LaunchMark]] = {}
        log.before_order.append(self._update)

    def watch(self, launch: RequestId) -> None:
        """Keep sums for a launch, from now on and until they are taken."""
        self._launches[launch] = {}

    def begin(self, pe: str, launch: RequestId, stream: LaunchStream) -> None:
        """A PE begins with a launch of a stream now."""
        mark, marks = LaunchMark(len(self._log), launch), self._marks.get((pe, stream))
        if marks is None:
            self._marks[pe, stream] = [mark]
        elif marks[-1].first == mark.first:  # nothing was done for the one before
            marks[-1] = mark
        else:
            marks.append(mark)

    def take(self, launch: RequestId) -> dict[WorkKey, EngineWork]:
        """What every engine has done for a launch that was watched; the sums are then forgotten."""
        self._update()
        return self._launches.pop(launch)

    def add(self, launch: RequestId, work: Mapping[WorkKey, EngineWork]) -> None:
        """Engines have done more for a launch, of which the log has copies only (`OpLog.record_copy`)."""
        own = self._launches.get(launch)
        if own is not None:
            for key, did in work.items():
                own[key] = own.get(key, _NOTHING).plus(did)

    # ---- sums

    def _update(self) -> None:
        first_id, self._next = self._next, len(self._log)
        describers, subjects, firsts, row_starts, times, folded = self._log.rows_since(first_id)
        # By describer and kind: there may be millions of rows, and few of those.
        groups: dict[tuple[int, int], list[int]] = {}
        for row, (describer, subject) in enumerate(zip(describers, subjects, strict=True)):
            key = id(describer), id(describer.kind(subject))
            group = groups.get(key)
            if group is None:
                groups[key] = [row]
            else:
                group.append(row)
        ids, lasted_ns = np.asarray(firsts), np.subtract(times[1::2], times[::2])
        starts = np.asarray(row_starts)
        for rows in groups.values():
            describer = describers[rows[0]]
            for launch, part in self._parts(describer, rows, ids):
                own = self._launches.get(launch)
                if own is not None:
                    self._add(own, describer, [subjects[row] for row in part], lasted_ns, starts[part])
        for composite in folded:
            self._add_composite(composite)
        self._marks = {key: marks[-1:] for key, marks in self._marks.items()}

    def _add_composite(self, rows: FoldedRows) -> None:
        """Add the tiles of a composite that were recorded as one."""
        pe = rows.describer.pe
        launch: RequestId | None = None
        for mark in self._marks.get((pe, rows.describer.stream), ()):
            if mark.first <= rows.first:
                launch = mark.launch
        own = None if launch is None else self._launches.get(launch)
        if own is not None:
            for (part, unit), did in rows.composite.work().items():
                key = f"{pe}.{part}", unit
                own[key] = own.get(key, _NOTHING).plus(EngineWork(*did))

    def _add(
        self,
        own: dict[WorkKey, EngineWork],
        describer: OpDescriber,
        subjects: Sequence[object],
        lasted_ns: NDArray[np.float64],
        places: IntArray,
    ) -> None:
        """Add the ops of subjects of one kind, whose records begin at `places`."""
        heads, _ = describer.entries(subjects[0])
        amounts = describer.amounts(subjects)
        for at, ((component, _, name, _), (unit, amount)) in enumerate(zip(heads, amounts, strict=True)):
            if not name.startswith("composite"):
                busy_ns = float(lasted_ns[places + at].sum())  # exact in any order: times are on the grid
                did = EngineWork(len(subjects), busy_ns, amount)
                own[component, unit] = own.get((component, unit), _NOTHING).plus(did)

    def _parts(self, describer: OpDescriber, rows: list[int], ids: IntArray) -> Iterator[tuple[RequestId, list[int]]]:
        """Rows of one describer, cut where its PE began with another launch of its stream; those before the first
        launch are left out.
        """
        launch: RequestId | None = None
        for mark in self._marks.get((describer.pe, describer.stream), ()):
            cut = int(np.searchsorted(ids[rows], mark.first))
            if launch is not None and cut:
                yield launch, rows[:cut]
            rows, launch = rows[cut:], mark.launch
        if launch is not None and rows:
            yield launch, rows


_NOTHING = EngineWork()
