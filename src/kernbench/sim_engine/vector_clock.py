"""Vector clocks: the progress of every timeline that happens before some point of a program.

A timeline is a totally ordered sequence of events, such as the work of one PE. A clock has an entry per timeline: the
number of its last event that happens before this point. A point happens before another if that one's clock includes it.
"""

from __future__ import annotations

from collections.abc import Mapping


class VectorClock:
    """Starts from what a `base` knows, which many clocks share (all kernels of a launch), and learns on top of it."""

    __slots__ = ("base", "own")

    def __init__(self, base: Mapping[int, int], own: Mapping[int, int] | None = None) -> None:
        self.base = base
        self.own = dict(own or {})

    def knows(self, timeline: int, number: int) -> bool:
        return self.own.get(timeline, 0) >= number or self.base.get(timeline, 0) >= number

    def learn(self, timeline: int, number: int) -> None:
        """A timeline has come as far as `number`."""
        if not self.knows(timeline, number):
            self.own[timeline] = number

    def join(self, other: VectorClock) -> None:
        """Learn all that another clock knows."""
        if other.base is not self.base:
            for timeline, number in other.base.items():
                self.learn(timeline, number)
        for timeline, number in other.own.items():
            self.learn(timeline, number)

    def copy(self) -> VectorClock:
        return VectorClock(self.base, self.own)

    def flat(self) -> VectorClock:
        """The same knowledge as a base that others can share."""
        known = dict(self.base)
        for timeline, number in self.own.items():
            known[timeline] = max(number, known.get(timeline, 0))
        return VectorClock(known)
