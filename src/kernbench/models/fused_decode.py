"""A whole decoder layer at decode in one launch (`FusedPlan`): norms, products, rotary embedding, attention, residuals.

A part that begins with its own launch begins with an idle memory: the launch, the rows that all PEs read, and the sums
that PEs of a cube exchange take longer than the weights of a small product. Here PEs wait for each other at barriers,
and meanwhile the weights and caches that come next are loaded into TCM (`paced_loads.py`).

Norms: PEs of a cube have all of K, so they exchange the sums of their parts. The PEs that end with a share of a
product's results add the residual to it. Queries and keys are rotated by the PE that attends with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernbench.models.attention import OnlineSoftmax, merged_parts, start_merging, units_here
from kernbench.models.fused_plan import BARRIER_NS, LOAD_NS, MERGE_NS, MESSAGE_NS, FusedPlan, share_of
from kernbench.models.kernels import rotate_heads
from kernbench.models.mapping import SplitKPlan
from kernbench.models.paced_loads import PacedLoads, WeightBlock
from kernbench.models.split_k import reduce_in_cube
from kernbench.policy.placement.dp import Range
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.pending_handle import TransferHandle
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

EPS = 1e-5


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
    x: TensorPtr,
    qkv: TensorPtr,
    attended: TensorPtr,
    ffn: TensorPtr,
    *tensors: TensorPtr,
    plan: FusedPlan,
    form: LayerForm,
    tl: TLContext,
) -> None:
    """x becomes the layer's output. `tensors`: key and value cache, the weights of qkv, out, gate, down, then up if the
    MLP is gated; gains of both norms, and shifts; angles, if there are any; partial results, if caches are split.
    """
    _Layer((x, qkv, attended, ffn), iter(tensors), plan, form, tl).run()


class _Layer:
    """One PE's part of a layer."""

    def __init__(
        self,
        rows: tuple[TensorPtr, TensorPtr, TensorPtr, TensorPtr],
        tensors: Iterator[TensorPtr],
        plan: FusedPlan,
        form: LayerForm,
        tl: TLContext,
    ) -> None:
        self._x, self._qkv, self._attended, self._ffn = rows
        self._plan, self._form, self._tl = plan, form, tl
        self._pe, self._cube = tl.program_id(0), tl.program_id(1)
        self._caches = next(tensors), next(tensors)
        self._w_qkv, self._w_out, gate, self._w_down = (next(tensors) for _ in range(4))
        self._w_up = [gate, *((next(tensors),) if form.is_gated else ())]
        self._norms = [[next(tensors) for _ in range(1 + form.has_shift)] for _ in range(2)]
        self._angles = next(tensors) if form.has_rope else None
        self._parts = next(tensors) if plan.attention.splits > 1 else None
        self._item = self._x.itemsize
        self._axis = 0 if plan.qkv.rows >= plan.qkv.sip.pes else 1  # of sums, that PEs share: as `product_split_k` does
        self._tables: dict[int, TransferHandle | None] = {}
        self._units = units_here(plan.attention, tl)
        self._loads = PacedLoads(self._pieces(), plan.room_bytes, plan.gbs, plan.ahead_ns, tl)

    def run(self) -> None:
        plan, tl = self._plan, self._tl
        self._loads.before(0.0)
        first = self._ask_part(self._x, plan.qkv)
        norms = [self._ask_norm(norm) for norm in self._norms]
        self._tables = {0: self._ask_angles(0)}
        asked = self._ask_residual(plan.out)
        normal = self._norm(self._here(first), norms[0], plan.qkv)
        self._multiply(plan.qkv, [self._w_qkv], normal, self._qkv)
        del normal
        self._barrier()
        self._attend()
        self._barrier()
        if self._parts is not None and not plan.merging_stages:
            sizes = self._form.heads, self._form.head_dim
            start_merging(self._parts, self._attended, *sizes, plan.attention, tl, self._before_merge)
            self._before_merge()
            self._barrier()
        part = self._here(self._ask_part(self._attended, plan.out))
        residual = None if asked is None else self._here(asked)
        residual = self._multiply(plan.out, [self._w_out], part, self._x, residual=residual)  # that of the MLP, too
        del part
        self._barrier()
        normal = self._norm(self._here(self._ask_part(self._x, plan.up)), norms[1], plan.up)
        self._multiply(plan.up, self._w_up, normal, self._ffn, activation=self._form.activation)
        del normal, norms
        self._barrier()
        part = self._here(self._ask_part(self._ffn, plan.down))
        self._multiply(plan.down, [self._w_down], part, self._x, residual=residual)
        tl.wait()

    def _barrier(self) -> None:
        self._loads.before(BARRIER_NS)
        self._tl.barrier(wait_for_loads=False)

    def _before_merge(self) -> None:
        self._loads.before(MERGE_NS)

    def _here(self, handle: TransferHandle) -> TensorHandle:
        """What was asked for, when it is here; loads go on meanwhile."""
        self._loads.before(LOAD_NS)
        found = self._tl.wait(handle)
        assert found is not None
        return found

    # ---- weights and caches

    def _pieces(self) -> Iterator[WeightBlock]:
        """All that this PE streams, in the order of its use."""
        plan = self._plan
        yield from self._weight_pieces(plan.qkv, self._w_qkv)
        yield from self._cache_pieces()
        yield from self._weight_pieces(plan.out, self._w_out)
        for weight in self._w_up:
            yield from self._weight_pieces(plan.up, weight)
        yield from self._weight_pieces(plan.down, self._w_down)

    def _weight_pieces(self, product: SplitKPlan, weight: TensorPtr) -> Iterator[WeightBlock]:
        ((first, end),) = product.columns_of(self._cube)
        columns = end - first
        for a, b in self._plan.chunks(product, self._pe, self._cube, self._item):
            yield WeightBlock(weight.local + a * columns * self._item, (b - a, columns), (b - a) * columns * self._item)

    def _cache_pieces(self) -> Iterator[WeightBlock]:
        """Keys and values of each unit, block by block."""
        plan, d = self._plan.attention, self._form.head_dim
        for at, unit in enumerate(self._units):
            keys = plan.keys_of(plan.unit(unit)[2])
            for first in range(0, keys, plan.block_keys):
                count = min(plan.block_keys, keys - first)
                for cache in self._caches:
                    place = cache.local + (at * plan.room + first) * d * self._item
                    yield WeightBlock(place, (count, d), count * d * self._item)

    # ---- products

    def _ask_part(self, rows: TensorPtr, product: SplitKPlan) -> TransferHandle:
        """This PE's K part of the rows."""
        first, end = product.k_of(self._pe)
        shape = product.rows, end - first
        return self._tl.load_async(rows + first * self._item, shape, strides=(product.k, 1))

    def _share(self, product: SplitKPlan) -> tuple[Range, Range]:
        """The rows and columns of a product's results that this PE ends with."""
        first, end = product.columns_of(self._cube)[0]
        if self._axis == 0:
            return share_of(product, self._pe, product.rows), (first, end)
        a, b = share_of(product, self._pe, end - first)
        return (0, product.rows), (first + a, first + b)

    def _ask_residual(self, product: SplitKPlan) -> TransferHandle | None:
        """This PE's share of x, to which a product is added."""
        (top, bottom), (first, end) = self._share(product)
        if top == bottom or first == end:
            return None
        place = self._x + (top * product.n + first) * self._item
        return self._tl.load_async(place, (bottom - top, end - first), strides=(product.n, 1))

    def _multiply(
        self,
        product: SplitKPlan,
        weights: Sequence[TensorPtr],
        part: TensorHandle,
        out: TensorPtr,
        *,
        activation: str | None = None,
        residual: TensorHandle | None = None,
    ) -> TensorHandle | None:
        """Stream the weights past this PE's part of the rows, reduce the sums of the cube, and store this PE's share of
        the results, activated, or added to the residual: what is returned, if there is any.
        """
        tl, loads, axis = self._tl, self._loads, self._axis
        sums = [self._streamed(product, part) for _ in weights]
        joined = tl.cat(sums, axis=1 - axis) if len(sums) > 1 else sums[0]
        sums.clear()
        found = reduce_in_cube(joined, axis, product, tl, lambda: loads.before(MESSAGE_NS))
        del joined
        if found is None:
            return None
        result = self._activated(found[0], len(weights), axis, activation)
        if residual is not None:
            result = result + residual
        (top, _), (first, _) = self._share(product)
        place = out + (top * product.n + first) * self._item
        stored = tl.cast(result, out.dtype)
        tl.store_async(place, stored, strides=(product.n, 1))
        return stored

    def _streamed(self, product: SplitKPlan, part: TensorHandle) -> TensorHandle:
        """The product of this PE's part of the rows by its part of the next weight."""
        tl, loads, ((first, end),) = self._tl, self._loads, product.columns_of(self._cube)
        total: TensorHandle | None = None
        for a, b in self._plan.chunks(product, self._pe, self._cube, self._item):
            piece = loads.take()
            loads.before(self._plan.dot_ns)
            total = tl.dot(part[:, a:b], piece, total, out_dtype="f32")
            del piece
            loads.release((b - a) * (end - first) * self._item)
        assert total is not None  # every PE has some of K
        return total

    def _activated(self, total: TensorHandle, weights: int, axis: int, activation: str | None) -> TensorHandle:
        """activation(x @ gate) * (x @ up) of sums that lie one after the other."""
        tl, size = self._tl, total.shape[1 - axis] // weights
        cuts = [slice(number * size, (number + 1) * size) for number in range(weights)]
        result, *factors = (total[:, cut] if axis == 0 else total[cut] for cut in cuts)
        if activation is not None:
            result = tl.gelu(result) if activation == "gelu" else tl.silu(result)
        for factor in factors:
            result = result * factor
        return result

    # ---- norms

    def _ask_norm(self, norm: Sequence[TensorPtr]) -> list[TransferHandle]:
        """This PE's part of a gain, and of a shift."""
        first, end = self._plan.qkv.k_of(self._pe)
        return [self._tl.load_async(each.local + first * self._item, (end - first,)) for each in norm]

    def _norm(self, part: TensorHandle, norm: Sequence[TransferHandle], product: SplitKPlan) -> TensorHandle:
        """This PE's part of the rows, normalised."""
        tl, (gain, *shift) = self._tl, norm
        rows = tl.cast(part, "f32")
        if shift:
            rows = rows - self._cube_sum(tl.sum(rows, axis=1), product) / product.k
        squares = self._cube_sum(tl.sum(rows * rows, axis=1), product)
        found = rows * tl.rsqrt(squares / product.k + EPS) * self._here(gain)
        for each in shift:
            found = found + self._here(each)
        return tl.cast(found, self._x.dtype)

    def _cube_sum(self, own: TensorHandle, product: SplitKPlan) -> TensorHandle:
        """The sum of what all PEs of the cube have."""
        tl, pe = self._tl, self._pe
        for place, count in product.stages:
            self._loads.before(MESSAGE_NS)
            others = [pe + (digit - pe // place % count) * place for digit in range(count)]
            sent = [tl.send_async(f"intra_{other}", own) for other in others if other != pe]
            total = own
            for other in others:
                if other != pe:
                    total = total + tl.recv(f"intra_{other}", own.shape, "f32")
            for handle in sent:
                tl.wait(handle)
            own = total
        return own

    # ---- attention

    def _attend(self) -> None:
        """The units whose caches this PE has, and their new tokens, which are appended to the caches."""
        tl, plan, d = self._tl, self._plan.attention, self._form.head_dim
        shared = self._form.heads // plan.kv_heads
        asked = self._ask_unit(0)
        for at, unit in enumerate(self._units):
            here, asked = asked, self._ask_unit(at + 1)
            sequence, kv_head, split = plan.unit(unit)
            queries, *new = self._rotated(here, shared)
            running = OnlineSoftmax(queries, tl, d**-0.5)
            for first in range(0, plan.keys_of(split), plan.block_keys):
                nbytes = min(plan.block_keys, plan.keys_of(split) - first) * d * self._item
                keys, values = self._loads.take(), self._loads.take()
                self._loads.before(2 * LOAD_NS)
                running.take(keys, values)
                del keys, values
                self._loads.release(2 * nbytes)
            if new:
                running.take(new[0], new[1])
                place = (at * plan.room + plan.keys_of(split)) * d * self._item
                for cache, row in zip(self._caches, new, strict=True):
                    tl.store_async(cache.local + place, row)
            state: tuple[TensorHandle, ...] = (running.result, running.total, running.best)
            if self._parts is not None and not self._plan.merging_stages:
                place = unit * shared * (d + 2) * self._parts.itemsize
                tl.store_async(self._parts.across + place, tl.cat(state, axis=1))
                continue
            found = self._merged(state)
            if found is not None:
                result = tl.cast(found[0] / found[1], self._attended.dtype)
                place = (sequence * self._form.heads + kv_head * shared) * d * self._item
                tl.store_async(self._attended.across + place, result)

    def _merged(self, state: tuple[TensorHandle, ...]) -> tuple[TensorHandle, ...] | None:
        """Values, sums and largest scores of all parts of a cache, on the PE of its first one; None on others."""
        tl, pe, d = self._tl, self._pe, self._form.head_dim
        for place, count in self._plan.merging_stages:
            joined = tl.cat(state, axis=1)
            first = pe - pe // place % count * place
            if first != pe:
                tl.wait(tl.send_async(f"intra_{first}", joined))
                return None
            self._loads.before(MESSAGE_NS)
            parts = [joined, *(tl.recv(f"intra_{pe + at * place}", joined.shape, "f32") for at in range(1, count))]
            found = merged_parts(tl.cat([tl.reshape(each, (1, *each.shape)) for each in parts], axis=0), d, tl)
            state = tuple(tl.reshape(each, each.shape[1:]) for each in found)
            del joined, parts, found
        return state

    def _ask_unit(self, at: int) -> list[TransferHandle]:
        """Queries of this PE's unit number `at`, for its last part also the new key and value, in one request; and the
        angles.
        """
        if at >= len(self._units):
            return []
        plan, heads = self._plan.attention, self._form.heads
        sequence, kv_head, split = plan.unit(self._units[at])
        row, shared = sequence * (heads + 2 * plan.kv_heads), heads // plan.kv_heads
        wanted = [*range(row + kv_head * shared, row + (kv_head + 1) * shared)]
        if split == plan.splits - 1:
            wanted += [row + heads + kv_head, row + heads + plan.kv_heads + kv_head]
        table = self._tables.pop(at) if at in self._tables else self._ask_angles(at)
        asked = self._tl.load_async(self._qkv, rows=wanted)
        return [asked] if table is None else [asked, table]

    def _ask_angles(self, at: int) -> TransferHandle | None:
        """Cosines and sines for this PE's unit number `at`."""
        if self._angles is None or at >= len(self._units):
            return None
        sequence, d = self._plan.attention.unit(self._units[at])[0], self._form.head_dim
        return self._tl.load_async(self._angles.local + sequence * d * self._angles.itemsize, (1, 1, d))

    def _rotated(self, asked: list[TransferHandle], shared: int) -> list[TensorHandle]:
        """Queries and the new key, rotated, and the new value."""
        tl, (found, *tables) = self._tl, [self._here(handle) for handle in asked]
        values = [found[shared + 1 :]] if found.shape[0] > shared else []
        turned = found[: found.shape[0] - len(values)]
        for table in tables:
            wide = tl.reshape(turned, (1, *turned.shape))
            turned = tl.reshape(rotate_heads(wide, table, self._qkv.dtype, tl), turned.shape)
        return [turned[:shared], *([turned[shared:], *values] if values else [])]
