"""Legs: what is known of a composite's course from one state to another, and paths along known legs.

A leg leads from a state, over a step of certain tiles, to the next state. Where known legs lead back to the state in
which they begin, all of them can be passed without being run; and where the same tiles follow again, so can as many
rounds as there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from kernbench.sim_engine.steady.coming import Steps
from kernbench.sim_engine.steady.course import MovedKind, Repeat, Stretch, TileRow, Use, WorkByPart


class Totals(NamedTuple):
    """What was done up to an instant."""

    use: Use
    moved: dict[MovedKind, tuple[int, int]]  # whole flits, transfers
    bursts: list[list[int]]  # by memory and channel
    work: WorkByPart
    records: int


class Leg(NamedTuple):
    """A leg that was run."""

    tiles: int
    ns: float
    rows: list[TileRow]
    from_ns: float  # when it was run
    from_tile: int
    before: Totals
    after: Totals


class Round(NamedTuple):
    """Legs and rounds one after the other, `times` times; tiles and ns of all of it."""

    parts: list[Leg | Round]
    times: int
    tiles: int
    ns: float


Passage = Leg | Round


def rounds(parts: list[Passage], times: int = 1) -> Round:
    return Round(parts, times, times * sum(part.tiles for part in parts), times * sum(part.ns for part in parts))


def legs_of(passage: Passage, times: int = 1) -> Iterator[tuple[Leg, int]]:
    """Every leg, and how often it is passed."""
    if isinstance(passage, Leg):
        yield passage, times
    else:
        for part in passage.parts:
            yield from legs_of(part, times * passage.times)


def stretch_of(passage: Passage, tiles: int, ns: float) -> Stretch | Repeat:
    """As a part of a course, when it begins after so many tiles, at `ns`."""
    if isinstance(passage, Leg):
        return Stretch(passage.rows, tiles - passage.from_tile, ns - passage.from_ns)
    inner: list[Stretch | Repeat] = []
    at_tile, at_ns = tiles, ns
    for part in passage.parts:
        inner.append(stretch_of(part, at_tile, at_ns))
        at_tile, at_ns = at_tile + part.tiles, at_ns + part.ns
    return Repeat(inner, passage.times, at_tile - tiles, at_ns - ns)


class KnownLegs:
    """All that is known of one composite, by state at the begin and what follows."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._known: dict[tuple[bytes, Hashable], tuple[bytes, int, Passage]] = {}  # state at the end, places, how

    def learn(self, place: int, begins: bytes, end_place: int, ends: bytes, how: Passage, channels: bool) -> None:
        """What leads from a state at a place to another. With `channels` that may be several steps of one loop."""
        key = self._steps.key(place, channels)
        if key is not None:
            self._known.setdefault((begins, key), (ends, end_place - place, how))

    def way_back(self, place: int, state: bytes, channels: bool) -> tuple[int, Round] | None:
        """To which place known legs lead from this one that end in the present state, the last one; and how."""
        steps, known, present, begin = self._steps, self._known, state, place
        path: list[Passage] = []
        found: tuple[int, int] | None = None  # the place, and the length of the path
        while (key := steps.key(place, channels)) is not None and (state, key) in known:
            state, places, how = known[state, key]
            path.append(how)
            place += places
            if state == present:
                again = steps.repeats(begin, place, channels)
                if again:
                    path = [rounds(path, again + 1)]
                    place += again * (place - begin)
                found = place, len(path)
        return None if found is None else (found[0], rounds(path[: found[1]]))
