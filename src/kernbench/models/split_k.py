"""Products with K over the PEs of a cube and columns over cubes, for the few rows of a decode step (`SplitKPlan`).

`relay_rows` gives every PE its K part of the rows, in its own slice. Of the two PEs of a corner one leads: it relays
the K parts of both around a ring of neighbouring cubes, in both directions until they meet.

`product_split_k` streams a PE's weights past its rows, one composite for each weight and job, one at a time, and then
the cube's PEs reduce their sums: halves are exchanged with the PE of the same corner, quarters along columns of
routers. The last step is one-way, to the leading PEs: each of the two pairs on a row of routers has one of them.
Leading PEs write the results. If TCM does not hold all sums there are several rounds, and a round is streamed while the
sums of the previous one are reduced. Quantised weights are not streamed by composites but loaded ahead, widened and
multiplied piece by piece (`quantised_product.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kernbench.ccl.algorithms.rings import mesh_cycle, number_ring
from kernbench.models.mapping import SplitKPlan
from kernbench.models.plans import Job
from kernbench.models.quantised import QuantisedForm
from kernbench.models.quantised_product import (
    LOADED,
    PieceStream,
    StoredTensor,
    WeightPart,
    blocks_of,
    group_offsets,
    split_k_piece_bytes,
)
from kernbench.policy.placement.dp import Range, parts_of
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import CompletionHandle, TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

# ---- relaying rows


@repeatable
def relay_rows(x: TensorPtr, parts: TensorPtr, *, plan: SplitKPlan, tl: TLContext) -> None:
    """Store every PE's K part of the rows in its own row of `parts`."""
    pe, cube = tl.program_id(0), tl.program_id(1)
    for spans in plan.relayed_by(pe):
        for first, rows in _passed_round(x, spans[0][1][0], spans[-1][1][1], plan, tl):
            for other, (a, b) in spans:
                begin, end = plan.k_of(other)
                at = plan.part_at(cube, other) + first * (end - begin) + a - begin
                piece = rows[:, a - spans[0][1][0] : b - spans[0][1][0]]
                tl.store_async(parts + at * parts.itemsize, piece, strides=(end - begin, 1))
            del rows, piece
            tl.wait()  # frees TCM for the next block


