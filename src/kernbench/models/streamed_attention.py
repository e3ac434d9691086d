"""Decode attention for few queries per key head: their scores fit in TCM, so the cache is streamed by two composites,
one for keys and one for values, instead of block by block.

Caches of a PE are contiguous, and the GEMM engine processes the queries of several units as fast as those of one. So
several units are one product: all their queries by all their keys, of which each unit's own block of scores is used;
and weights, with zeros for the keys of other units, by all their values. This computes unused scores, but saves
commands and the start-up and drain times of streams. Rows of a cache without a key are zeros; their scores are masked.

The new tokens are appended to their caches first. Queries are loaded, and results stored, for many units together: a
stream that begins while other transfers of its PE are in flight would share the link with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from kernbench.models.attention import units_here
from kernbench.models.mapping import CAPS_PER_UNIT, UNITS_JOINED, DecodeAttention
from kernbench.models.query_blocks import FAR_BELOW
from kernbench.policy.placement.dp import Range, parts_of
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

FAR_ABOVE = 1e30


@repeatable
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
    """The same function as `attention.attend_decode`."""
    units, masks = units_here(plan, tl), _UnitMasks(plan, tl)
    for first in range(0, len(units), plan.units_at_once):
        some = units[first : first + plan.units_at_once]
        queries = _join_caches(qkv, (key_cache, value_cache), some, first, heads, head_dim, plan, tl)
        results: list[TensorHandle] = []
        for a, b in in_groups(len(some), plan.units_together):
            keys = [plan.keys_with_token(plan.unit(unit)[2]) for unit in some[a:b]]
            joined = _columns(queries, a, b, tl)
            streams = _Streams(joined, key_cache, value_cache, (first + a) * plan.room, masks, tl)
            streams.run(keys, plan, None if parts else out.dtype)
            results += streams.results if parts is None else [streams.parts()]
            del streams, joined
        _store(results, out, parts, some, plan, tl)
    tl.wait()


def in_groups(units: int, most: int) -> list[Range]:
    """Units in groups of at most `most`, of nearly equal size."""
    return list(parts_of(units, -(-units // most)))


def _columns(pieces: Sequence[TensorHandle], first: int, end: int, tl: TLContext) -> TensorHandle:
    """From `first` to `end` along the second axis of tensors that are concatenated there."""
    found, at = list[TensorHandle](), 0
    for piece in pieces:
        a, b = max(first - at, 0), min(end - at, piece.shape[1])
        if a < b:
            found.append(piece if b - a == piece.shape[1] else piece[:, a:b])
        at += piece.shape[1]
    return _joined(found, tl)


def _store(
    results: list[TensorHandle],
    out: TensorPtr,
    parts: TensorPtr | None,
    units: range,
    plan: DecodeAttention,
    tl: TLContext,
) -> None:
    """Store the results of units, contiguous ones together."""
    shared, _, width = results[0].shape
    at = 0
    for run in [list(units)] if parts is not None else _runs(units, plan):
        joined = _columns(results, at, at + len(run), tl)
        at += len(run)
        if parts is not None:
            place = parts + run[0] * shared * width * parts.itemsize
        else:
            sequence, kv_head, _ = plan.unit(run[0])
            place = out + (sequence * plan.kv_heads + kv_head) * shared * width * out.itemsize
        tl.store_async(place, joined, strides=(width, shared * width, 1))


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
    """Append the new tokens to the caches of some units, the first of which is the PE's unit number `first`; returns
    the units' queries, by query and then by unit.
    """
    shared, item = heads // plan.kv_heads, qkv.itemsize
    issued: list[tuple[list[int], list[TransferHandle]]] = []
    for run in _runs(units, plan):
        sequence, kv_head, split = plan.unit(run[0])
        row, n = qkv.across + sequence * (heads + 2 * plan.kv_heads) * d * item, len(run)
        handles = [tl.load_async(row + kv_head * shared * d * item, (shared, n, d), strides=(d, shared * d, 1))]
        if split == plan.splits - 1:
            new = (heads + kv_head) * d
            handles += [tl.load_async(row + (new + more * d) * item, (n, d)) for more in (0, plan.kv_heads)]
        issued.append((run, handles))
    found: list[TensorHandle] = []
    for run, handles in issued:
        queries, *new_rows = (tl.wait(handle) for handle in handles)
        assert queries is not None
        found.append(queries)
        begin = (first + run[0] - units[0]) * plan.room + plan.keys_of(plan.unit(run[0])[2])
        for cache, rows in zip(caches, new_rows, strict=bool(new_rows)):
            assert rows is not None
            tl.store_async(cache.local + begin * d * cache.itemsize, rows, strides=(plan.room * d, 1))
    tl.wait()
    return found


def _runs(units: range, plan: DecodeAttention) -> list[list[int]]:
    """Runs of units whose queries are contiguous: key heads of one sequence, unless their caches are split."""
    if plan.splits > 1:
        return [[unit] for unit in units]
    return [list(run) for _, run in groupby(units, lambda unit: plan.unit(unit)[0])]


class _UnitMasks:
    """Masks that separate the units of one product, made once; caps of scores are made again if TCM cannot hold all."""

    def __init__(self, plan: DecodeAttention, tl: TLContext) -> None:
        self._room, self._tl = plan.room, tl
        self._own: dict[int, TensorHandle] = {}
        self._caps: dict[tuple[int, ...], TensorHandle] = {}
        self._most_caps = plan.units_together * CAPS_PER_UNIT

    def score_caps(self, keys: tuple[int, ...]) -> TensorHandle:
        """Upper limits of the scores of some units, one unit after the other: `FAR_BELOW` where there is no key."""
        if keys not in self._caps:
            if len(keys) > 1 and sum(map(len, self._caps)) + 2 * len(keys) > self._most_caps:  # while they are made
                self._caps.clear()
            self._caps[keys] = self._make_caps(keys)
        return self._caps[keys]

    def _make_caps(self, keys: tuple[int, ...]) -> TensorHandle:
        tl, room = self._tl, self._room
        if len(keys) == 1:
            return tl.where(tl.arange(0, room) < keys[0], FAR_ABOVE, tl.full((1,), FAR_BELOW, "f32"))
        if len(set(keys)) == 1:
            each = tl.reshape(self.score_caps(keys[:1]), (1, room))
            return tl.reshape(tl.broadcast_to(each, (len(keys), room)), (len(keys) * room,))
        return tl.cat([self.score_caps((size,)) for size in keys])

    def weights(self, exponentials: TensorHandle) -> TensorHandle:
        """(queries, units, keys) as rows: the weights of every unit's keys, and zeros for those of others."""
        tl, (shared, n, count) = self._tl, exponentials.shape
        if n > 1:
            if n not in self._own:
                units = tl.arange(0, n)
                self._own[n] = tl.reshape(units, (1, n, 1, 1)) == tl.reshape(units, (1, 1, n, 1))
            exponentials = tl.where(self._own[n], tl.reshape(exponentials, (shared, n, 1, count)), 0.0)
        return tl.reshape(exponentials, (shared * n, n * count))


