"""Attention at decode for few queries per key head: their scores fit in TCM, so the cache is streamed past them by two
composites, one for keys and one for values, instead of block by block.

The new tokens join their caches first. Queries are loaded, and results stored, for many units together: a stream that
begins while other transfers of its PE are under way would share the link with them.
"""

from __future__ import annotations

from itertools import groupby

from kernbench.models.attention import units_here
from kernbench.models.mapping import DecodeAttention
from kernbench.triton_emu.handle import TensorHandle, TransferHandle
from kernbench.triton_emu.tl_context import TensorPtr, TLContext


def attend_streamed(
    qkv: TensorPtr,
    key_cache: TensorPtr,
    value_cache: TensorPtr,
    out: TensorPtr,
    parts: TensorPtr | None = None,
    *,
    heads: int,
    head_dim: int,
    plan: DecodeAttention,
    tl: TLContext,
) -> None:
    """What `attention.attend_decode` does."""
    d, shared, units = head_dim, heads // plan.kv_heads, units_here(plan, tl)
    for first in range(0, len(units), plan.units_at_once):
        some = units[first : first + plan.units_at_once]
        queries = _join_caches(qkv, (key_cache, value_cache), some, first, heads, d, plan, tl)
        streams = [
            _Stream(query, key_cache, value_cache, at * plan.room * d, tl) for at, query in enumerate(queries, first)
        ]
        for unit, stream in zip(some, streams, strict=True):
            stream.run(plan.keys_with_token(plan.unit(unit)[2]), plan.block_keys, None if parts else out.dtype)
        for unit, stream in zip(some, streams, strict=True):
            sequence, kv_head, _ = plan.unit(unit)
            if parts is None:
                at = out + (sequence * out.shape[1] + kv_head * shared * d) * out.itemsize
                tl.store_async(at, stream.result)
            else:
                joined = tl.cat([stream.result, stream.total, stream.best], axis=1)
                tl.store_async(parts + unit * shared * (d + 2) * parts.itemsize, joined)
    tl.wait()


def _join_caches(
    qkv: TensorPtr,
    caches: tuple[TensorPtr, TensorPtr],
    units: range,
    first: int,
    heads: int,
    d: int,
    plan: DecodeAttention,
    tl: TLContext,
) -> list[TensorHandle]:
    """The queries of some units, the first of which is the PE's `first`, once the new tokens are in their caches."""
    shared, item = heads // plan.kv_heads, qkv.itemsize
    asked: list[tuple[list[int], list[TransferHandle]]] = []
    for run in _runs(units, plan):
        sequence, kv_head, split = plan.unit(run[0])
        row, n = qkv + sequence * qkv.shape[1] * item, len(run)
        handles = [tl.load_async(row + kv_head * shared * d * item, (n * shared, d))]
        if split == plan.splits - 1:
            new = (heads + kv_head) * d
            handles += [tl.load_async(row + (new + more * d) * item, (n, d)) for more in (0, plan.kv_heads)]
        asked.append((run, handles))
    found: list[TensorHandle] = []
    for run, handles in asked:
        queries, *new_rows = (tl.wait(handle) for handle in handles)
        assert queries is not None
        found += [queries[at * shared : (at + 1) * shared] for at in range(len(run))]
        begin = (first + run[0] - units[0]) * plan.room + plan.keys_of(plan.unit(run[0])[2])
        for cache, rows in zip(caches, new_rows, strict=bool(new_rows)):
            assert rows is not None
            tl.store_async(cache.local + begin * d * cache.itemsize, rows, strides=(plan.room * d, 1))
    tl.wait()
    return found


def _runs(units: range, plan: DecodeAttention) -> list[list[int]]:
    """Units one after the other whose queries lie end to end: key heads of one sequence, unless they are split."""
    if plan.splits > 1:
        return [[unit] for unit in units]
    return [list(run) for _, run in groupby(units, lambda unit: plan.unit(unit)[0])]


class _Stream:
    """One unit: the largest score of each query, the sum of its weights, and the values, weighted."""

    best: TensorHandle
    total: TensorHandle
    result: TensorHandle

    def __init__(
        self, queries: TensorHandle, key_cache: TensorPtr, value_cache: TensorPtr, own: int, tl: TLContext
    ) -> None:
        self._queries, self._keys, self._values, self._own, self._tl = queries, key_cache, value_cache, own, tl

    def run(self, keys: int, block: int, out_dtype: str | None) -> None:
        """All keys, in as few blocks as scores fit in TCM; with `out_dtype` over the sum of weights."""
        for first in range(0, keys, block):
            count = min(block, keys - first)
            self._take(first, count, out_dtype if count == keys else None)
        if out_dtype is not None and keys > block:
            self.result = self._tl.cast(self.result / self.total, out_dtype)

    def _take(self, first: int, count: int, out_dtype: str | None) -> None:
        """The block from `first` on; with `out_dtype` it is the only one."""
        tl, d = self._tl, self._queries.shape[1]
        at = self._own + first * d
        keys = tl.ref(self._keys.local + at * self._keys.itemsize, (count, d))
        values = tl.ref(self._values.local + at * self._values.itemsize, (count, d))
        scores = self._product(self._queries, keys.T, {"op": "scale", "factor": d**-0.5}, "f32")
        best = tl.max(scores, axis=1)
        if first:
            best = tl.maximum(self.best, best)
        scores = tl.exp(scores - best)
        total = tl.sum(scores, axis=1)
        powers = tl.cast(scores, values.dtype)
        del scores
        if first:
            fade = tl.exp(self.best - best)
            total = self.total * fade + total
            self.result = self._product(powers, values, {"op": "add", "other": self.result * fade}, "f32")
        elif out_dtype is not None:
            self.result = self._product(powers, values, {"op": "div", "other": total}, out_dtype)
        else:
            self.result = self._product(powers, values, None, "f32")
        self.best, self.total = best, total

    def _product(
        self, a: TensorHandle, b: TensorHandle, step: dict[str, object] | None, out_dtype: str
    ) -> TensorHandle:
        steps = [step] if step else []
        asked = self._tl.composite("gemm", a, b, epilogue=steps, out_dtype=out_dtype, tile_shape="auto")
        found = self._tl.wait(asked)
        assert found is not None
        return found
