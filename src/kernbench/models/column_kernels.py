"""Kernels of a product by columns (`plans.py`), in the order in which they run: the PEs' parts of x are copied to their
own slices (`collect`, `pass_on`), the PEs multiply, and results are reduced and stored where the next part reads them
(`deliver`, or `add_up` and then `hand_out` or `take_shares` where blocks of sums would be stored in short pieces).

Each is a separate launch, so that data read from other PEs is complete. Bytes move in few large transfers, in an order
in which PEs of a cube do not share links; products access the PE's own memory only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

from kernbench.models.layouts import ByHead, KParts, ResultLayout
from kernbench.models.plans import F32_BYTES, ColumnsPlan, Job, SipShape, exchange_rounds
from kernbench.policy.placement.dp import Range
from kernbench.tp.kernels import EpilogueSteps
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

HEAD_COLUMNS = 512  # or an eighth of a block, at a time for results by head: each head gets some rows
STORED_AT_ONCE = 2  # stores in flight while the next block is loaded


def cut(first: int, end: int, size: int) -> Iterator[Range]:
    """A range in pieces of at most `size`."""
    for at in range(first, end, max(1, size)):
        yield at, min(end, at + max(1, size))


def evenly(first: int, end: int, most: int) -> Iterator[Range]:
    """A range in the fewest pieces of at most `most`, of about one size."""
    count = -(-(end - first) // max(1, most))
    return cut(first, end, -(-(end - first) // max(1, count)))


class Mover:
    """Copies matrices between memories through TCM; a piece is stored while the next one is loaded."""

    def __init__(self, tl: TLContext, tcm_bytes: int) -> None:
        self._tl, self._most = tl, tcm_bytes // (STORED_AT_ONCE + 2)
        self._stored: list[TransferHandle] = []

    def move(self, source: TensorPtr, at: int, stride: int, out: TensorPtr, to: int, shape: tuple[int, int]) -> None:
        """Copy rows of `source` from element `at` on, `stride` apart, to `out` from element `to` on, contiguously."""
        rows, width = shape
        if not rows or not width:
            return
        item = source.itemsize
        if stride == width:  # contiguous in the source too: one row
            rows, width, stride = 1, rows * width, rows * width
        for left, right in cut(0, width, self._most // item):
            for top, bottom in cut(0, rows, self._most // ((right - left) * item)):
                block = bottom - top, right - left
                loaded = self._tl.load(source + (at + top * stride + left) * item, block, strides=(stride, 1))
                if len(self._stored) == STORED_AT_ONCE:
                    self._tl.wait(self._stored.pop(0))
                place = out + (to + top * width + left) * item
                self._stored.append(self._tl.store_async(place, loaded, strides=(width, 1)))
                del loaded


# ---- inputs of a product


@repeatable
def collect(x: TensorPtr, copies: TensorPtr, *, plan: ColumnsPlan, tl: TLContext) -> None:
    """Every PE copies its part of K of the cube's rows of x to its own slice."""
    pe, cube, layout = tl.program_id(0), tl.program_id(1), KParts(plan)
    a, b = plan.k_of(pe)
    mover = Mover(tl, plan.sip.tcm_bytes)
    for sources in exchange_rounds(plan.sip.pes):
        first, end = plan.sip.rows_at(plan.rows, cube, sources[pe])
        mover.move(x, first * plan.k + a, plan.k, copies, layout.place(cube, pe, first), (end - first, b - a))
    tl.wait()


@repeatable
def pass_on(copies: TensorPtr, step: int, *, plan: ColumnsPlan, tl: TLContext) -> None:
    """One step of a ring all-gather over the cubes of a group: PEs of one number copy the rows that the previous cube
    got in the previous step. Half of the PEs use one direction of the ring and half the other.
    """
    pe, cube, layout = tl.program_id(0), tl.program_id(1), KParts(plan)
    ring = plan.ring_of(cube)
    sense = 1 if pe.bit_count() % 2 else -1
    at = ring.index(cube)
    before, origin = ring[(at + sense) % len(ring)], ring[(at + sense * step) % len(ring)]
    first, end = plan.sip.rows_at(plan.rows, origin, 0)[0], plan.sip.rows_at(plan.rows, origin, plan.sip.pes - 1)[1]
    a, b = plan.k_of(pe)
    source, target = layout.place(before, pe, first), layout.place(cube, pe, first)
    Mover(tl, plan.sip.tcm_bytes).move(copies, source, b - a, copies, target, (end - first, b - a))
    tl.wait()


