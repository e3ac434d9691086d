"""`kernbench.testing.run_kernel`: arrays in, arrays and a time out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import LaunchError, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.testing import run_kernel, tiny_machine


def add(x: Any, y: Any, out: Any, n: int, tl: Any) -> None:
    size = n // (tl.num_programs(0) * tl.num_programs(1))
    at = (tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)) * size * 2
    tl.store(out + at, tl.load(x + at, (size,)) + tl.load(y + at, (size,)))


X, Y = np.arange(16, dtype=np.float16), np.full(16, 100, np.float16)


@pytest.mark.parametrize("grid", [1, (1,), (2,), (8,), (2, 2), (12,)])
def test_the_programs_of_a_grid_share_memory(grid: int | tuple[int, ...]) -> None:
    n = 16 if grid != (12,) else 12
    (x, y, out), ns = run_kernel(add, X, Y, np.zeros_like(X), n, grid=grid)
    assert (x == X).all()
    assert (y == Y).all()
    assert (out[:n] == X[:n] + 100).all()
    assert ns > 0


def test_arrays_may_be_spread_over_pes() -> None:
    def mine(x: Any, out: Any, tl: Any) -> None:
        at = 4 * 2 * tl.program_id(0)
        tl.store(out + at, tl.load(x + at, x.local_shape) * 2)

    (_, out), ns = run_kernel(mine, X, np.zeros_like(X), grid=(4,), dp=DPPolicy(pe="row_wise", num_pes=4))
    assert (out == 2 * X).all()
    together = run_kernel(add, X, Y, np.zeros_like(X), 16).time_ns
    assert ns < together  # two transfers of 8 bytes against three of 32


def test_the_arguments_stay_as_they_are() -> None:
    out = np.zeros_like(X)
    run_kernel(add, X, Y, out, 16)
    assert not out.any()


def test_a_failing_kernel_says_where() -> None:
    def wrong(x: Any, tl: Any) -> None:
        tl.load(x, (99,))

    with pytest.raises(LaunchError) as caught:
        run_kernel(wrong, X)
    assert str(caught.value.where).startswith(__file__)


def test_arguments_may_be_given_by_name() -> None:
    (x, out, y), _ = run_kernel(add, X, out=np.zeros_like(X), y=Y, n=16)
    assert (out == x + y).all()
    with pytest.raises(UsageError, match="'sips' is an option of launch"):
        run_kernel(add, X, Y, X, 16, sips=0)


@pytest.mark.parametrize(
    ("grid", "fits"), [(1000, "(16, 1)"), ((17,), "(16, 1)"), ((2, 17), "(2, 16)"), ((20, 20), "(16, 16)")]
)
def test_a_grid_that_no_machine_has_room_for_says_what_fits(grid: Any, fits: str) -> None:
    with pytest.raises(UsageError, match="a machine has at most 16 PEs per cube and 16 cubes") as caught:
        run_kernel(add, X, Y, X, 16, grid=grid)
    assert f"a program is a PE, not a block: use grid={fits} or less" in str(caught.value.hint)


def test_a_grid_is_held_against_the_machine_that_is_given() -> None:
    with pytest.raises(UsageError, match="machine tiny has 8 PEs per cube and 1 cubes"):
        run_kernel(add, X, Y, X, 16, grid=(9,), topology=tiny_machine(4, 1))


@pytest.mark.parametrize("grid", [(), (1, 1, 1), 0, (2, 0), (True,), None, 1.5])
def test_a_wrong_grid_is_refused(grid: Any) -> None:
    with pytest.raises(UsageError, match="grid is"):
        run_kernel(add, X, grid=grid)
