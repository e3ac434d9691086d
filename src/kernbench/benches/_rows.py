"""Work on rows: placed over the PEs of one cube, and gone through in blocks that fit TCM."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.triton_emu.tl_context import TensorPtr


def sharing(torch: RuntimeContext, parts: int, pes: int = 0) -> int:
    """How many PEs of a cube share `parts` rows or columns: `pes`, all for 0, and none that would have nothing."""
    return min(pes or torch.spec.cube.n_pes, parts)


def over_pes(pes: int) -> DPPolicy:
    """Rows over the first `pes` PEs of cube 0."""
    return DPPolicy(pe="row_wise", num_cubes=1, num_pes=pes)


def replicated(pes: int) -> DPPolicy:
    """All of it in each of the first `pes` PEs of cube 0."""
    return DPPolicy(num_cubes=1, num_pes=pes)


def blocks_of(source: TensorPtr, target: TensorPtr, block_rows: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Addresses of each block of rows in two matrices of one shape, and the block's shape; the last may be smaller."""
    if block_rows < 1:
        raise UsageError(f"blocks of {block_rows} rows", hint="take 1 or more at a time")
    rows, cols = source.shape
    for first in range(0, rows, block_rows):
        skip = first * cols
        shape = (min(block_rows, rows - first), cols)
        yield source + skip * _size(source), target + skip * _size(target), shape


def _size(ptr: TensorPtr) -> int:
    return dtype_of(ptr.dtype).itemsize
