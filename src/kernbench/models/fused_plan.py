"""How a whole decoder layer at decode is one launch (`fused_decode.py`). Pure functions of sizes and of the machine.

The products split K over the PEs of a cube and columns over cubes, as `SplitKPlan` does, a block of columns at a time,
whose sums are in TCM. A PE's weights and caches pass through the rest of its TCM in pieces, in the order of their use,
so that memory works while PEs wait for each other. Activations go from PE to PE by messages (`exchanges.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from kernbench.common.errors import CapacityError, UsageError
from kernbench.common.units import format_bytes
from kernbench.models.exchanges import Exchange, Rectangle
from kernbench.models.machine_model import MachineModel
from kernbench.models.mapping import DecodeAttention, Mapping, SplitKPlan, split_k_plan
from kernbench.models.plans import F32_BYTES, SipShape
from kernbench.models.quantised import CacheName, QuantisedForm, WeightName, form_of_weight
from kernbench.models.quantised_product import widened_copies
from kernbench.models.rank_sums import ONE_RANK, RankSums, rank_sums
from kernbench.policy.placement.dp import Range

PIECE_DELAY = 0.8  # a layer ends later by so much of a piece's load: the last product, and room that is not used
BACKLOG_DELAY = 3.0  # and by so much of the part that a slice sends faster than the DMA's port takes, ahead of messages
LEAST_COUNT = 10  # pieces of a layer, plus one per row: with fewer, messages wait behind a large part of its loads
TOO_MANY_PIECES = 512  # where TCM allows no longer ones: launches and first loads are a few percent of so long a layer
SUMS_BYTES = 32 * 1024  # of a block of columns: reduced while the next one is streamed
MOST_ROWS = 32  # with more, products take as long as loads, and PEs wait for the sums of each block
MOST_QUANTISED_ROWS = 16  # products take so long already where weights are fewer bytes
LEAST_PIECES = 8  # that TCM has room for at a time
SPARE_PIECES = 4  # more that it has room for: pieces of several sizes leave gaps beside tensors that stay longer
PREPARED = 5  # pieces that are widened before they are needed, while a PE waits for messages
LEAST_GAP_NS = 20.0  # between two loads, for the command of the next
LEAST_BYTES = 4096  # of a piece: the time of shorter ones is latency
RADIX = 4  # parts of a cache that are merged at a time
SLOTS, LEAST_SLOT = 2, 256  # of a ring; bytes of a slot


@dataclass(frozen=True)
class FusedPlan:
    """Pieces of at most `piece_bytes` of a PE's slice, which take `room_bytes` of TCM; messages of `slot_bytes`."""

    qkv: SplitKPlan
    out: SplitKPlan
    up: SplitKPlan
    down: SplitKPlan
    attention: DecodeAttention
    piece_bytes: int
    room_bytes: int
    slot_bytes: int
    sums: RankSums = ONE_RANK  # over the ranks that share the layer
    forms: tuple[QuantisedForm | None, ...] = (None, None, None, None)  # of the weights of each product
    cache_form: QuantisedForm | None = None

    @property
    def products(self) -> tuple[SplitKPlan, ...]:
        return self.qkv, self.out, self.up, self.down


@dataclass(frozen=True)
class NotFused:
    """Why a decode step is not one launch."""

    reason: str
    is_lack: bool = False  # of TCM: the machine is too small for it


# ---- the activations that each PE computes and needs


class Exchanges(NamedTuple):
    """The exchanges of a layer: of the rows that both norms begin with, of queries, keys and values, of the results of
    attention, and between the products of the MLP.
    """

    rows: Exchange
    heads: Exchange
    attended: Exchange
    ffn: Exchange


