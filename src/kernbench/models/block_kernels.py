"""Kernels of a product by blocks (`block_plans.py`): rows are copied to the layout `Chunks` (`deal_rows`), unless the
previous part has stored them so, and every PE computes its blocks (`multiply_blocks`). A plan that passes chunks on
needs a communicator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from kernbench.models.block_plans import Chunks
from kernbench.models.column_kernels import arrived, put
from kernbench.models.layouts import ResultLayout
from kernbench.policy.placement.dp import Range, parts_of
from kernbench.tp.kernels import rows_here
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


@repeatable
def deal_rows(x: TensorPtr, chunks: TensorPtr, block_rows: int, *, layout: Chunks, tl: TLContext) -> None:
    """Store this PE's rows of a row-major matrix as chunks."""
    width, stored = x.shape[1], list[TransferHandle]()
    for first, count in rows_here(x, block_rows):
        rows = tl.load(x.across + first * width * x.itemsize, (count, width))
        for handle in stored:
            tl.wait(handle)
        stored = put(rows, (first, first + count), (0, width), [chunks], layout, tl)
        del rows
    tl.wait()


PePair = tuple[int | None, int | None]


class _KChunk(NamedTuple):
    """A chunk of K of one block of the result."""

    row_block: int
    column_block: int
    chunk: int
    is_first: bool
    is_last: bool
    sources: PePair  # PEs of the cube from which x and the weights come; None: from memory
    targets: PePair  # and to which they are passed on


@repeatable
def multiply_blocks(
    chunks: TensorPtr,
    w: TensorPtr,
    out: TensorPtr,
    keys: TensorPtr | None = None,
    values: TensorPtr | None = None,
    up: TensorPtr | None = None,
    *,
    source: Chunks,
    layout: ResultLayout,
    activation: str | None = None,
    tl: TLContext,
) -> None:
    """Store activation(x @ w), or activation(x @ w) * (x @ up), where the layout says."""
    weights = [weight for weight in (w, up) if weight is not None]
    targets = [x for x in (out, keys, values) if x is not None]
    _Product(chunks, weights, targets, source, layout, activation, tl).run()


