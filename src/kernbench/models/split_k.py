"""Products with K over the PEs of a cube and columns over cubes, for the few rows of a decode step (`SplitKPlan`).

`relay_rows` gives every PE its K part of the rows, in its own slice. Of the two PEs of a corner one leads: it takes
the K parts of both round the cubes, each next to the one before, so that a row crosses every link once.

`product_split_k` streams a PE's weights past its rows, one composite for each weight and job, with nothing beside it,
and then the cube's PEs add their sums up: halves are exchanged with the PE of the same corner, quarters along columns
of routers. The last step goes one way, to the PEs that lead: the two pairs on a row of routers then have it one each.
Leading PEs write the results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kernbench.ccl.algorithms.rings import mesh_cycle, number_ring
from kernbench.models.mapping import F32_BYTES, SplitKPlan
from kernbench.models.plans import Job
from kernbench.policy.placement.dp import Range, parts_of
from kernbench.triton_emu.handle import TensorHandle, TransferHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

# ---- rows to where they are used


def relay_rows(x: TensorPtr, parts: TensorPtr, *, plan: SplitKPlan, tl: TLContext) -> None:
    """Every PE's K part of the rows to its own row of `parts`."""
    pe, cube = tl.program_id(0), tl.program_id(1)
    for spans in plan.relayed_by(pe):
        for first, rows in _passed_round(x, spans[0][1][0], spans[-1][1][1], plan, tl):
            for other, (a, b) in spans:
                begin, end = plan.k_of(other)
                at = plan.part_at(cube, other) + first * (end - begin) + a - begin
                piece = rows[:, a - spans[0][1][0] : b - spans[0][1][0]]
                tl.store_async(parts + at * parts.itemsize, piece, strides=(end - begin, 1))
            del rows, piece
            tl.wait()  # their room is the next block's


def _passed_round(x: TensorPtr, a: int, b: int, plan: SplitKPlan, tl: TLContext) -> Iterator[tuple[int, TensorHandle]]:
    """Columns a to b of all rows, as blocks of rows and where they begin: each cube passes on what comes to it."""
    cube, sip = tl.program_id(1), plan.sip
    cycle = mesh_cycle(sip.mesh_w, sip.mesh_h)
    ring = number_ring(cycle, cube, "cube")
    shares = parts_of(plan.rows, sip.cubes)
    pieces: dict[int, TensorHandle] = {}
    sent: list[TransferHandle] = []
    for step in range(ring.size):
        source = cycle[ring.position - step]
        first, end = shares[source]
        if first == end:
            continue
        if source == cube:
            piece = tl.load(x + (first * plan.k + a) * x.itemsize, (end - first, b - a), strides=(plan.k, 1))
        else:
            piece = tl.recv(ring.previous, (end - first, b - a), x.dtype)
        if step + 1 < ring.size:
            sent.append(tl.send_async(ring.following, piece))
        pieces[source] = piece
        del piece
    for handle in sent:
        tl.wait(handle)
    sent.clear()
    for begin, end in parts_of(sip.cubes, plan.relayed_blocks(b - a, x.itemsize)):
        found = [pieces.pop(source) for source in range(begin, end) if source in pieces]
        if not found:
            continue
        block = tl.cat(found, axis=0) if len(found) > 1 else found[0]
        del found
        yield shares[begin][0], block
        del block


# ---- products


def product_split_k(
    x: TensorPtr,
    w: TensorPtr,
    out: TensorPtr,
    up: TensorPtr | None = None,
    parts: TensorPtr | None = None,
    *,
    plan: SplitKPlan,
    jobs: Sequence[Job],
    activation: str | None = None,
    tl: TLContext,
) -> None:
    """out = activation(x @ w), or activation(x @ w) * (x @ up). The rows are read from `parts`, where they have been
    brought there, or from `x`. Those of a job follow those of the one before.
    """
    if not jobs:
        return
    weights = [weight for weight in (w, up) if weight is not None]
    task = _Product(x, weights, parts, plan, jobs, tl)
    at = 0
    for block in plan.columns_of(tl.program_id(1)):
        task.do(out, block, at, activation)
        at += (block[1] - block[0]) * task.depth


class _Totals(NamedTuple):
    """What a PE has of a block when all sums are added up, for each weight, and which rows and columns of it."""

    totals: list[TensorHandle]
    rows: Range
    columns: Range