# ---- products


@repeatable
def multiply(
    copies: TensorPtr,
    w: TensorPtr,
    out: TensorPtr,
    up: TensorPtr | None = None,
    factors: TensorPtr | None = None,
    *,
    plan: ColumnsPlan,
    jobs: Sequence[Job],
    activation: str | None = None,
    tl: TLContext,
) -> None:
    """out = activation(x @ w), or activation(x @ w) * (x @ up) with `factors` as buffer for x @ up. Where K is split,
    the partial sums of both without activation, the second in `factors`. All in this PE's own slice.
    """
    pe, cube = tl.program_id(0), tl.program_id(1)
    (a, b), (left, right) = plan.k_of(pe), plan.columns_of(cube, pe)
    depth, width = b - a, right - left
    if not depth or not width:
        return
    top, bottom = plan.rows_of(cube)
    for job in jobs:
        at = job.expert * depth * width * w.itemsize
        weights = tl.ref(w.local + at, (depth, width))
        others = None if up is None else tl.ref(up.local + at, (depth, width))
        first, end = max(job.first, top), min(job.first + job.rows, bottom)
        for start, stop in cut(first, end, plan.block_rows or end - first):
            shape = stop - start, depth
            place = copies.local + (start - top) * depth * copies.itemsize
            x = tl.load(place, shape) if plan.block_rows else tl.ref(place, shape)
            steps: EpilogueSteps = []
            if activation is not None and not plan.splits_k:
                steps.append({"op": activation})
            if others is not None:
                assert factors is not None
                room = factors.local + (start - top) * width * factors.itemsize
                tl.wait(tl.composite("gemm", x, others, out_ptr=room, tile_shape="auto"))
                if not plan.splits_k:
                    steps.append({"op": "mul", "other": tl.ref(room, (stop - start, width))})
            target = out.local + (start - top) * width * out.itemsize
            tl.wait(tl.composite("gemm", x, weights, out_ptr=target, epilogue=steps, tile_shape="auto"))
            del x


# ---- results


@repeatable
def deliver(
    found: TensorPtr,
    out: TensorPtr,
    keys: TensorPtr | None = None,
    values: TensorPtr | None = None,
    factors: TensorPtr | None = None,
    *,
    plan: ColumnsPlan,
    layout: ResultLayout,
    activation: str | None = None,
    tl: TLContext,
) -> None:
    """Store the results of `multiply` where the layout says. Where K is split, each PE first reduces its share of the
    rows.
    """
    targets = [x for x in (out, keys, values) if x is not None]

    def store(result: TensorHandle, rows: Range, columns: Range) -> list[TransferHandle]:
        return put(result, rows, columns, targets, layout, tl)

    found_in = [x for x in (found, factors) if x is not None]
    blocks = _blocks(plan, found_in, tl, by_head=isinstance(layout, ByHead))
    start = len(blocks) * tl.program_id(0) // plan.sip.pes  # PEs of a cube begin with different rows: other memories
    _results(found_in, blocks[start:] + blocks[:start], store, out.dtype, plan, activation, tl)


@repeatable
def add_up(
    found: TensorPtr,
    shares: TensorPtr,
    factors: TensorPtr | None = None,
    *,
    plan: ColumnsPlan,
    activation: str | None = None,
    tl: TLContext,
) -> None:
    """Where K is split, each PE reduces its share of the rows into its own slice; no other traffic crosses the cube
    meanwhile.
    """
    pe, cube = tl.program_id(0), tl.program_id(1)
    first, (left, right) = plan.share_of(cube, pe)[0], plan.columns_of(cube, pe)
    width = right - left

    def store(result: TensorHandle, rows: Range, columns: Range) -> list[TransferHandle]:
        at = (rows[0] - first) * width + columns[0] - left
        return [tl.store_async(shares.local + at * shares.itemsize, result, strides=(width, 1))]

    found_in = [x for x in (found, factors) if x is not None]
    _results(
        found_in, _blocks(plan, found_in, tl), store, shares.dtype, plan, activation, tl
    )  # the same blocks on all PEs


