"""Who touched each byte of memory, as far as it still matters to races.

Memory is cut into disjoint stretches, sorted by address; the bytes of one stretch have been touched by the same
accesses, which its `Cell` holds. Nothing is kept of bytes that nobody has touched. Knows nothing of what happens before
what.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import NamedTuple, Protocol

from kernbench.common.race import Access
from kernbench.sim_engine.vector_clock import VectorClock


class Owner(Protocol):
    """The program that an access is part of."""

    timeline: int
    ended: int | None  # how far its timeline had come when all it set going was done


class Touch(NamedTuple):
    """An access, and when it was done: as `number` of `timeline`, and at the latest when its owner had ended."""

    access: Access
    timeline: int
    number: int
    owner: Owner


Touches = dict[tuple[int, str, int], Touch]  # by timeline, file and line: of one line, the last of a timeline


class Cell:
    """The accesses to a stretch, and what was released there."""

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

    def copy(self) -> Cell:
        twin = Cell()
        twin.writes, twin.reads, twin.atomics = dict(self.writes), dict(self.reads), dict(self.atomics)
        twin.sync = self.sync
        return twin


class Stretch(NamedTuple):
    """Bytes that were touched alike."""

    start: int
    end: int
    cell: Cell


class ShadowMemory:
    """Cells by address."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stretches: list[Stretch] = []

    def __len__(self) -> int:
        """How many stretches there are."""
        return len(self._starts)

    def over(self, start: int, end: int) -> list[Stretch]:
        """The stretches that make up exactly [start, end), cut and added where they must be."""
        first, past = self._touched(start, end)
        found = self._stretches[first:past]
        if len(found) == 1 and found[0].start == start and found[0].end == end:
            return found
        inside: list[Stretch] = []
        around: list[Stretch] = []
        at = start
        for old in found:
            if old.start < start:
                around.append(Stretch(old.start, start, old.cell.copy()))
            if old.start > at:
                inside.append(Stretch(at, old.start, Cell()))
            inside.append(Stretch(max(old.start, start), min(old.end, end), old.cell))
            at = old.end
        if at < end:
            inside.append(Stretch(at, end, Cell()))
        behind = [Stretch(end, found[-1].end, found[-1].cell.copy())] if found and found[-1].end > end else []
        self._replace(first, past, [*around, *inside, *behind])
        return inside

    def put(self, start: int, end: int, cell: Cell) -> None:
        """Make [start, end) one stretch, whatever was there."""
        self.over(start, end)  # cuts at both ends
        self._replace(*self._touched(start, end), [Stretch(start, end, cell)])

    def clear(self, start: int, end: int) -> None:
        """Nobody has touched [start, end)."""
        if start < end:
            self.over(start, end)
            self._replace(*self._touched(start, end), [])

    def _replace(self, first: int, past: int, stretches: list[Stretch]) -> None:
        self._starts[first:past] = [stretch.start for stretch in stretches]
        self._stretches[first:past] = stretches

    def _touched(self, start: int, end: int) -> tuple[int, int]:
        """The stretches that [start, end) touches: first, and past the last."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._stretches[first].end <= start:
            first += 1
        return first, bisect_left(self._starts, end, first)
