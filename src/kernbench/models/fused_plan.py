"""How a whole decoder layer at decode is one launch (`fused_decode.py`). Pure functions of sizes and of the machine.

The products split K over the PEs of a cube and columns over cubes, as `SplitKPlan` does, with all sums of a product in
TCM. A PE's weights and caches pass through the rest of its TCM in pieces, in the order of their use, so that memory
works while PEs wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from kernbench.common.errors import UsageError
from kernbench.common.units import format_bytes
from kernbench.models.machine_model import MachineModel
from kernbench.models.mapping import DecodeAttention, Mapping, SplitKPlan, split_k_plan
from kernbench.models.plans import F32_BYTES
from kernbench.policy.placement.dp import Range, parts_of

DELAYS = 0.8  # of a layer by the load of a whole piece, for the root of its rows: loads that wait behind one
AHEAD_NS = 100.0  # of loads for each row, besides those that arrive in the next step: with more rows it takes longer
AHEAD_SHARE = 0.4  # of the room for pieces, at most
MOST_AHEAD = 1 / 4  # of a layer's loads that TCM holds: with more, what a kernel waits for queues behind them
SRAM_NS = 240.0  # of reading all rows of a product from a cube's SRAM: with more, slices of HBM are faster
TOO_MANY_PIECES = 512  # where TCM allows no longer ones: launches and first loads are a few percent of so long a layer
MOST_ROWS = 16  # with more, sums leave little TCM for pieces
LEAST_PIECES = 4  # in TCM at a time
SPARE_PIECES = 2  # for gaps between pieces of several sizes
LEAST_GAP_NS = 20.0  # between loads: their commands
LEAST_BYTES = 4096  # of a piece: shorter ones are latency
MESSAGE_NS, LOAD_NS, BARRIER_NS, MERGE_NS = 50.0, 150.0, 400.0, 300.0  # of a step, for pacing


@dataclass(frozen=True)
class FusedPlan:
    """Pieces of at most `piece_bytes` of a PE's slice, which take `room_bytes` of TCM. `gbs` of a load and `dot_ns` of
    a piece's product pace them. Activations lie in SRAM, or spread over slices, where they wait for streams.
    """

    qkv: SplitKPlan
    out: SplitKPlan
    up: SplitKPlan
    down: SplitKPlan
    attention: DecodeAttention
    piece_bytes: int
    room_bytes: int
    gbs: float
    dot_ns: float
    ahead_ns: float
    in_sram: bool

    @property
    def products(self) -> tuple[SplitKPlan, ...]:
        return self.qkv, self.out, self.up, self.down

    @property
    def merging_stages(self) -> list[tuple[int, int]]:
        """The stages, (place value, radix), in which PEs of a cube merge the parts of a cache that are theirs; none if
        the parts of some cache are not the only ones of PEs that differ in the lowest digits.
        """
        splits, stages = self.attention.splits, sorted(self.qkv.stages)
        found = [stage for stage in stages if stage[0] < splits]
        is_whole = prod(count for _, count in found) == splits and self.attention.units == self.qkv.sip.size
        return found if is_whole else []

    def chunks(self, product: SplitKPlan, pe: int, cube: int, itemsize: int) -> list[Range]:
        """Ranges of K, within a PE's part of a product, whose weights are a piece each."""
        first, end = product.k_of(pe)
        columns = sum(b - a for a, b in product.columns_of(cube))
        most = max(1, self.piece_bytes // max(1, columns * itemsize))
        return [each for each in parts_of(end - first, -(-(end - first) // most)) if each[0] < each[1]]


@dataclass(frozen=True)
class NotFused:
    """Why a decode step is not one launch."""

    reason: str


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
    columns.
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


def fused_plan(machine: MachineModel, base: Mapping, size: DecodeSize) -> FusedPlan | NotFused:
    """The plan of a launch for the whole layer, or why there is none: many rows, too little TCM, or little to save.
    More of anything that a machine has keeps it."""
    if size.batch > MOST_ROWS:
        return NotFused(f"{size.batch} sequences are more than {MOST_ROWS}, whose sums leave little TCM for weights")
    sip, item, d = machine.sip, size.itemsize, size.head_dim
    width = (size.heads + 2 * size.kv_heads) * d
    try:
        products = [
            replace(split_k_plan(sip, size.batch, k, n, item), is_relayed=False).for_weights(weights, item)
            for k, n, weights in (
                (size.hidden, width, 1),
                (size.heads * d, size.hidden, 1),
                (size.hidden, size.ffn, size.gates),
                (size.ffn, size.hidden, 1),
            )
        ]
    except UsageError as error:
        return NotFused(error.what)
    if any(plan.k < sip.pes or plan.n < sip.cubes * sip.pes for plan in products):
        return NotFused(f"a product has less than a row or a column of weights for each of {sip.size} PEs")
    if any(plan.block_columns < -(-plan.n // sip.cubes) for plan in products):
        return NotFused(f"the sums of a product do not fit the {format_bytes(sip.tcm_bytes)} of TCM that kernels have")
    attention = base.decode_attention(sip, size.batch, size.context, size.heads, size.kv_heads, d, item)
    if attention.streamed and attention.units > sip.size:  # one stream for several is faster than blocks of each
        return NotFused(f"{attention.units} parts of the cache for {sip.size} PEs: streams of several are faster")
    total = sum(plan.k * plan.n for plan in products) * item // sip.size
    gbs = min(machine.hbm, machine.port)
    wanted = _best_piece_bytes(machine, size.batch, total, gbs)
    keys = max(1, min(attention.part, wanted // (d * item)))
    usable = sip.tcm_bytes * 15 // 16 - other_bytes(size, products, attention.splits, keys)
    piece = min(wanted, usable // (LEAST_PIECES + SPARE_PIECES))
    if piece < LEAST_BYTES or total > TOO_MANY_PIECES * piece:
        count, least = LEAST_PIECES + SPARE_PIECES, max(LEAST_BYTES, -(-total // TOO_MANY_PIECES))
        there = f"sums and rows leave {format_bytes(max(0, usable))} of TCM for pieces of weights"
        return NotFused(f"{there}: {count} of {format_bytes(least)} or more are needed")
    keys = max(1, min(keys, piece // (d * item)))
    attention = replace(attention, block_keys=keys, streamed=False, units_together=1)
    dot_ns = machine.engines.product.product_ns(size.batch, 64, max(1, piece // item // 64), "f16")
    in_sram = machine.sram > 0 and max(plan.rows * plan.k for plan in products) * item <= SRAM_NS * machine.sram
    qkv, out, up, down = products
    room = usable - SPARE_PIECES * piece
    room = min(room, max(LEAST_PIECES * piece, int(MOST_AHEAD * total)))
    ahead_ns = min(AHEAD_NS * size.batch, AHEAD_SHARE * room / gbs)
    return FusedPlan(qkv, out, up, down, attention, piece, room, gbs, dot_ns, ahead_ns, in_sram)


def _best_piece_bytes(machine: MachineModel, rows: int, total_bytes: int, gbs: float) -> int:
    """The piece that takes the least time: each has a gap before its load, and a long one delays what waits for it.
    With less TCM than it wants a smaller one is taken, so more TCM is never slower by this estimate.
    """
    gap_ns = max(LEAST_GAP_NS, machine.own_slice.latency_ns / machine.places)
    return max(LEAST_BYTES, int((total_bytes * gap_ns * gbs / (DELAYS * rows**0.5)) ** 0.5))


def other_bytes(size: DecodeSize, products: Sequence[SplitKPlan], splits: int, keys: int) -> int:
    """TCM of the step that takes most besides pieces: a norm of the rows, a product, or attention with blocks of `keys`
    keys.
    """
    qkv, *_ = products
    sip, item, gates = qkv.sip, size.itemsize, (1, 1, size.gates, 1)
    normed = qkv.part_elements * (2 * item + 4 * F32_BYTES)
    multiplied = max(
        plan.part_elements * item + (3 * n + 1) * plan.rows * -(-plan.n // sip.cubes) * F32_BYTES
        for plan, n in zip(products, gates, strict=True)
    )  # sums of each weight, two at a time while one is added to; joined; and as much for gaps
    shared, width = size.heads // size.kv_heads, size.head_dim + 2
    attended = shared * (4 * keys + 8 * width) * F32_BYTES
    merged = splits * width * 4 * F32_BYTES * max(1, size.batch * size.heads // sip.size)
    return max(normed, multiplied, attended + merged)