@repeatable
def hand_out(
    shares: TensorPtr, out: TensorPtr, keys: TensorPtr | None = None, values: TensorPtr | None = None, *,
    plan: ColumnsPlan, layout: ResultLayout, tl: TLContext,
) -> None:  # fmt: skip
    """Store this PE's reduced rows where the layout says."""
    pe, cube, item = tl.program_id(0), tl.program_id(1), shares.itemsize
    (first, end), (left, right) = plan.share_of(cube, pe), plan.columns_of(cube, pe)
    targets = [x for x in (out, keys, values) if x is not None]
    width = max(1, right - left)
    most = plan.sip.tcm_bytes // (2 * item)
    stored: list[TransferHandle] = []
    for columns in cut(left, right, most):
        for rows in evenly(first, end, most // (columns[1] - columns[0])):
            at = (rows[0] - first) * width + columns[0] - left
            shape = rows[1] - rows[0], columns[1] - columns[0]
            some = tl.load(shares.local + at * item, shape, strides=(width, 1))
            for handle in stored:
                tl.wait(handle)
            stored = put(some, rows, columns, targets, layout, tl)
            del some
    tl.wait()


@repeatable
def take_shares(shares: TensorPtr, out: TensorPtr, *, plan: ColumnsPlan, tl: TLContext) -> None:
    """Gather this PE's rows of a row-major matrix from the PEs that have reduced some of their columns."""
    pe, cube, item = tl.program_id(0), tl.program_id(1), shares.itemsize
    top, bottom = plan.sip.rows_at(plan.rows, cube, pe)

    def wanted() -> Iterator[tuple[int, list[StridedBlock]]]:
        for other in range(plan.k_parts):
            share = plan.share_of(cube, other)
            for first, end in evenly(max(top, share[0]), min(bottom, share[1]), rows_joined(plan.n * item, plan.sip)):
                pieces: list[StridedBlock] = []
                for source, by in product(plan.cubes_of(cube), range(other, plan.sip.pes, plan.k_parts)):
                    left, right = plan.columns_of(source, by)
                    at = (source * plan.sip.pes + by) * shares.shape[1] + (first - share[0]) * (right - left)
                    pieces.append(StridedBlock(shares + at * item, (end - first, right - left), right - left))
                yield out.across + first * plan.n * item, pieces

    join_columns(wanted(), tl)


class StridedBlock(NamedTuple):
    """A matrix in the memory of some PE: its address, shape and row stride."""

    place: int
    shape: tuple[int, int]
    stride: int


def rows_joined(row_bytes: int, sip: SipShape) -> int:
    """How many rows `join_columns` has room for at a time: loaded, joined, and being stored."""
    return sip.tcm_bytes // (3 * row_bytes)


def join_columns(wanted: Iterable[tuple[int, Sequence[StridedBlock]]], tl: TLContext) -> None:
    """Concatenate blocks by columns and store them at each address, while the previous ones are being stored."""
    stored: TransferHandle | None = None
    for place, pieces in wanted:
        issued = [tl.load_async(piece.place, piece.shape, strides=(piece.stride, 1)) for piece in pieces]
        parts = [arrived(handle, tl) for handle in issued]
        if stored is not None:
            tl.wait(stored)
        joined = parts[0] if len(parts) == 1 else tl.cat(parts, axis=1)
        stored = tl.store_async(place, joined)
        del issued, parts, joined
    tl.wait()


def arrived(handle: TransferHandle, tl: TLContext) -> TensorHandle:
    """The tensor of a load that is waited for."""
    found = tl.wait(handle)
    assert found is not None
    return found


RowsAndColumns = tuple[Range, Range]  # rows and columns
Store = Callable[[TensorHandle, Range, Range], list[TransferHandle]]


def _results(
    found_in: Sequence[TensorPtr],
    blocks: Sequence[RowsAndColumns],
    store: Store,
    dtype: str,
    plan: ColumnsPlan,
    activation: str | None,
    tl: TLContext,
) -> None:
    """Store results block by block: the reduced products, times the factors if there is a second tensor of them."""
    sources = _sources(plan, tl.program_id(0))
    prefetch = _Prefetch(plan, tl, [(x, other, *block) for block in blocks for x in found_in for other in sources])
    for rows, columns in blocks:
        result = prefetch.sum_of(len(sources))
        if activation is not None and plan.splits_k:
            result = tl.gelu(result) if activation == "gelu" else tl.silu(result)
        for _ in found_in[1:]:
            result = result * prefetch.sum_of(len(sources))
        if result.dtype != dtype:
            result = tl.cast(result, dtype)
        prefetch.leaving = store(result, rows, columns)
        del result
    tl.wait()


def _blocks(
    plan: ColumnsPlan, found_in: Sequence[TensorPtr], tl: TLContext, *, by_head: bool = False
) -> list[RowsAndColumns]:
    """This PE's share of the rows, and its columns, in blocks that fit TCM: the current and the next one; for sums also
    the running sums before and after an addition, and those of factors.
    """
    held = 3 + len(found_in) if plan.splits_k else 2
    blocks = _blocks_held(plan, found_in[0], tl, held, by_head=by_head)
    if (
        len({(b - a) * (d - c) for (a, b), (c, d) in blocks}) > 1
    ):  # a larger block does not fit into the space of a smaller one
        blocks = _blocks_held(plan, found_in[0], tl, held + 1, by_head=by_head)
    return blocks


def _blocks_held(
    plan: ColumnsPlan, found: TensorPtr, tl: TLContext, held: int, *, by_head: bool
) -> list[RowsAndColumns]:
    """Blocks of which TCM holds `held`."""
    pe, cube = tl.program_id(0), tl.program_id(1)
    (first, end), (left, right) = plan.share_of(cube, pe), plan.columns_of(cube, pe)
    most = plan.sip.tcm_bytes // (held * (F32_BYTES if plan.splits_k else found.itemsize))
    wide = min(most, max(HEAD_COLUMNS, most // 8)) if by_head else most
    return [
        (rows, some)
        for some in cut(left, right, wide)
        for rows in evenly(first, end, most // max(1, some[1] - some[0]))
    ]


def put(
    result: TensorHandle, rows: Range, columns: Range, targets: Sequence[TensorPtr], layout: ResultLayout, tl: TLContext
) -> list[TransferHandle]:
    """Start storing a block of results where a layout says."""
    stored: list[TransferHandle] = []
    for piece in layout.pieces(rows, columns):
        target = targets[piece.tensor]
        (r0, r1), (c0, c1) = piece.rows, piece.columns
        part = result[r0 - rows[0] : r1 - rows[0], c0 - columns[0] : c1 - columns[0]]
        stored.append(tl.store_async(target + piece.at * target.itemsize, part, strides=(piece.stride, 1)))
    return stored


def _sources(plan: ColumnsPlan, pe: int) -> list[int]:
    """The PEs whose results a PE reads: those of its cube with the same columns that have a part of K."""
    order = [sources[pe] for sources in exchange_rounds(plan.sip.pes)]
    return [other for other in order if other in plan.sharing(pe) and plan.k_of(other)[0] < plan.k_of(other)[1]]


class _Prefetch:
    """Blocks of results of this cube's PEs; each is loaded while the previous one is processed. The stores in `leaving`
    are waited for before the next load, which uses their TCM.
    """

    def __init__(self, plan: ColumnsPlan, tl: TLContext, wanted: Sequence[tuple[TensorPtr, int, Range, Range]]) -> None:
        self._plan, self._tl, self._wanted = plan, tl, iter(wanted)
        self.leaving: list[TransferHandle] = []
        self._next = self._issue()

    def sum_of(self, count: int) -> TensorHandle:
        """The sum of the next `count` blocks, in order of arrival."""
        total = self._take()
        for _ in range(count - 1):
            total = total + self._take()
        return total

    def _take(self) -> TensorHandle:
        assert self._next is not None
        here = arrived(self._next, self._tl)
        for handle in self.leaving:
            self._tl.wait(handle)
        self.leaving = []
        self._next = self._issue()
        return here

    def _issue(self) -> TransferHandle | None:
        wanted = next(self._wanted, None)
        if wanted is None:
            return None
        found, pe, rows, columns = wanted
        plan, cube = self._plan, self._tl.program_id(1)
        left, right = plan.columns_of(cube, pe)
        own = (cube * plan.sip.pes + pe) * found.shape[1]
        at = own + (rows[0] - plan.rows_of(cube)[0]) * (right - left) + columns[0] - left
        shape = rows[1] - rows[0], columns[1] - columns[0]
        return self._tl.load_async(found + at * found.itemsize, shape, strides=(right - left, 1))
