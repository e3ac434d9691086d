"""`kernbench.testing.run_kernel`: arrays in, arrays and a time out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernbench.common.errors import LaunchError, UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.testing import run_kernel


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


@pytest.mark.parametrize("grid", [(), (1, 1, 1), 0, (2, 0), (True,), None, 1.5])
def test_a_wrong_grid_is_refused(grid: Any) -> None:
    with pytest.raises(UsageError, match="grid is"):
        run_kernel(add, X, grid=grid)
