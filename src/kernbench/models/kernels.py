"""Kernels of a decoder layer, for the plans of `mapping.py`. They run on all PEs of a rank's SIP.

Activations between parts are row-major matrices, rows over cubes and PEs. Products are composites with automatic tiles,
one per K chunk or block of weights; sums are in f32 and rounded once. Biases of products are left out: they take less
than a thousandth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.ccl.algorithms import rings
from kernbench.ccl.algorithms.parts import Lane
from kernbench.models.mapping import ColumnsPlan, Job
from kernbench.policy.placement.dp import Range, parts_of
from kernbench.tp.kernels import rows_here
from kernbench.triton_emu.handle import CompletionHandle, TensorHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

Steps = list[dict[str, object]]


def touch(*tensors: TensorPtr, tl: TLContext) -> None:
    """Nothing: a launch with tensors lets all PEs know where they lie."""


# ---- copies of rows, one per cube


def spread(x: TensorPtr, out: TensorPtr, *, plan: ColumnsPlan, tl: TLContext) -> None:
    """Every cube of a group gets the group's rows of x, as K chunks over its slices: each PE takes what its own cube
    has of its chunks, and the PEs of one number pass it round the group's cubes.
    """
    pe, cube = tl.program_id(0), tl.program_id(1)
    group, place = plan.group_of(cube)
    top, bottom = plan.rows_of(group)
    shares = parts_of(bottom - top, plan.cubes_per_group)
    block = max(1, plan.sip.tcm_bytes // (8 * plan.chunk * x.itemsize))
    chunks = range(*plan.chunks_of(pe))
    for number in chunks:
        first, end = plan.chunk_at(number)
        for row in range(shares[place][0], shares[place][1], block):
            shape = min(block, shares[place][1] - row), end - first
            part = tl.load(x + ((top + row) * plan.k + first) * x.itemsize, shape, strides=(plan.k, 1))
            tl.store_async(_copied(out, plan, number, row), part)
    tl.wait()
    if plan.cubes_per_group == 1:
        return
    ring = rings.number_ring(plan.cubes_of(group), cube, "cube")
    lane = Lane(tl, out, chunk_bytes=16384, work_bytes=plan.sip.tcm_bytes // 2, live=rings.LIVE, window=rings.WINDOW)
    for number in chunks:
        width = plan.chunk_at(number)[1] - plan.chunk_at(number)[0]
        pieces = [(a * width, (b - a) * width) for a, b in shares]
        rings.all_gather_in_place(lane, ring, _copied(out, plan, number, 0), pieces)
    tl.wait()


def _copied(x: TensorPtr, plan: ColumnsPlan, number: int, row: int) -> int:
    """Where a row of a chunk begins; rows are counted within the group."""
    first, end = plan.chunk_at(number)
    return x + (number * plan.most_rows * plan.chunk + row * (end - first)) * x.itemsize


# ---- products by columns


def product_columns(
    x: TensorPtr,
    w: TensorPtr,
    out: TensorPtr,
    sums: TensorPtr,
    up: TensorPtr | None = None,
    factors: TensorPtr | None = None,
    *,
    plan: ColumnsPlan,
    jobs: Sequence[Job],
    activation: str | None = None,
    tl: TLContext,
) -> None:
    """out = activation(x @ w), or activation(x @ w) * (x @ up), of this PE's columns; `sums` and `factors` are room in
    its own slice.
    """
    pe, cube = tl.program_id(0), tl.program_id(1)
    columns = plan.columns_of(cube, pe)
    if columns[0] == columns[1]:
        return
    top, bottom = plan.rows_of(plan.group_of(cube)[0])
    for job in jobs:
        first, end = max(job.first, top), min(job.first + job.rows, bottom)
        if first >= end:
            continue
        walk = _Chunks(x, plan, job.expert, (first, end), top, columns, sums, tl)
        factor: TensorPtr | None = None
        if up is not None:
            assert factors is not None
            walk.to_memory(up, factors)
            factor = factors
        walk.to_rows(w, out, activation, factor)
    tl.wait()


class _Chunks:
    """One job of one PE: its K chunks, from the one in its own slice on."""

    def __init__(
        self,
        x: TensorPtr,
        plan: ColumnsPlan,
        expert: int,
        rows: Range,
        top: int,
        columns: Range,
        sums: TensorPtr,
        tl: TLContext,
    ) -> None:
        self._x, self._plan, self._sums, self._tl = x, plan, sums, tl
        self._rows, self._top, self._columns = rows, top, columns
        self._width = columns[1] - columns[0]
        self._expert = expert
        start = plan.chunks_of(tl.program_id(0))[0] % plan.n_chunks
        self._order = [(start + at) % plan.n_chunks for at in range(plan.n_chunks)]

    def _weights(self, w: TensorPtr, number: int) -> TensorHandle:
        first, end = self._plan.chunk_at(number)
        at = (self._expert * self._plan.k + first) * self._width * w.itemsize
        return self._tl.load(w.local + at, (end - first, self._width))

    def _product(
        self, number: int, weights: TensorHandle, rows: Range, steps: Steps, out: int | None, dtype: str | None
    ) -> CompletionHandle:
        first, end = self._plan.chunk_at(number)
        x = self._tl.ref(_copied(self._x, self._plan, number, rows[0] - self._top), (rows[1] - rows[0], end - first))
        return self._tl.composite("gemm", x, weights, out_ptr=out, epilogue=steps, out_dtype=dtype, tile_shape="auto")

    def _own(self, tensor: TensorPtr, rows: Range) -> TensorHandle:
        """Rows of what this PE keeps for itself."""
        at = (rows[0] - self._rows[0]) * self._width * tensor.itemsize
        return self._tl.ref(tensor.local + at, (rows[1] - rows[0], self._width))

    def _add_to(self, w: TensorPtr, sums: TensorPtr, order: Sequence[int]) -> None:
        """Chunks into `sums`, all rows of each in one composite. Sums are added in a pass of their own: in the main one
        they would take the registers that make tiles large.
        """
        for at, number in enumerate(order):
            steps: Steps = []
            if at:
                steps.append({"op": "add", "other": self._own(sums, self._rows), "scope": "kernel"})
            self._tl.wait(self._product(number, self._weights(w, number), self._rows, steps, sums.local, None))

    def to_memory(self, w: TensorPtr, sums: TensorPtr) -> None:
        """x @ w, in this PE's own slice."""
        self._add_to(w, sums, self._order)

    def to_rows(self, w: TensorPtr, out: TensorPtr, activation: str | None, factor: TensorPtr | None) -> None:
        """activation(x @ w) * factor, to the row-major output: a block of rows is stored while the next one runs."""
        self._add_to(w, self._sums, self._order[:-1])
        last, block, tl = self._order[-1], self._plan.block_rows, self._tl
        weights = self._weights(w, last)
        before: tuple[CompletionHandle, int] | None = None
        for row in range(self._rows[0], self._rows[1], block):
            rows = row, min(self._rows[1], row + block)
            steps: Steps = []
            if len(self._order) > 1:
                steps.append({"op": "add", "other": self._own(self._sums, rows)})
            if activation is not None:
                steps.append({"op": activation})
            if factor is not None:
                steps.append({"op": "mul", "other": self._own(factor, rows)})
            running = self._product(last, weights, rows, steps, None, out.dtype)
            if before is not None:
                self._put(out, *before)
            before = running, row
        assert before is not None
        self._put(out, *before)
        tl.wait()

    def _put(self, out: TensorPtr, done: CompletionHandle, row: int) -> None:
        result = self._tl.wait(done)
        assert result is not None
        at = (row * self._plan.n + self._columns[0]) * out.itemsize
        self._tl.store_async(out + at, result, strides=(self._plan.n, 1))


