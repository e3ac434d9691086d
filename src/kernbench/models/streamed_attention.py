"""Attention at decode for few queries per key head: their scores fit in TCM, so the cache is streamed past them by two
composites, one for keys and one for values, instead of block by block.

The new tokens join their caches first. Queries are loaded, and results stored, for many units together: a stream that
begins while other transfers of its PE are under way would share the link with them. The softmax of several units is
one, after the keys of all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    d, units = head_dim, units_here(plan, tl)
    for first in range(0, len(units), plan.units_at_once):
        some = units[first : first + plan.units_at_once]
        queries = _join_caches(qkv, (key_cache, value_cache), some, first, heads, d, plan, tl)
        results: list[TensorHandle] = []
        for at, count, keys in _alike(some, plan):
            caches = [(first + at + number) * plan.room * d for number in range(count)]
            streams = _Streams(queries[at : at + count], key_cache, value_cache, caches, tl)
            streams.run(keys, plan.block_keys, None if parts else out.dtype)
            results += streams.results if parts is None else streams.parts()
            del streams
        _store(results, out, parts, some, plan, tl)
    tl.wait()


def _alike(units: range, plan: DecodeAttention) -> Iterator[tuple[int, int, int]]:
    """Units one after the other that have as many keys, `units_together` at most: the first, how many, and the keys."""
    keys = [plan.keys_with_token(plan.unit(unit)[2]) for unit in units]
    at = 0
    while at < len(units):
        count = 1
        while count < plan.units_together and at + count < len(units) and keys[at + count] == keys[at]:
            count += 1
        yield at, count, keys[at]
        at += count


def _store(
    results: list[TensorHandle],
    out: TensorPtr,
    parts: TensorPtr | None,
    units: range,
    plan: DecodeAttention,
    tl: TLContext,
) -> None:
    """Results of units that lie end to end go out together."""
    shared, width = results[0].shape
    at = 0
    for run in [list(units)] if parts is not None else _runs(units, plan):
        found = results[at : at + len(run)]
        at += len(run)
        joined = tl.cat(found, axis=0) if len(found) > 1 else found[0]
        if parts is not None:
            place = parts + run[0] * shared * width * parts.itemsize
        else:
            sequence, kv_head, _ = plan.unit(run[0])
            place = out + (sequence * out.shape[1] + kv_head * shared * width) * out.itemsize
        tl.store_async(place, joined)


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


class _Streams:
    """Units with as many keys: the largest score of each query, the sum of its weights, and by unit the values,
    weighted. Softmax is that of all of them; products are by unit.
    """

    best: TensorHandle
    total: TensorHandle
    results: list[TensorHandle]

    def __init__(
        self,
        queries: list[TensorHandle],
        key_cache: TensorPtr,
        value_cache: TensorPtr,
        caches: list[int],
        tl: TLContext,
    ) -> None:
        self._queries, self._keys, self._values, self._caches, self._tl = queries, key_cache, value_cache, caches, tl
        self._shared, self._d = queries[0].shape

    def run(self, keys: int, block: int, out_dtype: str | None) -> None:
        """All keys, in as few blocks as scores fit in TCM; with `out_dtype` over the sum of weights."""
        for first in range(0, keys, block):
            count = min(block, keys - first)
            self._take(first, count, out_dtype if count == keys else None)
        if out_dtype is not None and keys > block:
            totals = self._by_unit(self.total)
            self.results = [
                self._tl.cast(result / total, out_dtype) for result, total in zip(self.results, totals, strict=True)
            ]

    def parts(self) -> list[TensorHandle]:
        """By unit what `attention.merge_parts` takes."""
        tl = self._tl
        rows = zip(self.results, self._by_unit(self.total), self._by_unit(self.best), strict=True)
        return [tl.cat(row, axis=1) for row in rows]

    def _by_unit(self, x: TensorHandle) -> list[TensorHandle]:
        size = self._shared
        return [x[at : at + size] for at in range(0, x.shape[0], size)]

    def _take(self, first: int, count: int, out_dtype: str | None) -> None:
        """The block from `first` on; with `out_dtype` it is the only one."""
        tl = self._tl
        scale: dict[str, object] = {"op": "scale", "factor": self._d**-0.5}
        found = [
            self._product(query, self._block(self._keys, cache, first, count).T, scale, "f32")
            for query, cache in zip(self._queries, self._caches, strict=True)
        ]
        scores = tl.cat(found, axis=0) if len(found) > 1 else found[0]
        del found
        best = tl.max(scores, axis=1)
        if first:
            best = tl.maximum(self.best, best)
        scores = tl.exp(scores - best)
        total = tl.sum(scores, axis=1)
        powers = self._by_unit(tl.cast(scores, self._values.dtype))
        del scores
        steps: list[dict[str, object] | None] = [None] * len(powers)
        if first:
            fade = tl.exp(self.best - best)
            total = self.total * fade + total
            faded = zip(self.results, self._by_unit(fade), strict=True)
            steps = [{"op": "add", "other": result * by} for result, by in faded]
        elif out_dtype is not None:
            steps = [{"op": "div", "other": each} for each in self._by_unit(total)]
        self.results = [
            self._product(power, self._block(self._values, cache, first, count), step, out_dtype or "f32")
            for power, cache, step in zip(powers, self._caches, steps, strict=True)
        ]
        self.best, self.total = best, total

    def _block(self, tensor: TensorPtr, cache: int, first: int, count: int) -> TensorHandle:
        at = cache + first * self._d
        return self._tl.ref(tensor.local + at * tensor.itemsize, (count, self._d))

    def _product(
        self, a: TensorHandle, b: TensorHandle, step: dict[str, object] | None, out_dtype: str
    ) -> TensorHandle:
        """With nothing beside it."""
        steps = [step] if step else []
        asked = self._tl.composite("gemm", a, b, epilogue=steps, out_dtype=out_dtype, tile_shape="auto")
        found = self._tl.wait(asked)
        assert found is not None
        return found
