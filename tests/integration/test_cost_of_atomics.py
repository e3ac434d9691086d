"""What an atomic costs to simulate, in calls of Python functions: the same on every machine, busy or not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel


def contend(word: Any, n: int, tl: Any) -> None:
    for _ in range(n):
        tl.atomic_add(word, 1)


def spin(lock: Any, cycles: int, tl: Any) -> None:
    if tl.program_id(0) == 0:
        tl.cycles(cycles)
        tl.atomic_xchg(lock, 1)
    else:
        while int(tl.atomic_cas(lock, 1, 1)) == 0:
            pass


def calls_and_ops(kernel: Callable[..., None], amount: int) -> tuple[int, int]:
    """How many Python functions were called, and how many ops were simulated."""
    calls, log = [0], OpLog()

    def count(_: object, event: str, __: object) -> None:
        calls[0] += event == "call"

    sys.setprofile(count)
    try:
        run_kernel(kernel, np.zeros(1, np.int32), amount, grid=(4,), op_log=log)
    finally:
        sys.setprofile(None)
    return calls[0], len(log)


def calls_per_op(kernel: Callable[..., None], few: int, many: int) -> float:
    calls_and_ops(kernel, few)  # what is imported and made once
    (first, less), (second, more) = calls_and_ops(kernel, few), calls_and_ops(kernel, many)
    return (second - first) / (more - less)


def test_an_atomic_on_a_contended_word_costs_few_calls() -> None:
    assert calls_per_op(contend, 5, 15) < 350


def test_a_poll_of_a_word_that_does_not_change_costs_few_calls() -> None:
    assert calls_per_op(spin, 500, 1500) < 320


def test_a_poll_of_a_word_that_does_not_change_makes_no_values() -> None:
    counts: list[list[int]] = [[], []]

    def watch(lock: Any, cycles: int, tl: Any) -> None:
        mine = counts[tl.program_id(0)]
        if tl.program_id(0) == 0:
            tl.cycles(cycles)
            tl.atomic_xchg(lock, 1)
            return
        while int(tl.atomic_cas(lock, 1, 1)) == 0:
            mine.append(tl._values.count)

    run_kernel(watch, np.zeros(1, np.int32), 1000, grid=(2,))
    assert len(counts[1]) > 10
    assert counts[1][-1] == counts[1][1]  # the first poll compares, and knows