@cache
def exchanges_of(
    products: tuple[SplitKPlan, SplitKPlan, SplitKPlan, SplitKPlan], attention: DecodeAttention, heads: int, d: int
) -> Exchanges:
    """The exchanges of products and attention with `heads` of `d` elements."""
    qkv, out, up, down = products
    sip = out.sip
    units = [attention.units_of(sip, pe) for pe in range(sip.size)]
    return Exchanges(
        Exchange(sip, _made(out), _k_parts(up)),
        Exchange(sip, _made(qkv), tuple(tuple(_inputs(attention, some, heads, d)) for some in units)),
        Exchange(sip, tuple(tuple(_results(attention, some, heads, d)) for some in units), _k_parts(out)),
        Exchange(sip, _made(up), _k_parts(down)),
    )


@cache
def holders_of(plan: DecodeAttention, sip: SipShape) -> tuple[int, ...]:
    """The PE whose slice has the cache of each unit."""
    return tuple(pe for pe in range(sip.size) for _ in plan.units_of(sip, pe))


def _inputs(plan: DecodeAttention, units: range, heads: int, d: int) -> Iterator[Rectangle]:
    """The inputs of some units' attention: queries, and for the last part of a cache the new token's key and value."""
    shared = heads // plan.kv_heads
    for unit in units:
        sequence, kv_head, split = plan.unit(unit)
        yield _of_heads(sequence, kv_head * shared, shared, d)
        if split == plan.splits - 1:
            yield _of_heads(sequence, heads + kv_head, 1, d)
            yield _of_heads(sequence, heads + plan.kv_heads + kv_head, 1, d)


def _results(plan: DecodeAttention, units: range, heads: int, d: int) -> Iterator[Rectangle]:
    """The results of some units: the first parts of caches have those of all parts."""
    shared = heads // plan.kv_heads
    for unit in units:
        sequence, kv_head, split = plan.unit(unit)
        if split == 0:
            yield _of_heads(sequence, kv_head * shared, shared, d)


def _of_heads(sequence: int, first: int, count: int, d: int) -> Rectangle:
    return Rectangle((sequence, sequence + 1), (first * d, (first + count) * d))


