"""What one pass of a composite over its output reads and computes, for the model of the pipeline."""

from __future__ import annotations

from kernbench.common.commands import CompositeCmd, Operand, OpSpec, Scope
from kernbench.common.dtypes import dtype_of
from kernbench.common.frozen import frozen
from kernbench.components.builtin.tiling import LaneOp, as_matrix, in_slowest, ops_of, slower


@frozen
class TilePass:
    """One pass over an output of `sizes`: (m, k, n), where k is 1 for math."""

    sizes: tuple[int, int, int]
    head: tuple[Operand, ...]  # of a product: (m, k) and (k, n)
    every: tuple[Operand, ...]  # broadcast to (m, n), read with every tile
    last: tuple[Operand, ...]  # the same, read with the last K tile
    out: Operand
    mac_dtype: str
    acc_itemsize: int  # of what stays in registers until it is stored
    every_ops: tuple[LaneOp, ...]  # on a K tile that is not the last
    last_ops: tuple[LaneOp, ...]


def gemm_pass(cmd: CompositeCmd) -> TilePass:
    """A product, with its ops per K tile and per output tile."""
    a, b = cmd.inputs
    every, acc = ops_of(cmd, Scope.K_TILE), cmd.acc_dtype
    per_output = ops_of(cmd, Scope.OUTPUT_TILE)
    return TilePass(
        (a.shape[0], max(a.shape[1], 1), b.shape[1]),
        (a, b),
        _operands(every),
        _operands(per_output),
        cmd.out,
        slower(a.dtype, b.dtype),
        dtype_of(acc).itemsize,
        in_slowest(every, (acc,), acc),
        in_slowest((*every, *per_output), (acc,), cmd.out.dtype),
    )


def math_pass(cmd: CompositeCmd, heads: tuple[Operand, ...], ops: tuple[OpSpec, ...]) -> TilePass:
    """Math ops on `heads`, element by element."""
    rows, cols = as_matrix(cmd.out.shape)
    work = in_slowest(ops, tuple(x.dtype for x in heads), cmd.out.dtype)
    itemsize = dtype_of(cmd.out.dtype).itemsize
    return TilePass((rows, 1, cols), (), (*heads, *_operands(ops)), (), cmd.out, "", itemsize, work, work)


def _operands(ops: tuple[OpSpec, ...]) -> tuple[Operand, ...]:
    return tuple(op.operand for op in ops if op.operand is not None)
