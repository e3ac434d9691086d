"""Shadow memory: the accesses to each byte of memory that can still take part in a race.

Memory is cut into disjoint ranges, sorted by address; the bytes of one range have been touched by the same accesses,
which its `ShadowCell` holds. Untouched bytes take no room. The happens-before order is not decided here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple, Protocol

from kernbench.common.race import RacingAccess
from kernbench.sim_engine.vector_clock import VectorClock


class AccessingTask(Protocol):
    """The program that an access is part of."""

    timeline: int
    ended: int | None  # how far its timeline had come when all it started was done


class Touch(NamedTuple):
    """An access, and when it was done: as `number` of `timeline`, and at the latest when its owner had ended."""

    access: RacingAccess
    timeline: int
    number: int
    owner: AccessingTask


Touches = dict[tuple[int, str, int], Touch]  # by timeline, file and line: of one line, the last of a timeline


class ShadowCell:
    """The accesses to a range, and what was released there."""

    __slots__ = ("atomics", "reads", "sync", "writes")

    def __init__(self) -> None:
        self.writes: Touches = {}
        self.reads: Touches = {}
        self.atomics: Touches = {}
        self.sync: VectorClock | None = None  # the clock that atomics there pass on

    def all(self) -> tuple[Touches, Touches, Touches]:
        return self.writes, self.reads, self.atomics

    def clear(self) -> None:
        for touches in self.all():
            touches.clear()

    def copy(self) -> ShadowCell:
        twin = ShadowCell()
        twin.writes, twin.reads, twin.atomics = dict(self.writes), dict(self.reads), dict(self.atomics)
        twin.sync = self.sync
        return twin


class ShadowRange(NamedTuple):
    """Bytes that were touched alike."""

    start: int
    end: int
    cell: ShadowCell


class ShadowMemory:
    """Cells by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ranges: list[ShadowRange] = []

    def __len__(self) -> int:
        """How many ranges there are."""
        return len(self._starts)

    def over(self, start: int, end: int) -> list[ShadowRange]:
        """The ranges that make up exactly [start, end), cut and added where they must be."""
        first, past = self._touched(start, end)
        found = self._ranges[first:past]
        if len(found) == 1 and found[0].start == start and found[0].end == end:
            return found
        inside: list[ShadowRange] = []
        around: list[ShadowRange] = []
        at = start
        for old in found:
            if old.start < start:
                around.append(ShadowRange(old.start, start, old.cell.copy()))
            if old.start > at:
                inside.append(ShadowRange(at, old.start, ShadowCell()))
            inside.append(ShadowRange(max(old.start, start), min(old.end, end), old.cell))
            at = old.end
        if at < end:
            inside.append(ShadowRange(at, end, ShadowCell()))
        behind = [ShadowRange(end, found[-1].end, found[-1].cell.copy())] if found and found[-1].end > end else []
        self._replace(first, past, [*around, *inside, *behind])
        return inside

    def put(self, start: int, end: int, cell: ShadowCell) -> None:
        """Make [start, end) one range, whatever was there."""
        self.over(start, end)  # cuts at both ends
        self._replace(*self._touched(start, end), [ShadowRange(start, end, cell)])

    def clear(self, start: int, end: int) -> None:
        """Forget all accesses to [start, end)."""
        if start < end:
            self.over(start, end)
            self._replace(*self._touched(start, end), [])

    def _replace(self, first: int, past: int, ranges: list[ShadowRange]) -> None:
        self._starts[first:past] = [each.start for each in ranges]
        self._ranges[first:past] = ranges

    def _touched(self, start: int, end: int) -> tuple[int, int]:
        """The ranges that [start, end) touches: first, and past the last."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._ranges[first].end <= start:
            first += 1
        return first, bisect_left(self._starts, end, first)