class _Product:
    """One PE's blocks. Sums are kept in strips of rows, so that little TCM is taken twice when they are replaced."""

    def __init__(
        self,
        chunks: TensorPtr,
        weights: Sequence[TensorPtr],
        targets: Sequence[TensorPtr],
        source: Chunks,
        layout: ResultLayout,
        activation: str | None,
        tl: TLContext,
    ) -> None:
        plan = source.plan
        self._x, self._weights, self._targets, self._plan = chunks, weights, targets, plan
        self._layout, self._activation, self._tl = layout, activation, tl
        self._source = source
        self._group, self._row, self._column = plan.place_of(tl.program_id(1), tl.program_id(0))
        self._row_blocks = plan.row_blocks(self._group, self._row)
        self._column_blocks = plan.column_blocks(self._column)
        self._sums: list[dict[int, TensorHandle]] = []  # by weight and strip
        self._leaving: list[TransferHandle] = []
        self._passed: list[TransferHandle] = []

    def run(self) -> None:
        """Chunk by chunk, while the next ones are loaded."""
        steps, ahead = self._steps(), self._plan.ahead
        issued = deque(self._issue(step) for step in steps[:ahead])
        for number, step in enumerate(steps):
            while self._passed:  # the previous chunk, whose place the last one ahead takes
                self._tl.wait(self._passed.pop())
            if number + ahead < len(steps):
                issued.append(self._issue(steps[number + ahead]))
            x, *weights = [
                self._pass_on(arrived(handle, self._tl), step.targets[at > 0])
                for at, handle in enumerate(issued.popleft())
            ]
            self._add(x, weights, is_first=step.is_first)
            del x, weights
            if step.is_last:
                self._finish(self._row_blocks[step.row_block], self._column_blocks[step.column_block])
        self._tl.wait()

    def _steps(self) -> list[_KChunk]:
        order, passing = self._plan.order_of(self._row, self._column), self._passing()
        return [
            _KChunk(row_block, column_block, chunk, at == 0, at == len(order) - 1, *passing[at])
            for row_block in range(len(self._row_blocks))
            for column_block in range(len(self._column_blocks))
            for at, chunk in enumerate(order)
        ]

    def _passing(self) -> list[tuple[PePair, PePair]]:
        """For each step of a block: the PEs that x and the weights come from, and go to."""
        plan = self._plan
        if not plan.passes:
            return [((None, None), (None, None))] * plan.chunk_count
        place = plan.place_in_cube(self._row, self._column)
        return [
            (self._pes(each.sources(place, step)), self._pes(each.targets(place, step)))
            for each in plan.rounds_of(self._row, self._column)
            for step in range(each.count)
        ]

    def _pes(self, places: tuple[tuple[int, int] | None, tuple[int, int] | None]) -> PePair:
        x, weights = (None if place is None else self._plan.pe_at(*place) for place in places)
        return x, weights

    def _issue(self, step: _KChunk) -> list[TransferHandle]:
        """Begin to load, or to receive, a chunk of x and of each weight."""
        plan, (a, b) = self._plan, self._plan.chunks[step.chunk]
        first, end = self._row_blocks[step.row_block]
        left, right = self._column_blocks[step.column_block]
        at = self._source.place(self._group, self._row, step.row_block, step.chunk)
        found = [self._begin(step.sources[0], self._x, at, (end - first, b - a))]
        owner, offset = plan.weight_at(self._column, step.column_block, step.chunk)
        number = plan.number_of(self._group, owner, self._column)
        for weight in self._weights:
            found.append(self._begin(step.sources[1], weight, number * weight.shape[1] + offset, (b - a, right - left)))
        return found

    def _begin(self, source: int | None, tensor: TensorPtr, at: int, shape: tuple[int, int]) -> TransferHandle:
        """A chunk from a PE of the cube, or from element `at` of a tensor on."""
        if source is not None:
            return self._tl.recv_async(f"intra_{source}", shape, tensor.dtype)
        return self._tl.load_async(tensor.across + at * tensor.itemsize, shape)

    def _pass_on(self, chunk: TensorHandle, target: int | None) -> TensorHandle:
        if target is not None:
            self._passed.append(self._tl.send_async(f"intra_{target}", chunk))
        return chunk

    def _add(self, x: TensorHandle, weights: Sequence[TensorHandle], *, is_first: bool) -> None:
        """Add a chunk's products to the sums."""
        strips = self._strips(x.shape[0])
        if is_first:
            self._sums = [{} for _ in weights]
        for sums, weight in zip(self._sums, weights, strict=True):
            for at, (a, b) in enumerate(strips):
                some = x[a:b] if len(strips) > 1 else x
                if is_first:
                    sums[at] = self._tl.dot(some, weight, out_dtype="f32")
                else:
                    sums[at] = self._tl.dot(some, weight, sums[at])

    def _finish(self, rows: Range, columns: Range) -> None:
        """Begin to store the results of a block, strip by strip. PEs of a grid row begin with different strips, which
        lie in different memories if results are stored by rows.
        """
        tl, dtype = self._tl, self._targets[0].dtype
        strips = self._strips(rows[1] - rows[0])
        while self._leaving:  # of the block before
            self._tl.wait(self._leaving.pop())
        for number in range(len(strips)):
            at = (number + self._column) % len(strips)
            a, b = strips[at]
            result, *factors = [sums.pop(at) for sums in self._sums]
            if self._activation is not None:
                result = tl.gelu(result) if self._activation == "gelu" else tl.silu(result)
            while factors:
                result = result * factors.pop()
            if result.dtype != dtype:
                result = tl.cast(result, dtype)
            self._leaving += put(result, (rows[0] + a, rows[0] + b), columns, self._targets, self._layout, tl)
            del result

    def _strips(self, rows: int) -> list[Range]:
        return [strip for strip in parts_of(rows, self._plan.strips) if strip[0] < strip[1]]
