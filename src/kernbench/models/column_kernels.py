"""Kernels of a product by columns (`plans.py`), in the order in which they run: what the PEs need of x comes to their
own slices (`collect`, `pass_on`), they multiply, and results are added up and go to who reads them next (`deliver`).

Each is a launch of its own, so that whatever a PE reads from others is there. Bytes move in few large transfers, in an
order in which PEs of a cube do not share links; products touch the PE's own memory only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kernbench.models.layouts import ByHead, KParts, Layout
from kernbench.models.plans import ColumnsPlan, Job, exchange_rounds
from kernbench.policy.placement.dp import Range
from kernbench.triton_emu.handle import TensorHandle, TransferHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

Steps = list[dict[str, object]]
F32_BYTES = 4
HEAD_COLUMNS = 512  # or an eighth of a block, at a time where they go to heads: each head gets some rows
STORED_AT_ONCE = 2  # copies on their way out of TCM while the next one comes in


def cut(first: int, end: int, size: int) -> Iterator[Range]:
    """A range in pieces of at most `size`."""
    for at in range(first, end, max(1, size)):
        yield at, min(end, at + max(1, size))


def evenly(first: int, end: int, most: int) -> Iterator[Range]:
    """A range in as few pieces of at most `most` as there can be, of about one size."""
    count = -(-(end - first) // max(1, most))
    return cut(first, end, -(-(end - first) // max(1, count)))


class Mover:
    """Copies matrices between memories through TCM: pieces are stored while the next one is loaded."""

    def __init__(self, tl: TLContext, tcm_bytes: int) -> None:
        self._tl, self._most = tl, tcm_bytes // (STORED_AT_ONCE + 2)
        self._stored: list[TransferHandle] = []

    def move(self, source: TensorPtr, at: int, stride: int, out: TensorPtr, to: int, shape: tuple[int, int]) -> None:
        """Rows of `source` from element `at` on, `stride` apart, to `out` from element `to` on, end to end."""
        rows, width = shape
        if not rows or not width:
            return
        item = source.itemsize
        if stride == width:  # end to end there too: one row
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


# ---- what a product reads


def collect(x: TensorPtr, copies: TensorPtr, *, plan: ColumnsPlan, tl: TLContext) -> None:
    """From the rows of x in its cube every PE takes its part of K to its own slice."""
    pe, cube, layout = tl.program_id(0), tl.program_id(1), KParts(plan)
    a, b = plan.k_of(pe)
    mover = Mover(tl, plan.sip.tcm_bytes)
    for sources in exchange_rounds(plan.sip.pes):
        first, end = plan.sip.rows_at(plan.rows, cube, sources[pe])
        mover.move(x, first * plan.k + a, plan.k, copies, layout.place(cube, pe, first), (end - first, b - a))
    tl.wait()


def pass_on(copies: TensorPtr, step: int, *, plan: ColumnsPlan, tl: TLContext) -> None:
    """One step of an all-gather round the cubes of a group: PEs of one number take the rows that the cube before them
    got in the step before. Half of the PEs go one way round and half the other, so both directions are used.
    """
    pe, cube, layout = tl.program_id(0), tl.program_id(1), KParts(plan)
    ring = plan.ring_of(cube)
    way = 1 if pe.bit_count() % 2 else -1
    at = ring.index(cube)
    before, origin = ring[(at + way) % len(ring)], ring[(at + way * step) % len(ring)]
    first, end = plan.sip.rows_at(plan.rows, origin, 0)[0], plan.sip.rows_at(plan.rows, origin, plan.sip.pes - 1)[1]
    a, b = plan.k_of(pe)
    source, target = layout.place(before, pe, first), layout.place(cube, pe, first)
    Mover(tl, plan.sip.tcm_bytes).move(copies, source, b - a, copies, target, (end - first, b - a))
    tl.wait()


# ---- products


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
    """out = activation(x @ w), or activation(x @ w) * (x @ up) with `factors` as room for x @ up; where K is split,
    sums of both as they are, the second in `factors`. All in this PE's own slice.
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
            steps: Steps = []
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


# ---- where results go


