"""Arguments of `kernbench.run` and `run_kernel` that are of the wrong kind are refused with one of our errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.argument_types import is_switch
from kernbench.common.errors import UsageError
from kernbench.testing import run_kernel, tiny_machine

WRONG: dict[str, list[Any]] = {
    "overrides": [5, "x", [1], {1: 2}],
    "name": [5, [1], b"x"],
    "params": [5, 1.5, object(), [("m", 1)], {1: 2}],
    "device": [[0], {"sip": 0}, 1.5, True, "9" * 5000],
    "verify_data": ["yes", 5, []],
    "debug_ops": ["yes", 1.5],
    "op_log": ["log.parquet", 5],
    "data": ["no", 2],
    "check_races": ["yes"],
    "mode": ["fast", 5, ["adaptive"]],
    "fast": ["yes", 3],
    "threads": ["two", 1.5, -1],
    "backend": ["cupy", ["numpy"], 5],
    "progress": [5, "bar"],
}


def nothing(torch: Any) -> None:
    raise AssertionError("the bench was run")


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_argument_of_run_is_named_before_anything_is_run(name: str, value: Any) -> None:
    machine = None if name == "overrides" else tiny_machine()
    with pytest.raises(UsageError) as caught:
        kernbench.run(nothing, machine, **{name: value})
    assert caught.value.hint
    assert len(caught.value.what) < 120


@pytest.mark.parametrize("topology", [5, [1], 1.5, b"x"])
def test_a_machine_of_the_wrong_kind_is_refused(topology: Any) -> None:
    with pytest.raises(kernbench.common.errors.KernBenchError):
        kernbench.run(nothing, topology)


@pytest.mark.parametrize(
    ("name", "value"),
    [("grid", "x"), ("grid", None), ("dp", "x"), ("topology", "machine.yaml"), ("topology", {"a": 1}), ("topology", 5),
     ("op_log", "log.parquet"), ("check_races", "yes")],
)  # fmt: skip
def test_a_wrong_argument_of_run_kernel_is_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError):
        run_kernel(nothing, np.ones(4, np.float32), **{name: value})


def test_numpys_truth_and_ones_are_switches() -> None:
    assert [is_switch(value) for value in (True, np.True_, 1, 0, "no", 2, None)] == [True] * 4 + [False] * 3
