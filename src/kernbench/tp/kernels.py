"""Kernels of the parallel layers, launched on a grid of a SIP's cubes and PEs (`placement.Grid`).

Products: the weights' columns are split over the grid. `row_parts` PEs of a cube share their columns: each computes a
part of the rows with the weights of all of them, its own first, so that no two read the same HBM slice at a time. With
1, a PE computes all rows of its own columns: for few rows. With more, fewer PEs read each activation: for many rows.
Every product is a composite that streams weights; its result is written to the row-major output by a strided store
while the next one runs.

The other kernels work on the rows in a PE's own memory, `block_rows` at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from kernbench.common.errors import KernelError
from kernbench.policy.placement.dp import parts_of
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import CompletionHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

FAR_BELOW = -1e30  # a masked score: its exponential is 0
EpilogueSteps = list[dict[str, object]]


class ProductBlock(NamedTuple):
    """Part of a product: some rows by some columns."""

    row: int
    rows: int
    column: int
    columns: int


# ---- products


def linear(
    x: TensorPtr,
    w: TensorPtr,
    out: TensorPtr,
    row_parts: int,
    block_rows: int,
    in_tcm: bool,
    bias: TensorPtr | None = None,
    *,
    activation: str | None = None,
    tl: TLContext,
) -> None:
    """out = activation(x @ w + bias); `in_tcm`: rows of x are loaded once per block, otherwise streamed per product."""

    def start(rows: TensorHandle, block: ProductBlock) -> CompletionHandle:
        steps: EpilogueSteps = []
        if bias is not None:
            steps.append({"op": "bias", "bias": tl.load(bias.across + block.column * bias.itemsize, (block.columns,))})
        if activation is not None:
            steps.append({"op": activation})
        return _product(rows, w, block, out.dtype, steps, tl)

    _walk(x, out, row_parts, block_rows, in_tcm, start, tl)


def gated_linear(
    x: TensorPtr,
    gate: TensorPtr,
    up: TensorPtr,
    out: TensorPtr,
    row_parts: int,
    block_rows: int,
    in_tcm: bool,
    *,
    activation: str,
    tl: TLContext,
) -> None:
    """out = activation(x @ gate) * (x @ up). The second factor stays in TCM, in f32."""

    def start(rows: TensorHandle, block: ProductBlock) -> CompletionHandle:
        factor = tl.wait(_product(rows, up, block, "f32", [], tl))
        return _product(rows, gate, block, out.dtype, [{"op": activation}, {"op": "mul", "other": factor}], tl)

    _walk(x, out, row_parts, block_rows, in_tcm, start, tl)


def _product(
    rows: TensorHandle, w: TensorPtr, block: ProductBlock, dtype: str, steps: EpilogueSteps, tl: TLContext
) -> CompletionHandle:
    """Start rows @ (the block's columns of w): each shard of w is a contiguous matrix, and shards are consecutive."""
    k = w.shape[0]
    weights = tl.ref(w.storage + k * block.column * w.itemsize, (k, block.columns))
    return tl.composite("gemm", rows, weights, epilogue=steps, out_dtype=dtype, tile_shape="auto")


def _walk(
    x: TensorPtr,
    out: TensorPtr,
    row_parts: int,
    block_rows: int,
    in_tcm: bool,
    start: Callable[[TensorHandle, ProductBlock], CompletionHandle],
    tl: TLContext,
) -> None:
    """Start this PE's products one after the other; each is stored while the next one runs."""
    before: tuple[CompletionHandle, ProductBlock] | None = None
    k, rows = x.shape[1], None
    for block in my_blocks(x.shape[0], out.shape[1], row_parts, block_rows, tl):
        if rows is None or before is None or before[1].row != block.row:
            at = x.across + block.row * k * x.itemsize
            rows = tl.load(at, (block.rows, k)) if in_tcm else tl.ref(at, (block.rows, k))
        running = start(rows, block)
        if before is not None:
            _put(out, *before, tl)
        before = running, block
    if before is not None:
        _put(out, *before, tl)
    tl.wait()


def _put(out: TensorPtr, done: CompletionHandle, block: ProductBlock, tl: TLContext) -> None:
    result = tl.wait(done)
    assert result is not None  # the composite has no out_ptr
    width = out.shape[1]
    tl.store_async(out + (block.row * width + block.column) * out.itemsize, result, strides=(width, 1))


def my_blocks(m: int, n: int, row_parts: int, block_rows: int, tl: TLContext) -> Iterator[ProductBlock]:
    """This PE's blocks of an (m, n) product: its rows, in blocks, by the columns of each PE that it
    shares them with.
    """
    pe, pes, cube, cubes = tl.program_id(0), tl.num_programs(0), tl.program_id(1), tl.num_programs(1)
    left, right = parts_of(n, cubes)[cube]
    shards = parts_of(right - left, pes)
    group, mine = divmod(pe, row_parts)
    top, bottom = parts_of(m, row_parts)[mine]
    for row in range(top, bottom, block_rows):
        for step in range(row_parts):
            first, end = shards[group * row_parts + (mine + step) % row_parts]
            if end > first:
                yield ProductBlock(row, min(block_rows, bottom - row), left + first, end - first)


# ---- rows


def rows_here(x: TensorPtr, block_rows: int) -> Iterator[tuple[int, int]]:
    """The rows in this PE's own memory, in blocks: the first one's number, and how many."""
    rows = x.local_shape[0] if 0 not in x.local_shape else 0
    first = (int(x.local) - int(x)) // (x.shape[1] * x.itemsize) if rows else 0
    for at in range(0, rows, block_rows):
        yield first + at, min(block_rows, rows - at)


def _rows(x: TensorPtr, first: int, count: int, tl: TLContext, dtype: str | None = None) -> TensorHandle:
    """Rows of a row-major matrix, in TCM, cast to `dtype` if given."""
    loaded = tl.load(x.across + first * x.shape[1] * x.itemsize, (count, x.shape[1]))
    return loaded if dtype is None or dtype == x.dtype else tl.cast(loaded, dtype)


def _store_rows(out: TensorPtr, first: int, rows: TensorHandle, tl: TLContext) -> None:
    rows = rows if rows.dtype == out.dtype else tl.cast(rows, out.dtype)
    tl.store(out.across + first * out.shape[1] * out.itemsize, rows)


def add_to_rows(
    y: TensorPtr,
    block_rows: int,
    bias: TensorPtr | None = None,
    residual: TensorPtr | None = None,
    *,
    tl: TLContext,
) -> None:
    """y += bias + residual, in f32."""
    for first, count in rows_here(y, block_rows):
        total = _rows(y, first, count, tl, "f32")
        if bias is not None:
            total = total + tl.load(bias.local)
        if residual is not None:
            total = total + _rows(residual, first, count, tl)
        _store_rows(y, first, total, tl)


def norm_rows(
    x: TensorPtr,
    gain: TensorPtr,
    out: TensorPtr,
    block_rows: int,
    eps: float,
    shift: TensorPtr | None = None,
    *,
    tl: TLContext,
) -> None:
    """Every row divided by its root mean square, times gain; with `shift`, less its mean first, and shifted after."""
    if 0 in out.local_shape:
        return
    scale = tl.cast(tl.load(gain.local), "f32")
    offset = tl.cast(tl.load(shift.local), "f32") if shift is not None else None
    for first, count in rows_here(out, block_rows):
        rows = _rows(x, first, count, tl, "f32")
        if offset is not None:
            rows = rows - tl.mean(rows, axis=1)
        normal = rows * tl.rsqrt(tl.mean(rows * rows, axis=1) + eps) * scale
        _store_rows(out, first, normal if offset is None else normal + offset, tl)


def take_rows(x: TensorPtr, out: TensorPtr, first_row: int, block_rows: int, tl: TLContext) -> None:
    """out = x[first_row : first_row + len(out)]."""
    for first, count in rows_here(out, block_rows):
        _store_rows(out, first, _rows(x, first_row + first, count, tl), tl)


def take_columns(x: TensorPtr, out: TensorPtr, first_column: int, block_rows: int, tl: TLContext) -> None:
    """out = x[:, first_column : first_column + width of out]."""
    width = x.shape[1]
    for first, count in rows_here(out, block_rows):
        at = x + (first * width + first_column) * x.itemsize
        _store_rows(out, first, tl.load(at, (count, out.shape[1]), strides=(width, 1)), tl)


def join_columns(stacked: TensorPtr, out: TensorPtr, parts: int, block_rows: int, tl: TLContext) -> None:
    """Matrices of equal shape, concatenated by rows in `stacked`, are concatenated by columns in `out`."""
    rows, width = out.shape[0], stacked.shape[1]
    for first, count in rows_here(out, block_rows):
        at = stacked + first * width * stacked.itemsize
        found = tl.load(at, (parts, count, width), strides=(rows * width, width, 1))
        _store_rows(out, first, tl.reshape(tl.permute(found, 1, 0, 2), (count, parts * width)), tl)


def embed_rows(
    ids: TensorPtr, table: TensorPtr, out: TensorPtr, first_id: int, n_ids: int, block_rows: int, tl: TLContext
) -> None:
    """Rows of the part of a table that begins with `first_id`; zeros for ids of other parts. There are `n_ids` in
    total.
    """
    for first, count in rows_here(out, block_rows):
        wanted = tl.load(ids.across + first * ids.itemsize, (count,))
        for at, number in enumerate(wanted.numpy().tolist()):
            if not 0 <= number < n_ids:
                raise KernelError(f"token {first + at} has id {number}", hint=f"the vocabulary has 0 to {n_ids - 1}")
        here = wanted - first_id
        mask = (here >= 0) & (here < table.shape[0])
        _store_rows(out, first, tl.load(table, rows=here, mask=tl.reshape(mask, (count, 1))), tl)


# ---- attention


def attend(
    qkv: TensorPtr,
    out: TensorPtr,
    batch: int,
    heads: int,
    kv_heads: int,
    block_q: int,
    block_k: int,
    causal: bool,
    tl: TLContext,
) -> None:
    """Attention of every head over every sequence. A row of `qkv` has a token's queries of all heads, then its keys,
    then its values; sequences follow one another.

    Blocks of queries are distributed over PEs, longest first: with `causal`, those at the end of a sequence.
    """
    seq, d = qkv.shape[0] // batch, out.shape[1] // heads
    me = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    blocks = [(at, b, h) for at in reversed(range(0, seq, block_q)) for b in range(batch) for h in range(heads)]
    for at, b, head in blocks[me :: tl.num_programs(0) * tl.num_programs(1)]:
        kv_head = head * kv_heads // heads
        n = min(block_q, seq - at)
        queries = _head(qkv, b * seq + at, n, head * d, d, tl)
        columns = ((heads + kv_head) * d, (heads + kv_heads + kv_head) * d)
        result = _attend(queries, qkv, b * seq, seq, columns, at, block_k, causal, tl)
        where = out + ((b * seq + at) * out.shape[1] + head * d) * out.itemsize
        tl.store_async(where, tl.cast(result, out.dtype), strides=(out.shape[1], 1))
    tl.wait()


def _head(x: TensorPtr, row: int, rows: int, column: int, d: int, tl: TLContext) -> TensorHandle:
    width = x.shape[1]
    return tl.load(x + (row * width + column) * x.itemsize, (rows, d), strides=(width, 1))


def _attend(
    queries: TensorHandle,
    kv: TensorPtr,
    row: int,
    seq: int,
    columns: tuple[int, int],
    position: int,
    block_k: int,
    causal: bool,
    tl: TLContext,
) -> TensorHandle:
    """One block of queries, the first at `position`, against the keys of its sequence, with a running softmax."""
    n, d = queries.shape
    best, total = tl.full((n, 1), FAR_BELOW, "f32"), tl.zeros((n, 1), "f32")
    result = tl.zeros((n, d), "f32")
    for at in range(0, min(seq, position + n) if causal else seq, block_k):
        count = min(block_k, seq - at)
        keys, values = (_head(kv, row + at, count, column, d, tl) for column in columns)
        scores = tl.dot(queries, keys.T, out_dtype="f32") * d**-0.5
        if causal and at + count > position:
            seen = tl.reshape(tl.arange(position, position + n), (n, 1)) >= tl.arange(at, at + count)
            scores = tl.where(seen, scores, FAR_BELOW)
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        powers, fade = tl.exp(scores - new_best), tl.exp(best - new_best)
        total = total * fade + tl.sum(powers, axis=1)
        result = result * fade + tl.dot(tl.cast(powers, kv.dtype), values, out_dtype="f32")
        best = new_best
    return result / total