def deliver(
    found: TensorPtr,
    out: TensorPtr,
    keys: TensorPtr | None = None,
    values: TensorPtr | None = None,
    factors: TensorPtr | None = None,
    *,
    plan: ColumnsPlan,
    layout: Layout,
    activation: str | None = None,
    tl: TLContext,
) -> None:
    """What `multiply` found, or `add_up` did, to where the layout says. Where K is split, each PE adds up its share of
    the rows first.
    """
    pe, cube = tl.program_id(0), tl.program_id(1)
    first, end = plan.share_of(cube, pe)
    left, right = plan.columns_of(cube, pe)
    most = plan.sip.tcm_bytes // _bytes_of_element(plan, found.itemsize, factors is not None)
    wide = max(HEAD_COLUMNS, most // 8) if isinstance(layout, ByHead) else most
    columns = list(cut(left, right, min(most, wide)))
    blocks = [(rows, some) for some in columns for rows in evenly(first, end, most // max(1, some[1] - some[0]))]
    turn = len(blocks) * pe // plan.sip.pes  # PEs of a cube begin with different rows, which go to different memories
    blocks = blocks[turn:] + blocks[:turn]
    targets = [x for x in (out, keys, values) if x is not None]
    found_in = [x for x in (found, factors) if x is not None]
    sources = _sources(plan, pe)
    coming = _Coming(plan, tl, [(x, other, *block) for block in blocks for x in found_in for other in sources])
    for rows, some in blocks:
        result = coming.sum_of(len(sources))
        if activation is not None and plan.splits_k:
            result = tl.gelu(result) if activation == "gelu" else tl.silu(result)
        if factors is not None:
            result = result * coming.sum_of(len(sources))
        if result.dtype != out.dtype:
            result = tl.cast(result, out.dtype)
        coming.leaving = put(result, rows, some, targets, layout, tl)
        del result
    tl.wait()


def _bytes_of_element(plan: ColumnsPlan, itemsize: int, is_gated: bool) -> int:
    """TCM for an element of a block: what is here and what comes; of sums, those so far, before and after."""
    if not plan.splits_k:
        return 2 * itemsize
    return (5 if is_gated else 4) * F32_BYTES


def put(
    result: TensorHandle, rows: Range, columns: Range, targets: Sequence[TensorPtr], layout: Layout, tl: TLContext
) -> list[TransferHandle]:
    """Set out to store a block of results where a layout says."""
    stored: list[TransferHandle] = []
    for piece in layout.pieces(rows, columns):
        target = targets[piece.tensor]
        (r0, r1), (c0, c1) = piece.rows, piece.columns
        part = result[r0 - rows[0] : r1 - rows[0], c0 - columns[0] : c1 - columns[0]]
        stored.append(tl.store_async(target + piece.at * target.itemsize, part, strides=(piece.stride, 1)))
    return stored


def _sources(plan: ColumnsPlan, pe: int) -> list[int]:
    """Whose results a PE takes: those of all PEs of its cube that have some of K, or its own."""
    if not plan.splits_k:
        return [pe]
    order = [sources[pe] for sources in exchange_rounds(plan.sip.pes)]
    return [other for other in order if plan.k_of(other)[0] < plan.k_of(other)[1]]


class _Coming:
    """Blocks of what PEs of this cube have found; each is on its way while the one before is worked on. What is
    `leaving` is gone before the next one comes: it has its place in TCM.
    """

    def __init__(self, plan: ColumnsPlan, tl: TLContext, wanted: Sequence[tuple[TensorPtr, int, Range, Range]]) -> None:
        self._plan, self._tl, self._wanted = plan, tl, iter(wanted)
        self.leaving: list[TransferHandle] = []
        self._next = self._ask()

    def sum_of(self, count: int) -> TensorHandle:
        """Of the next `count` blocks, as they come."""
        total = self._take()
        for _ in range(count - 1):
            total = total + self._take()
        return total

    def _take(self) -> TensorHandle:
        assert self._next is not None
        here = self._tl.wait(self._next)
        assert here is not None
        for handle in self.leaving:
            self._tl.wait(handle)
        self.leaving = []
        self._next = self._ask()
        return here

    def _ask(self) -> TransferHandle | None:
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
