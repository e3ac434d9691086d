"""What is to happen, in order of time: a queue for events that come thick and near.

Events are tuples that begin with their time and compare without ties. They lie in buckets of equal width in time; a
bucket is sorted once, when its turn comes, and an event for the bucket at hand is put in its place there. An event then
costs an append and its share of a sort, however many wait. The width follows the traffic: wide where events are few.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

E = TypeVar("E", bound=tuple[float, *tuple[object, ...]])

INFINITY = float("inf")
FEW, MANY = 12, 96  # events in a bucket that ask for a wider or a narrower one
WIDEST = 16  # times the narrowest
JUDGE_AFTER = 32  # buckets


class Agenda(Generic[E]):
    """`current` is the bucket whose turn it is, sorted; `later` holds the others by number, which is time // width."""

    __slots__ = ("_buckets", "_narrowest_ns", "_numbers", "_taken", "current", "later", "number", "width_ns")

    def __init__(self, narrowest_ns: float) -> None:
        self._narrowest_ns = narrowest_ns
        self.width_ns = 4 * narrowest_ns
        self.current: list[E] = []
        self.later: dict[float, list[E]] = {}
        self.number = -1.0  # of the current bucket; those in `later` are greater
        self._numbers: list[float] = []  # of `later`, as a heap
        self._buckets = self._taken = 0  # worked off since the width was last judged, and the events in them

    def push(self, event: E) -> None:
        """Add an event. While `current` is worked off, only events behind the one at hand may come."""
        number = event[0] // self.width_ns
        if number == self.number:
            insort(self.current, event)
            return
        bucket = self.later.get(number)
        if bucket is not None:
            bucket.append(event)
        elif number > self.number:
            self.later[number] = [event]
            heappush(self._numbers, number)
        else:
            if self.current:
                self.later[self.number] = self.current
                heappush(self._numbers, self.number)
            self.current, self.number = [event], number

    def extend(self, events: list[E]) -> None:
        """Add events that are in order of time."""
        start, width_ns = 0, self.width_ns
        while start < len(events):
            number = events[start][0] // width_ns
            stop = bisect_left(events, (number * width_ns + width_ns,), start)
            bucket = self.later.get(number)
            if bucket is not None:
                bucket += events[start:stop]
            elif number > self.number:
                self.later[number] = events[start:stop]
                heappush(self._numbers, number)
            elif number == self.number:
                for event in events[start:stop]:
                    insort(self.current, event)
            else:
                for event in events[start:stop]:
                    self.push(event)
            start = stop

    def load(self) -> bool:
        """Make sure that `current` holds the next event; False when there is none at all."""
        if self.current:
            return True
        if not self._numbers:
            return False
        self.number = heappop(self._numbers)
        self.current = self.later.pop(self.number)
        if len(self.current) > 1:
            self.current.sort()
        return True

    def drop(self, passed: int) -> None:
        """The first `passed` events of the current bucket are over."""
        current = self.current
        if passed < len(current):
            del current[:passed]
            self._taken += passed
            return
        self._taken += passed
        self._buckets += 1
        self.current = []
        if self._buckets >= JUDGE_AFTER:
            if self._taken < FEW * self._buckets:
                self._change_width(self.width_ns * 2)
            elif self._taken > MANY * self._buckets:
                self._change_width(self.width_ns / 2)
            self._buckets = self._taken = 0

    def next_time(self) -> float:
        return self.current[0][0] if self.current or self.load() else INFINITY

    def __len__(self) -> int:
        return len(self.current) + sum(map(len, self.later.values()))

    def __iter__(self) -> Iterator[E]:
        """All events, in no order."""
        yield from self.current
        for bucket in self.later.values():
            yield from bucket

    def pour_into(self, other: Agenda[E]) -> None:
        """Give all events to another agenda."""
        for event in self.current:
            other.push(event)
        for bucket in self.later.values():
            for event in bucket:
                other.push(event)

    def keep(self, wanted: Callable[[E], bool]) -> None:
        """Drop every event that is not wanted."""
        self._refill(list(filter(wanted, self)))

    def _change_width(self, width_ns: float) -> None:
        if self._narrowest_ns <= width_ns <= WIDEST * self._narrowest_ns:
            self.width_ns = width_ns
            self._refill(list(self))

    def _refill(self, events: list[E]) -> None:
        self.later.clear()
        self.current, self.number = [], -1.0
        width_ns, later = self.width_ns, self.later
        for event in events:
            later.setdefault(event[0] // width_ns, []).append(event)
        self._numbers = list(later)
        heapify(self._numbers)
