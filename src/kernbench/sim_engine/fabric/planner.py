"""How transfers are moved is decided by a planner: flit by flit, or several links at once (`trains.py`)."""

from __future__ import annotations

from collections.abc import Callable, Sized
from contextlib import AbstractContextManager
from typing import ClassVar, Protocol

from kernbench.common.declared_state import Derived
from kernbench.sim_engine.fabric.flit_steps import FlitSteps
from kernbench.sim_engine.fabric.transfers import Transfer


class Planner(Protocol):
    """Decides how transfers are moved: flit by flit, or at once where that comes to the same times."""

    def depart(self, transfer: Transfer, now: float) -> None:
        """A transfer departs: plan it, or leave it to `FlitSteps.begin`."""

    def ended(self, transfer: Transfer, now: float) -> None:
        """A transfer is done."""

    @property
    def waiting(self) -> Sized:
        """Transfers that it may plan once others are done: while there are any, `instant_ended` is called."""

    def instant_ended(self, now: float) -> None:
        """Transfers are done, and all else that happens at that instant has happened."""

    def pause(self, now: float) -> None:
        """Plan nothing, and move all flits one by one, up to `resume`."""

    def resume(self) -> None:
        """Plan again."""


class FlitLoop(Protocol):
    """Flits that are moved beside the agenda (`flit_queues.py`, `buffered_flits.py`)."""

    next_ns: float  # when the next flit moves

    def without_events(self) -> AbstractContextManager[None]:
        """For a while, as if nothing was under way: transfers on other links than those under way are moved in the
        past. What is left of them at the end joins what was there before.
        """

    @property
    def next_order(self) -> float:
        """Its sequence number, which breaks ties among simultaneous events."""

    def move(
        self, until: float, other_ns: float, other_order: float, ended: Callable[[Transfer, float, int], None]
    ) -> int:
        """Move flits up to `until`, or to what happens at `other_ns`; returns how many steps that took."""


class FlitsOnly:
    """The planner that plans nothing."""

    DERIVED: ClassVar[Derived] = ("_engine",)

    def __init__(self, engine: FlitSteps) -> None:
        self._engine = engine
        self.waiting = ()

    def depart(self, transfer: Transfer, now: float) -> None:
        if transfer.source is not None:
            self._engine.commit_read(transfer, transfer.source, now)
        self.begin(transfer, now)

    def begin(self, transfer: Transfer, now: float) -> None:
        """Move a transfer, or all segments of a multicast, flit by flit."""
        if self._engine.counters.sees_flits:
            transfer.slow = True
        if transfer.tree is None:
            self._engine.begin(transfer, now)
            return
        for segment in transfer.tree:
            segment.slow = segment.slow or transfer.slow or self._engine.buffered is None
            self._engine.begin(segment, now)

    def ended(self, transfer: Transfer, now: float) -> None:
        pass

    def instant_ended(self, now: float) -> None:
        pass

    def pause(self, now: float) -> None:
        pass

    def resume(self) -> None:
        pass
