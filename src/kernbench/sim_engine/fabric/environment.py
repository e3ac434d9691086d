"""SimPy's clock with a fabric inside: processes wait for transfers as they wait for any event.

Before each SimPy event the fabric runs ahead to that event's time, and stops at every completion on the way, whose
`on_done` is called at its exact time; that of `transfer` makes it a SimPy event. What the fabric does at time t comes
before what processes do at t.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from functools import partial
from heapq import heappush
from typing import Any

import simpy
from simpy.events import Event, EventPriority, Timeout

from kernbench.common.errors import KernBenchError
from kernbench.common.units import on_grid
from kernbench.sim_engine.fabric.trains import Fabric
from kernbench.sim_engine.fabric.transfers import INFINITY, Transfer

_BEFORE_PROCESSES = EventPriority(-1)  # SimPy priority of completions

SimProcess = Generator[Event, Any, Any]


class FabricEnvironment(simpy.Environment):
    """A SimPy environment whose `transfer` moves bytes through `fabric`."""

    fabric: Fabric

    def __init__(self, fabric: Fabric | None = None) -> None:
        super().__init__(initial_time=0.0)
        if fabric is not None:
            self.fabric = fabric

    def timeout(self, delay: float = 0, value: Any = None) -> Timeout:
        """SimPy's time-out, rounded to the grid: the clock never stands between two grid times."""
        return Timeout(self, on_grid(delay), value)

    def transfer(self, path: Sequence[Hashable], nbytes: int, **options: Any) -> Event:
        """Inject now; the event's value is the finished `Transfer`. Options are those of `Fabric.inject`."""
        event = Event(self)
        self.fabric.inject(path, nbytes, self._now, on_done=partial(self._complete, event), **options)
        return event

    def after(self, ns: float, transfer: Transfer, action: Callable[[Transfer], None]) -> None:
        """Have `action` called with a transfer that is done, `ns` later."""
        event = Event(self)
        event._ok, event._value = True, transfer
        event.callbacks = [lambda _: action(transfer)]
        heappush(self._queue, (transfer.done_ns + ns, _BEFORE_PROCESSES, next(self._eid), event))

    def step(self) -> None:
        queue, fabric = self._queue, self.fabric
        while fabric.next_time() <= (horizon := queue[0][0] if queue else INFINITY):
            finished = fabric.advance(horizon)
            if not finished:
                break
            self._now = finished[0].done_ns
            for transfer in finished:
                if transfer.on_done is not None:
                    transfer.on_done(transfer)
        fabric.catch_up(horizon)
        try:
            super().step()
        except KernBenchError as copy:
            # SimPy raises a copy of what a process raised, made from its args alone: where and mend would be lost.
            raise copy.__cause__ if type(copy.__cause__) is type(copy) else copy from None

    def peek(self) -> float:
        return min(super().peek(), self.fabric.next_time())

    def _complete(self, event: Event, transfer: Transfer) -> None:
        event._ok, event._value = True, transfer
        heappush(self._queue, (transfer.done_ns, _BEFORE_PROCESSES, next(self._eid), event))
