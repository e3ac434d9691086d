"""Where points run: in this process, in processes of this computer (`local_pool.py`), on a cluster (`cluster_pool.py`).

A pool takes tasks and gives their outcomes in the order in which they end. What it does to start up, it does when the
first task is given to it: a sweep with nothing left to do starts nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kernbench.sweep.context import SweepContext
from kernbench.sweep.work import Outcome, PointRunner, Task


class Pool(Protocol):
    """Something that runs points."""

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        """Every task once, as they end."""
        ...

    def close(self) -> None:
        """Stop what is under way."""
        ...


class SerialPool:
    """One point after another in this process: for functions that no other process can find."""

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._runner: PointRunner | None = None

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        for task in tasks:
            if self._runner is None:
                self._runner = PointRunner(self._context)
            yield self._runner.run(task)

    def close(self) -> None:
        self._runner = None


class Waiting:
    """Tasks that wait for a worker, by machine, so that a worker stays with the machine that it has compiled."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._groups: dict[str, deque[Task]] = {}
        self._count = 0
        for task in tasks:
            self._groups.setdefault(task.point.machine_key, deque()).append(task)
            self._count += 1

    def __len__(self) -> int:
        return self._count

    def put_back(self, task: Task) -> None:
        self._groups.setdefault(task.point.machine_key, deque()).appendleft(task)
        self._count += 1

    def take(self, machine: str | None, others: Sequence[str | None]) -> Task:
        """The next task for a worker that has `machine`, while other workers have `others`."""
        group = machine if machine in self._groups else min(self._groups, key=others.count)
        assert group is not None
        task = self._groups[group].popleft()
        if not self._groups[group]:
            del self._groups[group]
        self._count -= 1
        return task
