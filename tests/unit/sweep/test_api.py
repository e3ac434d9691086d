"""`kernbench.sweep` with arguments that cannot be: one of our errors, before anything is run or written."""

from __future__ import annotations

from pathlib import Path

import pytest

import kernbench
from kernbench.benches.llm_layer import llm_layer
from kernbench.common.errors import KernBenchError


@pytest.mark.parametrize(
    "wrong",
    [
        {"over": [1, 2]},
        {"over": {"n": 5}},
        {"over": {5: [1]}},
        {"points": {"n": 1}},
        {"points": [1]},
        {"params": [("n", 1)]},
        {"params": {"n": 1j}},
        {"params": {5: 1}},
        {"overrides": ["system.sips.count=1"]},
        {"overrides": {5: 1}},
        {"topology": 5},
        {"topology": 1j},
        {"name": 5},
        {"device": 1.5},
        {"device": "sip:x"},
        {"mode": 5},
        {"search": 5},
        {"search": "random", "trials": "many"},
        {"search": "optuna", "storage": 5},
        {"objectives": 5},
        {"objectives": ["total_ns"]},
        {"cost": 5},
        {"workers": "2"},
        {"workers": True},
        {"workers": -1},
        {"cluster": 5},
        {"out": 5},
        {"point_timeout_s": "soon"},
        {"point_timeout_s": 5},
        {"progress": "yes"},
    ],
    ids=str,
)
def test_a_wrong_argument_is_one_of_our_errors(wrong: dict[str, object], tmp_path: Path) -> None:
    arguments = {"over": {"n": [1]}, "out": tmp_path / "out", **wrong}
    if "points" in wrong:
        del arguments["over"]
    with pytest.raises(KernBenchError):
        kernbench.sweep(lambda torch, n=1: torch.zeros(4), **arguments)
    assert not (tmp_path / "out").exists()


def test_what_is_no_function_is_refused() -> None:
    with pytest.raises(KernBenchError, match="a sweep runs a function"):
        kernbench.sweep("bench.py", {"n": [1]})


@pytest.mark.parametrize(("name", "value"), [("model", "lama3-8b"), ("mapping", "rows"), ("tp", 3)])
def test_a_failure_says_its_reason_first_and_names_the_parameter_that_was_set(name: str, value: object) -> None:
    machine = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    (row,) = kernbench.sweep(llm_layer, {name: [value]}, overrides=machine, device="whole", workers=0)
    first, where, _ = str(row.error).splitlines()
    assert str(value) in first
    assert where == f"  where: parameter '{name}'"


def test_the_failure_of_a_lone_rank_is_its_reason() -> None:
    def one_rank(torch, n):
        def work(rank):
            raise ValueError("not today")

        torch.multiprocessing.spawn(work, nprocs=1)

    small = {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
    (row,) = kernbench.sweep(one_rank, {"n": [1]}, overrides=small, device="whole")
    assert str(row.error).splitlines()[0] == "the only rank failed: ValueError: not today"
