"""Who gets which point: a worker stays with the machine it has compiled."""

from __future__ import annotations

from kernbench.sweep.points import Point
from kernbench.sweep.pool import TaskQueue
from kernbench.sweep.work import PointTask

A, B = (Point({}, {"sips": n}).machine_key for n in (1, 2))


def tasks(*machines: int) -> list[PointTask]:
    return [PointTask(number, Point({"n": number}, {"sips": machine})) for number, machine in enumerate(machines)]


def test_a_worker_goes_on_with_its_machine() -> None:
    waiting = TaskQueue(tasks(1, 2, 1, 2))
    assert [waiting.take(A, [B]).number, waiting.take(A, [B]).number] == [0, 2]
    assert len(waiting) == 2
    assert waiting.take(A, [B]).number == 1  # nothing of its own is left: it helps


def test_a_new_worker_takes_a_machine_that_no_other_has() -> None:
    assert TaskQueue(tasks(1, 1, 2)).take(None, [A]).number == 2


def test_a_task_that_comes_back_is_next() -> None:
    waiting = TaskQueue(tasks(1, 1))
    first = waiting.take(A, [])
    waiting.put_back(first)
    assert waiting.take(A, []) is first
