"""The splits `tiled_row_major` and `tiled_column_major` of record 0026: both axes at once, as tiles of a grid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy, resolve_dp_policy
from kernbench.topology import load_topology

TINY = {"system.sips.count": 1, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2}


def boxes(policy: DPPolicy, shape: tuple[int, ...], pes: int, cubes: int = 1) -> list[tuple[tuple[int, int], ...]]:
    found = resolve_dp_policy(policy, shape=shape, itemsize=2, num_pe=pes, num_cubes=cubes, target_sip=0)
    return [shard.box for shard in found]


def test_eight_parts_are_two_by_four_tiles_row_by_row_or_column_by_column() -> None:
    by_rows = boxes(DPPolicy(pe="tiled_row_major"), (8, 16), 8)
    assert by_rows[:5] == [((0, 4), (4 * k, 4 * k + 4)) for k in range(4)] + [((4, 8), (0, 4))]
    by_columns = boxes(DPPolicy(pe="tiled_column_major"), (8, 16), 8)
    assert by_columns[:3] == [((0, 4), (0, 4)), ((4, 8), (0, 4)), ((0, 4), (4, 8))]
    assert sorted(by_rows) == sorted(by_columns)


def test_parts_differ_by_one_and_a_vector_is_cut_along_its_axis() -> None:
    assert boxes(DPPolicy(pe="tiled_row_major"), (3, 5), 4) == [
        ((0, 2), (0, 3)), ((0, 2), (3, 5)), ((2, 3), (0, 3)), ((2, 3), (3, 5)),
    ]  # fmt: skip
    assert boxes(DPPolicy(pe="tiled_column_major"), (8,), 4) == [((2 * k, 2 * k + 2),) for k in range(4)]


def test_tiles_that_would_be_empty_are_refused() -> None:
    with pytest.raises(UsageError, match="1 x 64 elements in 2 x 4 tiles"):
        boxes(DPPolicy(pe="tiled_row_major"), (1, 64), 8)


@pytest.mark.needs("addresses", reason="its kernel reads the parts of other PEs")
@pytest.mark.parametrize("cube", ["tiled_row_major", "row_wise", "replicate"])
@pytest.mark.parametrize("pe", ["tiled_row_major", "tiled_column_major"])
def test_numbers_lie_where_the_policy_says_and_kernels_find_them(cube: Any, pe: Any) -> None:
    whole = np.arange(24 * 48, dtype=np.float16).reshape(24, 48)
    found: list[np.ndarray] = []

    def doubled(x: Any, y: Any, tl: Any) -> None:
        tl.store(y.local, tl.load(x.local) * 2.0)  # this PE's own tile

    def third_row(x: Any, out: Any, tl: Any) -> None:
        tl.store(out, tl.load(x + 3 * 48 * 2, (48,)))  # row-major, whatever holds it

    def run(torch: Any) -> None:
        policy = DPPolicy(cube=cube, pe=pe)
        x, y = torch.from_numpy(whole, dp=policy), torch.zeros(24, 48, dp=policy)
        torch.launch(doubled, x, y)
        out = torch.zeros(48, dp=DPPolicy(num_cubes=1, num_pes=1))
        torch.launch(third_row, x, out, target_cubes=(0,), target_pes=(0,))
        found.extend((x.numpy(), y.numpy(), out.numpy()))

    kernbench.run(run, load_topology(None, TINY))
    assert np.array_equal(found[0], whole)
    assert np.array_equal(found[1], 2 * whole)
    assert np.array_equal(found[2], whole[3])
