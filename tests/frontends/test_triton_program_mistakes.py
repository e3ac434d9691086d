"""Mistakes in a launch or a kernel that a GPU refuses: each has one message that names it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.frontends.triton_programs import simulated, tl, torch, triton

from kernbench.common.errors import LaunchError, UsageError

SCALE = 3.0
KNOWN = tl.constexpr(3.0)


@triton.jit
def plus_one(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n) + 1, mask=at < n)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (np.zeros(64, np.float32), "numpy.ndarray"),
        ("x", "str"),
        ([1, 2], "list"),
        (torch.zeros(64, dtype=torch.complex64), "complex64"),
    ],
)
def test_an_argument_that_no_kernel_takes_is_named_with_its_type(value, kind):
    with simulated(), pytest.raises(UsageError, match=f"argument 'x' of kernel 'plus_one' is a .*{kind}"):
        plus_one[(1,)](value, 64, BLOCK=64)


@pytest.mark.parametrize("grid", [(1.0,), (64 / 64, 1), 2.5])
def test_a_grid_has_whole_numbers(grid):
    with simulated(), pytest.raises(UsageError, match=r"grid .* of kernel 'plus_one'") as caught:
        plus_one[grid](torch.zeros(64), 64, BLOCK=64)
    assert "triton.cdiv" in caught.value.hint


def test_a_parameter_is_given_or_tuned():
    tuned = triton.autotune([triton.Config({"BLOCK": 64})], key=["n"])(plus_one)
    with simulated(), pytest.raises(UsageError, match="'plus_one' is given BLOCK, which autotuning chooses"):
        tuned[(1,)](torch.zeros(64), 64, BLOCK=32)


def test_options_that_were_not_given_have_no_note(capsys):
    tuned = triton.autotune([triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])(plus_one)
    warped = triton.autotune([triton.Config({"BLOCK": 32}, num_warps=8)], key=["n"])(plus_one)
    with simulated():
        tuned[(2,)](torch.zeros(64), 64)
        assert "note:" not in capsys.readouterr().err
        warped[(2,)](torch.zeros(64), 64)
        plus_one[(1,)](torch.zeros(64), 64, BLOCK=64, extern_libs={"libdevice": "path"})
    said = capsys.readouterr().err
    assert "num_warps has no meaning" in said
    assert "num_ctas" not in said
    assert "extern_libs has no meaning on this machine: no library is linked" in said


@triton.jit
def scaled(x, KIND: tl.constexpr):
    at = tl.arange(0, 32)
    if KIND == "plain":
        tl.store(x + at, tl.load(x + at) * SCALE)
    else:
        tl.store(x + at, tl.load(x + at) * KNOWN)


def test_a_kernel_reads_no_global_but_a_constexpr(monkeypatch):
    x = torch.ones(32)
    with simulated():
        scaled[(1,)](x, KIND="constexpr")
        with pytest.raises(LaunchError, match="reads the global 'SCALE'") as caught:
            scaled[(1,)](x, KIND="plain")
        assert "tl.constexpr(3.0)" in caught.value.hint
        monkeypatch.setattr(triton.knobs.compilation, "allow_non_constexpr_globals", True)
        scaled[(1,)](x, KIND="plain")
    assert torch.equal(x, torch.full((32,), 9.0))


@triton.jit
def asserting(x):
    at = tl.program_id(0) * 32 + tl.arange(0, 32)
    tl.device_assert(tl.load(x + at) > 0, "must be positive")


def test_an_assertion_on_the_device_fails_with_line_and_program_in_a_debug_launch():
    x = torch.ones(64)
    x[40] = -1
    with simulated() as sim:
        asserting[(2,)](x)
        asserting[(1,)](x, debug=True)
        with pytest.raises(
            LaunchError, match=r"device_assert failed in program \(1, 0, 0\): must be positive"
        ) as caught:
            asserting[(2,)](x, debug=True)
        assert "tl.device_assert" in caught.value.where
    assert len(sim.launches) == 2


@triton.jit
def with_numpy(x):
    at = tl.arange(0, 32)
    tl.store(x + at, np.exp(tl.load(x + at)))


def test_a_function_of_numpy_in_a_kernel_is_refused():
    with simulated(), pytest.raises(LaunchError, match="does not support ufuncs"):
        with_numpy[(1,)](torch.ones(32))


@triton.jit
def printing(x, N: tl.constexpr):
    tl.static_print("N is", N)
    print("program", tl.program_id(0))
    tl.store(x + tl.program_id(0), 1.0)


def test_a_program_prints_once(capsys):
    with simulated():
        printing[(2,)](torch.zeros(2), N=4)
    said = capsys.readouterr().out
    assert said.count("N is 4") == said.count("program") == 2


def test_simulations_are_not_nested_and_cycles_are_not_negative():
    with simulated(), pytest.raises(UsageError, match="a simulation inside a simulation"), simulated():
        pass
    for cycles in (-1, 0.5):
        with pytest.raises(UsageError, match="cycles_per_op is"), simulated(cycles_per_op=cycles):
            pass
    with simulated() as sim:  # the first one was ended properly
        plus_one[(1,)](torch.zeros(64), 64, BLOCK=64)
    assert len(sim.launches) == 1


def test_figures_of_a_run_are_plain_json():
    tuned = triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 2**20})], key=["n"])(plus_one)
    with simulated() as sim:
        tuned[(1,)](torch.zeros(64), 64)  # the second block does not fit into TCM
    data = json.loads(json.dumps(sim.as_json(), allow_nan=False))
    assert [trial["ns"] is None for trial in data["autotune"][0]["trials"]] == [False, True]


def test_the_cause_of_an_error_is_what_triton_raised():
    """As with Triton's own interpreter, whose tests look at it."""

    @triton.jit
    def kernel(x):
        tl.store(x, tl.program_id(20))

    with simulated(), pytest.raises(LaunchError) as error:
        kernel[(1,)](torch.zeros(1, dtype=torch.int32))
    assert isinstance(error.value.__cause__, ValueError)
    assert "axis must be 0, 1, or 2 but got 20" in str(error.value.__cause__)
