"""SimPy's clock with a fabric inside: processes wait for transfers as they wait for any event.

Before each SimPy event the fabric runs ahead to that event's time, and stops at its first completion, which becomes a SimPy
event at its exact time. What the fabric does at time t comes before what processes do at t.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable, Sequence
from functools import partial
from heapq import heappush
from typing import Any

import simpy
from simpy.core import EmptySchedule
from simpy.events import Event

from kernbench.sim_engine.fabric.flits import Transfer
from kernbench.sim_engine.fabric.trains import Fabric

_BEFORE_PROCESSES = -1  # SimPy priority of completions

SimProcess = Generator[Event, Any, Any]


class FabricEnvironment(simpy.Environment):
    """A SimPy environment whose `transfer` moves bytes through `fabric`."""

    fabric: Fabric

    def __init__(self, fabric: Fabric | None = None) -> None:
        super().__init__(initial_time=0.0)
        if fabric is not None:
            self.fabric = fabric

    def transfer(self, path: Sequence[Hashable], nbytes: int, **options: Any) -> Event:
        """Inject now; the event's value is the finished `Transfer`. Options are those of `Fabric.inject`."""
        event = Event(self)
        self.fabric.inject(path, nbytes, self._now, on_done=partial(self._complete, event), **options)
        return event

    def step(self) -> None:
        queue = self._queue
        horizon = queue[0][0] if queue else float("inf")
        if self.fabric.next_time() <= horizon:
            for transfer in self.fabric.advance(horizon):
                if transfer.on_done is not None:
                    transfer.on_done(transfer)
            if not queue:
                raise EmptySchedule
        super().step()

    def peek(self) -> float:
        return min(super().peek(), self.fabric.next_time())

    def _complete(self, event: Event, transfer: Transfer) -> None:
        event._ok, event._value = True, transfer
        heappush(self._queue, (transfer.done_ns, _BEFORE_PROCESSES, next(self._eid), event))
