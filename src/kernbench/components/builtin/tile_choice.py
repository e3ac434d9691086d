"""Which tile a composite is cut into: the machine's own, made smaller until it fits, or the one the kernel asks for.

A tile fits when its buffers fit the TCM that the scheduler keeps and its operands and result fit the register file. A
chosen tile must fit the TCM twice, so that the next can arrive while one is worked on; one that the kernel asks for
must fit once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kernbench.common.commands import CompositeCmd, Operand, Scope
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import KernelError
from kernbench.components.builtin.pipeline import PipelinePlan
from kernbench.components.builtin.tiling import (
    OpServer,
    as_matrix,
    generate_gemm_plan,
    generate_math_plan,
    tile_elements,
)

WHOLE_ROWS = frozenset({"softmax"})  # math ops that need a row of their input at once


@dataclass(frozen=True, slots=True)
class TileLimits:
    """What plans depend on besides their command: what a tile must fit, the tile that the engines were built for, (m,
    k, n) for a product and (m, n) for math, and which engines there are.
    """

    tcm_bytes: int
    register_bytes: int
    gemm_tile: tuple[int, int, int]
    math_tile: tuple[int, int]
    servers: tuple[tuple[str, OpServer], ...] = ()  # who serves which math op, beside PE_MATH


@lru_cache(maxsize=64)  # all PEs of a launch ask for the same
def plan_of(cmd: CompositeCmd, limits: TileLimits) -> PipelinePlan:
    """The plan of a command whose operands are numbered; raises KernelError when no tile fits."""
    if cmd.op == "gemm":
        return generate_gemm_plan(cmd, choose_gemm_tile(cmd, limits), dict(limits.servers))
    return generate_math_plan(cmd, choose_math_tile(cmd, limits), dict(limits.servers))


def choose_gemm_tile(cmd: CompositeCmd, limits: TileLimits) -> tuple[int, int, int]:
    """(m, k, n) of a product; raises KernelError when none fits, or the one asked for does not."""
    a, b = cmd.inputs
    sizes = (a.shape[0], a.shape[1], b.shape[1])
    m, k, n = _choose(cmd, sizes, limits.gemm_tile, (False, False, False), limits)
    return m, k, n


def choose_math_tile(cmd: CompositeCmd, limits: TileLimits) -> tuple[int, int]:
    """(m, n) of a math op; raises KernelError when none fits, or the one asked for does not."""
    whole_rows = cmd.math_op in WHOLE_ROWS or any(op.kind in WHOLE_ROWS for op in cmd.epilogues)
    m, n = _choose(cmd, as_matrix(cmd.out.shape), limits.math_tile, (False, whole_rows), limits)
    return m, n


def tile_needs(cmd: CompositeCmd, tile: tuple[int, ...]) -> tuple[int, int]:
    """Bytes of TCM buffers, and of registers, that a whole tile needs."""
    rows, cols = tile[0], tile[-1]
    extras = [op.operand for op in cmd.epilogues if op.operand and op.scope is not Scope.KERNEL]
    if cmd.op == "gemm":
        a, b = cmd.inputs
        inputs = [(a, rows * tile[1]), (b, tile[1] * cols)]
        held = rows * cols * dtype_of(cmd.acc_dtype).itemsize
    else:
        inputs = [(operand, tile_elements(operand, rows, cols)) for operand in cmd.inputs]
        held = rows * cols * dtype_of(cmd.out.dtype).itemsize
    inputs += [(operand, tile_elements(operand, rows, cols)) for operand in extras]
    tcm, registers = _sum(inputs)
    if not cmd.out.pinned:
        tcm += rows * cols * dtype_of(cmd.out.dtype).itemsize
    needs = [(tcm, registers + held)]
    second = [op.operand for op in cmd.epilogues if op.operand and op.scope is Scope.KERNEL]
    if any(op.scope is Scope.KERNEL for op in cmd.epilogues):
        tcm, registers = _sum([(operand, tile_elements(operand, rows, cols)) for operand in (cmd.out, *second)])
        result = rows * cols * dtype_of(cmd.out.dtype).itemsize
        needs.append((tcm + (result if not cmd.out.pinned else 0), registers + result))
    return max(need[0] for need in needs), max(need[1] for need in needs)


def _sum(inputs: list[tuple[Operand, int]]) -> tuple[int, int]:
    sizes = [(operand.pinned, elements * dtype_of(operand.dtype).itemsize) for operand, elements in inputs]
    return sum(nbytes for pinned, nbytes in sizes if not pinned), sum(nbytes for _, nbytes in sizes)


def _choose(
    cmd: CompositeCmd, sizes: tuple[int, ...], native: tuple[int, ...], fixed: tuple[bool, ...], limits: TileLimits
) -> tuple[int, ...]:
    if cmd.tile_shape is not None:
        return _asked(cmd, sizes, fixed, limits)
    whole = [size if keep else min(size, tile) for size, tile, keep in zip(sizes, native, fixed, strict=True)]
    tile = list(whole)
    while True:
        tcm, registers = tile_needs(cmd, tuple(tile))
        if 2 * tcm <= limits.tcm_bytes and registers <= limits.register_bytes:
            return tuple(tile)
        axis = max((i for i in range(len(tile)) if not fixed[i]), key=lambda i: (tile[i], i))
        if tile[axis] == 1:
            raise _too_large(cmd, tuple(tile), 2 * tcm, registers, limits)
        tile[axis] = -(-tile[axis] // 2)


def _asked(cmd: CompositeCmd, sizes: tuple[int, ...], fixed: tuple[bool, ...], limits: TileLimits) -> tuple[int, ...]:
    shape = cmd.tile_shape
    assert shape is not None
    axes = "(m, k, n)" if cmd.op == "gemm" else "(m, n)"
    if len(shape) != len(sizes) or any(size < 1 for size in shape):
        raise KernelError(f"tile_shape is {shape}", hint=f"give {axes}, each 1 or more")
    tile = tuple(min(size, whole) for size, whole in zip(shape, sizes, strict=True))
    for at, keep in enumerate(fixed):
        if keep and tile[at] != sizes[at]:
            raise KernelError(
                f"tile_shape is {shape}, but {cmd.math_op} needs whole rows of {sizes[at]}",
                hint=f"make the last number {sizes[at]}",
            )
    tcm, registers = tile_needs(cmd, tile)
    if tcm > limits.tcm_bytes or registers > limits.register_bytes:
        raise _too_large(cmd, tile, tcm, registers, limits)
    return tile


def _too_large(cmd: CompositeCmd, tile: tuple[int, ...], tcm: int, registers: int, limits: TileLimits) -> KernelError:
    what = " x ".join(map(str, tile))
    return KernelError(
        f"a {what} tile of this {cmd.op} needs {tcm} bytes of tile buffers and {registers} bytes of registers; the PE "
        f"has {limits.tcm_bytes} and {limits.register_bytes}",
        hint="ask for a smaller tile_shape, or raise cube.memory_map.tcm_scheduler_reserved_mb or "
        "cube.pe_template.components.pe_fetch_store.attrs.register_file_bytes",
    )