def _passed_round(x: TensorPtr, a: int, b: int, plan: SplitKPlan, tl: TLContext) -> Iterator[tuple[int, TensorHandle]]:
    """Columns a to b of all rows, as blocks of rows with their first row: each cube forwards what it receives."""
    cube, sip = tl.program_id(1), plan.sip
    cycle = mesh_cycle(sip.mesh_w, sip.mesh_h)
    ring = number_ring(cycle, cube, "cube")
    shares = parts_of(plan.rows, sip.cubes)
    pieces: dict[int, TensorHandle] = {}
    sent: list[TransferHandle] = []
    first, end = shares[cube]
    if first < end:
        own = tl.load(x + (first * plan.k + a) * x.itemsize, (end - first, b - a), strides=(plan.k, 1))
        pieces[cube] = own
        directions = dict.fromkeys((ring.following, ring.previous)) if ring.size > 1 else {}
        sent += [tl.send_async(direction, own) for direction in directions]
        del own
    for step in range(1, ring.size // 2 + 1):
        sides = (ring.previous, ring.following, -step), (ring.following, ring.previous, step)
        for came_from, goes_to, away in sides[: 1 if 2 * step == ring.size else 2]:
            source = cycle[(ring.position + away) % ring.size]
            first, end = shares[source]
            if first == end:
                continue
            piece = tl.recv(came_from, (end - first, b - a), x.dtype)
            pieces[source] = piece
            if 2 * (step + 1) < ring.size or (2 * (step + 1) == ring.size and away < 0):
                sent.append(tl.send_async(goes_to, piece))
            del piece
    for handle in sent:
        tl.wait(handle)
    sent.clear()
    for begin, end in plan.relayed_blocks(b - a, x.itemsize):
        found = [pieces.pop(source) for source in range(begin, end) if source in pieces]
        if not found:
            continue
        block = tl.cat(found, axis=0) if len(found) > 1 else found[0]
        del found
        yield shares[begin][0], block
        del block


# ---- products


@repeatable
def product_split_k(
    x: TensorPtr,
    w: TensorPtr,
    out: TensorPtr,
    up: TensorPtr | None = None,
    parts: TensorPtr | None = None,
    scales: TensorPtr | None = None,
    up_scales: TensorPtr | None = None,
    *,
    plan: SplitKPlan,
    jobs: Sequence[Job],
    activation: str | None = None,
    form: QuantisedForm | None = None,
    tl: TLContext,
) -> None:
    """out = activation(x @ w), or activation(x @ w) * (x @ up). The rows are read from `parts`, if they have been
    relayed, or from `x`. Jobs have consecutive rows. Weights of a `form` have scales.
    """
    if not jobs:
        return
    weights = [weight for weight in (w, up) if weight is not None]
    found = [scale for scale in (scales, up_scales) if scale is not None]
    _KShare(x, weights, parts, out, plan, jobs, activation, form, found, tl).run()


class _Round(NamedTuple):
    """Weights whose sums are reduced together, over a block of columns that begins `at` elements after the start of its
    expert's weights.
    """

    weights: Sequence[TensorPtr]
    block: Range
    at: int

    @property
    def columns(self) -> int:
        return self.block[1] - self.block[0]


class _KShare:
    """One PE's part of a product."""

    def __init__(
        self,
        x: TensorPtr,
        weights: Sequence[TensorPtr],
        parts: TensorPtr | None,
        out: TensorPtr,
        plan: SplitKPlan,
        jobs: Sequence[Job],
        activation: str | None,
        form: QuantisedForm | None,
        scales: Sequence[TensorPtr],
        tl: TLContext,
    ) -> None:
        self._x, self._weights, self._parts, self._out, self._plan = x, weights, parts, out, plan
        self._form, self._scales = form, dict(zip(weights, scales, strict=form is not None))
        self._jobs, self._activation, self._tl = jobs, activation, tl
        self._first, end = plan.k_of(tl.program_id(0))
        self._depth = end - self._first
        self._top = jobs[0].first
        self._rows = jobs[-1].first + jobs[-1].rows - self._top
        self._axis = 0 if self._rows >= plan.sip.pes else 1  # rows are split if there are enough: longer runs
        self._blocks = plan.columns_of(tl.program_id(1))
        self._per_expert = sum(b - a for a, b in self._blocks) * self._depth
        self._totals: list[TensorHandle] = []  # complete sums of the weights of a block
        self._pieces: PieceStream | None = None  # of quantised weights
        self._offsets: dict[int, TensorHandle | None] = {}  # of the rows of each job, by the first
        self._piece_bytes = 0

    def run(self) -> None:
        """A single round is streamed by itself; with several, each is streamed while the previous sums are reduced."""
        rounds, own = self._rounds(), self._own_rows()
        if self._form is not None:
            self._load_ahead(rounds, self._form)
        before: tuple[_Round, list[list[CompletionHandle | TensorHandle]]] | None = None
        for this in rounds:
            streams = self._stream(own, this, one_at_a_time=len(rounds) == 1)
            if before is not None:
                self._add_up(*before)
            before = this, streams
            del streams
        if before is not None:
            self._add_up(*before)
        self._tl.wait()

    def _rounds(self) -> list[_Round]:
        """One round if TCM allows; otherwise one per block and weight."""
        found: list[_Round] = []
        at = 0
        joined = len(self._blocks) == 1 and self._plan.joins_sums(len(self._weights), self._x.itemsize)
        for block in self._blocks:
            groups = [self._weights] if joined else [[weight] for weight in self._weights]
            found += [_Round(some, block, at) for some in groups]
            at += (block[1] - block[0]) * self._depth
        return found

    def _add_up(self, this: _Round, streams: list[list[CompletionHandle | TensorHandle]]) -> None:
        """Reduce the sums of a round; when a block is complete, store its results."""
        tl, columns, rows, axis = self._tl, this.columns, self._rows, self._axis
        found = reduce_in_cube(self._sums(streams), axis, self._plan, tl)
        if found is None:
            return
        total, begin = found
        for number in range(len(this.weights)):
            size = columns if axis == 0 else rows
            cut = slice(number * size, (number + 1) * size)
            self._totals.append(total[:, cut] if axis == 0 else total[cut])
        if len(self._totals) < len(self._weights):
            return
        result, *factors = self._totals
        self._totals = []
        if self._activation is not None:
            result = tl.gelu(result) if self._activation == "gelu" else tl.silu(result)
        for factor in factors:
            result = result * factor
        row, column = (self._top + begin, this.block[0]) if axis == 0 else (self._top, this.block[0] + begin)
        place = self._out + (row * self._plan.n + column) * self._out.itemsize
        tl.store_async(place, tl.cast(result, self._out.dtype), strides=(self._plan.n, 1))

    def _own_rows(self) -> TensorHandle:
        """This PE's K part of the rows."""
        shape = self._rows, self._depth
        if self._parts is not None:
            return self._tl.load(self._parts.local + self._top * self._depth * self._parts.itemsize, shape)
        at = (self._top * self._plan.k + self._first) * self._x.itemsize
        return self._tl.load(self._x + at, shape, strides=(self._plan.k, 1))

    def _stream(
        self, rows: TensorHandle, this: _Round, *, one_at_a_time: bool
    ) -> list[list[CompletionHandle | TensorHandle]]:
        """The products of this PE's K part, by weight and job: running, or complete if they run one at a time."""
        tl = self._tl
        found: list[list[CompletionHandle | TensorHandle]] = []
        for weight in this.weights:
            found.append([])
            for expert, first, count in self._jobs:
                own = rows if count == self._rows else rows[first - self._top : first - self._top + count]
                if self._pieces is not None:
                    part = self._part(this, weight, expert)
                    if first not in self._offsets:
                        self._offsets[first] = group_offsets(own, self._form, tl)
                    found[-1].append(self._pieces.multiply(own, part, self._piece_bytes, self._offsets[first]))
                    continue
                place = (expert * self._per_expert + this.at) * weight.itemsize
                streamed = tl.ref(weight.local + place, (self._depth, this.columns))
                asked = tl.composite("gemm", own, streamed, out_dtype="f32", tile_shape="auto")
                found[-1].append(self._result(asked) if one_at_a_time else asked)
        return found

    def _part(self, this: _Round, weight: TensorPtr, expert: int) -> WeightPart:
        """A quantised weight's block of columns."""
        stored = StoredTensor(weight, self._scales[weight], self._form)
        return WeightPart(stored, expert * self._per_expert + this.at, self._depth, this.columns)

    def _load_ahead(self, rounds: Sequence[_Round], form: QuantisedForm) -> None:
        """Begin to load all that is streamed, in the order of use."""
        parts = [
            self._part(this, weight, job.expert) for this in rounds for weight in this.weights for job in self._jobs
        ]
        nbytes = self._piece_bytes = split_k_piece_bytes(self._plan.sip, form)
        self._pieces = PieceStream(blocks_of(parts, nbytes), LOADED * nbytes, self._x.dtype, self._tl)
        self._pieces.issue()

    def _result(self, stream: CompletionHandle | TensorHandle) -> TensorHandle:
        found = self._tl.wait(stream) if isinstance(stream, CompletionHandle) else stream
        assert found is not None
        return found

    def _sums(self, streams: list[list[CompletionHandle | TensorHandle]]) -> TensorHandle:
        """Jobs concatenated by rows, weights along the axis that is not split."""
        tl = self._tl
        by_weight: list[TensorHandle] = []
        while streams:
            found = [self._result(stream) for stream in streams.pop(0)]
            by_weight.append(tl.cat(found, axis=0) if len(found) > 1 else found[0])
            del found
        return tl.cat(by_weight, axis=1 - self._axis) if len(by_weight) > 1 else by_weight[0]


def reduce_in_cube(
    sums: TensorHandle, axis: int, plan: SplitKPlan, tl: TLContext, meanwhile: Callable[[], None] | None = None
) -> tuple[TensorHandle, int] | None:
    """This PE's share of the cube's reduced sums, and its first row or column; None if it has none. `meanwhile` is
    called before it waits for sums of others.
    """
    pe, begin = tl.program_id(0), 0
    for place, count in plan.stages:
        others = [pe + (digit - pe // place % count) * place for digit in range(count)]
        shares = plan.shares_of(sums.shape[axis], others, is_last=(place, count) == plan.stages[-1])
        sent = [
            tl.send_async(f"intra_{other}", _part(sums, axis, share))
            for other, share in zip(others, shares, strict=True)
            if other != pe and share[0] < share[1]
        ]
        if meanwhile is not None:
            meanwhile()
        own = shares[others.index(pe)]
        total = _part(sums, axis, own)
        if own[0] < own[1]:
            for other in others:
                if other != pe:
                    total = total + tl.recv(f"intra_{other}", total.shape, "f32")
        for handle in sent:
            tl.wait(handle)
        if own[0] == own[1]:
            return None
        sums, begin = total, begin + own[0]
        del total, sent
    return sums, begin


def _part(x: TensorHandle, axis: int, share: Range) -> TensorHandle:
    return x[share[0] : share[1]] if axis == 0 else x[:, share[0] : share[1]]
