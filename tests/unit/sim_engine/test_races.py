"""The race detector on histories made by hand: tasks touch bytes, and hand what they know to each other."""

from __future__ import annotations

import pytest

from kernbench.common.race import AccessKind, Epoch, RacingAccess
from kernbench.sim_engine.races import RaceDetector, Task
from kernbench.sim_engine.shadow_memory import ShadowCell, ShadowMemory
from kernbench.sim_engine.vector_clock import VectorClock


class History:
    """A detector, and tasks on PEs 0, 1, 2 that begin knowing nothing of each other."""

    def __init__(self) -> None:
        self.detector = RaceDetector()
        self.tasks = [self.detector.new_task() for _ in range(3)]

    def do(self, pe: int, kind: AccessKind, *ranges: tuple[int, int], line: int, branch: Epoch | None = None) -> None:
        """PE `pe` touches bytes [start, end) of each range, at a line of file k.py."""
        access = RacingAccess(kind, kind, (0, 0, pe), "k", "x", "k.py", line, float(line), float(line + 1))
        self.tasks[pe].touch(access, [(start, end - start) for start, end in ranges], branch)

    def found(self) -> list[tuple[str, int, int, int, int, int]]:
        """kind, line of each side, first byte, number of bytes, how often."""
        races = self.detector.races()
        return [(r.kind, r.first.line, r.second.line, r.address, r.nbytes, r.count) for r in races]


@pytest.fixture
def history() -> History:
    return History()


# ---- bytes


def test_two_writes_of_one_byte_race_and_both_sides_are_named(history: History) -> None:
    history.do(0, "write", (0, 8), line=1)
    history.do(1, "write", (7, 12), line=2)
    (race,) = history.detector.races()
    assert (race.kind, race.address, race.nbytes, race.count) == ("write-write", 7, 1, 1)
    assert [(side.pe, side.line, side.start_ns, side.end_ns) for side in (race.first, race.second)] == [
        (0, 1, 1.0, 2.0),
        (1, 2, 2.0, 3.0),
    ]


def test_neighbours_do_not_race(history: History) -> None:
    history.do(0, "write", (0, 8), line=1)
    history.do(1, "write", (8, 16), line=2)
    history.do(2, "read", (16, 20), line=3)
    assert history.found() == []


def test_runs_that_lie_between_each_other_do_not_race(history: History) -> None:
    history.do(0, "write", *((at, at + 4) for at in range(0, 64, 8)), line=1)
    history.do(1, "write", *((at + 4, at + 8) for at in range(0, 64, 8)), line=2)
    assert history.found() == []
    history.do(2, "read", (10, 14), line=3)  # bytes 10 and 11 of line 1, 12 and 13 of line 2
    assert history.found() == [("read-write", 1, 3, 10, 2, 1), ("read-write", 2, 3, 12, 2, 1)]


def test_reads_do_not_race_and_no_bytes_are_no_access(history: History) -> None:
    history.do(0, "read", (0, 8), line=1)
    history.do(1, "read", (0, 8), line=2)
    history.do(2, "write", (4, 4), line=3)
    assert history.found() == []


@pytest.mark.parametrize("write_first", [True, False])
def test_a_read_and_a_write_race_whichever_comes_first(history: History, write_first: bool) -> None:
    kinds: tuple[AccessKind, ...] = ("write", "read") if write_first else ("read", "write")
    for pe, kind in enumerate(kinds):
        history.do(pe, kind, (0, 4), line=1)
    assert [found[0] for found in history.found()] == ["read-write"]


def test_pairs_of_the_same_two_lines_are_one_race_with_a_count(history: History) -> None:
    for pe in range(3):
        history.do(pe, "read", (0, 4), line=1)
    for pe in range(3):
        history.do(pe, "write", (0, 4), line=2)
    # each of 3 reads with the writes of 2 other PEs, and 3 pairs of writes
    assert history.found() == [("read-write", 1, 2, 0, 4, 6), ("write-write", 2, 2, 0, 4, 3)]


def test_bytes_that_were_given_back_begin_anew(history: History) -> None:
    history.do(0, "write", (0, 16), line=1)
    history.detector.forget(4, 8)
    history.do(1, "write", (4, 12), line=2)
    assert history.found() == []
    history.do(2, "read", (0, 16), line=3)
    assert [found[:3] for found in history.found()] == [("read-write", 1, 3), ("read-write", 2, 3)]


# ---- what happens before


def test_program_order_is_no_race(history: History) -> None:
    kinds: tuple[AccessKind, ...] = ("write", "read", "write", "atomic", "read")
    for line, kind in enumerate(kinds, start=1):
        history.do(0, kind, (0, 4), line=line)
    assert history.found() == []


def test_a_message_orders_what_came_before_it_and_nothing_after(history: History) -> None:
    a, b, _ = history.tasks
    history.do(0, "write", (0, 4), line=1)
    sent = a.release()
    history.do(0, "write", (4, 8), line=2)
    b.acquire(sent)
    history.do(1, "read", (0, 4), line=3)
    assert history.found() == []
    history.do(1, "read", (4, 8), line=4)
    assert history.found() == [("read-write", 2, 4, 4, 4, 1)]


def test_order_is_passed_on(history: History) -> None:
    a, b, c = history.tasks
    history.do(0, "write", (0, 4), line=1)
    b.acquire(a.release())
    c.acquire(b.release())
    history.do(2, "write", (0, 4), line=2)
    assert history.found() == []


def test_an_ordered_write_does_not_hide_a_race_with_what_it_covers(history: History) -> None:
    a, b, _ = history.tasks
    history.do(0, "read", (0, 4), line=1)
    b.acquire(a.release())
    history.do(1, "write", (0, 4), line=2)  # after line 1
    history.do(2, "write", (0, 4), line=3)  # after neither
    assert history.found() == [("write-write", 2, 3, 0, 4, 1)]


