"""From a composite command to a plan of tiles. Pure: no clock, no state, the same plan for the same command.

A GEMM is cut M first, then N, then K:

    DMA_READ(A) DMA_READ(B) FETCH GEMM [MATH per k_tile op]                          every tile
    ... DMA_READ(epilogue operands) before FETCH, [MATH per output_tile op] STORE DMA_WRITE   the last K tile of an output tile

Operands in TCM are pinned: no DMA_READ. The accumulator stays in registers over the K loop. An output in TCM needs no DMA_WRITE.
Ops of scope `kernel` make a second pass over the finished output. A tile moves as its rows; rows may be strided in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from kernbench.common.commands import CompositeCmd, Operand, OpSpec, Scope
from kernbench.common.dtypes import dtype_of
from kernbench.components.builtin.pipeline import (
    DmaStage,
    GemmStage,
    MathStage,
    MoveStage,
    PipelinePlan,
    Stage,
    StageType,
    TilePlan,
)

Span = tuple[int, int]  # first, size


@dataclass(frozen=True, slots=True)
class EngineNames:
    """The nodes of one PE that tiles pass through."""

    dma: str
    fetch_store: str
    gemm: str
    math: str

    @classmethod
    def of(cls, pe_prefix: str) -> EngineNames:
        return cls(f"{pe_prefix}.pe_dma", f"{pe_prefix}.pe_fetch_store", f"{pe_prefix}.pe_gemm", f"{pe_prefix}.pe_math")


def spans(size: int, tile: int) -> list[Span]:
    """`size` cut into tiles; the last one may be smaller."""
    return [(at, min(tile, size - at)) for at in range(0, size, tile)]


def tile_stage(kind: StageType, engine: str, operand: Operand, rows: Span, cols: Span) -> DmaStage:
    """The DMA of one tile of a matrix, or of what broadcasts to it: an axis of size 1 is taken whole."""
    height, width = as_matrix(operand.shape)
    if height == 1:
        rows = (0, 1)
    if width == 1:
        cols = (0, 1)
    if operand.transposed:
        rows, cols, width = cols, rows, height
    itemsize = dtype_of(operand.dtype).itemsize
    stride = width * itemsize
    address = operand.address + rows[0] * stride + cols[0] * itemsize
    if cols[1] == width:
        return DmaStage(kind, engine, address, 1, rows[1] * stride, rows[1] * stride)
    return DmaStage(kind, engine, address, rows[1], cols[1] * itemsize, stride)


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """A tensor as rows and columns: leading axes are rows."""
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def tile_elements(operand: Operand, rows: int, cols: int) -> int:
    height, width = as_matrix(operand.shape)
    return (rows if height > 1 else 1) * (cols if width > 1 else 1)


class _Inputs:
    """What one tile reads besides its head's operands, or all that a math tile reads."""

    def __init__(self, operands: list[Operand], engine: str) -> None:
        self._operands = operands
        self._engine = engine

    def stages(self, rows: Span, cols: Span) -> tuple[list[Stage], int, int]:
        """DMA stages, bytes that come by DMA, and bytes to fetch."""
        reads: list[Stage] = []
        moved = fetched = 0
        for operand in self._operands:
            nbytes = tile_elements(operand, rows[1], cols[1]) * dtype_of(operand.dtype).itemsize
            fetched += nbytes
            if operand.space != "tcm":
                reads.append(tile_stage(StageType.DMA_READ, self._engine, operand, rows, cols))
                moved += nbytes
        return reads, moved, fetched


def generate_gemm_plan(cmd: CompositeCmd, tile: tuple[int, int, int], pe_prefix: str) -> PipelinePlan:
    """The plan of a tiled matrix product with its epilogues. `tile` is (m, k, n)."""
    a, b = cmd.inputs
    (m, k), n = a.shape, b.shape[1]
    tile_m, tile_k, tile_n = tile
    outputs = len(spans(m, tile_m)) * len(spans(n, tile_n))
    main = outputs * len(spans(k, tile_k))
    last_pass = outputs if _ops(cmd, Scope.KERNEL) else 0

    def tiles() -> Iterator[TilePlan]:
        yield from _gemm_tiles(cmd, tile, EngineNames.of(pe_prefix))
        if last_pass:
            yield from _kernel_pass(cmd, EngineNames.of(pe_prefix), main, (tile_m, tile_n))

    return PipelinePlan(main + last_pass, tiles, main)


