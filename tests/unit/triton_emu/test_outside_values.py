"""What kernels read from outside: plain data is compared by value, functions are looked into, and of what may change
unseen the kernel is refused.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import random as chance
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import KernelError
from kernbench.triton_emu.outside_values import OutsideValues, UnknowableError, outside_values

STEP = 1
TABLE = {"rows": [1, 2], "names": ("a", "b")}
ARRAY = np.arange(4)
SETTINGS = ModuleType("settings")
SETTINGS.depth = 2  # type: ignore[attr-defined]
RNG = np.random.default_rng(7)
COUNTER = itertools.count()
LOCK = threading.Lock()
LARGE = np.zeros(5000)


@dataclass
class Plan:
    rows: int = 4
    widths: list[int] = field(default_factory=lambda: [1, 2])

    def height(self) -> int:
        return self.rows * STEP

    @functools.cached_property
    def total(self) -> int:
        return sum(self.widths)

    def run(self, x: Any, tl: Any) -> int:
        return self.rows


class State:
    count = 0


PLAN = Plan()


def helper(n: int) -> int:
    return n * STEP


@functools.cache
def kept(n: int) -> int:
    return math.isqrt(n) + STEP


def reads_global(x: Any, tl: Any) -> int:
    return STEP


def reads_through_a_function(x: Any, tl: Any) -> int:
    return sum(helper(n) for n in range(3))


def reads_through_a_cached_function(x: Any, tl: Any) -> int:
    return kept(3)


def reads_an_object(x: Any, tl: Any) -> int:
    return PLAN.height() + PLAN.total


def reads_a_module(x: Any, tl: Any) -> Any:
    return SETTINGS.depth  # type: ignore[attr-defined]


def reads_a_class(x: Any, tl: Any) -> int:
    return State.count


def reads_an_array(x: Any, tl: Any) -> Any:
    return ARRAY[0]


def reads_a_table(x: Any, tl: Any) -> Any:
    return TABLE["rows"][0]


@pytest.mark.parametrize(
    ("kernel", "change", "what"),
    [
        (reads_global, lambda patch: patch.setitem(globals(), "STEP", 2), "STEP"),
        (reads_global, lambda patch: patch.setitem(globals(), "STEP", 1.0), "STEP"),
        (reads_through_a_function, lambda patch: patch.setitem(globals(), "STEP", 2), "STEP"),
        (reads_through_a_cached_function, lambda patch: patch.setitem(globals(), "STEP", 2), "STEP"),
        (reads_an_object, lambda patch: patch.setattr(PLAN, "rows", 5), "PLAN"),
        (reads_an_object, lambda patch: patch.setitem(globals(), "STEP", 2), "STEP"),
        (reads_a_module, lambda patch: patch.setattr(SETTINGS, "depth", 3), "SETTINGS.depth"),
        (reads_a_class, lambda patch: patch.setattr(State, "count", 7), "State.count"),
        (reads_an_array, lambda patch: patch.setitem(globals(), "ARRAY", np.arange(4) + 1), "ARRAY"),
        (reads_a_table, lambda patch: patch.setitem(TABLE, "rows", [1, 3]), "TABLE"),
        (PLAN.run, lambda patch: patch.setattr(PLAN, "widths", []), "the kernel"),
    ],
)
def test_a_change_is_found(
    kernel: Callable[..., object], change: Callable[[pytest.MonkeyPatch], None], what: str, monkeypatch: Any
) -> None:
    values = OutsideValues([kernel])
    values.check()
    kernel(None, tl=None)  # what it keeps in caches is no change
    values.check()
    change(monkeypatch)
    with pytest.raises(KernelError, match=f"'{what}', which it reads, changed while it ran") as caught:
        values.check()
    assert "pass it as an argument" in str(caught.value.hint)


def test_closures_defaults_and_partials_are_read() -> None:
    number, seen = 1, [1]

    def kernel(x: Any, more: Any, also: list[int] = seen, tl: Any = None) -> Any:
        return number, more

    for name, change in {"number": "cell", "default 0 of kernel": "default"}.items():
        number, seen[:] = 1, [1]
        values = OutsideValues([functools.partial(kernel, more=2)])
        values.check()
        if change == "cell":
            number = 2
        else:
            seen.append(2)
        with pytest.raises(KernelError, match=f"'{name}'"):
            values.check()


def assigns_a_global(x: Any, tl: Any) -> None:
    global STEP
    STEP = 1


def imports_within(x: Any, tl: Any) -> float:
    import random

    return random.random()


def assigns_outside() -> Callable[..., object]:
    count = 0

    def kernel(x: Any, tl: Any) -> None:
        nonlocal count
        count += 1

    return kernel


@pytest.mark.parametrize(
    ("kernel", "what"),
    [
        (lambda x, tl: random.random(), "'random.random', a random.Random"),
        (lambda x, tl: np.random.rand(), "'np.random.rand'"),
        (lambda x, tl: chance(), "'chance', a random.Random"),
        (lambda x, tl: time.perf_counter(), "'time.perf_counter' of the module time"),
        (lambda x, tl: RNG.random(), "'RNG', a numpy.random"),
        (lambda x, tl: next(COUNTER), "'COUNTER', a itertools.count"),
        (lambda x, tl: LOCK.locked(), "'LOCK', a _thread.lock"),
        (lambda x, tl: LARGE[0], "'LARGE', an array of 5000 elements"),
        (functools.partial(lambda n, x, tl: n, collections.deque([LOCK])), "'the kernel', a _thread.lock"),
        (assigns_a_global, "'STEP', a global that assigns_a_global assigns"),
        (assigns_outside(), "'count', a variable outside kernel that it assigns"),
        (imports_within, "'random' of the module random"),
    ],
)
def test_what_may_change_unseen_is_refused(kernel: Callable[..., object], what: str) -> None:
    with pytest.raises(UnknowableError) as refused:
        outside_values(kernel)
    assert str(refused.value).startswith(what)


def test_seeded_generators_and_variables_of_the_kernel_itself_are_its_own() -> None:
    def kernel(x: Any, tl: Any) -> Any:
        count = 0

        def inner() -> None:
            nonlocal count
            count += 1

        inner()
        return random.Random(3).random() + np.float32(math.pi) + count

    outside_values(kernel)
