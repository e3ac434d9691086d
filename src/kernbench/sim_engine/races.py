"""Finds races: accesses to the same bytes that nothing orders. Compares every access with those before it by byte range
and by vector clocks, as FastTrack and ThreadSanitizer do; knows no machine and no time.

A `Task` is one program that runs in order: a kernel of one launch on one PE, or a host program. What a task starts
and does not wait for (asynchronous loads and stores, what a composite writes) is a *branch*: it is done for certain
only once the task has waited for it, or has ended. Within one task nothing races, because a command waits for those
before it whose bytes it touches.

An atomic takes over what atomics before it on the same bytes released there, and releases what its own task knows.
Atomics do not race with each other, and do race with plain accesses. A plain write ends what was released to its bytes.

Every byte on which some pair races is found, whatever the order in which accesses come, as long as what happens before
is reported before. Of pairs, those are not listed whose first access an ordered write has covered: the write is.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from kernbench.common.commands import Segment
from kernbench.common.race import Epoch, Race, RaceSide, RacingAccess
from kernbench.sim_engine.shadow_memory import ShadowCell, ShadowMemory, Touch, Touches
from kernbench.sim_engine.vector_clock import VectorClock

AccessSite = tuple[str, int, str, str | None]


class Task:
    """One program. `ended` is how far its timeline had come when it, and all that it started, was done."""

    __slots__ = ("_branches", "_detector", "_spare", "clock", "ended", "number", "timeline")

    def __init__(self, detector: RaceDetector, timeline: int, number: int, clock: VectorClock) -> None:
        self._detector = detector
        self.timeline = timeline
        self.number = number
        self.clock = clock
        clock.own[timeline] = number
        self.ended: int | None = None
        self._branches: dict[int, int] = {}  # timelines of its branches, and how far each has come
        self._spare: list[int] = []  # those of branches that were waited for

    def touch(self, access: RacingAccess, segments: Sequence[Segment], branch: Epoch | None = None) -> None:
        """Memory is accessed now, or by a branch that begins now."""
        timeline, number = branch or (self.timeline, self.number)
        self._detector.touched(self, Touch(access, timeline, number, self), segments)

    def branch(self) -> Epoch:
        """Set something going."""
        timeline = self._spare.pop() if self._spare else self._detector.new_timeline()
        number = self._branches[timeline] = self._branches.get(timeline, 0) + 1
        return timeline, number

    def merge(self, branch: Epoch) -> None:
        """A branch was waited for."""
        self.clock.learn(*branch)
        self._spare.append(branch[0])

    def release(self) -> VectorClock:
        """What has happened so far, to be handed to another task: with a message, a launch, an atomic."""
        released = self.clock.copy()
        self.number += 1
        self.clock.own[self.timeline] = self.number
        return released

    def acquire(self, released: object) -> None:
        """What another task released happened before what comes now."""
        assert isinstance(released, VectorClock)
        self.clock.join(released)

    def end(self) -> None:
        """It is over, with all its branches."""
        self.ended = self.number
        for timeline in self._branches:  # a clock that includes the end of a task includes its branches
            self.clock.own.pop(timeline, None)


class RaceDetector:
    """All accesses of a run, compared. `compared` counts them."""

    def __init__(self) -> None:
        self.compared = 0
        self._memory = ShadowMemory()
        self._timelines = count(1)
        self._found: dict[tuple[AccessSite, AccessSite], _Found] = {}

    def new_timeline(self) -> int:
        return next(self._timelines)

    def new_task(self, clock: VectorClock | None = None, *, timeline: int | None = None, number: int = 1) -> Task:
        """A program that begins with what `clock` knows, on a timeline of its own unless it continues one."""
        known = VectorClock({}) if clock is None else clock.copy()
        return Task(self, self.new_timeline() if timeline is None else timeline, number, known)

    def forget(self, address: int, nbytes: int) -> None:
        """These bytes are freed: accesses after their next allocation happen after all accesses so far."""
        self._memory.clear(address, address + nbytes)

    def races(self) -> list[Race]:
        """Every pair of lines that race, each once, in the order in which they were found."""
        return [found.race() for found in self._found.values()]

    def touched(self, task: Task, touch: Touch, segments: Sequence[Segment]) -> None:
        """Compare an access of a task with those before it, and remember it."""
        self.compared += 1
        clashes: dict[Touch, tuple[int, int]] = {}
        visit = {"read": self._read, "write": self._write, "atomic": self._atomic}[touch.access.kind]
        for address, nbytes in segments:
            if nbytes:
                visit(task, touch, address, address + nbytes, clashes)
        for other, (start, end) in clashes.items():
            self._note(other.access, touch.access, start, end)

    # ---- the three kinds

    def _read(self, task: Task, touch: Touch, start: int, end: int, clashes: dict[Touch, tuple[int, int]]) -> None:
        for stretch in self._memory.over(start, end):
            cell = stretch.cell
            for others in (cell.writes, cell.atomics):
                _clash(_unordered(task, others), stretch.start, stretch.end, clashes)
            cell.reads[_key(touch)] = touch

    def _write(self, task: Task, touch: Touch, start: int, end: int, clashes: dict[Touch, tuple[int, int]]) -> None:
        clean = True
        for stretch in self._memory.over(start, end):
            cell = stretch.cell
            cell.sync = None
            racing = [other for others in cell.all() for other in _unordered(task, others)]
            _clash(racing, stretch.start, stretch.end, clashes)
            if racing:
                clean = False
            else:
                cell.clear()  # what races with an access before a write races with the write too
            cell.writes[_key(touch)] = touch
        if clean:
            fresh = ShadowCell()
            fresh.writes[_key(touch)] = touch
            self._memory.put(start, end, fresh)

    def _atomic(self, task: Task, touch: Touch, start: int, end: int, clashes: dict[Touch, tuple[int, int]]) -> None:
        stretches = self._memory.over(start, end)
        for _, _, cell in stretches:
            if cell.sync is not None:
                task.acquire(cell.sync)
        for stretch in stretches:
            cell = stretch.cell
            for others in (cell.writes, cell.reads):
                _clash(_unordered(task, others), stretch.start, stretch.end, clashes)
            cell.atomics[_key(touch)] = touch
        released = task.release()
        for _, _, cell in stretches:
            cell.sync = released  # and with it all that was released there before

    def _note(self, first: RacingAccess, second: RacingAccess, start: int, end: int) -> None:
        sites = sorted((first.site, second.site), key=str)
        found = self._found.get((sites[0], sites[1]))
        if found is None:
            self._found[sites[0], sites[1]] = _Found(first, second, start, end)
        else:
            found.count += 1


class _Found:
    """Two lines that race, and the first pair of their accesses that did."""

    __slots__ = ("_end", "_first", "_second", "_start", "count")

    def __init__(self, first: RacingAccess, second: RacingAccess, start: int, end: int) -> None:
        self._first, self._second, self._start, self._end = first, second, start, end
        self.count = 1

    def race(self) -> Race:
        kind = "-".join(sorted((self._first.kind, self._second.kind)))
        first, second = RaceSide.of(self._first), RaceSide.of(self._second)
        return Race(kind, self._start, self._end - self._start, first, second, self.count)


def _key(touch: Touch) -> tuple[int, str, int]:
    return touch.timeline, touch.access.file, touch.access.line


def _unordered(task: Task, others: Touches) -> list[Touch]:
    """Those that do not happen before what the task does now."""
    clock = task.clock
    found = []
    for other in others.values():
        owner = other.owner
        if owner is task:
            clock.learn(other.timeline, other.number)  # a command waits for branches whose bytes it touches
        elif not clock.knows(other.timeline, other.number) and (
            owner.ended is None or not clock.knows(owner.timeline, owner.ended)
        ):
            found.append(other)
    return found


def _clash(racing: list[Touch], start: int, end: int, clashes: dict[Touch, tuple[int, int]]) -> None:
    for other in racing:
        low, high = clashes.get(other, (start, end))
        clashes[other] = (min(low, start), max(high, end))