def _gemm_tiles(cmd: CompositeCmd, tile: tuple[int, int, int], names: EngineNames) -> Iterator[TilePlan]:
    a, b = cmd.inputs
    (m, k), n = a.shape, b.shape[1]
    tile_m, tile_k, tile_n = tile
    size_a, size_b = dtype_of(a.dtype).itemsize, dtype_of(b.dtype).itemsize
    acc_size, dtype = dtype_of(cmd.acc_dtype).itemsize, _slower(a.dtype, b.dtype)
    a_moves, b_moves = a.space != "tcm", b.space != "tcm"
    every, last = _ops(cmd, Scope.K_TILE), _ops(cmd, Scope.OUTPUT_TILE)
    k_spans, tile_id = spans(k, tile_k), 0
    per_k = _Inputs([op.operand for op in every if op.operand], names.dma)
    per_output = _Inputs([op.operand for op in (*every, *last) if op.operand], names.dma)
    for rows in spans(m, tile_m):
        for cols in spans(n, tile_n):
            out_elements = rows[1] * cols[1]
            for at, depth in enumerate(k_spans):
                is_last = depth is k_spans[-1]
                extra, moved, fetched = (per_output if is_last else per_k).stages(rows, cols)
                a_bytes, b_bytes = rows[1] * depth[1] * size_a, depth[1] * cols[1] * size_b
                stages: list[Stage] = []
                if a_moves:
                    stages.append(tile_stage(StageType.DMA_READ, names.dma, a, rows, depth))
                    moved += a_bytes
                if b_moves:
                    stages.append(tile_stage(StageType.DMA_READ, names.dma, b, depth, cols))
                    moved += b_bytes
                stages += extra
                fetched += a_bytes + b_bytes
                acc_bytes = out_elements * acc_size
                stages.append(
                    MoveStage(StageType.FETCH, names.fetch_store, fetched, fetched + (0 if at else acc_bytes))
                )
                ops = (*every, *last) if is_last else every
                freed = 0 if ops else fetched
                stages.append(GemmStage(StageType.GEMM, names.gemm, rows[1], depth[1], cols[1], dtype, freed))
                stages += _math_stages(ops, names.math, out_elements, fetched)
                out_bytes = _finish(stages, cmd.out, names, rows, cols, acc_bytes) if is_last else 0
                yield TilePlan(tile_id, tuple(stages), moved, out_bytes)
                tile_id += 1


def generate_math_plan(cmd: CompositeCmd, tile: tuple[int, int], pe_prefix: str) -> PipelinePlan:
    """The plan of a tiled math op: DMA_READ FETCH MATH STORE DMA_WRITE, M first, then N. `tile` is (m, n)."""
    m, n = as_matrix(cmd.out.shape)
    tile_m, tile_n = tile
    total = len(spans(m, tile_m)) * len(spans(n, tile_n))
    last_pass = total if _ops(cmd, Scope.KERNEL) else 0

    def tiles() -> Iterator[TilePlan]:
        names = EngineNames.of(pe_prefix)
        head = OpSpec(cmd.math_op, Scope.OUTPUT_TILE, dtype=_slower(*(x.dtype for x in cmd.inputs)))
        ops = (head, *_ops(cmd, Scope.K_TILE), *_ops(cmd, Scope.OUTPUT_TILE))
        operands = [*cmd.inputs, *(op.operand for op in ops if op.operand)]
        yield from _math_tiles(cmd.out, operands, ops, names, 0, (tile_m, tile_n))
        if last_pass:
            yield from _kernel_pass(cmd, names, total, (tile_m, tile_n))

    return PipelinePlan(total + last_pass, tiles, total)


def _kernel_pass(cmd: CompositeCmd, names: EngineNames, first: int, tile: tuple[int, int]) -> Iterator[TilePlan]:
    """The ops of scope `kernel` over the finished output."""
    ops = _ops(cmd, Scope.KERNEL)
    operands = [cmd.out, *(op.operand for op in ops if op.operand)]
    return _math_tiles(cmd.out, operands, ops, names, first, tile)


def _math_tiles(
    out: Operand,
    operands: list[Operand],
    ops: tuple[OpSpec, ...],
    names: EngineNames,
    first: int,
    tile: tuple[int, int],
) -> Iterator[TilePlan]:
    m, n = as_matrix(out.shape)
    inputs, tile_id = _Inputs(operands, names.dma), first
    for rows in spans(m, tile[0]):
        for cols in spans(n, tile[1]):
            stages, moved, fetched = inputs.stages(rows, cols)
            result = rows[1] * cols[1] * dtype_of(out.dtype).itemsize
            stages.append(MoveStage(StageType.FETCH, names.fetch_store, fetched, fetched + result))
            stages += _math_stages(ops, names.math, rows[1] * cols[1], fetched)
            out_bytes = _finish(stages, out, names, rows, cols, result)
            yield TilePlan(tile_id, tuple(stages), moved, out_bytes)
            tile_id += 1


def _math_stages(ops: tuple[OpSpec, ...], engine: str, elements: int, fetched: int) -> list[Stage]:
    """One stage an op; the last gives back the registers of what was fetched."""
    return [
        MathStage(StageType.MATH, engine, op.kind, elements, op.dtype, fetched if op is ops[-1] else 0) for op in ops
    ]


def _finish(stages: list[Stage], out: Operand, names: EngineNames, rows: Span, cols: Span, held: int) -> int:
    """Append how an output tile leaves the registers; returns the tile buffer it needs on its way to memory."""
    nbytes = rows[1] * cols[1] * dtype_of(out.dtype).itemsize
    stages.append(MoveStage(StageType.STORE, names.fetch_store, nbytes, held))
    if out.space == "tcm":
        return 0
    stages.append(tile_stage(StageType.DMA_WRITE, names.dma, out, rows, cols))
    return nbytes


def _ops(cmd: CompositeCmd, scope: Scope) -> tuple[OpSpec, ...]:
    return tuple(op for op in cmd.epilogues if op.scope is scope)


def _slower(*dtypes: str) -> str:
    return min(dtypes, key=lambda name: dtype_of(name).compute_scale)
