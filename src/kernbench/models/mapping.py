"""The mapping of a decoder layer onto the cubes and PEs of one SIP. Pure functions of sizes.

A product (rows, K) x (K, N) is divided in one of two ways.

columns   Cubes form `groups`; the rows are split over groups, the columns over the cubes of a group (`plans.py`). PEs
          of a cube split columns, with a copy of the rows each, or K, and reduce their partial sums. Products read and
          write the PE's own HBM slice only.
split_k   Columns over all cubes, K over the PEs of a cube: a PE gets its K part of the few rows, streams its weights,
          and the cube's PEs reduce their partial sums by messages (`split_k.py`).

Prefill uses columns with as many groups as there is memory for copies of the weights. With a group for each cube, the
mapping `tokens`, rows never leave their cube: PEs split columns if x is produced by rows, and K if it is produced by
columns, which are then in place. With fewer groups PEs always split K. Decode uses split_k.

Prefill attention assigns blocks of queries, the longest first, to the least loaded PE among those that have the same
key heads. At decode, the cache of a sequence's key head lies in one PE's own slice, or is split over several PEs if
there are fewer heads than PEs. For few queries, all keys and then all values are streamed; for more, blocks of both are
prefetched.

A mapping is any object with the methods of `Mapping`; `MAPPINGS` has those of the package.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Literal, Protocol, runtime_checkable

from kernbench.common.errors import CapacityError
from kernbench.common.units import format_bytes
from kernbench.models.block_plans import BlocksPlan
from kernbench.models.plans import F32_BYTES, ColumnsPlan, SipShape, columns_plan
from kernbench.models.query_blocks import PrefillAttention, prefill_attention
from kernbench.policy.placement.dp import Range, parts_of

FEW_ROWS = 64  # up to this number of rows, reading weights dominates a product
RELAYED_BYTES = 64 * 1024  # of rows: with fewer, a relay takes longer than reads by all cubes,
RELAYED_CUBES = 8  # and also with fewer cubes
RELAYED_BLOCKS = 4
DECODE_KEYS = 256  # of a block at decode, at most
CACHE_ROWS = 8
FEW_QUERIES = 2  # per key head: their softmax is short
UNITS_JOINED = 3  # of one product over streamed caches: with more, unused scores fill TCM
CAPS_PER_UNIT = UNITS_JOINED + 1  # of its scores, in TCM: those of a product's units, and of one by itself
LEAST_KEYS = 64  # of a sequence that are worth a separate PE


@dataclass(frozen=True)
class SplitKPlan:
    """A product with K over the PEs of a cube. Its columns are done `block_columns` at a time. With `is_relayed`, rows
    are passed from cube to cube first, `relayed_columns` of K at a time; otherwise all read them from where they are.
    With `blocks` there are at least so many of each cube's columns, and a round for each of them and each weight;
    without, as few rounds as TCM allows.
    """

    sip: SipShape
    rows: int
    k: int
    n: int
    block_columns: int
    is_relayed: bool = False
    relayed_columns: int = 0
    blocks: int = 0

    @property
    def copies(self) -> int:
        """Copies of each weight on a SIP."""
        return 1

    def joins_sums(self, weights: int, itemsize: int) -> bool:
        """Whether the sums of all columns of `weights` weights are reduced together: the plan says nothing else, and
        TCM holds them and what their first exchange takes.
        """
        if self.blocks:
            return False
        sums = weights * self.rows * -(-self.n // self.sip.cubes) * F32_BYTES
        return self._held_while_reduced * sums <= self._room(itemsize)

    @property
    def _held_while_reduced(self) -> int:
        """TCM of a reduction, in sums: own ones, those that are received, and their total. Of two halves each is half;
        where two PEs are all of a cube, the leading one takes all.
        """
        return 3 if self.sip.pes == 2 else 2

    @property
    def final_share(self) -> float:
        """Of the sums, what a leading PE ends with."""
        radices = [count for _, count in self.stages]
        return 1 / prod(radices[:-1] if radices[-1:] == [2] else radices)

    def for_weights(self, count: int, itemsize: int) -> SplitKPlan:
        """A copy, in blocks if the plan has them or `count` weights do not fit one round: TCM then holds the sums of
        the block being streamed, what the reduction of the one before takes, and complete results of the weights.
        """
        columns = -(-self.n // self.sip.cubes)
        if self.joins_sums(count, itemsize):
            return replace(self, block_columns=columns)
        held = 1.25 + self._held_while_reduced + count * max(0.25, self.final_share)
        most = max(1, int(self._room(itemsize) / held) // (self.rows * F32_BYTES))
        return replace(self, block_columns=-(-columns // max(self.blocks, -(-columns // most))))

    def _room(self, itemsize: int) -> int:
        """TCM besides a PE's rows."""
        return self.sip.tcm_bytes * 15 // 16 - self.part_elements * itemsize

    def k_of(self, pe: int) -> Range:
        return parts_of(self.k, self.sip.pes)[pe]

    def columns_of(self, cube: int) -> list[Range]:
        """A cube's columns, in blocks."""
        first, end = parts_of(self.n, self.sip.cubes)[cube]
        return [(at, min(end, at + self.block_columns)) for at in range(first, end, self.block_columns)]

    def blocks_of(self, cube: int, pe: int) -> list[tuple[Range, Range]]:
        """The blocks of a weight that a PE has, in order: rows and columns of each."""
        return [(self.k_of(pe), columns) for columns in self.columns_of(cube)]

    # ---- leading PEs

    @property
    def stages(self) -> list[tuple[int, int]]:
        """The stages of the reduction: PEs whose numbers differ in one digit exchange; (place value, radix) of each."""
        return stages_of(self.sip.pes)

    def leads(self, pe: int) -> bool:
        """Whether a PE leads: one of each corner, of each row and of each column of a cube's eight."""
        return sum(pe // place % count for place, count in self.stages) % 2 == 0

    def shares_of(self, size: int, pes: Sequence[int], *, is_last: bool) -> list[Range]:
        """The part of `size` rows or columns that each of some PEs reduces. In the last stage of two PEs, the leading
        one takes all.
        """
        if is_last and len(pes) == 2:
            return [(0, size) if self.leads(pe) else (0, 0) for pe in pes]
        return list(parts_of(size, len(pes)))

    def relayed_by(self, pe: int) -> list[list[tuple[int, Range]]]:
        """The K parts that a PE relays through the mesh, at most `relayed_columns` at a time: (PE, range) of each."""
        pair = [pe] if self.sip.pes % 2 else [pe & ~1, pe | 1]
        if len(pair) == 2 and not self.leads(pe):
            return []
        spans = [(each, self.k_of(each)) for each in pair]
        if spans[-1][1][1] - spans[0][1][0] <= self.relayed_columns:
            return [spans] if self.k else []
        return [
            [(each, (at, min(b, at + self.relayed_columns)))]
            for each, (a, b) in spans
            for at in range(a, b, self.relayed_columns)
        ]

    def relayed_blocks(self, columns: int, itemsize: int) -> list[Range]:
        """The cubes whose pieces of `columns` columns are joined together: TCM holds all pieces and one block of them.
        Of fewer rows than cubes, the first cubes have one each.
        """
        count = 1 if 2 * self.rows * columns * itemsize <= self.sip.tcm_bytes * 15 // 16 else RELAYED_BLOCKS
        return relay_blocks(self.sip, self.rows, count)

    @property
    def part_elements(self) -> int:
        """Elements of the largest K part of all rows."""
        return self.rows * -(-self.k // self.sip.pes)

    def part_at(self, cube: int, pe: int) -> int:
        """Where a PE's part begins among those of all PEs."""
        return (cube * self.sip.pes + pe) * self.part_elements


def relay_blocks(sip: SipShape, rows: int, count: int) -> list[Range]:
    """Cubes that have rows, in at most `count` blocks."""
    return [block for block in parts_of(min(rows, sip.cubes), count) if block[0] < block[1]]


def _largest_join(sip: SipShape, rows: int) -> int:
    """The most rows that are joined at a time, in blocks: a single piece is none."""
    shares, blocks = parts_of(rows, sip.cubes), relay_blocks(sip, rows, RELAYED_BLOCKS)
    return max((shares[end - 1][1] - shares[first][0] for first, end in blocks if end - first > 1), default=0)


@cache
def stages_of(pes: int) -> list[tuple[int, int]]:
    """The digits of PE numbers, (place value, radix), in the order of reduction: the lowest, which distinguishes the
    PEs of a corner, then from the highest down.
    """
    digits: list[tuple[int, int]] = []
    place, left = 1, pes
    for factor in range(2, pes + 1):
        while left % factor == 0:
            digits.append((place, factor))
            place, left = place * factor, left // factor
    return digits[:1] + digits[:0:-1]


ProductPlan = ColumnsPlan | SplitKPlan | BlocksPlan
InputOrder = Literal["rows", "columns"]


@dataclass(frozen=True)
class DecodeAttention:
    """The cache of every sequence and key head in `splits` parts of `part` keys; units are assigned to PEs in order.
    `block_keys` are processed at a time: prefetched, or streamed by composites.
    """

    batch: int
    kv_heads: int
    context: int
    splits: int
    block_keys: int
    streamed: bool = False
    units_at_once: int = 1  # whose queries and results are in TCM
    units_together: int = 1  # with one softmax, if they are streamed

    @property
    def part(self) -> int:
        return -(-self.context // self.splits)

    @property
    def room(self) -> int:
        """Rows of a part's cache: keys, the new token's, and if they are streamed the padding that aligns parts."""
        unit = CACHE_ROWS if self.streamed else 1
        return -(-(self.part + 1) // unit) * unit

    @property
    def units(self) -> int:
        return self.batch * self.kv_heads * self.splits

    def unit(self, number: int) -> tuple[int, int, int]:
        """Sequence, key head and part of a unit."""
        pair, split = divmod(number, self.splits)
        return *divmod(pair, self.kv_heads), split

    def units_of(self, sip: SipShape, pe: int) -> range:
        """The units whose caches are in the slice of a PE, in order; PEs count over cubes."""
        cube, number = divmod(pe, sip.pes)
        first, end = parts_of(self.units, sip.cubes)[cube]
        a, b = parts_of(end - first, sip.pes)[number]
        return range(first + a, first + b)

    def keys_of(self, split: int) -> int:
        return min(self.part, self.context - split * self.part)

    def keys_with_token(self, split: int) -> int:
        """The number of keys, including the new token's key in the last part."""
        return self.keys_of(split) + (split == self.splits - 1)


def by_blocks(plan: DecodeAttention, sip: SipShape, head_dim: int, itemsize: int) -> DecodeAttention:
    """A copy whose cache is loaded in blocks, as quantised keys are, which composites do not widen."""
    most = min(DECODE_KEYS, sip.tcm_bytes // 2 // (4 * head_dim * itemsize))
    keys = max(1, min(most, plan.part + 1))
    return replace(plan, block_keys=keys, streamed=False, units_together=1)


@runtime_checkable
class Mapping(Protocol):
    """A strategy: how the products and the attention of a layer are divided on a SIP."""

    @property
    def name(self) -> str: ...

    def __hash__(self) -> int: ...

    def product(self, sip: SipShape, rows: int, k: int, n: int, itemsize: int, *, x_by: InputOrder) -> ProductPlan:
        """How a product is divided; `rows` are all rows, of all experts if there are several. `x_by`: whether x is
        produced by rows, as by a norm, or by columns, as by heads or another product's columns.
        """

    def prefill_attention(
        self, sip: SipShape, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> PrefillAttention: ...

    def decode_attention(
        self, sip: SipShape, batch: int, context: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> DecodeAttention: ...


# ---- the package's mappings


def split_k_plan(sip: SipShape, rows: int, k: int, n: int, itemsize: int) -> SplitKPlan:
    """As few blocks of columns as TCM allows, for one weight."""
    columns = -(-n // sip.cubes)
    is_relayed = sip.cubes >= RELAYED_CUBES and rows * k * itemsize >= RELAYED_BYTES
    at_once = max(1, sip.tcm_bytes * 15 // 16 // ((rows + _largest_join(sip, rows)) * itemsize))
    plan = SplitKPlan(sip, rows, k, n, columns, is_relayed, at_once).for_weights(1, itemsize)
    if plan.block_columns < min(columns, sip.pes):
        raise CapacityError(
            f"{rows} rows of {k} do not fit the {format_bytes(sip.tcm_bytes)} of TCM that kernels have",
            where="mapping",
            hint="use the mapping columns for so many rows, or give kernels more TCM: the scheduler has "
            "cube.memory_map.tcm_scheduler_reserved_mb of cube.memory_map.tcm_mb_per_pe",
        )
    return plan


@dataclass(frozen=True)
class StudiedMapping:
    """`groups` of cubes for many rows (0: one for each cube); split_k for few rows where `split_k_rows` says so."""

    name: str
    groups: int = 1
    split_k_rows: int = 0

    def product(self, sip: SipShape, rows: int, k: int, n: int, itemsize: int, *, x_by: InputOrder) -> ProductPlan:
        if rows <= self.split_k_rows:
            return split_k_plan(sip, rows, k, n, itemsize)
        groups = self.groups or sip.cubes
        k_parts = sip.pes if x_by == "columns" or groups < sip.cubes else 1
        return columns_plan(sip, rows, k, n, itemsize, groups, k_parts=k_parts)

    def prefill_attention(
        self, sip: SipShape, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> PrefillAttention:
        return prefill_attention(sip, batch, seq, heads, kv_heads, head_dim, itemsize)

    def decode_attention(
        self, sip: SipShape, batch: int, context: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> DecodeAttention:
        pairs = batch * kv_heads
        most = max(1, min(sip.size, context // LEAST_KEYS))
        cost = {s: -(-pairs * s // sip.size) * -(-context // s) for s in range(1, most + 1)}
        least = min(cost.values())
        splits = next(s for s in cost if cost[s] <= least * 1.01)
        shared = heads // kv_heads
        streamed = shared <= FEW_QUERIES
        if streamed:
            most = (
                sip.tcm_bytes * 5 // 8 // (shared * (3 * F32_BYTES + itemsize))
            )  # scores, exponentials and probabilities
        else:
            most = min(DECODE_KEYS, sip.tcm_bytes // 2 // (4 * head_dim * itemsize))
        at_once = max(1, sip.tcm_bytes // 8 // (heads // kv_heads * head_dim * 5 * F32_BYTES))
        keys = -(-context // splits) + 1  # including the new token's
        block = max(1, min(most, keys))
        scores = shared * (UNITS_JOINED + 1) + CAPS_PER_UNIT  # per key: of all units' queries, and of its own unit's
        joined = sip.tcm_bytes * 25 // 32 // (scores * F32_BYTES)
        together = max(1, joined // (keys + CACHE_ROWS)) if streamed else 1
        return DecodeAttention(batch, kv_heads, context, splits, block, streamed, at_once, together)


COLUMNS = StudiedMapping("columns", groups=1)
TOKENS = StudiedMapping("tokens", groups=0)
DECODE = StudiedMapping("decode", groups=1, split_k_rows=FEW_ROWS)
MAPPINGS: Table[str, Mapping] = {mapping.name: mapping for mapping in (COLUMNS, TOKENS, DECODE)}
COPIED_SHARE = 0.5  # of a SIP's memory that copies of all layers' weights may take
ROWS_PER_GROUP = 64  # at least


def choose_mapping(sip: SipShape, rows: int, weights_bytes: int, memory_bytes: int) -> Mapping:
    """The mapping for a number of rows, bytes of weights on a SIP, and memory of a SIP: as many groups of cubes as
    there is memory for copies of the weights, since rows cross cubes within their group only.
    """
    if rows <= FEW_ROWS:
        return DECODE
    most = min(COPIED_SHARE * memory_bytes // max(1, weights_bytes), rows // ROWS_PER_GROUP)
    groups = max(g for g in range(1, sip.cubes + 1) if sip.cubes % g == 0 and g <= max(1, most))
    return TOKENS if groups == sip.cubes else StudiedMapping("columns", groups)
