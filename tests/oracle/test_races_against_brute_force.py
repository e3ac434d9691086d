"""Races against a check that is slow and obvious: every pair of accesses, and a search for a way from one to the other.

First the detector alone, on random histories of reads, writes, atomics, messages and branches; then random kernels on a
machine, where the order follows from who ran what in which launch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.race import AccessKind, Epoch, RacingAccess
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.races import RaceDetector
from kernbench.sim_engine.vector_clock import VectorClock
from kernbench.testing import tiny_machine

PES = 3
SPAN = 16  # bytes


# ---- random histories


@dataclass
class Event:
    """One step of a task: an access, a message sent or received, a branch waited for."""

    task: int
    do: str  # read, write, atomic, send, receive, wait
    start: int = 0
    end: int = 0
    is_branch: bool = False
    subject: int | None = None  # of a receive or a wait: the number of the event that it is about
    after: set[int] = field(default_factory=set)  # numbers of the events that come directly before it

    @property
    def is_access(self) -> bool:
        return self.do in ("read", "write", "atomic")

    def conflicts(self, other: Event) -> bool:
        alike = self.do == other.do and self.do in ("read", "atomic")
        return self.is_access and other.is_access and not alike and bool(self.shared(other))

    def shared(self, other: Event) -> range:
        return range(max(self.start, other.start), min(self.end, other.end))


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    events: list[Event] = []
    for _ in range(draw(st.integers(2, 14))):
        task = draw(st.integers(0, PES - 1))
        do = draw(st.sampled_from(["read", "write", "write", "atomic", "send", "receive", "wait"]))
        event = Event(task, do)
        if event.is_access:
            event.start = draw(st.integers(0, SPAN - 1))
            event.end = draw(st.integers(event.start + 1, SPAN))
            event.is_branch = do != "atomic" and draw(st.booleans())
        elif do != "send":
            fits = [
                number
                for number, other in enumerate(events)
                if (do == "receive" and other.do == "send" and other.task != task)
                or (do == "wait" and other.is_branch and other.task == task)
            ]
            if not fits:
                continue
            event.subject = draw(st.sampled_from(fits))
        events.append(event)
    return events


def brute_force(events: list[Event]) -> set[int]:
    """The bytes on which two accesses of different tasks are not ordered."""
    for number, event in enumerate(events):
        event.after = set() if event.subject is None else {event.subject}
        for earlier, other in enumerate(events[:number]):
            # Branches come after what their task did before; what comes later does not follow them, unless it
            # touches their bytes.
            if other.task == event.task and (not other.is_branch or event.conflicts(other)):
                event.after.add(earlier)
            if event.do == other.do == "atomic":
                between = [e for e in events[earlier + 1 : number] if e.do == "write"]
                if any(not any(e.start <= byte < e.end for e in between) for byte in event.shared(other)):
                    event.after.add(earlier)
    # A command waits for branches before it is started: a later step of its task follows those too.
    before: list[set[int]] = []
    for number, event in enumerate(events):
        known = set(event.after)
        for other in events[:number]:
            if other.task == event.task and other.is_branch:
                known |= {n for n in other.after if events[n].task == event.task}
        before.append(known.union(*(before[n] for n in known)))
    racy: set[int] = set()
    for (a, one), (b, two) in combinations(enumerate(events), 2):
        if one.task != two.task and one.conflicts(two) and a not in before[b]:
            racy |= set(one.shared(two))
    return racy


def detected(events: list[Event], lines: list[int]) -> RaceDetector:
    detector = RaceDetector()
    tasks = [detector.new_task() for _ in range(PES)]
    sent: dict[int, VectorClock] = {}
    branches: dict[int, Epoch] = {}
    for number, event in enumerate(events):
        task = tasks[event.task]
        if event.is_access:
            kind: AccessKind = event.do  # type: ignore[assignment]  # is_access says so
            access = RacingAccess(kind, kind, (0, 0, event.task), "k", "x", "k.py", lines[number], 0.0)
            if event.is_branch:
                branches[number] = task.branch()
            task.touch(access, [(event.start, event.end - event.start)], branches.get(number))
        elif event.do == "send":
            sent[number] = task.release()
        elif event.do == "receive":
            task.acquire(sent[event.subject or 0])
        elif event.subject in branches:
            task.merge(branches.pop(event.subject))
    return detector


@settings(max_examples=60, deadline=None)
@given(histories())
def test_the_bytes_that_race_are_those_of_the_brute_force(events: list[Event]) -> None:
    races = detected(events, lines=list(range(len(events)))).races()
    assert {byte for race in races for byte in range(race.address, race.address + race.nbytes)} == brute_force(events)


@settings(max_examples=60, deadline=None)
@given(histories(), st.data())
def test_whether_there_is_a_race_does_not_depend_on_which_lines_are_the_same(
    events: list[Event], data: st.DataObject
) -> None:
    lines = [data.draw(st.integers(1, 2)) for _ in events]
    assert bool(detected(events, lines).races()) == bool(brute_force(events))


# ---- random kernels


ELEMENTS = 12  # of a u8 tensor: an element is a byte
STEP = st.tuples(
    st.sampled_from(["load", "store", "load_async", "store_async"]),
    st.integers(0, ELEMENTS - 1),
    st.integers(1, 4),
    st.integers(1, 2),  # stride
)
PROGRAM = st.lists(STEP, max_size=3)  # of one PE
LAUNCH = st.tuples(st.lists(PROGRAM, min_size=2, max_size=PES), st.booleans())  # and whether the host waits


def elements_of(start: int, size: int, stride: int) -> list[int]:
    return [at for at in range(start, start + size * stride, stride) if at < ELEMENTS]


@settings(max_examples=20, deadline=None)
@given(st.lists(LAUNCH, min_size=1, max_size=2), st.booleans())
def test_kernels_race_where_two_pes_touch_an_element_and_no_launch_order_is_between(
    launches: list[tuple[list[list[tuple[str, int, int, int]]], bool]], data: bool
) -> None:
    engine = GraphEngine(tiny_machine(PES), data=data, check_races=True)

    def program_of(number: int):  # type: ignore[no-untyped-def]  # a kernel as users write it
        def kernel(x, tl):  # type: ignore[no-untyped-def]  # a kernel as users write it
            programs = launches[number][0]
            for op, start, size, stride in programs[tl.program_id(0)]:
                count = len(elements_of(start, size, stride))
                if op.startswith("load"):
                    getattr(tl, op)(x + start, (count,), strides=(stride,))
                else:
                    getattr(tl, op)(x + start, tl.full((count,), 1, "i8"), strides=(stride,))

        return kernel

    with RuntimeContext(engine) as torch:
        x = torch.zeros(ELEMENTS, dtype="i8")
        base = x.shards[0].pa
        for number, (programs, wait) in enumerate(launches):
            torch.launch(f"k{number}", program_of(number), x, wait=wait, target_pes=range(len(programs)))
        torch.wait_all()
    touched = [
        (number, pe, "load" in op, element)
        for number, (programs, _) in enumerate(launches)
        for pe, program in enumerate(programs)
        for op, *block in program
        for element in elements_of(*block)
    ]
    expected = set()
    for (one, pe, reads, at), (two, other, reads_too, at_too) in combinations(touched, 2):
        ordered = one != two and launches[min(one, two)][1]
        if pe != other and at == at_too and not (reads and reads_too) and not ordered:
            expected.add(at)
    races = engine.found_races()
    assert bool(races) == bool(expected)
    assert all(race.address - base in expected and race.first.pe != race.second.pe for race in races)
    assert np.all([race.first.end_ns is not None for race in races])
