"""Interfaces between a PE and the memoisation of composites and launches, which the simulation engine implements.

A composite or a launch that repeats one that was simulated before, on idle hardware, is replayed from its recording: it
becomes one event at its end. Its links, channels and PEs are reserved until then. An interfering access interrupts the
replay: the clock is rewound to the begin, and simulation goes on from there in full detail.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol


class ReplayedComposite(Protocol):
    """A composite under way that is replayed from its recording. The PE's engines hold none of its tiles."""

    def interrupt(self) -> None:
        """Simulate its tiles from the begin of the composite up to now; they go on tile by tile."""


class CompositeReplayer(Protocol):
    """Replays composites that were recorded before."""

    def why_simulated(self, scheduler: object, feed: object, *, is_only_command: bool) -> str:
        """Why the tiles of a composite that begins now must be simulated, as they must while other commands are under
        way on the PE (not `is_only_command`); empty where it may be replayed. It schedules nothing.
        """

    def begin(self, scheduler: object, feed: object, *, is_only_command: bool) -> ReplayedComposite | None:
        """Begin a composite: reserve its links and channels, and schedule its end. Returns None, and schedules nothing,
        where its tiles must be simulated.
        """


class LaunchReplayer(Protocol):
    """Replays launches that were recorded before."""

    def begin(self, cpu: object, job: object, at_ns: float, /) -> None:
        """Begin a PE's job of a launch at `at_ns`: the launch is replayed, or `cpu.start_job` is called then."""

    def interrupt(self, sips: Collection[int] | None = None) -> None:
        """Interrupt the replayed launches on some SIPs, or on all: what is left of them is simulated."""