def _made(plan: SplitKPlan) -> tuple[tuple[Rectangle, ...], ...]:
    """The shares of a product's results that each PE ends with, one of each block of columns."""
    return tuple(
        tuple(share_box(plan, pe % plan.sip.pes, columns) for columns in plan.columns_of(pe // plan.sip.pes))
        for pe in range(plan.sip.size)
    )


def _k_parts(plan: SplitKPlan) -> tuple[tuple[Rectangle, ...], ...]:
    """The part of a product's input that each PE needs."""
    return tuple((Rectangle((0, plan.rows), plan.k_of(pe % plan.sip.pes)),) for pe in range(plan.sip.size))


def shared_axis(plan: SplitKPlan) -> int:
    """The axis of a product's sums that the PEs of a cube share, as `product_split_k` does."""
    return 0 if plan.rows >= plan.sip.pes else 1


def share_box(plan: SplitKPlan, pe: int, columns: Range) -> Rectangle:
    """The rows and columns of the reduced sums of a block that a PE of the cube ends with."""
    if shared_axis(plan) == 0:
        return Rectangle(share_of(plan, pe, plan.rows), columns)
    a, b = share_of(plan, pe, columns[1] - columns[0])
    return Rectangle((0, plan.rows), (columns[0] + a, columns[0] + b))


def share_of(plan: SplitKPlan, pe: int, size: int) -> Range:
    """The rows or columns of the reduced sums that a PE ends with."""
    begin, length = 0, size
    for place, count in plan.stages:
        others = [pe + (digit - pe // place % count) * place for digit in range(count)]
        a, b = plan.shares_of(length, others, is_last=(place, count) == plan.stages[-1])[others.index(pe)]
        begin, length = begin + a, b - a
    return begin, begin + length


@dataclass(frozen=True)
class DecodeSize:
    """A decode step of a rank: sequences, tokens before, and the sizes of the layer; `gates` weights make the MLP's
    columns. Weights and caches may be quantised.
    """

    batch: int
    context: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    gates: int
    itemsize: int
    ranks: int = 1  # that share the layer
    weight_type: WeightName = "same"
    cache_type: CacheName = "same"

    @property
    def cache_form(self) -> QuantisedForm | None:
        return None if self.cache_type == "same" else QuantisedForm(self.cache_type)

    @property
    def cache_itemsize(self) -> int:
        return self.itemsize if self.cache_type == "same" else 1


def fused_plan(machine: MachineModel, base: Mapping, size: DecodeSize) -> FusedPlan | NotFused:
    """The plan of a launch for the whole layer, or why there is none: many rows, too little TCM, or little to save.
    A machine with more memory or bandwidth than one that has a plan has a plan, too.
    """
    most = MOST_ROWS if size.weight_type == "same" else MOST_QUANTISED_ROWS
    if size.batch > most:
        return NotFused(
            f"{size.batch} sequences are more than {most}, with which PEs wait more for sums than for memory"
        )
    sip, item, d = machine.sip, size.itemsize, size.head_dim
    width = (size.heads + 2 * size.kv_heads) * d
    try:
        products = [
            in_blocks(split_k_plan(sip, size.batch, k, n, item))
            for k, n in (
                (size.hidden, width),
                (size.heads * d, size.hidden),
                (size.hidden, size.ffn),
                (size.ffn, size.hidden),
            )
        ]
        forms = forms_of(size, products)
    except UsageError as error:
        return NotFused(error.what, isinstance(error, CapacityError))
    if any(plan.k < sip.pes or plan.n < sip.cubes * sip.pes for plan in products):
        return NotFused(f"a product has less than a row or a column of weights for each of {sip.size} PEs")
    attention = base.decode_attention(sip, size.batch, size.context, size.heads, size.kv_heads, d, item)
    is_streamed = attention.streamed and size.cache_type == "same"  # quantised keys are loaded in blocks anyway
    if is_streamed and attention.units > sip.size:  # one stream for several is faster than blocks of each
        return NotFused(f"{attention.units} parts of the cache for {sip.size} PEs: streams of several are faster")
    total = sum(
        plan.k * plan.n * item if form is None else form.weight_bytes(plan.k, plan.n)
        for plan, form in zip(products, forms, strict=True)
    )
    total //= sip.size
    wanted = _best_piece_bytes(machine, size.batch, total)
    keys = max(1, min(attention.part, wanted // (d * size.cache_itemsize)))
    sums = rank_sums(machine, size.ranks, size.batch * size.hidden * item) if size.ranks > 1 else ONE_RANK
    usable = sip.tcm_bytes * 15 // 16 - other_bytes(size, products, sums, keys)
    spare = spare_pieces(size)
    piece = min(wanted, usable // (LEAST_PIECES + spare))
    if piece < LEAST_BYTES or total > TOO_MANY_PIECES * piece:
        count, least = LEAST_PIECES + spare, max(LEAST_BYTES, -(-total // TOO_MANY_PIECES))
        there = f"sums and rows leave {format_bytes(max(0, usable))} of TCM for pieces of weights"
        return NotFused(f"{there}: {count} of {format_bytes(least)} or more are needed", True)
    keys = max(1, min(keys, piece // (d * size.cache_itemsize)))
    attention = replace(attention, block_keys=keys, streamed=False, units_together=1)
    qkv, out, up, down = products
    slot = slot_bytes(machine, (qkv, out, up, down), attention, size)
    if slot < LEAST_SLOT:
        return NotFused(f"{format_bytes(machine.ring_bytes)} of TCM have no room for a ring for each neighbour", True)
    room = usable - spare * piece
    return FusedPlan(qkv, out, up, down, attention, piece, room, slot, sums, forms, size.cache_form)


def forms_of(size: DecodeSize, products: Sequence[SplitKPlan]) -> tuple[QuantisedForm | None, ...]:
    """How the weights of each product are stored; raises UsageError if a PE's part of K has no whole groups."""
    return tuple(form_of_weight(size.weight_type, "weights", plan.k, plan.sip.pes) for plan in products)


def spare_pieces(size: DecodeSize) -> int:
    """Pieces that TCM has room for besides those that are loaded: for gaps, and for widened copies of what is prepared
    and of what is multiplied, keys and values of a cache together.
    """
    weights = 0 if size.weight_type == "same" else widened_copies(QuantisedForm(size.weight_type))
    copies = max(weights, widened_copies(size.cache_form))
    return SPARE_PIECES + (PREPARED + 2) * copies


def in_blocks(plan: SplitKPlan) -> SplitKPlan:
    """A copy whose sums are reduced a block of columns at a time."""
    columns = -(-plan.n // plan.sip.cubes)
    blocks = -(-columns * plan.rows * F32_BYTES // SUMS_BYTES)
    return replace(plan, is_relayed=False, block_columns=-(-columns // blocks), blocks=0)


def slot_bytes(
    machine: MachineModel,
    products: tuple[SplitKPlan, SplitKPlan, SplitKPlan, SplitKPlan],
    attention: DecodeAttention,
    size: DecodeSize,
) -> int:
    """The size of a ring's slot, such that all rings that may be in use at a time fit: those of two exchanges that
    follow each other, of the reduction of sums, over ranks too, and of the merge of caches.
    """
    exchanges = exchanges_of(products, attention, size.heads, size.head_dim)
    rows, heads, attended, ffn = (each.most_senders for each in exchanges)
    most = max(rows + heads, heads + attended, attended + rows, rows + ffn)
    rings = most + sum(count - 1 for _, count in products[0].stages) + RADIX - 1 + size.ranks - 1
    slot = machine.ring_bytes // (SLOTS * rings + 1)
    return 1 << slot.bit_length() - 1 if slot else 0


def _best_piece_bytes(machine: MachineModel, rows: int, total_bytes: int) -> int:
    """The size of a piece with the least estimated time: every load costs a gap, and a long piece delays what follows
    the last load, and messages where a slice is faster than the port of the DMA. Where TCM is short, pieces are
    shorter; so by this estimate more TCM is never slower.
    """
    gap_ns = max(LEAST_GAP_NS, machine.own_slice.latency_ns / machine.places)
    delay = PIECE_DELAY + BACKLOG_DELAY * (1 - machine.own_gbs / machine.hbm)
    best = (total_bytes * gap_ns * machine.own_gbs / delay) ** 0.5
    return max(LEAST_BYTES, int(min(best, total_bytes / (LEAST_COUNT + rows))))


def other_bytes(size: DecodeSize, products: Sequence[SplitKPlan], over_ranks: RankSums, keys: int) -> int:
    """TCM of the step that takes most besides pieces: a norm of the rows, a product, or attention with blocks of `keys`
    keys.
    """
    qkv, out, _, down = products
    item = size.itemsize
    parts = [plan.part_elements * item for plan in products]
    following = [0, parts[2], parts[3], 0]  # received while sums are reduced
    sums = [plan.rows * plan.block_columns * F32_BYTES for plan in products]
    multiplied = max(
        x + max(4 * total, 2 * total + 2 * more) for x, total, more in zip(parts, sums, following, strict=True)
    )
    taken = 3 * max(parts)  # pieces, and joined
    normed = qkv.part_elements * (2 * item + 4 * F32_BYTES)
    kept = size.batch * max(out.block_columns, down.block_columns) * item  # residual
    shared, width = size.heads // size.kv_heads, size.head_dim + 2
    attended = shared * (4 * keys + (8 + 2 * RADIX) * width) * F32_BYTES
    added = 0
    if size.ranks > 1:  # what is sent and received of a block of columns, and of the one before, which is added up
        share = int(max(each.rows * each.block_columns * each.final_share for each in (out, down))) + size.batch
        pending = share * item * (2 if over_ranks.by_owners else size.ranks)
        kept += pending
        added = max(parts) + pending + share * (3 * F32_BYTES + 2 * item)
    return kept + max(normed, multiplied, taken, attended, added)
