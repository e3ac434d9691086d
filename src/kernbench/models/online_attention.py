"""Causal attention of whole sequences with scores in TCM: an online softmax over blocks of keys and values, which are
read where the product of queries, keys and values has stored them.

Blocks of queries are dealt over PEs as in `query_blocks.py`. A block takes all keys before it and its own,
`keys_at_once` together, and the last ones in a multiple of `key_step`: so its tensors have only the sizes that
`query_blocks.online_bytes` counts, and fit TCM. Keys, and the queries of the next block, are loaded while those before
them are processed. PEs begin with different keys, so that they do not wait for one memory. Keys that some queries do
not see come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from kernbench.models.attention import OnlineSoftmax
from kernbench.models.column_kernels import arrived, put
from kernbench.models.layouts import ResultLayout
from kernbench.models.prefill_attention import number_of
from kernbench.models.query_blocks import PrefillAttention, QueryBlock
from kernbench.policy.placement.dp import Range
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


@repeatable
def attend_online(
    queries: TensorPtr, keys: TensorPtr, values: TensorPtr, width: int, out: TensorPtr | None = None, *,
    plan: PrefillAttention, layout: ResultLayout | None = None, tl: TLContext,
) -> None:  # fmt: skip
    """This PE's blocks. Results are stored in `out` with this layout; without one they overwrite the queries."""
    attention = _Attention(queries, keys, values, width, plan, tl)
    for _, some in groupby(plan.blocks_at(number_of(tl)), key=lambda each: each[0].queries):
        for block, at, result in attention.results(list(some)):
            if layout is None or out is None:
                stored = [tl.store_async(queries.across + at * width * queries.itemsize, result)]
            else:
                row, column = block.sequence * plan.tokens + block.first, block.kv_head * width
                stored = put(result, (row, row + block.queries), (column, column + width), [out], layout, tl)
            attention.leaving = stored
            del result, stored
        attention.leaving = []
        tl.wait()  # TCM is empty before tensors have other sizes


class _KeyStep(NamedTuple):
    """Keys of a block at a time; `at` is the block's offset in tokens."""

    block: QueryBlock
    at: int
    keys: Range
    is_first: bool
    is_last: bool


class _Attention:
    """The blocks of one PE, one after the other. `leaving` are stores of the previous result, which end before there is
    another one.
    """

    def __init__(
        self, queries: TensorPtr, keys: TensorPtr, values: TensorPtr, width: int, plan: PrefillAttention, tl: TLContext
    ) -> None:
        self._queries, self._keys, self._values, self._width = queries, keys, values, width
        self._plan, self._tl = plan, tl
        self._d = keys.shape[1]
        self.leaving: list[TransferHandle] = []

    def results(self, blocks: Sequence[tuple[QueryBlock, int]]) -> Iterator[tuple[QueryBlock, int, TensorHandle]]:
        """The result of each of some blocks with as many queries, (tokens, columns of the heads that share a key
        head).
        """
        tl, d = self._tl, self._d
        steps = [step for block, at in blocks for step in self._steps(block, at)]
        in_flight, running = self._issue(steps[0]), None
        for number, step in enumerate(steps):
            here, in_flight = in_flight, self._issue(steps[number + 1]) if number + 1 < len(steps) else []
            *queries, keys, values = (arrived(handle, tl) for handle in here)
            del here
            if running is None:
                running = OnlineSoftmax(queries[0] * d**-0.5, tl)
            del queries
            running.take(keys, values, self._seen(step))
            del keys, values
            if step.is_last:
                for handle in self.leaving:
                    tl.wait(handle)
                self.leaving = []
                result = tl.cast(running.result / running.total, self._keys.dtype)
                running = None
                yield step.block, step.at, tl.reshape(result, (step.block.queries, self._width))
                del result

    def _steps(self, block: QueryBlock, at: int) -> list[_KeyStep]:
        """Keys that all queries see, from another one on for every PE, and then the others."""
        spans, whole = self._plan.key_spans(block), self._plan.whole_spans(block)
        turn = number_of(self._tl) % whole if whole else 0
        order = [*spans[turn:whole], *spans[:turn], *spans[whole:]]
        return [_KeyStep(block, at, span, span == order[0], span == order[-1]) for span in order]

    def _first_loaded(self, span: Range) -> int:
        """The first of the keys that are loaded: not beyond the sequence, so that some may be loaded again."""
        return span[0] - max(0, span[1] - self._plan.tokens)

    def _issue(self, step: _KeyStep) -> list[TransferHandle]:
        """Loads of keys and values; before those, of the queries of a block that begins."""
        tl, d, count = self._tl, self._d, step.keys[1] - step.keys[0]
        first = self._plan.pair_of(step.block) * self._plan.tokens + self._first_loaded(step.keys)
        wanted = [(x.across + first * d * x.itemsize, count) for x in (self._keys, self._values)]
        if step.is_first:
            place = self._queries.across + step.at * self._width * self._queries.itemsize
            wanted.insert(0, (place, step.block.queries * self._width // d))
        return [tl.load_async(place, (rows, d)) for place, rows in wanted]

    def _seen(self, step: _KeyStep) -> TensorHandle | None:
        """Which of the loaded keys each token sees, (tokens, 1, keys): none after itself, and none of earlier steps;
        None if it sees all.
        """
        tl, (start, end), block = self._tl, step.keys, step.block
        if end <= block.first + 1:
            return None
        first, count = self._first_loaded(step.keys), end - start
        keys = tl.reshape(tl.arange(first, first + count), (1, 1, count))
        tokens = tl.reshape(tl.arange(block.first, block.first + block.queries), (block.queries, 1, 1))
        seen = keys <= tokens
        return seen if first == start else seen & (keys >= start)