# ---- rows


def add_norm(
    y: TensorPtr,
    out: TensorPtr,
    gain: TensorPtr,
    block_rows: int,
    eps: float,
    shift: TensorPtr | None = None,
    residual: TensorPtr | None = None,
    *,
    tl: TLContext,
) -> None:
    """y += residual, if there is one, and out = norm(y): over the root mean square; with `shift`, less the mean."""
    if 0 in y.local_shape:
        return
    scale = tl.cast(tl.load(gain.local), "f32")
    offset = tl.cast(tl.load(shift.local), "f32") if shift is not None else None
    width = y.shape[1]
    for first, count in rows_here(y, block_rows):
        at, shape = first * width * y.itemsize, (count, width)
        rows = tl.cast(tl.load(y + at, shape), "f32")
        if residual is not None:
            rows = rows + tl.load(residual + at, shape)
            tl.store_async(y + at, tl.cast(rows, y.dtype))
        if offset is not None:
            rows = rows - tl.mean(rows, axis=1)
        normal = rows * tl.rsqrt(tl.mean(rows * rows, axis=1) + eps) * scale
        tl.store_async(out + at, tl.cast(normal if offset is None else normal + offset, out.dtype))
    tl.wait()


def add_rows(y: TensorPtr, residual: TensorPtr, block_rows: int, tl: TLContext) -> None:
    """y += residual, in f32."""
    width = y.shape[1]
    for first, count in rows_here(y, block_rows):
        at, shape = first * width * y.itemsize, (count, width)
        total = tl.cast(tl.load(y + at, shape), "f32") + tl.load(residual + at, shape)
        tl.store_async(y + at, tl.cast(total, y.dtype))
    tl.wait()


