"""Listeners for writes to a memory: those whose range a write touches, in the order in which they were added."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import pytest

from kernbench.components.memory_port import Landed
from kernbench.sim_engine.write_listeners import WriteListeners


def test_a_write_calls_those_that_it_touches_in_the_order_of_adding() -> None:
    listeners, called = WriteListeners(), list[str]()
    listeners.add("m", 64, 64, lambda landed: called.append("second half"))
    listeners.add("m", 0, 128, lambda landed: called.append("whole"))
    listeners.add("m", 0, 64, lambda landed: called.append("first half"))
    listeners.add("other", 0, 128, lambda landed: called.append("another memory"))
    listeners.notify("m", 60, 8, None)
    assert called == ["second half", "whole", "first half"]
    called.clear()
    listeners.notify("m", 60, 4, None)
    assert called == ["whole", "first half"]


@pytest.mark.parametrize("seed", range(20))
def test_listeners_that_come_and_go_are_called_as_if_each_were_asked(seed: int) -> None:
    rng = random.Random(seed)
    listeners, called = WriteListeners(), list[int]()
    there: dict[int, tuple[int, int, Callable[[], None]]] = {}

    def note(number: int, landed: Landed) -> None:
        called.append(number)

    for number in range(200):
        if there and rng.random() < 0.3:
            there.pop(rng.choice(list(there)))[2]()
        start, nbytes = rng.randrange(1000), rng.choice((1, 16, 300))
        there[number] = start, start + nbytes, listeners.add("m", start, nbytes, partial(note, number))
        at, size = rng.randrange(1100), rng.choice((1, 64))
        called.clear()
        listeners.notify("m", at, size, None)
        assert called == [each for each, (first, end, _) in there.items() if first < at + size and at < end]
    for _, _, remove in there.values():
        remove()
        remove()  # the second time it does nothing
    assert not listeners.has_any("m")