def test_what_a_task_did_is_known_with_its_end(history: History) -> None:
    a = history.tasks[0]
    history.do(0, "write", (0, 4), line=1, branch=a.branch())
    a.end()
    history.tasks[1].acquire(a.clock)
    history.do(1, "write", (0, 4), line=2)
    assert history.found() == []


# ---- branches: what a task started


def handed_over(history: History, *, waited: bool) -> list[tuple[str, int, int, int, int, int]]:
    a, b, _ = history.tasks
    branch = a.branch()
    history.do(0, "write", (0, 4), line=1, branch=branch)
    if waited:
        a.merge(branch)
    b.acquire(a.release())
    history.do(1, "read", (0, 4), line=2)
    return history.found()


def test_a_branch_that_was_waited_for_is_handed_over(history: History) -> None:
    assert handed_over(history, waited=True) == []


def test_a_branch_that_was_not_waited_for_races(history: History) -> None:
    assert handed_over(history, waited=False) == [("read-write", 1, 2, 0, 4, 1)]


def test_touching_the_bytes_of_a_branch_waits_for_it(history: History) -> None:
    a, b, _ = history.tasks
    history.do(0, "write", (0, 4), line=1, branch=a.branch())
    history.do(0, "read", (0, 2), line=2)
    b.acquire(a.release())
    history.do(1, "read", (0, 4), line=3)
    assert history.found() == []


def test_a_branch_knows_what_its_task_knew_and_not_what_it_learns_later(history: History) -> None:
    a, b, _ = history.tasks
    history.do(0, "read", (0, 4), line=1, branch=a.branch())
    history.do(1, "write", (4, 8), line=2)
    a.acquire(b.release())
    history.do(0, "read", (4, 8), line=3)
    assert history.found() == []
    history.do(1, "write", (0, 4), line=4)
    assert history.found() == [("read-write", 1, 4, 0, 4, 1)]


# ---- atomics


def test_atomics_do_not_race_with_each_other_and_do_with_plain_accesses(history: History) -> None:
    history.do(0, "atomic", (0, 4), line=1)
    history.do(1, "atomic", (0, 4), line=1)
    assert history.found() == []
    history.do(2, "read", (0, 4), line=2)
    assert history.found() == [("atomic-read", 1, 2, 0, 4, 2)]  # with that of PE 0, and that of PE 1


def test_a_flag_hands_over_data_in_one_direction(history: History) -> None:
    history.do(0, "write", (8, 16), line=1)
    history.do(0, "atomic", (0, 4), line=2)
    history.do(1, "atomic", (0, 4), line=3)
    history.do(1, "read", (8, 16), line=4)
    history.do(1, "write", (16, 24), line=5)
    assert history.found() == []
    history.do(0, "read", (16, 24), line=6)
    assert history.found() == [("read-write", 5, 6, 16, 8, 1)]


def test_atomics_on_other_bytes_order_nothing(history: History) -> None:
    history.do(0, "write", (8, 16), line=1)
    history.do(0, "atomic", (0, 4), line=2)
    history.do(1, "atomic", (4, 8), line=3)
    history.do(1, "read", (8, 16), line=4)
    assert history.found() == [("read-write", 1, 4, 8, 8, 1)]


def test_a_plain_write_ends_what_atomics_released_there(history: History) -> None:
    history.do(0, "write", (8, 16), line=1)
    history.do(0, "atomic", (0, 4), line=2)
    history.do(1, "write", (0, 4), line=3)
    history.do(2, "atomic", (0, 4), line=4)  # sees what line 3 wrote, which says nothing of line 1
    history.do(2, "read", (8, 16), line=5)
    assert [found[:3] for found in history.found()] == [
        ("atomic-write", 2, 3),
        ("atomic-write", 3, 4),
        ("read-write", 1, 5),
    ]


# ---- parts


def test_shadow_memory_keeps_one_stretch_of_what_is_written_as_one() -> None:
    detector = RaceDetector()
    task: Task = detector.new_task()
    for start in range(0, 256, 16):
        task.touch(RacingAccess("read", "load", None, "", None, "k.py", 1, 0.0), [(start, 8)])
    assert len(detector._memory) == 16
    task.touch(RacingAccess("write", "store", None, "", None, "k.py", 2, 0.0), [(0, 256)])
    assert len(detector._memory) == 1


def test_stretches_are_cut_where_they_must_be_and_their_parts_are_apart() -> None:
    memory, cell = ShadowMemory(), ShadowCell()
    memory.put(10, 20, cell)
    assert [(s.start, s.end, s.cell is cell) for s in memory.over(5, 12)] == [(5, 10, False), (10, 12, True)]
    assert [(s.start, s.end) for s in memory.over(0, 30)] == [(0, 5), (5, 10), (10, 12), (12, 20), (20, 30)]
    assert len({id(s.cell) for s in memory.over(0, 30)}) == 5
    memory.clear(8, 25)
    assert [(s.start, s.end) for s in memory.over(0, 8)] == [(0, 5), (5, 8)]
    assert [(s.start, s.end) for s in memory.over(25, 30)] == [(25, 30)]


def test_a_clock_knows_what_its_base_and_it_itself_learned() -> None:
    clock, other = VectorClock({1: 3}), VectorClock({1: 5}, {2: 2})
    clock.learn(1, 2)
    assert (clock.own, clock.knows(1, 3), clock.knows(1, 4)) == ({}, True, False)
    clock.join(other)
    assert clock.flat().base == {1: 5, 2: 2}
    assert other.flat().base == {1: 5, 2: 2}
