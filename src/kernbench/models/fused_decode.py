"""A whole decoder layer at decode in one launch (`FusedPlan`): norms, products, rotary embedding, attention, residuals.

A part that begins with its own launch begins with an idle memory: the launch, the rows that all PEs read, and the sums
that PEs of a cube exchange take longer than the weights of a small product. Here activations are sent from PE to PE
(`exchanges.py`), and meanwhile the weights and caches that come next are loaded into TCM (`loads_ahead.py`): from the
start to the end the DMA reads nothing else.

Norms: PEs of a cube have all of K, so they exchange the sums of their parts. The PEs that end with a share of a
product's results add the residual to it. Queries and keys are rotated by the PE that attends with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernbench.models.attention import OnlineSoftmax, merged_parts
from kernbench.models.exchanges import Exchange, PeExchange, direction_of
from kernbench.models.fused_plan import PREPARED, RADIX, FusedPlan, exchanges_of, holders_of, shared_axis
from kernbench.models.kernels import rotate_heads
from kernbench.models.loads_ahead import StreamedBlock
from kernbench.models.mapping import SplitKPlan
from kernbench.models.quantised_product import PieceStream, StoredTensor, WeightPart, group_offsets
from kernbench.models.rank_sums import RankSum
from kernbench.models.split_k import reduce_in_cube
from kernbench.models.stored_cache import StoredUnit
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

EPS = 1e-5
SoftmaxState = tuple[TensorHandle, TensorHandle, TensorHandle]  # weighted values, sums, largest scores


@dataclass(frozen=True)
class LayerForm:
    """What a layer is made of, besides sizes."""

    heads: int
    head_dim: int
    activation: str
    is_gated: bool
    has_shift: bool  # LayerNorm; otherwise RMSNorm
    has_rope: bool


@repeatable
def decode_layer(
    x: TensorPtr, *tensors: TensorPtr, plan: FusedPlan, form: LayerForm, rank: int = 0, tl: TLContext
) -> None:
    """x becomes the layer's output. `tensors`: key and value cache, the weights of qkv, out, gate, down, then up if the
    MLP is gated, each followed by its scales if it is quantised; gains of both norms, and shifts; angles, if there are
    any.
    """
    _Layer(x, iter(tensors), plan, form, rank, tl).run()


class _Layer:
    """One PE's part of a layer."""

    def __init__(
        self, x: TensorPtr, tensors: Iterator[TensorPtr], plan: FusedPlan, form: LayerForm, rank: int, tl: TLContext
    ) -> None:
        self._x, self._plan, self._form, self._rank, self._tl = x, plan, form, rank, tl
        self._pe, self._cube = tl.program_id(0), tl.program_id(1)
        self._caches = [StoredTensor.of(tensors, plan.cache_form) for _ in range(2)]
        forms = plan.forms if not form.is_gated else (*plan.forms, plan.forms[2])
        self._w_qkv, self._w_out, gate, self._w_down, *up = (StoredTensor.of(tensors, each) for each in forms)
        self._w_up = [gate, *up]
        self._norms = [[next(tensors) for _ in range(1 + form.has_shift)] for _ in range(2)]
        self._angles = next(tensors) if form.has_rope else None
        self._item = x.itemsize
        self._me = self._cube * plan.qkv.sip.pes + self._pe
        self._units = plan.attention.units_of(plan.qkv.sip, self._me)
        self._holders = holders_of(plan.attention, plan.qkv.sip)
        self._exchanges = exchanges_of(plan.products, plan.attention, form.heads, form.head_dim)
        self._stream = PieceStream(self._blocks(), plan.room_bytes, x.dtype, tl, most_prepared=PREPARED)

    def run(self) -> None:
        plan, tl = self._plan, self._tl
        rows, heads, attended, ffn = self._exchanges
        shares = self._load_shares()
        norms, tables = [self._load_norm(norm) for norm in self._norms], self._load_angles()
        self._cache_scales = self._load_cache_scales()
        self._stream.issue()
        residual = [None if each is None else tl.wait(each) for each in shares]
        to_norm1 = self._side_of(rows)
        for number, share in enumerate(residual):
            if share is not None:
                to_norm1.send(number, share)
        to_norm1.post_receives()
        to_attention = self._side_of(heads)
        self._multiply(plan.qkv, [self._w_qkv], self._norm(to_norm1, norms[0], plan.qkv), to_attention)
        results = self._attend(self._received(to_attention), tables)
        del tables
        to_out = self._side_of(attended)
        for number, result in enumerate(results):
            to_out.send(number, result)
        results.clear()
        to_out.post_receives()
        to_norm2 = self._side_of(rows)
        residual = self._multiply(plan.out, [self._w_out], self._received(to_out), to_norm2, residual=residual)
        to_down = self._side_of(ffn)
        activation = self._form.activation
        self._multiply(plan.up, self._w_up, self._norm(to_norm2, norms[1], plan.up), to_down, activation=activation)
        norms.clear()
        outputs = self._multiply(plan.down, [self._w_down], self._received(to_down), None, residual=residual)
        self._store_shares(outputs)
        tl.wait()

    def _side_of(self, exchange: Exchange) -> PeExchange:
        return PeExchange(exchange, self._x.dtype, self._tl)

    def _received(self, given: PeExchange) -> list[TensorHandle]:
        """What this PE needs of an exchange; while it waits, it widens what it needs next."""
        for _ in range(3):
            self._stream.prepare()
        return given.receive()

    def _arrived(self, handle: TransferHandle) -> TensorHandle:
        found = self._tl.wait(handle)
        assert found is not None
        return found

    # ---- weights and caches

    def _blocks(self) -> Iterator[StreamedBlock]:
        """All that this PE streams, in the order of its use."""
        plan = self._plan
        yield from self._weight_blocks(plan.qkv, [self._w_qkv])
        yield from self._cache_blocks()
        yield from self._weight_blocks(plan.out, [self._w_out])
        yield from self._weight_blocks(plan.up, self._w_up)
        yield from self._weight_blocks(plan.down, [self._w_down])

    def _weight_blocks(self, product: SplitKPlan, weights: Sequence[StoredTensor]) -> Iterator[StreamedBlock]:
        for parts in self._parts(product, weights):
            for part in parts:
                yield from part.blocks(self._plan.piece_bytes)

    def _parts(self, product: SplitKPlan, weights: Sequence[StoredTensor]) -> list[list[WeightPart]]:
        """This PE's parts of a product's weights, by block of columns and weight."""
        first, end = product.k_of(self._pe)
        found, at, depth = list[list[WeightPart]](), 0, end - first
        for a, b in product.columns_of(self._cube):
            found.append([WeightPart(weight, at, depth, b - a) for weight in weights])
            at += depth * (b - a)
        return found

    def _cache_blocks(self) -> Iterator[StreamedBlock]:
        """Keys and values of each unit, block by block."""
        plan, d = self._plan.attention, self._form.head_dim
        for at, unit in enumerate(self._units):
            keys = plan.keys_of(plan.unit(unit)[2])
            for first in range(0, keys, plan.block_keys):
                count = min(plan.block_keys, keys - first)
                for cache, _, form in self._caches:
                    place = cache.local + (at * plan.room + first) * d * cache.itemsize
                    yield StreamedBlock(place, (count, d), count * d * cache.itemsize, form)

    # ---- products

    def _load_shares(self) -> list[TransferHandle | None]:
        """This PE's shares of x, to which products are added."""
        boxes, n = self._exchanges.rows.made[self._me], self._plan.out.n
        return [
            self._tl.load_async(self._x + (box.rows[0] * n + box.columns[0]) * self._item, box.shape, strides=(n, 1))
            if min(box.shape) else None
            for box in boxes
        ]  # fmt: skip

    def _store_shares(self, shares: Sequence[TensorHandle | None]) -> None:
        n = self._plan.down.n
        for box, share in zip(self._exchanges.rows.made[self._me], shares, strict=True):
            if share is not None:
                place = self._x + (box.rows[0] * n + box.columns[0]) * self._item
                self._tl.store_async(place, share, strides=(n, 1))

    def _multiply(
        self,
        product: SplitKPlan,
        weights: Sequence[StoredTensor],
        rows: list[TensorHandle],
        following: PeExchange | None,
        *,
        activation: str | None = None,
        residual: Sequence[TensorHandle | None] = (),
    ) -> list[TensorHandle | None]:
        """Multiply this PE's part of the rows, the only one of `rows`, which is dropped, by the streamed weights, a
        block of columns at a time. Of each block the cube's PEs reduce their sums; this PE activates its share of them,
        or adds it to the residual, and sends it to the PEs that need it. Returns the shares: None where it has none.
        What is added to the residual is first summed over ranks, while the next block is multiplied.
        """
        (part,) = rows
        rows.clear()
        blocks, found = self._parts(product, weights), list[TensorHandle | None]()
        before: tuple[int, RankSum] | None = None  # a block whose sum over ranks is not finished
        stream, offsets = self._stream, group_offsets(part, weights[0].form, self._tl)
        for number, parts in enumerate(blocks):
            factors: list[TensorHandle] = []
            for at, weight in enumerate(parts):
                sums = stream.multiply(part, weight, self._plan.piece_bytes, offsets)
                if following is not None and number == len(blocks) - 1 and at == len(weights) - 1:
                    following.post_receives()
                own = reduce_in_cube(sums, shared_axis(product), product, self._tl, stream.prepare)
                del sums
                factors += [own[0]] if own is not None else []
            found.append(None)
            if not factors:
                continue
            result = self._activated(factors, activation)
            if not residual or self._plan.sums.ranks == 1:
                found[number] = self._end_block(number, result, residual, following)
                continue
            started = RankSum(result, self._plan.sums, self._rank, self._x.dtype, self._tl)
            del result
            if before is not None:
                found[before[0]] = self._end_block(before[0], before[1].finish(), residual, following)
            before = number, started
        if before is not None:
            found[before[0]] = self._end_block(before[0], before[1].finish(), residual, following)
        return found

    def _end_block(
        self, number: int, total: TensorHandle, residual: Sequence[TensorHandle | None], following: PeExchange | None
    ) -> TensorHandle:
        """Add the residual, if there is one, and send the result to the PEs that need it."""
        added = residual[number] if residual else None
        result = self._tl.cast(total if added is None else total + added, self._x.dtype)
        if following is not None:
            following.send(number, result)
        return result

    def _activated(self, factors: list[TensorHandle], activation: str | None) -> TensorHandle:
        """activation(x @ gate) * (x @ up)."""
        result, *others = factors
        factors.clear()
        if activation is not None:
            result = self._tl.gelu(result) if activation == "gelu" else self._tl.silu(result)
        for factor in others:
            result = result * factor
        return result

    # ---- norms

    def _load_norm(self, norm: Sequence[TensorPtr]) -> list[TransferHandle]:
        """This PE's part of a gain, and of a shift."""
        first, end = self._plan.qkv.k_of(self._pe)
        return [self._tl.load_async(each.local + first * self._item, (end - first,)) for each in norm]

    def _norm(self, given: PeExchange, norm: Sequence[TransferHandle], product: SplitKPlan) -> list[TensorHandle]:
        """This PE's part of the rows that are exchanged, normalised."""
        tl, (gain, *shift) = self._tl, norm
        (part,) = self._received(given)
        rows = tl.cast(part, "f32")
        del part
        if shift:
            rows = rows - self._cube_sum(tl.sum(rows, axis=1), product) / product.k
        squares = self._cube_sum(tl.sum(rows * rows, axis=1), product)
        found = rows * tl.rsqrt(squares / product.k + EPS) * self._arrived(gain)
        for each in shift:
            found = found + self._arrived(each)
        return [tl.cast(found, self._x.dtype)]

    def _cube_sum(self, own: TensorHandle, product: SplitKPlan) -> TensorHandle:
        """The sum of what all PEs of the cube have."""
        tl, pe = self._tl, self._pe
        for place, count in product.stages:
            others = [pe + (digit - pe // place % count) * place for digit in range(count)]
            for other in others:
                if other != pe:
                    tl.send_async(f"intra_{other}", own)
            self._stream.prepare()
            total = own
            for other in others:
                if other != pe:
                    total = total + tl.recv(f"intra_{other}", own.shape, "f32")
            own = total
        return own

    # ---- attention

    def _load_angles(self) -> dict[int, TransferHandle]:
        """Cosines and sines of this PE's sequences."""
        if self._angles is None:
            return {}
        d, sequences = self._form.head_dim, dict.fromkeys(self._plan.attention.unit(unit)[0] for unit in self._units)
        return {
            each: self._tl.load_async(self._angles.local + each * d * self._angles.itemsize, (1, 1, d))
            for each in sequences
        }

    def _load_cache_scales(self) -> list[TransferHandle]:
        """Those of the keys, and of the values, of this PE's units."""
        scales = [each.scales for each in self._caches if each.scales is not None and self._units]
        return [self._tl.load_async(each.local, (len(self._units), 1)) for each in scales]

    def _attend(self, heads: list[TensorHandle], tables: dict[int, TransferHandle]) -> list[TensorHandle]:
        """Attention of the units whose caches this PE has, appending the new tokens to them. Parts of one cache are
        merged on the PE of the first part, which alone returns the result.
        """
        tl, plan, d = self._tl, self._plan.attention, self._form.head_dim
        shared = self._form.heads // plan.kv_heads
        angles, states = {each: self._arrived(table) for each, table in tables.items()}, dict[int, SoftmaxState]()
        scales = [self._arrived(each) for each in self._cache_scales]
        for at, unit in enumerate(self._units):
            sequence, _, split = plan.unit(unit)
            table = angles.get(sequence)
            queries = self._rotated(tl.reshape(heads.pop(0), (shared, d)), table)
            stored = StoredUnit(self._plan.cache_form, [x[at : at + 1] for x in scales], self._x.dtype, tl)
            running = OnlineSoftmax(stored.queries(queries), tl, d**-0.5)
            for _ in range(0, plan.keys_of(split), plan.block_keys):
                ((keys,), more), ((values,), nbytes) = self._stream.take(), self._stream.take()
                running.take(keys, values)
                del keys, values
                self._stream.release(more + nbytes)
            if split == plan.splits - 1:
                new = stored.over_scales([self._rotated(heads.pop(0), table), heads.pop(0)])
                running.take(*map(stored.widened, new))
                place = at * plan.room + plan.keys_of(split)
                for (cache, _, _), row in zip(self._caches, new, strict=True):
                    tl.store_async(cache.local + place * d * cache.itemsize, stored.narrowed(row))
            states[unit] = stored.results(running.result), running.total, running.best
            del running
        self._merge(states)
        return [
            tl.cast(tl.reshape(values / total, (1, shared * d)), self._x.dtype) for values, total, _ in states.values()
        ]

    def _rotated(self, x: TensorHandle, table: TensorHandle | None) -> TensorHandle:
        if table is None:
            return x
        wide = self._tl.reshape(x, (1, *x.shape))
        return self._tl.reshape(rotate_heads(wide, table, self._x.dtype, self._tl), x.shape)

    def _merge(self, states: dict[int, SoftmaxState]) -> None:
        """Merge the parts of each cache, `RADIX` at a time, on the PE of its first one: `states` keeps those only."""
        tl, plan, d = self._tl, self._plan.attention, self._form.head_dim
        place = 1
        while place < plan.splits:
            joined: dict[int, TensorHandle] = {}
            for unit in list(states):
                digit = plan.unit(unit)[2] // place % RADIX
                joined[unit] = tl.cat(states[unit], axis=1)
                if digit:
                    del states[unit]
                    first = self._holders[unit - digit * place]
                    if first != self._me:
                        tl.send_async(direction_of(self._plan.qkv.sip, first), joined.pop(unit))
            self._stream.prepare()
            for unit in states:
                last = min(RADIX, -(-(plan.splits - plan.unit(unit)[2]) // place))
                parts = [joined.pop(unit)]
                parts += [self._joined_part(unit + at * place, joined, parts[0].shape) for at in range(1, last)]
                found = merged_parts(tl.cat([tl.reshape(each, (1, *each.shape)) for each in parts], axis=0), d, tl)
                values, totals, bests = (tl.reshape(each, each.shape[1:]) for each in found)
                states[unit] = values, totals, bests
            place *= RADIX

    def _joined_part(self, unit: int, joined: dict[int, TensorHandle], shape: tuple[int, ...]) -> TensorHandle:
        """The softmax state of a unit, from this PE or received from another one."""
        if unit in joined:
            return joined.pop(unit)
        return self._tl.recv(direction_of(self._plan.qkv.sip, self._holders[unit]), shape, "f32")