class _Streams:
    """Units with contiguous caches, from row `begin` on. All tensors are (queries of a unit, units, ...): for each
    query the largest score, the sum of its weights, and the weighted values. All units share one softmax pass.
    """

    best: TensorHandle
    total: TensorHandle
    results: list[TensorHandle]  # one after the other

    def __init__(
        self, queries: TensorHandle, key_cache: TensorPtr, value_cache: TensorPtr, begin: int, masks: _UnitMasks,
        tl: TLContext,
    ) -> None:  # fmt: skip
        self._queries, self._keys, self._values, self._begin = queries, key_cache, value_cache, begin
        self._shared, self._units, self._d = queries.shape
        self._masks, self._tl = masks, tl

    def run(self, keys: Sequence[int], plan: DecodeAttention, out_dtype: str | None) -> None:
        """All keys of each unit: those of several units in one block, of one in as few as scores fit in TCM. With
        `out_dtype` over the sum of weights.
        """
        if self._units > 1:
            self._take(0, plan.room, keys, out_dtype)
            return
        for first in range(0, keys[0], plan.block_keys):
            count = min(plan.block_keys, keys[0] - first)
            self._take(first, count, (count,), out_dtype if count == keys[0] else None)
        if out_dtype is not None and keys[0] > plan.block_keys:
            self.results = [self._tl.cast(self.results[0] / self.total, out_dtype)]

    def parts(self) -> TensorHandle:
        """The partial results by unit, as `attention.merge_parts` expects them."""
        return self._tl.cat([_joined(self.results, self._tl), self.total, self.best], axis=2)

    def _take(self, first: int, count: int, keys: Sequence[int], out_dtype: str | None) -> None:
        """A block of `count` keys of every unit, of which the last `keys` say how many there are; with `out_dtype` it
        is the only one.
        """
        tl, groups = self._tl, in_groups(self._units, UNITS_JOINED)
        scores = _joined([self._scores(group, first, count, keys) for group in groups], tl)
        best = tl.max(scores, axis=2)
        if first:
            best = tl.maximum(self.best, best)
        scores = (
            scores - best
        )  # a separate step: it frees the tensor that the scores are a view of before exponentials are made
        scores = tl.exp(scores)
        total = tl.sum(scores, axis=2)
        exponentials = tl.cast(scores, self._values.dtype)
        del scores
        last: tuple[str, TensorHandle] | None = None
        if first:
            rescale = tl.exp(self.best - best)
            total = self.total * rescale + total
            last = "add", self.results[0] * rescale
        elif out_dtype is not None:
            last = "div", total
        self.results = [self._weighted(exponentials, group, first, last, out_dtype or "f32") for group in groups]
        self.best, self.total = best, total

    def _scores(self, group: Range, first: int, count: int, keys: Sequence[int]) -> TensorHandle:
        """The queries of some units, each by its own keys."""
        tl, n, own = self._tl, group[1] - group[0], tuple(keys[slice(*group)])
        steps: list[dict[str, object]] = [{"op": "scale", "factor": self._d**-0.5}]
        if min(own) < count:
            steps.append({"op": "minimum", "other": self._masks.score_caps(own)})
        queries = tl.reshape(self._queries[:, slice(*group)], (self._shared * n, self._d))
        found = self._product(queries, self._block(self._keys, group, first, count).T, steps, "f32")
        by_unit = tl.reshape(found, (self._shared, n * n, count))  # of queries, then of keys
        return by_unit[:, :: n + 1]

    def _weighted(
        self,
        exponentials: TensorHandle,
        group: Range,
        first: int,
        last: tuple[str, TensorHandle] | None,
        out_dtype: str,
    ) -> TensorHandle:
        """The values of some units, weighted; `last` is a step that follows."""
        tl, n, count = self._tl, group[1] - group[0], exponentials.shape[2]
        steps: list[dict[str, object]] = []
        if last is not None:
            other = last[1][:, slice(*group)]
            steps = [{"op": last[0], "other": tl.reshape(other, (self._shared * n, other.shape[2]))}]
        weights = self._masks.weights(exponentials[:, slice(*group)])
        found = self._product(weights, self._block(self._values, group, first, count), steps, out_dtype)
        return tl.reshape(found, (self._shared, n, self._d))

    def _block(self, tensor: TensorPtr, group: Range, first: int, count: int) -> TensorHandle:
        """Rows of some units: of one, `count` from `first` on, or all room of several, of which there are `count`."""
        at = (self._begin + group[0] * count + first) * self._d * tensor.itemsize
        return self._tl.ref(tensor.local + at, ((group[1] - group[0]) * count, self._d))

    def _product(
        self, a: TensorHandle, b: TensorHandle, steps: list[dict[str, object]], out_dtype: str
    ) -> TensorHandle:
        """One composite, with no other transfers in flight."""
        pending = self._tl.composite("gemm", a, b, epilogue=steps, out_dtype=out_dtype, tile_shape="auto")
        found = self._tl.wait(pending)
        assert found is not None
        return found


def _joined(pieces: list[TensorHandle], tl: TLContext) -> TensorHandle:
    return tl.cat(pieces, axis=1) if len(pieces) > 1 else pieces[0]
