"""Record, within a composite: segments of its timeline from one state to another, and cycles of them.

A segment leads from a state, over a step of certain tiles, to the next state. Where recorded segments lead back to the
state in which they begin, all of them can be skipped; and where the same tiles follow again, so can as many rounds as
there are. For tiles to come it matters among which channels bytes lie, for the current state it may not: then it is
enough to come back to one that differs in nothing else.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import NamedTuple

from kernbench.sim_engine.memo.composite_recording import (
    BusyTimes,
    MovedKind,
    RecordedTile,
    ShiftedRepeat,
    ShiftedSegment,
    WorkByPart,
)
from kernbench.sim_engine.memo.tile_steps import TileSteps


class WorkTotals(NamedTuple):
    """What was done up to an instant."""

    use: BusyTimes
    moved: dict[MovedKind, tuple[int, int]]  # whole flits, transfers
    bursts: list[list[int]]  # by memory and channel
    work: WorkByPart
    records: int


class RecordedSegment(NamedTuple):
    """One step of the timeline that was simulated."""

    tiles: int
    ns: float
    rows: list[RecordedTile]
    from_ns: float  # when it was run
    from_tile: int
    before: WorkTotals
    after: WorkTotals


class RecordedState(NamedTuple):
    """The timing state at an instant, and the place of the step that begins there."""

    place: int  # of the steps
    state: bytes
    plain: bytes  # the same without channels; empty where the future depends on them


class RepeatedSegments(NamedTuple):
    """Segments one after another, `times` times; tiles and ns of all of it."""

    parts: list[RecordedSegment | RepeatedSegments]
    times: int
    tiles: int
    ns: float


SegmentOrRepeat = RecordedSegment | RepeatedSegments
Reached = tuple[RecordedState, int, SegmentOrRepeat]  # the end, its distance in places, and what leads there


def repeated(parts: list[SegmentOrRepeat], times: int = 1) -> RepeatedSegments:
    return RepeatedSegments(
        parts, times, times * sum(part.tiles for part in parts), times * sum(part.ns for part in parts)
    )


def segments_of(segment: SegmentOrRepeat, times: int = 1) -> Iterator[tuple[RecordedSegment, int]]:
    """Every segment, and how often it is passed."""
    if isinstance(segment, RecordedSegment):
        yield segment, times
    else:
        for part in segment.parts:
            yield from segments_of(part, times * segment.times)


def shifted(segment: SegmentOrRepeat, tiles: int, ns: float) -> ShiftedSegment | ShiftedRepeat:
    """As a part of a recording, when it begins after so many tiles, at `ns`."""
    if isinstance(segment, RecordedSegment):
        return ShiftedSegment(segment.rows, tiles - segment.from_tile, ns - segment.from_ns)
    inner: list[ShiftedSegment | ShiftedRepeat] = []
    at_tile, at_ns = tiles, ns
    for part in segment.parts:
        inner.append(shifted(part, at_tile, at_ns))
        at_tile, at_ns = at_tile + part.tiles, at_ns + part.ns
    return ShiftedRepeat(inner, segment.times, at_tile - tiles, at_ns - ns)


class RecordedSegments:
    """The recorded segments of one composite, by the state at the begin and the step that follows."""

    def __init__(self, steps: TileSteps) -> None:
        self._steps = steps
        self._recorded: dict[tuple[bytes, Hashable], Reached] = {}
        self._plain: dict[tuple[bytes, Hashable], Reached] = {}  # where channels do not matter

    def add(self, start: RecordedState, end: RecordedState, how: SegmentOrRepeat) -> None:
        """What leads from a state to another: a step, or several of one loop."""
        key = self._steps.key(start.place, channels=True)
        if key is not None:
            self._recorded.setdefault((start.state, key), (end, end.place - start.place, how))

    def add_plain(self, start: RecordedState, end: RecordedState, how: SegmentOrRepeat) -> None:
        """The same of a step whose timing does not depend on the channels among which bytes lie."""
        key = self._steps.key(start.place, channels=False)
        if key is not None:
            self._plain.setdefault((start.plain, key), (end, end.place - start.place, how))

    def cycle(self, now: RecordedState) -> tuple[RecordedState, RepeatedSegments] | None:
        """The last place to which recorded segments lead from the current state, and back to it; and how."""
        steps, recorded, place, state = self._steps, self._recorded, now.place, now.state
        path: list[SegmentOrRepeat] = []
        found: tuple[RecordedState, int] | None = None  # where, and the length of the path
        while (key := steps.key(place, channels=True)) is not None and (state, key) in recorded:
            end, places, how = recorded[state, key]
            path.append(how)
            place, state = place + places, end.state
            if state == now.state and (again := steps.repeats(now.place, place, channels=True)):
                path, place = [repeated(path, again + 1)], place + again * (place - now.place)
            if state == now.state or (now.plain and end.plain == now.plain):
                found = RecordedState(place, state, end.plain), len(path)
        return None if found is None else (found[0], repeated(path[: found[1]]))

    def plain_cycle(self, now: RecordedState) -> tuple[int, RepeatedSegments] | None:
        """The same where channels do not matter on the way: to which place, and how."""
        steps, recorded, place, plain = self._steps, self._plain, now.place, now.plain
        path: list[SegmentOrRepeat] = []
        found: tuple[int, int] | None = None  # the place, and the length of the path
        while plain and (key := steps.key(place, channels=False)) is not None and (plain, key) in recorded:
            end, places, how = recorded[plain, key]
            path.append(how)
            place, plain = place + places, end.plain
            if plain == now.plain:
                if again := steps.repeats(now.place, place, channels=False):
                    path, place = [repeated(path, again + 1)], place + again * (place - now.place)
                found = place, len(path)
        return None if found is None else (found[0], repeated(path[: found[1]]))