def rope(qkv: TensorPtr, angles: TensorPtr, heads: int, head_dim: int, block_rows: int, tl: TLContext) -> None:
    """Turn the pairs (i, i + d / 2) of the first `heads` heads of every row, in place; a row of `angles` has the
    cosines and then the sines of its position.
    """
    width, half = qkv.shape[1], head_dim // 2
    for first, count in rows_here(qkv, block_rows):
        at = qkv + first * width * qkv.itemsize
        table = tl.load(angles + first * head_dim * angles.itemsize, (count, 1, head_dim))
        cos, sin = table[:, :, :half], table[:, :, half:]
        x = tl.load(at, (count, heads, head_dim), strides=(width, head_dim, 1))
        low, high = x[:, :, :half], x[:, :, half:]
        turned = tl.cat([low * cos - high * sin, high * cos + low * sin], axis=2)
        tl.store_async(at, tl.cast(turned, qkv.dtype), strides=(width, head_dim, 1))
    tl.wait()


# ---- experts


def route(
    x: TensorPtr, router: TensorPtr, gates: TensorPtr, ids: TensorPtr, chosen: int, block_rows: int, tl: TLContext
) -> None:
    """The `chosen` experts of each row with the largest products, and their softmax."""
    width = x.shape[1]
    if 0 in x.local_shape:
        return
    weights = tl.load(router.local)
    for first, count in rows_here(x, block_rows):
        rows = tl.load(x + first * width * x.itemsize, (count, width))
        values, places = tl.topk(tl.dot(rows, weights, out_dtype="f32"), chosen)
        tl.store_async(gates + first * chosen * gates.itemsize, tl.softmax(values, axis=1))
        tl.store_async(ids + first * chosen * ids.itemsize, tl.cast(places, "i32"))
    tl.wait()


def take_rows(x: TensorPtr, out: TensorPtr, block_rows: int, *, rows: Sequence[int], tl: TLContext) -> None:
    """out[i] = x[rows[i]]."""
    width = out.shape[1]
    for first, count in rows_here(out, block_rows):
        tl.store_async(out + first * width * out.itemsize, tl.load(x, rows=list(rows[first : first + count])))
    tl.wait()


def combine(
    x: TensorPtr, gates: TensorPtr, out: TensorPtr, block_rows: int, *, places: Sequence[Sequence[int]], tl: TLContext
) -> None:
    """out[t] = sum over i of gates[t, i] * x[places[i][t]]."""
    width, chosen = out.shape[1], gates.shape[1]
    for first, count in rows_here(out, block_rows):
        weights = tl.load(gates + first * chosen * gates.itemsize, (count, chosen))
        total = tl.zeros((count, width), "f32")
        for at, rows in enumerate(places):
            total = total + tl.load(x, rows=list(rows[first : first + count])) * weights[:, at : at + 1]
        tl.store_async(out + first * width * out.itemsize, tl.cast(total, out.dtype))
    tl.wait()
