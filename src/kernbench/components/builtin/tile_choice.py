"""Which tile a composite is cut into: the native one, made smaller until it fits, the one that the kernel asks for, or
the one that is fastest by the model of the pipeline (tile_model.py).

A tile fits when its buffers fit the TCM that the scheduler keeps and its operands and result fit the register file. A
chosen tile must fit the TCM twice, so that the next can arrive while one is worked on; one that the kernel asks for
must fit once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod

import numpy as np

from kernbench.common.array_types import Ints
from kernbench.common.commands import CompositeCmd, Operand, Scope
from kernbench.common.composite_use import PathTiming
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import KernelCapacityError, KernelError
from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId
from kernbench.components.builtin.product_cost import product_cost
from kernbench.components.builtin.tile_model import PeRates, composite_ns
from kernbench.components.builtin.tile_plan import PipelinePlan
from kernbench.components.builtin.tiling import (
    DMA,
    FETCH_STORE,
    GEMM,
    MATH,
    OpServer,
    OpServers,
    as_matrix,
    generate_gemm_plan,
    generate_math_plan,
)
from kernbench.components.builtin.vector_functions import VectorUnit
from kernbench.topology.graph import TopologyGraph

WHOLE_ROWS = frozenset({"softmax"})  # math ops that need a row of their input at once
LEAST_GAIN = 0.05  # of a tile that is taken instead of the native one
LEAST_SIDE = 8  # of the tiles that are looked at, unless the whole side is smaller


@frozen
class TileLimits:
    """What plans depend on besides their command: what a tile must fit, the tile that the engines were built for, (m,
    k, n) for a product and (m, n) for math, and which engines there are.
    """

    tcm_bytes: int
    register_bytes: int
    gemm_tile: tuple[int, int, int]
    math_tile: tuple[int, int]
    servers: tuple[tuple[str, OpServer], ...] = ()  # by math op, the engine that serves it instead of PE_MATH


def limits_of(graph: TopologyGraph, pe: PeId, servers: OpServers | None = None) -> TileLimits:
    """What tiles of a PE must fit, and their native size."""
    gemm, math, fetch = (graph.node(pe.part(name)).attrs for name in (GEMM, MATH, FETCH_STORE))
    return TileLimits(
        graph.spec.cube_of(pe.sip, pe.cube).tcm_reserved_bytes,
        int(fetch["register_file_bytes"]),
        (int(gemm["tile_m"]), int(gemm["tile_k"]), int(gemm["tile_n"])),
        (int(math["tile_m"]), int(math["tile_n"])),
        tuple((servers or {}).items()),
    )


def rates_of(graph: TopologyGraph, pe: PeId) -> PeRates:
    """How fast the engines of a PE are."""
    dma, move, gemm, math = (graph.node(pe.part(name)) for name in (DMA, FETCH_STORE, GEMM, MATH))
    cube = graph.spec.cube_of(pe.sip, pe.cube)
    return PeRates(
        product=product_cost(gemm),
        vector=VectorUnit.of(math.attrs),
        fetch_gbs=cube.pe_template.links.tcm_read_bw_gbs,
        store_gbs=cube.pe_template.links.tcm_write_bw_gbs,
        dma_places=int(dma.attrs.get("engines_per_direction", 1)) * int(dma.attrs.get("outstanding", 1)),
        dma_gbs=cube.links.pe_dma_to_router_bw_gbs,
        move_overhead_ns=move.overhead_ns,
        gemm_overhead_ns=gemm.overhead_ns,
        math_overhead_ns=math.overhead_ns,
        register_bytes=int(move.attrs["register_file_bytes"]),
        tcm_bytes=cube.tcm_reserved_bytes,
    )


@lru_cache(maxsize=64)  # all PEs of a launch ask for the same
def plan_of(cmd: CompositeCmd, limits: TileLimits) -> PipelinePlan:
    """The plan of a command whose operands are numbered; raises KernelError when no tile fits."""
    if cmd.op == "gemm":
        plan = generate_gemm_plan(cmd, choose_gemm_tile(cmd, limits), dict(limits.servers))
    else:
        plan = generate_math_plan(cmd, choose_math_tile(cmd, limits), dict(limits.servers))
    plan.source = plan_of, (cmd, limits)
    return plan


def fastest_tile(
    cmd: CompositeCmd, limits: TileLimits, rates: PeRates, paths: tuple[PathTiming | None, ...]
) -> tuple[int, ...]:
    """The fastest tile by the model of the pipeline, among those that fit; the native one unless another is faster by a
    twentieth, which is the model's accuracy.

    Among equally fast tiles, fewer tiles win, then smaller sides. Raises KernelError when no tile fits.
    """
    # Only the equality of memories matters, not their names.
    numbers: dict[str, str] = {}
    alike = tuple(path and replace(path, memory=numbers.setdefault(path.memory, str(len(numbers)))) for path in paths)
    return _fastest_tile(cmd, limits, rates, alike)


@lru_cache(maxsize=256)  # PEs at one distance from their operands ask for the same
def _fastest_tile(
    cmd: CompositeCmd, limits: TileLimits, rates: PeRates, paths: tuple[PathTiming | None, ...]
) -> tuple[int, ...]:
    native, sizes = native_tile(cmd, limits), _sizes(cmd)
    if not prod(sizes):
        return native
    tiles = _candidates(cmd, native, limits)
    times_ns = composite_ns(cmd, tiles, rates, paths)
    counts = np.prod(-(-np.array(sizes) // tiles), axis=1)
    best = np.lexsort((*tiles.T[::-1], counts, times_ns))[0]
    if times_ns[best] > times_ns[0] * (1 - LEAST_GAIN):
        return native
    return tuple(int(size) for size in tiles[best])


def choose_gemm_tile(cmd: CompositeCmd, limits: TileLimits) -> tuple[int, int, int]:
    """(m, k, n) of a product; raises KernelError when none fits, or the one asked for does not."""
    m, k, n = _choose(cmd, limits)
    return m, k, n


def choose_math_tile(cmd: CompositeCmd, limits: TileLimits) -> tuple[int, int]:
    """(m, n) of a math op; raises KernelError when none fits, or the one asked for does not."""
    m, n = _choose(cmd, limits)
    return m, n


def _choose(cmd: CompositeCmd, limits: TileLimits) -> tuple[int, ...]:
    assert cmd.tile_shape != "auto", "chosen before it is planned"
    return native_tile(cmd, limits) if cmd.tile_shape is None else _asked(cmd, cmd.tile_shape, limits)


def _sizes(cmd: CompositeCmd) -> tuple[int, ...]:
    """What there is to tile: (m, k, n) of a product, (m, n) of a math op."""
    if cmd.op == "gemm":
        a, b = cmd.inputs
        return a.shape[0], a.shape[1], b.shape[1]
    return as_matrix(cmd.out.shape)


def _whole_sides(cmd: CompositeCmd) -> tuple[bool, ...]:
    """Which sides must not be cut."""
    if cmd.op == "gemm":
        return False, False, False
    return False, cmd.math_op in WHOLE_ROWS or any(op.kind in WHOLE_ROWS for op in cmd.epilogues)


def tile_needs(cmd: CompositeCmd, tile: tuple[int, ...]) -> tuple[int, int]:
    """Bytes of TCM buffers, and of registers, that a whole tile needs."""
    tcm, registers = _needs(cmd, np.array([tile]))
    return int(tcm[0]), int(registers[0])


def _needs(cmd: CompositeCmd, tiles: Ints) -> tuple[Ints, Ints]:
    """The same for many tiles, one per row."""
    rows, cols = tiles[:, 0], tiles[:, -1]
    main = [op.operand for op in cmd.epilogues if op.operand and op.scope is not Scope.KERNEL]
    out_item = dtype_of(cmd.out.dtype).itemsize
    if cmd.op == "gemm":
        (a, b), depth = cmd.inputs, tiles[:, 1]
        head = [(a, rows * depth), (b, depth * cols)]
        held = rows * cols * dtype_of(cmd.acc_dtype).itemsize
    else:
        head, main, held = [], [*cmd.inputs, *main], rows * cols * out_item
    written = rows * cols * out_item if not cmd.out.pinned else np.zeros_like(rows)
    tcm, registers = _sum([*head, *_broadcast(main, rows, cols)], rows)
    tcm, registers = tcm + written, registers + held
    if any(op.scope is Scope.KERNEL for op in cmd.epilogues):
        second = [cmd.out, *(op.operand for op in cmd.epilogues if op.operand and op.scope is Scope.KERNEL)]
        more_tcm, more_registers = _sum(_broadcast(second, rows, cols), rows)
        tcm = np.maximum(tcm, more_tcm + written)
        registers = np.maximum(registers, more_registers + rows * cols * out_item)
    return tcm, registers


def _broadcast(operands: list[Operand], rows: Ints, cols: Ints) -> list[tuple[Operand, Ints]]:
    """Elements of each operand's part of a tile."""
    found = []
    for operand in operands:
        height, width = as_matrix(operand.shape)
        found.append((operand, (rows if height > 1 else np.ones_like(rows)) * (cols if width > 1 else 1)))
    return found


