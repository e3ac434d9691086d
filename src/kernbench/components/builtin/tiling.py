"""From a composite command to a plan of tiles. Pure: no clock, no state, the same plan for the same command.

A GEMM is cut M first, then N, then K:

    DMA_READ(A) DMA_READ(B) FETCH GEMM [MATH per k_tile op]       every tile
    [MATH per output_tile op] STORE DMA_WRITE                     after that, on the last K tile of an output tile

A tile also reads, before FETCH, its part of the tensors that its epilogues use. Operands in TCM are pinned: no
DMA_READ. The accumulator stays in registers over the K loop. An output in TCM needs no DMA_WRITE. Ops of scope
`kernel` make a second pass over the finished output. A tile moves as its rows; rows may be strided in memory. The
lanes work on an op in the slowest type that it reads or gives. A product over no K is one K tile without operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from kernbench.common.array_types import Span
from kernbench.common.commands import ROW_MAJOR, CompositeCmd, Operand, OpSpec, Scope
from kernbench.common.dtypes import dtype_of
from kernbench.components.builtin.stages import DmaStage, GemmStage, MathStage, MoveStage, Stage, StageType
from kernbench.components.builtin.tile_plan import OperandGrid, Outline, PipelinePlan, TilePlan

LaneOp = tuple[str, str]  # a math op, and the type that the lanes work in


DMA, FETCH_STORE, GEMM, MATH = "pe_dma", "pe_fetch_store", "pe_gemm", "pe_math"  # parts of a PE, which stages name


class OpServer(NamedTuple):
    """The part of a PE that serves a math op, and the class of the stages that the op becomes."""

    part: str = MATH
    stage: type[MathStage] = MathStage

    def stage_of(self, op: str, elements: int, dtype: str, registers: int = 0, along: int = 0) -> MathStage:
        return self.stage(StageType.MATH, self.part, op, elements, dtype, registers, along)


OpServers = Mapping[str, OpServer]  # by op, for those that some part declares
NO_SERVERS: OpServers = MappingProxyType({})
LANES = OpServer()


def without_addresses(cmd: CompositeCmd) -> tuple[CompositeCmd, tuple[int, ...]]:
    """A command whose operands are numbered instead of placed, and their addresses: one plan serves every PE."""
    addresses: list[int] = []

    def numbered(operand: Operand) -> Operand:
        addresses.append(operand.address)
        return operand._replace(address=len(addresses) - 1, segments=())

    inputs, out = tuple(numbered(x) for x in cmd.inputs), numbered(cmd.out)
    steps = tuple(replace(op, operand=op.operand and numbered(op.operand)) for op in cmd.epilogues)
    return replace(cmd, inputs=inputs, out=out, epilogues=steps, deps=()), tuple(addresses)


def operands_of(cmd: CompositeCmd) -> list[Operand]:
    """A command's operands, in the order in which `without_addresses` numbers them."""
    return [*cmd.inputs, cmd.out, *(op.operand for op in cmd.epilogues if op.operand)]


def by_rows(cmd: CompositeCmd) -> tuple[int, ...]:
    """The operands, numbered, of whose tiles each row is a run of bytes of its own."""
    return tuple(x.address for x in operands_of(cmd) if x.layout == ROW_MAJOR and not x.pinned)


def spans(size: int, tile: int) -> list[Span]:
    """`size` cut into tiles; the last one may be smaller. Nothing is one tile of nothing."""
    return [(at, min(tile, size - at)) for at in range(0, size, tile)] if size else [(0, 0)]


def tile_stage(kind: StageType, operand: Operand, rows: Span, cols: Span) -> DmaStage:
    """The DMA of one tile of a matrix, or of what broadcasts to it: an axis of size 1 is taken whole."""
    return tile_stages(kind, operand)(rows, cols)


def tile_stages(kind: StageType, operand: Operand) -> Callable[[Span, Span], DmaStage]:
    """`tile_stage` of one operand, by rows and columns."""
    (height, width), is_transposed, number = as_matrix(operand.shape), operand.transposed, operand.address
    itemsize = dtype_of(operand.dtype).itemsize
    whole = height if is_transposed else width  # how much lies between two rows in memory
    stride, by_rows = whole * itemsize, operand.layout == ROW_MAJOR

    def stage(rows: Span, cols: Span) -> DmaStage:
        if height == 1:
            rows = (0, 1)
        if width == 1:
            cols = (0, 1)
        if is_transposed:
            rows, cols = cols, rows
        offset, nbytes = rows[0] * stride + cols[0] * itemsize, rows[1] * cols[1] * itemsize
        if cols[1] == whole:
            return DmaStage(kind, DMA, number, offset, nbytes, 1, nbytes, nbytes, by_rows)
        return DmaStage(kind, DMA, number, offset, nbytes, rows[1], cols[1] * itemsize, stride, by_rows)

    return stage


