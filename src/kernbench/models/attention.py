"""Decode attention over the KV cache in blocks, with an online softmax, so scores are never stored.

Queries of the heads that share a key head are one matrix, so their keys and values are read once. The next block is
loaded while the current one is processed. Scores and sums are f32; probabilities are rounded to the tensors' type
before they are multiplied with the values.
"""

from __future__ import annotations

from kernbench.models.mapping import DecodeAttention
from kernbench.models.plans import SipShape
from kernbench.models.quantised import QuantisedForm
from kernbench.models.query_blocks import FAR_BELOW
from kernbench.models.stored_cache import StoredUnit
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
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

    def take(self, keys: TensorHandle, values: TensorHandle, seen: TensorHandle | None = None) -> None:
        """Process one block of keys and values; `seen`, (tokens, 1, keys), says which of them the rows of each token
        see. At most two tensors of scores, and two of results, are in TCM at a time: every step frees its input.
        """
        tl, best = self._tl, self.best
        scores = tl.dot(self._queries, keys.T, out_dtype="f32")
        if self._scale is not None:
            scores = scores * self._scale
        if seen is not None:
            (rows, count), tokens = scores.shape, seen.shape[0]
            scores = tl.where(seen, tl.reshape(scores, (tokens, rows // tokens, count)), FAR_BELOW)
            scores = tl.reshape(scores, (rows, count))
        self.best = tl.maximum(best, tl.max(scores, axis=1))
        scores = scores - self.best
        scores = tl.exp(scores)
        rescale = tl.exp(best - self.best)
        self.total = self.total * rescale + tl.sum(scores, axis=1)
        exponentials = tl.cast(scores, values.dtype)
        del scores
        self.result = self.result * rescale
        self.result = tl.dot(exponentials, values, self.result)


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
    units = units_here(plan, tl)
    rows = _UnitRows(qkv, [x for x in (key_scales, value_scales) if x is not None], units, heads, d, plan, tl)
    cache = _CacheBlocks((key_cache, value_cache), units, d, plan, tl)
    if plan.batch < tl.num_programs(1):
        cache.issue()  # else queries come first: a slice has those of several PEs, and its stream would delay them
    for at, unit in enumerate(units):
        sequence, kv_head, split = plan.unit(unit)
        queries, scales = rows.take()
        stored = StoredUnit(form, scales, qkv.dtype, tl)
        running = OnlineSoftmax(stored.queries(queries), tl, d**-0.5)
        for _ in range(0, plan.keys_of(split), plan.block_keys):
            keys, values = cache.take()
            keys, values = stored.widened(keys), stored.widened(values)
            running.take(keys, values)
            del keys, values
        if split == plan.splits - 1:
            new = stored.over_scales(rows.new(unit))
            running.take(*map(stored.widened, new))
            place = (at * plan.room + plan.keys_of(split)) * d * key_cache.itemsize
            for pointer, x in zip((key_cache, value_cache), new, strict=True):
                tl.store_async(pointer.local + place, stored.narrowed(x))
        running.result = stored.results(running.result)
        if parts is None:
            result = tl.cast(running.result / running.total, out.dtype)
            tl.store_async(out.across + (sequence * heads + kv_head * shared) * d * out.itemsize, result)
        else:
            joined = tl.cat([running.result, running.total, running.best], axis=1)
            tl.store_async(parts.across + unit * shared * (d + 2) * parts.itemsize, joined)
    tl.wait()


class _UnitRows:
    """What a unit needs beside its cache: its queries and the scales of its cache, which are loaded one unit ahead,
    and the new token's key and value.
    """

    def __init__(
        self, qkv: TensorPtr, scales: list[TensorPtr], units: range, heads: int, d: int, plan: DecodeAttention,
        tl: TLContext,
    ) -> None:  # fmt: skip
        self._qkv, self._scales, self._units, self._heads = qkv, scales, units, heads
        self._d, self._plan, self._tl = d, plan, tl
        self._next = 0
        self._in_flight = self._issue()

    def take(self) -> tuple[TensorHandle, list[TensorHandle]]:
        """Queries and scales of the next unit."""
        here, self._in_flight = self._in_flight, self._issue()
        queries, *scales = _arrived(here, self._tl)
        return queries, scales

    def new(self, unit: int) -> list[TensorHandle]:
        """The new token's key and value."""
        first = self._heads + self._plan.unit(unit)[1]
        issued = [self._load(unit, head, 1) for head in (first, first + self._plan.kv_heads)]
        return _arrived(issued, self._tl)

    def _load(self, unit: int, head: int, count: int) -> TransferHandle:
        """Some heads of the unit's row."""
        width = (self._heads + 2 * self._plan.kv_heads) * self._d
        at = self._plan.unit(unit)[0] * width + head * self._d
        return self._tl.load_async(self._qkv.across + at * self._qkv.itemsize, (count, self._d))

    def _issue(self) -> list[TransferHandle]:
        at, tl = self._next, self._tl
        if at == len(self._units):
            return []
        self._next += 1
        unit, shared = self._units[at], self._heads // self._plan.kv_heads
        issued = [self._load(unit, self._plan.unit(unit)[1] * shared, shared)]
        return issued + [tl.load_async(x.local + at * x.itemsize, (1, 1)) for x in self._scales]


class _CacheBlocks:
    """Keys and values of the units' caches in this PE's slice, block after block, each loaded one block ahead."""

    def __init__(
        self, caches: tuple[TensorPtr, TensorPtr], units: range, d: int, plan: DecodeAttention, tl: TLContext
    ) -> None:
        self._caches, self._d, self._tl = caches, d, tl
        self._left: list[tuple[int, int]] = []  # first row and rows of each block, last one first
        for at, unit in enumerate(units):
            keys = plan.keys_of(plan.unit(unit)[2])
            for first in range(0, keys, plan.block_keys):
                self._left.insert(0, (at * plan.room + first, min(plan.block_keys, keys - first)))
        self._in_flight: list[TransferHandle] = []

    def issue(self) -> None:
        """Issue the loads of the next block, if there is one."""
        if self._left:
            first, count = self._left.pop()
            at = first * self._d * self._caches[0].itemsize
            self._in_flight = [self._tl.load_async(cache.local + at, (count, self._d)) for cache in self._caches]

    def take(self) -> tuple[TensorHandle, TensorHandle]:
        """Keys and values of the next block."""
        if not self._in_flight:
            self.issue()
        here, self._in_flight = self._in_flight, []
        self.issue()
        keys, values = _arrived(here, self._tl)
        return keys, values


def _arrived(handles: list[TransferHandle], tl: TLContext) -> list[TensorHandle]:
    found = [tl.wait(handle) for handle in handles]
    return [x for x in found if x is not None]


def units_here(plan: DecodeAttention, tl: TLContext) -> range:
    """The units whose caches are in this PE's slice, in order."""
    sip = SipShape(tl.num_programs(1), 1, tl.num_programs(0), 0)
    return plan.units_of(sip, tl.program_id(1) * sip.pes + tl.program_id(0))


@repeatable
def merge_parts(
    parts: TensorPtr, out: TensorPtr, *, heads: int, head_dim: int, plan: DecodeAttention, tl: TLContext
) -> None:
    """Merge the partial results of each cache's parts into one softmax."""
    d, shared = head_dim, heads // plan.kv_heads
    pes = tl.num_programs(0) * tl.num_programs(1)
    counts = [count for count in range(shared, 0, -1) if shared % count == 0]
    at_once = next((count for count in counts if plan.batch * heads // count >= pes), 1)  # heads: few leave PEs idle
    strides = shared * (d + 2), d + 2, 1
    for job in range(tl.program_id(1) * tl.num_programs(0) + tl.program_id(0), plan.batch * heads // at_once, pes):
        first = at_once * job
        pair, head = divmod(first, shared)
        place = parts + (pair * plan.splits * shared + head) * (d + 2) * parts.itemsize
        values, totals, _ = merged_parts(tl.load(place, (plan.splits, at_once, d + 2), strides=strides), d, tl)
        result = tl.cast(values / totals, out.dtype)
        tl.store_async(out.across + first * d * out.itemsize, tl.reshape(result, (at_once * d,)))
    tl.wait()


def merged_parts(found: TensorHandle, d: int, tl: TLContext) -> tuple[TensorHandle, TensorHandle, TensorHandle]:
    """Weighted values, sums and largest scores of some parts (parts, rows, d + 2), as those of one part."""
    values, totals, bests = found[:, :, :d], found[:, :, d : d + 1], found[:, :, d + 1 :]
    best = tl.max(bests, axis=0)
    scale = tl.exp(bests - best)
    return tl.sum(values * scale, axis=0), tl.sum(totals * scale, axis=0), best
