"""Drive a sweep: take points from its plan, run what no row is known of, give the rows back in order.

Points count from 0 in the order in which the plan names them first, so a row's number does not depend on who ran it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from kernbench.sweep.points import Point
from kernbench.sweep.pool import Pool
from kernbench.sweep.rows import SweepRow
from kernbench.sweep.work import Task


class Plan(Protocol):
    """Which points, batch by batch. A search decides on a batch when it knows the rows of those before."""

    @property
    def total(self) -> int:
        """How many there will be, about."""
        ...

    def next_batch(self) -> Sequence[Point]:
        """Empty at the end."""
        ...

    def tell(self, rows: Sequence[SweepRow]) -> None:
        """The rows of the last batch, in its order."""
        ...


class RowStore(Protocol):
    """Where rows are kept as they come."""

    def get(self, point: Point) -> SweepRow | None: ...

    def add(self, point: Point, row: SweepRow, run_s: float) -> None: ...


class FixedPlan:
    """Points that are known beforehand."""

    def __init__(self, points: Sequence[Point]) -> None:
        self.points = points
        self._given = False

    @property
    def total(self) -> int:
        return len(self.points)

    def next_batch(self) -> Sequence[Point]:
        given, self._given = self._given, True
        return [] if given else self.points

    def tell(self, rows: Sequence[SweepRow]) -> None:
        pass  # nothing depends on it


class NothingKept:
    """Rows of a sweep that is not written anywhere: none is known beforehand."""

    def get(self, point: Point) -> SweepRow | None:
        return None

    def add(self, point: Point, row: SweepRow, run_s: float) -> None:
        pass  # the driver has it


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a sweep is, after a point was run. `failed` counts those of this call."""

    done: int
    total: int
    failed: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Driven:
    """The rows of all points in order; how many were run now, and how long those took together."""

    rows: list[SweepRow]
    ran: int
    run_s: float


def drive(
    plan: Plan,
    pool: Pool,
    store: RowStore,
    progress: Callable[[Progress], None] | None = None,
    made_with: str | None = None,
) -> Driven:
    """Run a plan to its end. `made_with` goes into the rows that are run now."""
    began = time.monotonic()
    numbers: dict[str, int] = {}
    rows: dict[int, SweepRow] = {}
    ran, failed, run_s = 0, 0, 0.0
    while batch := plan.next_batch():
        missing: dict[int, Task] = {}
        for point in batch:
            number = numbers.setdefault(point.key, len(numbers))
            known = None if number in rows else store.get(point)
            if known is not None:
                rows[number] = replace(known, point=number)
            elif number not in rows:
                missing[number] = Task(number, point)
        for outcome in pool.run(list(missing.values())):
            row = replace(outcome.row, made_with=made_with)
            store.add(outcome.task.point, row, outcome.run_s)
            rows[outcome.task.number] = row
            ran, failed, run_s = ran + 1, failed + (not row.ok), run_s + outcome.run_s
            if progress is not None:
                left = max(plan.total - len(rows), 0)
                progress(Progress(len(rows), plan.total, failed, (time.monotonic() - began) / ran * left))
        plan.tell([rows[numbers[point.key]] for point in batch])
    return Driven([rows[number] for number in sorted(rows)], ran, run_s)