def as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """A tensor as rows and columns: leading axes are rows."""
    return (prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def tile_elements(operand: Operand, rows: int, cols: int) -> int:
    height, width = as_matrix(operand.shape)
    return (rows if height > 1 else 1) * (cols if width > 1 else 1)


def _sizes(parts: list[Span]) -> tuple[int, ...]:
    return tuple(size for _, size in parts)


def _grid(
    operand: Operand,
    rows: list[Span],
    cols: list[Span],
    deep_rows: Sequence[Span] = (),
    deep_cols: Sequence[Span] = (),
) -> OperandGrid | None:
    """Where the tiles of an operand begin; its rows or columns are those of the tiles, or their depths. None for one
    that is pinned.
    """
    if operand.pinned:
        return None
    height, width = as_matrix(operand.shape)
    row_bytes = col_bytes = dtype_of(operand.dtype).itemsize
    if operand.transposed:
        col_bytes *= height
    else:
        row_bytes *= width
    row_bytes, col_bytes = row_bytes * (height > 1), col_bytes * (width > 1)
    depths = [at * row_bytes for at, _ in deep_rows] or [at * col_bytes for at, _ in deep_cols] or [0]
    return OperandGrid(
        operand.address,
        tuple(at * row_bytes for at, _ in rows) or (0,),
        tuple(at * col_bytes for at, _ in cols) or (0,),
        tuple(depths),
    )


class _Inputs:
    """What one tile reads besides its head's operands, or all that a math tile reads."""

    def __init__(self, operands: list[Operand]) -> None:
        self._operands = operands

    def __bool__(self) -> bool:
        return bool(self._operands)

    def stages(self, rows: Span, cols: Span) -> tuple[list[Stage], int, int]:
        """DMA stages, bytes that come by DMA, and bytes to fetch."""
        reads: list[Stage] = []
        moved = fetched = 0
        for operand in self._operands:
            nbytes = tile_elements(operand, rows[1], cols[1]) * dtype_of(operand.dtype).itemsize
            fetched += nbytes
            if not operand.pinned:
                reads.append(tile_stage(StageType.DMA_READ, operand, rows, cols))
                moved += nbytes
        return reads, moved, fetched


def generate_gemm_plan(cmd: CompositeCmd, tile: tuple[int, int, int], servers: OpServers = NO_SERVERS) -> PipelinePlan:
    """The plan of a tiled matrix product with its epilogues. `tile` is (m, k, n); operands are numbered."""
    a, b = cmd.inputs
    (m, k), n = a.shape, b.shape[1]
    tile_m, tile_k, tile_n = tile
    outputs = len(spans(m, tile_m)) * len(spans(n, tile_n))
    main = outputs * len(spans(k, tile_k))
    last_pass = outputs if ops_of(cmd, Scope.KERNEL) else 0

    @cache
    def product() -> _GemmTiles:
        return _GemmTiles(cmd, tile, servers)

    def tiles(first: int) -> Iterator[TilePlan]:
        if first < main:
            yield from product().since(first)
        if last_pass:
            yield from islice(_kernel_pass(cmd, main, (tile_m, tile_n), servers), max(first - main, 0), None)

    def outline() -> Outline:
        rows, depths, cols = spans(m, tile_m), spans(k, tile_k), spans(n, tile_n)
        extra = [op.operand for op in cmd.epilogues if op.operand and op.scope is not Scope.KERNEL]
        grids = [_grid(a, rows, [], (), depths), _grid(b, [], cols, depths, ()), _grid(cmd.out, rows, cols)]
        grids += [_grid(x, rows, cols) for x in extra]
        return Outline(_sizes(rows), _sizes(cols), tuple(grid for grid in grids if grid is not None))

    return PipelinePlan(main + last_pass, main, tiles, tile, len(spans(k, tile_k)), outline, by_rows(cmd))


_Reads = tuple[Stage, ...]


def _reads(operand: Operand) -> Callable[[Span, Span], _Reads]:
    """What tiles read of an operand, by rows and columns."""
    if operand.pinned:
        return lambda rows, cols: ()
    stage = tile_stages(StageType.DMA_READ, operand)
    return lambda rows, cols: (stage(rows, cols),)


class _GemmTiles:
    """The tiles of one product. Stages that do not depend on where a tile lies are made once and shared."""

    def __init__(self, cmd: CompositeCmd, tile: tuple[int, int, int], servers: OpServers) -> None:
        self._cmd = cmd
        self._servers = servers
        a, b = cmd.inputs
        (m, k), n = a.shape, b.shape[1]
        self._rows, self._depths, self._cols = spans(m, tile[0]), spans(k, tile[1]), spans(n, tile[2])
        self._read_a, self._read_b = _reads(a), _reads(b)
        self._write = tile_stages(StageType.DMA_WRITE, cmd.out)
        self._item_a, self._item_b = dtype_of(a.dtype).itemsize, dtype_of(b.dtype).itemsize
        self._acc_item = dtype_of(cmd.acc_dtype).itemsize
        self._dtype = slower(a.dtype, b.dtype)
        every, acc = ops_of(cmd, Scope.K_TILE), cmd.acc_dtype
        both = (*every, *ops_of(cmd, Scope.OUTPUT_TILE))
        self._every, self._both = in_slowest(every, (acc,), acc), in_slowest(both, (acc,), cmd.out.dtype)
        self._per_k = _Inputs([op.operand for op in every if op.operand])
        self._per_output = _Inputs([op.operand for op in both if op.operand])
        self._tails: dict[tuple[int, int, int, bool, bool, int], tuple[Stage, ...]] = {}
        self._kinds: dict[tuple[int, ...], tuple[int, ...]] = {}

    def since(self, first: int) -> Iterator[TilePlan]:
        """The tiles from one on. What a tile reads is made when it is needed, and kept for the next row or column."""
        read_a, read_b = self._read_a, self._read_b
        depths, last = self._depths, len(self._depths) - 1
        outputs, start = divmod(first, len(depths))
        row, column = divmod(outputs, len(self._cols))
        tile_id = first
        b_reads: list[list[_Reads | None]] = [[] for _ in self._cols]
        for rows in self._rows[row:]:
            a_reads: list[_Reads | None] = [None] * len(depths)
            for at_column in range(column, len(self._cols)):
                cols, b_column = self._cols[at_column], b_reads[at_column]
                if not b_column:
                    b_column += [None] * len(depths)
                for at in range(start, last + 1):
                    depth, of_a, of_b = depths[at], a_reads[at], b_column[at]
                    if of_a is None:
                        of_a = a_reads[at] = read_a(rows, depth)
                    if of_b is None:
                        of_b = b_column[at] = read_b(depth, cols)
                    yield self._tile(tile_id, of_a + of_b, rows, depth, cols, at == 0, at == last)
                    tile_id += 1
                start = 0
            column = 0

    def _tile(
        self, tile_id: int, reads: tuple[Stage, ...], rows: Span, depth: Span, cols: Span, first: bool, last: bool
    ) -> TilePlan:
        a, b = self._cmd.inputs
        a_bytes, b_bytes = rows[1] * depth[1] * self._item_a, depth[1] * cols[1] * self._item_b
        moved = (a_bytes if not a.pinned else 0) + (b_bytes if not b.pinned else 0)
        extras = self._per_output if last else self._per_k
        fetched = a_bytes + b_bytes
        if extras:
            more, more_moved, more_fetched = extras.stages(rows, cols)
            reads = (*reads, *more)
            moved += more_moved
            fetched += more_fetched
        key = (rows[1], depth[1], cols[1], first, last, fetched)
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = self._tail(*key)
        stages, out, out_bytes = reads + tail, self._cmd.out, 0
        if last and not out.pinned:
            write = self._write(rows, cols)
            stages, out_bytes = (*stages, write), write.nbytes
        return TilePlan(tile_id, stages, moved, out_bytes, self._kinds.setdefault(key, key))

    def _tail(self, m: int, k: int, n: int, first: bool, last: bool, fetched: int) -> tuple[Stage, ...]:
        """What happens between the last read and the write."""
        acc_bytes = m * n * self._acc_item
        ops = self._both if last else self._every
        stages: list[Stage] = [
            MoveStage(StageType.FETCH, FETCH_STORE, fetched, fetched + (acc_bytes if first else 0)),
            GemmStage(StageType.GEMM, GEMM, m, k, n, self._dtype, 0 if ops else fetched),
            *_math_stages(ops, m * n, fetched, self._servers),
        ]
        if last:
            nbytes = m * n * dtype_of(self._cmd.out.dtype).itemsize
            stages.append(MoveStage(StageType.STORE, FETCH_STORE, nbytes, acc_bytes))
        return tuple(stages)


def generate_math_plan(cmd: CompositeCmd, tile: tuple[int, int], servers: OpServers = NO_SERVERS) -> PipelinePlan:
    """The plan of a tiled math op: DMA_READ FETCH MATH STORE DMA_WRITE, M first, then N. `tile` is (m, n)."""
    m, n = as_matrix(cmd.out.shape)
    tile_m, tile_n = tile
    total = len(spans(m, tile_m)) * len(spans(n, tile_n))
    last_pass = total if ops_of(cmd, Scope.KERNEL) else 0

    def tiles(first: int) -> Iterator[TilePlan]:
        if first < total:
            yield from islice(
                _math_tiles(cmd.out, cmd.inputs, math_ops(cmd), 0, (tile_m, tile_n), servers), first, None
            )
        if last_pass:
            yield from islice(_kernel_pass(cmd, total, (tile_m, tile_n), servers), max(first - total, 0), None)

    def outline() -> Outline:
        rows, cols = spans(m, tile_m), spans(n, tile_n)
        extra = [op.operand for op in math_ops(cmd) if op.operand]
        grids = [_grid(x, rows, cols) for x in (*cmd.inputs, cmd.out, *extra)]
        return Outline(_sizes(rows), _sizes(cols), tuple(grid for grid in grids if grid is not None))

    return PipelinePlan(total + last_pass, total, tiles, tile, 1, outline, by_rows(cmd))


def math_ops(cmd: CompositeCmd) -> tuple[OpSpec, ...]:
    """What a math composite does in its first pass: the op itself, then its epilogues."""
    steps = (*ops_of(cmd, Scope.K_TILE), *ops_of(cmd, Scope.OUTPUT_TILE))
    return OpSpec(cmd.math_op, Scope.OUTPUT_TILE, dtype=cmd.acc_dtype if steps else cmd.out.dtype), *steps


def _kernel_pass(cmd: CompositeCmd, first: int, tile: tuple[int, int], servers: OpServers) -> Iterator[TilePlan]:
    """The ops of scope `kernel` over the finished output."""
    return _math_tiles(cmd.out, (cmd.out,), ops_of(cmd, Scope.KERNEL), first, tile, servers)


def _math_tiles(
    out: Operand,
    heads: tuple[Operand, ...],
    ops: tuple[OpSpec, ...],
    first: int,
    tile: tuple[int, int],
    servers: OpServers,
) -> Iterator[TilePlan]:
    """One pass over the output: the first op reads `heads`, the last one gives what is stored."""
    m, n = as_matrix(out.shape)
    inputs, tile_id = _Inputs([*heads, *(op.operand for op in ops if op.operand)]), first
    work = in_slowest(ops, tuple(x.dtype for x in heads), out.dtype)
    kinds: dict[tuple[int, ...], tuple[int, ...]] = {}
    for rows in spans(m, tile[0]):
        for cols in spans(n, tile[1]):
            stages, moved, fetched = inputs.stages(rows, cols)
            result = rows[1] * cols[1] * dtype_of(out.dtype).itemsize
            stages.append(MoveStage(StageType.FETCH, FETCH_STORE, fetched, fetched + result))
            stages += _math_stages(work, rows[1] * cols[1], fetched, servers)
            stages.append(MoveStage(StageType.STORE, FETCH_STORE, result, result))
            if not out.pinned:
                stages.append(tile_stage(StageType.DMA_WRITE, out, rows, cols))
            kind = kinds.setdefault(size := (rows[1], cols[1]), size)
            yield TilePlan(tile_id, tuple(stages), moved, result if not out.pinned else 0, kind)
            tile_id += 1


def _math_stages(work: tuple[LaneOp, ...], elements: int, fetched: int, servers: OpServers) -> list[Stage]:
    """One stage per op; the last frees the registers of the fetched operands."""
    last = len(work) - 1
    return [
        servers.get(op, LANES).stage_of(op, elements, dtype, fetched if at == last else 0)
        for at, (op, dtype) in enumerate(work)
    ]


def in_slowest(ops: tuple[OpSpec, ...], reads: tuple[str, ...], gives: str) -> tuple[LaneOp, ...]:
    """A pass of ops, each in the slowest of its types: the first one reads `reads`, the last one produces `gives`."""
    found: list[LaneOp] = []
    for at, op in enumerate(ops):
        types = [op.dtype, *(reads if at == 0 else ()), *((gives,) if at == len(ops) - 1 else ())]
        if op.operand is not None:
            types.append(op.operand.dtype)
        found.append((op.kind, slower(*types)))
    return tuple(found)


def ops_of(cmd: CompositeCmd, scope: Scope) -> tuple[OpSpec, ...]:
    """The epilogues of a scope."""
    return tuple(op for op in cmd.epilogues if op.scope is scope)


def slower(*dtypes: str) -> str:
    """The type in which the engines are slowest."""
    return min(dtypes, key=lambda name: dtype_of(name).compute_scale)