class _Product:
    """One PE's part of a product."""

    def __init__(
        self,
        x: TensorPtr,
        weights: Sequence[TensorPtr],
        parts: TensorPtr | None,
        plan: SplitKPlan,
        jobs: Sequence[Job],
        tl: TLContext,
    ) -> None:
        self._x, self._weights, self._parts, self._plan, self._jobs, self._tl = x, weights, parts, plan, jobs, tl
        pe, cube = tl.program_id(0), tl.program_id(1)
        first, end = plan.k_of(pe)
        self._first, self.depth = first, end - first
        self._top = jobs[0].first
        self._rows = jobs[-1].first + jobs[-1].rows - self._top
        self._per_expert = sum(b - a for a, b in plan.columns_of(cube)) * self.depth
        self._own = self._own_rows()

    def do(self, out: TensorPtr, block: Range, at: int, activation: str | None) -> None:
        """A block of columns, whose weights begin `at` elements behind those of their expert."""
        tl, found = self._tl, self._totals(at, block[1] - block[0])
        if found is None:
            return
        result, *factors = found.totals
        if activation is not None:
            result = tl.gelu(result) if activation == "gelu" else tl.silu(result)
        for factor in factors:
            result = result * factor
        place = (found.rows[0] * self._plan.n + block[0] + found.columns[0]) * out.itemsize
        tl.store(out + place, tl.cast(result, out.dtype), strides=(self._plan.n, 1))

    def _totals(self, at: int, columns: int) -> _Totals | None:
        """None for a PE that has none of them. The sums of all weights are added up together where TCM holds them."""
        plan, rows = self._plan, self._rows
        axis = 0 if rows >= plan.sip.pes else 1  # rows are shared out where there are enough: long runs to store
        together = len(self._weights) * rows * columns * F32_BYTES
        fits = 2 * together + rows * self.depth * self._x.itemsize <= plan.sip.tcm_bytes * 15 // 16
        totals: list[TensorHandle] = []
        span = (0, 0)
        for some in [self._weights] if fits else [[weight] for weight in self._weights]:
            found = self._added_up(self._sums(some, at, columns, 1 - axis), axis)
            if found is None:
                return None
            total, span = found
            if axis == 0:
                totals += [total[:, number * columns : (number + 1) * columns] for number in range(len(some))]
            else:
                totals += [total[number * rows : (number + 1) * rows] for number in range(len(some))]
        if axis == 0:
            return _Totals(totals, (self._top + span[0], self._top + span[1]), (0, columns))
        return _Totals(totals, (self._top, self._top + rows), span)

    def _own_rows(self) -> TensorHandle:
        """This PE's K part."""
        shape = self._rows, self.depth
        if self._parts is not None:
            return self._tl.load(self._parts.local + self._top * self.depth * self._parts.itemsize, shape)
        at = (self._top * self._plan.k + self._first) * self._x.itemsize
        return self._tl.load(self._x + at, shape, strides=(self._plan.k, 1))

    def _sums(self, weights: Sequence[TensorPtr], at: int, columns: int, beside: int) -> TensorHandle:
        """The products of this PE's K part, jobs below one another, weights along the other axis, `beside`."""
        tl, rows = self._tl, self._own
        found: list[list[TensorHandle]] = []
        for weight in weights:
            found.append([])
            for expert, first, count in self._jobs:
                own = rows if count == self._rows else rows[first - self._top : first - self._top + count]
                place = (expert * self._per_expert + at) * weight.itemsize
                streamed = tl.ref(weight.local + place, (self.depth, columns))
                sums = tl.wait(tl.composite("gemm", own, streamed, out_dtype="f32", tile_shape="auto"))
                assert sums is not None
                found[-1].append(sums)
                del own, sums
        by_weight = [tl.cat(found.pop(0), axis=0) if len(self._jobs) > 1 else found.pop(0)[0] for _ in weights]
        return tl.cat(by_weight, axis=beside) if len(by_weight) > 1 else by_weight[0]

    def _added_up(self, sums: TensorHandle, axis: int) -> tuple[TensorHandle, Range] | None:
        """The share of the cube's sums that this PE comes to have, and where it begins and ends along `axis`."""
        tl, plan, pe = self._tl, self._plan, self._tl.program_id(0)
        begin = 0
        for place, count in plan.stages:
            others = [pe + (digit - pe // place % count) * place for digit in range(count)]
            shares = plan.shares_of(sums.shape[axis], others, is_last=(place, count) == plan.stages[-1])
            sent = [
                tl.send_async(f"intra_{other}", _part(sums, axis, share))
                for other, share in zip(others, shares, strict=True)
                if other != pe and share[0] < share[1]
            ]
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
        return sums, (begin, begin + sums.shape[axis])


def _part(x: TensorHandle, axis: int, share: Range) -> TensorHandle:
    return x[share[0] : share[1]] if axis == 0 else x[:, share[0] : share[1]]
