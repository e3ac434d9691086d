"""Interfaces between a PE and the memoisation of composites and launches, which the simulation engine implements.

A composite or a launch that repeats one that was simulated before, on idle hardware, is replayed from its recording: it
becomes one event at its end. Its links, channels and PEs are reserved until then. An interfering access interrupts the
replay: the state at that instant is restored, and simulation goes on from there in full detail.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class ReplayedComposite(Protocol):
    """A composite under way that is replayed from its recording. The PE's engines hold none of its tiles."""

    def interrupt(self) -> None:
        """Restore the state that the PE has now; the remaining tiles are simulated."""


class CompositeReplayer(Protocol):
    """Replays composites that were recorded before."""

    def try_replay(self, scheduler: object, feed: object, *, is_only_command: bool) -> ReplayedComposite | None:
        """Take over a composite that begins now. Returns None where its tiles must be simulated, as they must while
        other commands are under way on the PE (not `is_only_command`).
        """


class LaunchReplayer(Protocol):
    """Replays launches that were recorded before."""

    def try_replay(self, cpu: object, job: object, at_ns: float, /) -> bool:
        """Take over a PE's job of a launch that begins at `at_ns`. Returns whether it was taken over: if so, the PE
        must not start its kernel.
        """

    def interrupt(self, sips: Collection[int] | None = None) -> None:
        """Interrupt the replayed launches on some SIPs, or on all: what is left of them is simulated."""