def _sum(inputs: list[tuple[Operand, Ints]], like: Ints) -> tuple[Ints, Ints]:
    tcm, registers = np.zeros_like(like), np.zeros_like(like)
    for operand, elements in inputs:
        nbytes = elements * dtype_of(operand.dtype).itemsize
        registers = registers + nbytes
        if not operand.pinned:
            tcm = tcm + nbytes
    return tcm, registers


def native_tile(cmd: CompositeCmd, limits: TileLimits) -> tuple[int, ...]:
    """The tile that the engines were built for, halved along its longest side until two fit; a vector's is as many
    elements as a matrix's. Raises KernelError when none fits.
    """
    sizes, fixed = _sizes(cmd), _whole_sides(cmd)
    built_for: tuple[int, ...] = limits.gemm_tile
    if cmd.op != "gemm":
        built_for = _native_math_tile(sizes, limits.math_tile)
    tile = [size if keep else min(size, part) for size, part, keep in zip(sizes, built_for, fixed, strict=True)]
    while True:
        tcm, registers = tile_needs(cmd, tuple(tile))
        if 2 * tcm <= limits.tcm_bytes and registers <= limits.register_bytes:
            return tuple(tile)
        axis = max((i for i in range(len(tile)) if not fixed[i]), key=lambda i: (tile[i], i))
        if tile[axis] == 1:
            raise _too_large(cmd, tuple(tile), 2 * tcm, registers, limits)
        tile[axis] = -(-tile[axis] // 2)


def _native_math_tile(sizes: tuple[int, ...], built_for: tuple[int, int]) -> tuple[int, int]:
    """A vector, lying or standing, has one long side: that takes what the other leaves."""
    rows, cols = sizes
    if rows == 1:
        return 1, prod(built_for)
    return (prod(built_for), 1) if cols == 1 else built_for


def _candidates(cmd: CompositeCmd, native: tuple[int, ...], limits: TileLimits) -> Ints:
    """Tiles worth a look: the native one first, then those that fit, with sides of 2^i, 3 * 2^i, and the whole of the
    matrix, its half and its third.

    None has narrower rows than the native tile: that a narrow row takes whole bursts is modelled for row-major tensors
    only, and must not be what makes one look fast.
    """
    sides = [[size] if keep else _sides_of(size) for size, keep in zip(_sizes(cmd), _whole_sides(cmd), strict=True)]
    grid = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, len(sides))
    tcm, registers = _needs(cmd, grid)
    fits = (2 * tcm <= limits.tcm_bytes) & (registers <= limits.register_bytes)
    fits &= (grid[:, 1:] >= np.array(native[1:])).all(axis=1)
    return np.concatenate((np.array([native]), grid[fits]))


def _sides_of(size: int) -> list[int]:
    steps = [factor << shift for shift in range(size.bit_length()) for factor in (1, 3)]
    found = [step for step in steps if LEAST_SIDE <= step < size]
    parts = [part for part in (-(-size // 2), -(-size // 3)) if part >= LEAST_SIDE]
    return sorted({*found, *parts, size})


def _asked(cmd: CompositeCmd, shape: tuple[int, ...], limits: TileLimits) -> tuple[int, ...]:
    sizes, fixed = _sizes(cmd), _whole_sides(cmd)
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


def _too_large(
    cmd: CompositeCmd, tile: tuple[int, ...], tcm: int, registers: int, limits: TileLimits
) -> KernelCapacityError:
    what = " x ".join(map(str, tile))
    return KernelCapacityError(
        f"a {what} tile of this {cmd.op} needs {tcm} bytes of tile buffers and {registers} bytes of registers; the PE "
        f"has {limits.tcm_bytes} and {limits.register_bytes}",
        hint="ask for a smaller tile_shape, or raise cube.memory_map.tcm_scheduler_reserved_mb or "
        "cube.pe_template.components.pe_fetch_store.attrs.register_file_bytes",
    )
