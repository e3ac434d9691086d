"""Causal attention of whole sequences with scores in TCM: an online softmax over blocks of keys and values, which are
read where the product of queries, keys and values has stored them.

Blocks of queries are dealt over PEs as in `query_blocks.py`. A block takes all keys before it, in blocks of
`keys_at_once`, each loaded while the previous one is processed; PEs begin with different ones, so that they do not wait
for one memory. Its own keys come last, with a mask.
"""

from __future__ import annotations

from kernbench.models.attention import OnlineSoftmax
from kernbench.models.column_kernels import arrived, cut
from kernbench.models.prefill_attention import number_of
from kernbench.models.query_blocks import FAR_BELOW, PrefillAttention, QueryBlock
from kernbench.policy.placement.dp import Range
from kernbench.triton_emu.handle import TensorHandle, TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


@repeatable
def attend_online(
    queries: TensorPtr, keys: TensorPtr, values: TensorPtr, width: int, *, plan: PrefillAttention, tl: TLContext
) -> None:
    """This PE's blocks. Results overwrite the queries."""
    attention = _Attention(keys, values, width, plan, tl)
    for block, at in plan.blocks_at(number_of(tl)):
        attention.attend(block, queries.across + at * width * queries.itemsize)
    tl.wait()


class _Attention:
    """The blocks of one PE, one after the other."""

    def __init__(self, keys: TensorPtr, values: TensorPtr, width: int, plan: PrefillAttention, tl: TLContext) -> None:
        self._keys, self._values, self._plan, self._tl = keys, values, plan, tl
        self._d = keys.shape[1]
        self._shared = width // self._d
        self._masks: dict[int, TensorHandle] = {}

    def attend(self, block: QueryBlock, place: int) -> None:
        """Compute a block; its result overwrites its queries at `place`."""
        tl, d, dtype = self._tl, self._d, self._keys.dtype
        spans = self._spans(block)
        coming = self._ask(block, spans[0])
        queries = tl.load(place, (block.queries * self._shared, d)) * d**-0.5
        if queries.dtype != dtype:
            queries = tl.cast(queries, dtype)
        running = OnlineSoftmax(queries, tl)
        for number, span in enumerate(spans):
            here = coming
            if number + 1 < len(spans):
                coming = self._ask(block, spans[number + 1])
            keys, values = (arrived(handle, tl) for handle in here)
            running.take(keys, values, self._mask(block) if span[0] >= block.first else None)
            del here, keys, values
        tl.store_async(place, tl.cast(running.result / running.total, dtype))

    def _spans(self, block: QueryBlock) -> list[Range]:
        """Keys at a time: those before the block, from another one on for every PE, and then its own."""
        before = list(cut(0, block.first, self._plan.keys_at_once))
        start = number_of(self._tl) % len(before) if before else 0
        return [*before[start:], *before[:start], (block.first, block.first + block.queries)]

    def _ask(self, block: QueryBlock, span: Range) -> list[TransferHandle]:
        first, count = self._plan.pair_of(block) * self._plan.tokens + span[0], span[1] - span[0]
        places = (x.across + first * self._d * x.itemsize for x in (self._keys, self._values))
        return [self._tl.load_async(place, (count, self._d)) for place in places]

    def _mask(self, block: QueryBlock) -> TensorHandle:
        """For each query of a block, and head that shares a key, whether it sees each key of the block: 0 or far below;
        made once for each size.
        """
        count = block.queries
        if count not in self._masks:
            tl = self._tl
            self._masks.clear()
            tokens = tl.reshape(tl.arange(0, count), (count, 1, 1))
            seen = tl.broadcast_to(
                tokens >= tl.reshape(tl.arange(0, count), (1, 1, count)), (count, self._shared, count)
            )
            rows = tl.reshape(seen, (count * self._shared, count))
            self._masks[count] = tl.where(rows, 0.0, tl.full((1,), FAR_BELOW, "f32"))
        return self._masks[count]
