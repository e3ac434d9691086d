"""The queue of requests that host programs have submitted, and waiting for them.

Each rank has its own list of pending requests; `wait_all` waits for the calling rank's only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from kernbench.common.frozen import changed
from kernbench.common.messages import HostMessage, KernelLaunchMsg
from kernbench.runtime_api.ranks import Ranks
from kernbench.sim_engine.engine import GraphEngine, Handle
from kernbench.values.graph import Value

M = TypeVar("M", bound=HostMessage)


class HostQueue:
    """The requests of one context to its engine."""

    def __init__(self, engine: GraphEngine, correlation_id: str) -> None:
        self.engine = engine
        self.ranks = Ranks(engine)
        self.count = 0  # of requests so far
        self._correlation_id = correlation_id
        self._pending: WeakKeyDictionary[greenlet, list[Handle]] = WeakKeyDictionary()

    def submit(self, message: HostMessage, value: Value | None = None, rank: greenlet | None = None) -> Handle:
        """Submit a request now. `value` is what a write puts into memory. `rank` is the rank it belongs to, if that is
        not the caller: an event on the device may submit a request of one rank while another runs.
        """
        return self._noted(self.engine.submit(self._enveloped(message), value), rank)

    def submit_together(self, launches: Sequence[KernelLaunchMsg]) -> list[Handle]:
        """Submit launches now; if there are several, all PEs of all of them start at the same time."""
        if len(launches) == 1:
            return [self.submit(launches[0])]
        handles = self.engine.submit_together([self._enveloped(launch) for launch in launches])
        return [self._noted(handle) for handle in handles]

    def wait(self, handles: Sequence[Handle], what: str) -> None:
        """Return when all of them are done, however they ended."""
        self.ranks.wait([handle.done for handle in handles if handle.done is not None], what)
        self.engine.note_waited(handles)

    def wait_all(self) -> None:
        """Return when everything that this rank has submitted is done."""
        while mine := self._pending.pop(getcurrent(), []):  # a failure meanwhile submits more
            self.wait(mine, "all that it submitted")

    def _enveloped(self, message: M) -> M:
        return changed(message, correlation_id=self._correlation_id)

    def _noted(self, handle: Handle, rank: greenlet | None = None) -> Handle:
        self.count += 1
        mine = self._pending.setdefault(getcurrent() if rank is None else rank, [])
        mine.append(handle)
        if (
            len(mine) & 63 == 0 and mine[0].is_done and self.engine.races is None
        ):  # drop finished requests, now and then
            mine[:] = [other for other in mine if not other.is_done]
        return handle
