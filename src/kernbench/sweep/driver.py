"""Drive a sweep: take points from its plan, run those without a stored row, return the rows in order.

Points are numbered from 0 in the order in which the plan first proposes them, so a row's number does not depend on the
worker that ran it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kernbench.sweep.points import Point
from kernbench.sweep.pool import Pool
from kernbench.sweep.rows import SweepRow
from kernbench.sweep.work import PointTask


class SweepPlan(Protocol):
    """The points, batch by batch. A search chooses a batch when it has the rows of the previous ones."""

    @property
    def total(self) -> int:
        """The approximate number of points."""
        ...

    def next_batch(self) -> Sequence[Point]:
        """The next points; empty at the end."""
        ...

    def report(self, rows: Sequence[SweepRow]) -> None:
        """Receive the rows of the last batch, in its order."""
        ...


class RowStore(Protocol):
    """Stores rows as points finish."""

    def get(self, point: Point) -> SweepRow | None: ...

    def add(self, point: Point, row: SweepRow, run_s: float) -> None: ...


class FixedPlan:
    """A fixed list of points."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        self._given = False

    @property
    def total(self) -> int:
        return len(self.points)

    def next_batch(self) -> Sequence[Point]:
        given, self._given = self._given, True
        return [] if given else self.points

    def report(self, rows: Sequence[SweepRow]) -> None:
        pass  # the points do not depend on rows


class NothingKept:
    """The store of a sweep without a folder: it has no rows."""

    def get(self, point: Point) -> SweepRow | None:
        return None

    def add(self, point: Point, row: SweepRow, run_s: float) -> None:
        pass  # the driver keeps it


@dataclass(frozen=True, slots=True)
class SweepProgress:
    """The progress of a sweep after a point was run. `failed` counts points of this call."""

    done: int
    total: int
    failed: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Driven:
    """The rows of all points in order; how many were run in this call, and their total time."""

    rows: list[SweepRow]
    ran: int
    run_s: float


def drive(
    plan: SweepPlan,
    pool: Pool,
    store: RowStore,
    progress: Callable[[SweepProgress], None] | None = None,
    made_with: str | None = None,
    check: Callable[[SweepRow], None] | None = None,
) -> Driven:
    """Run a plan to its end. `made_with` goes into the rows that are run now; `check` gets each of them as soon as it
    is there, and may raise to end the sweep.
    """
    began = time.monotonic()
    numbers: dict[str, int] = {}
    rows: dict[int, SweepRow] = {}
    ran, failed, run_s = 0, 0, 0.0
    while batch := plan.next_batch():
        missing: dict[int, PointTask] = {}
        for point in batch:
            number = numbers.setdefault(point.key, len(numbers))
            stored = None if number in rows else store.get(point)
            if stored is not None:
                rows[number] = replace(stored, point=number)
            elif number not in rows:
                missing[number] = PointTask(number, point)
        for outcome in pool.run(list(missing.values())):
            row = replace(outcome.row, made_with=made_with)
            store.add(outcome.task.point, row, outcome.run_s)
            rows[outcome.task.number] = row
            if check is not None:
                check(row)
            ran, failed, run_s = ran + 1, failed + row.has_failed, run_s + outcome.run_s
            if progress is not None:
                left = max(plan.total - len(rows), 0)
                progress(SweepProgress(len(rows), plan.total, failed, (time.monotonic() - began) / ran * left))
        plan.report([rows[numbers[point.key]] for point in batch])
    return Driven([rows[number] for number in sorted(rows)], ran, run_s)
