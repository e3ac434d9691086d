"""Decode attention over the KV cache in blocks, with an online softmax, so scores are never stored.

Queries of the heads that share a key head are one matrix, so their keys and values are read once. The next block is
loaded while the current one is processed. Scores and sums are f32; probabilities are rounded to the tensors' type
before they are multiplied with the values.
"""

from __future__ import annotations

from kernbench.models.mapping import DecodeAttention
from kernbench.models.quantised import QuantisedForm
from kernbench.models.query_blocks import FAR_BELOW
from kernbench.policy.placement.dp import parts_of
from kernbench.triton_emu.handle import TensorHandle, TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


class OnlineSoftmax:
    """An online softmax over blocks of keys: for every row its largest score, the sum, and the weighted values. Scores
    are multiplied by `scale`, unless the queries have been.
    """

    def __init__(self, queries: TensorHandle, tl: TLContext, scale: float | None = None) -> None:
        rows, d = queries.shape
        self._tl, self._queries, self._scale = tl, queries, scale
        self.best = tl.full((rows, 1), FAR_BELOW, "f32")
        self.total = tl.zeros((rows, 1), "f32")
        self.result = tl.zeros((rows, d), "f32")

    def take(self, keys: TensorHandle, values: TensorHandle, mask: TensorHandle | None = None) -> None:
        """Process one block of keys and values; a mask is added to its scores."""
        tl = self._tl
        scores = tl.dot(self._queries, keys.T, out_dtype="f32")
        if self._scale is not None:
            scores = scores * self._scale
        if mask is not None:
            scores = scores + mask
        best = tl.maximum(self.best, tl.max(scores, axis=1))
        scores = tl.exp(scores - best)
        fade = tl.exp(self.best - best)
        self.total = self.total * fade + tl.sum(scores, axis=1)
        powers = tl.cast(scores, values.dtype)
        del scores
        self.result = tl.dot(powers, values, self.result * fade)
        self.best = best


@repeatable
def attend_decode(
    qkv: TensorPtr,
    key_cache: TensorPtr,
    value_cache: TensorPtr,
    out: TensorPtr,
    parts: TensorPtr | None = None,
    key_scales: TensorPtr | None = None,
    value_scales: TensorPtr | None = None,
    *,
    heads: int,
    head_dim: int,
    plan: DecodeAttention,
    form: QuantisedForm | None = None,
    tl: TLContext,
) -> None:
    """One query per sequence against its cache, in this PE's own slice, and the new token, which is appended to the
    cache. If a cache is split, the partial result of each part is stored in `parts`. A cache of a `form` is widened
    block by block; queries are multiplied by the scale of the keys, and results by that of the values.
    """
    d, shared = head_dim, heads // plan.kv_heads
    width = qkv.shape[1]
    row_bytes = d * key_cache.itemsize
    for at, unit in enumerate(units_here(plan, tl)):
        sequence, kv_head, split = plan.unit(unit)
        row = sequence * width
        queries = tl.load(qkv + (row + kv_head * shared * d) * qkv.itemsize, (shared, d))
        scales = [tl.load(x.local + at * x.itemsize, (1, 1)) for x in (key_scales, value_scales) if x is not None]
        if scales:
            queries = tl.cast(queries * scales[0], qkv.dtype)
        running = OnlineSoftmax(queries, tl, d**-0.5)
        own = at * plan.room * row_bytes
        count = plan.keys_of(split)
        spans = [(first, min(plan.block_keys, count - first)) for first in range(0, count, plan.block_keys)]
        coming = _ask(key_cache, value_cache, own, spans, 0, d, tl)
        for number in range(len(spans)):
            here = coming
            if number + 1 < len(spans):
                coming = _ask(key_cache, value_cache, own, spans, number + 1, d, tl)
            keys, values = (tl.wait(handle) for handle in here)
            assert keys is not None
            assert values is not None
            if form is not None:
                keys, values = tl.cast(keys, qkv.dtype), tl.cast(values, qkv.dtype)
            running.take(keys, values)
            del here, keys, values
        if split == plan.splits - 1:
            at_new = row + (heads + kv_head) * d
            new = [tl.load(qkv + (at_new + more * d) * qkv.itemsize, (1, d)) for more in (0, plan.kv_heads)]
            new = [x / scale for x, scale in zip(new, scales, strict=True)] if scales else new
            running.take(*(tl.cast(x, qkv.dtype) if scales else x for x in new))
            for cache, x in zip((key_cache, value_cache), new, strict=True):
                kept = x if form is None else _narrowed(x, form, tl)
                tl.store_async(cache.local + own + count * row_bytes, kept)
        if scales:
            running.result = running.result * scales[1]
        if parts is None:
            result = tl.cast(running.result / running.total, out.dtype)
            tl.store_async(out + (sequence * out.shape[1] + kv_head * shared * d) * out.itemsize, result)
        else:
            joined = tl.cat([running.result, running.total, running.best], axis=1)
            tl.store_async(parts + unit * shared * (d + 2) * parts.itemsize, joined)
    tl.wait()


def _narrowed(x: TensorHandle, form: QuantisedForm, tl: TLContext) -> TensorHandle:
    """A new key or value, over its scale, as the cache stores it: the nearest element, at most the largest."""
    limited = tl.clamp(x, -form.largest, form.largest)
    if form.name != "fp8":
        limited = tl.floor(limited + 0.5)
    return tl.cast(limited, form.dtype)


def units_here(plan: DecodeAttention, tl: TLContext) -> range:
    """The units whose caches are in this PE's slice, in order."""
    first, end = parts_of(plan.units, tl.num_programs(1))[tl.program_id(1)]
    a, b = parts_of(end - first, tl.num_programs(0))[tl.program_id(0)]
    return range(first + a, first + b)


def _ask(
    key_cache: TensorPtr,
    value_cache: TensorPtr,
    own: int,
    spans: list[tuple[int, int]],
    number: int,
    d: int,
    tl: TLContext,
) -> tuple[TransferHandle, ...]:
    first, count = spans[number]
    at = own + first * d * key_cache.itemsize
    return tuple(tl.load_async(cache.local + at, (count, d)) for cache in (key_cache, value_cache))


@repeatable
def merge_parts(
    parts: TensorPtr, out: TensorPtr, *, heads: int, head_dim: int, plan: DecodeAttention, tl: TLContext
) -> None:
    """Merge the partial results of each cache's parts into one softmax."""
    d, shared = head_dim, heads // plan.kv_heads
    me = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    size = shared * (d + 2)
    for pair in range(me, plan.batch * plan.kv_heads, tl.num_programs(0) * tl.num_programs(1)):
        found = tl.load(parts + pair * plan.splits * size * parts.itemsize, (plan.splits, shared, d + 2))
        values, totals, bests = found[:, :, :d], found[:, :, d : d + 1], found[:, :, d + 1 :]
        scale = tl.exp(bests - tl.max(bests, axis=0))
        result = tl.sum(values * scale, axis=0) / tl.sum(totals * scale, axis=0)
        sequence, kv_head = divmod(pair, plan.kv_heads)
        at = out + (sequence * out.shape[1] + kv_head * shared * d) * out.itemsize
        tl.store_async(at, tl.reshape(tl.cast(result, out.dtype), (shared * d,)))
    tl.wait()
