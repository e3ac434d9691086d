"""Where points run: in this process, in processes of this computer (`local_pool.py`), on a cluster (`cluster_pool.py`).

A pool takes tasks and yields their outcomes in the order of completion. It starts workers when it gets the first task:
a sweep without missing points starts none.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kernbench.sweep.context import SweepContext
from kernbench.sweep.work import PointOutcome, PointRunner, PointTask


class Pool(Protocol):
    """Runs points."""

    def run(self, tasks: Sequence[PointTask]) -> Iterator[PointOutcome]:
        """Run every task once; yields outcomes in the order of completion."""
        ...

    def close(self) -> None:
        """Stop running points."""
        ...


class SerialPool:
    """Runs one point after another in this process: for functions that other processes cannot import."""

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._runner: PointRunner | None = None

    def run(self, tasks: Sequence[PointTask]) -> Iterator[PointOutcome]:
        for task in tasks:
            if self._runner is None:
                self._runner = PointRunner(self._context)
            yield self._runner.run(task)

    def close(self) -> None:
        self._runner = None


class TaskQueue:
    """Queued tasks, by machine, so that a worker reuses the machine that it has compiled."""

    def __init__(self, tasks: Iterable[PointTask]) -> None:
        self._groups: dict[str, deque[PointTask]] = {}
        self._count = 0
        for task in tasks:
            self._groups.setdefault(task.point.machine_key, deque()).append(task)
            self._count += 1

    def __len__(self) -> int:
        return self._count

    def put_back(self, task: PointTask) -> None:
        self._groups.setdefault(task.point.machine_key, deque()).appendleft(task)
        self._count += 1

    def take(self, machine: str | None, others: Sequence[str | None]) -> PointTask:
        """The next task for a worker that has `machine`, while other workers have `others`."""
        group = machine if machine in self._groups else min(self._groups, key=others.count)
        assert group is not None
        task = self._groups[group].popleft()
        if not self._groups[group]:
            del self._groups[group]
        self._count -= 1
        return task
