"""Which PE does what: the mapping of a decoder layer onto the cubes and PEs of one SIP. Pure functions of sizes.

A product (rows, K) x (K, N) is shared in one of two ways.

columns   Cubes form `groups`; the rows are split over groups, the columns over the cubes of a group and their PEs.
          Every PE has its columns of the weights in its own HBM slice. Every cube of a group has a copy of the
          group's rows, made by a ring all-gather and stored as K chunks, one matrix each, dealt over the cube's
          slices. A PE pins one K chunk of its weights in TCM, streams the rows past it, and goes on with the next
          chunk, beginning with the one in its own slice: so the PEs of a cube read different slices, and rows cross
          the mesh once. Sums over chunks are kept in f32 in the PE's own slice.
split_k   Columns over all cubes, K over the PEs of a cube: a PE gets its K part of the few rows, streams its weights,
          and the cube's PEs add their sums up by messages (`split_k.py`).

Prefill with tensor parallelism takes columns with one group; a model whose weights are small enough to be copied takes
tokens: columns with a group for each cube, so that rows never leave their cube. Decode takes split_k.

Attention at prefill deals blocks of queries, the longest first, to the PE with the least to do. At decode, the cache of
a sequence's key head lies in one PE's own slice, or is split over several where there are fewer heads than PEs. Few
queries have all keys and then all values streamed past them; for more, blocks of both are loaded ahead.

A mapping is any object with the methods of `Mapping`; `MAPPINGS` has those that come with the package.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from heapq import heapify, heapreplace
from typing import NamedTuple, Protocol, runtime_checkable

from kernbench.ccl.algorithms.rings import mesh_cycle
from kernbench.common.errors import UsageError
from kernbench.policy.placement.dp import Range, parts_of

F32_BYTES = 4
FEW_ROWS = 64  # up to so many, weights are what a product moves
RELAYED_BYTES = 64 * 1024  # of rows: with fewer, a relay takes longer than it takes all cubes to read them,
RELAYED_CUBES = 8  # and so it does with fewer of these
RELAYED_BLOCKS = 4
CHUNK_UNIT = 128  # elements of a K chunk's row: a burst, in f16
KEYS_AT_ONCE = 128
CACHE_ROWS = 8
FEW_QUERIES = 2  # of a key head: nobody waits long for their softmax
LEAST_KEYS = 64  # of a sequence that are worth a PE of their own


@dataclass(frozen=True, slots=True)
class SipShape:
    """What a mapping may use: the cube mesh, PEs per cube, and the TCM that a kernel may take on each."""

    mesh_w: int
    mesh_h: int
    pes: int
    tcm_bytes: int

    @property
    def cubes(self) -> int:
        return self.mesh_w * self.mesh_h

    @property
    def size(self) -> int:
        return self.cubes * self.pes


class Job(NamedTuple):
    """Rows of a product that use the weights of one expert."""

    expert: int
    first: int
    rows: int


@dataclass(frozen=True)
class ColumnsPlan:
    """A product by columns. `chunk` is the length of a K chunk, `block_rows` how many rows of results TCM holds."""

    sip: SipShape
    rows: int
    k: int
    n: int
    groups: int
    chunk: int
    block_rows: int

    @property
    def cubes_per_group(self) -> int:
        return self.sip.cubes // self.groups

    @property
    def cycle(self) -> list[int]:
        """All cubes, each next to the one before it; groups are consecutive ones."""
        return mesh_cycle(self.sip.mesh_w, self.sip.mesh_h)

    def group_of(self, cube: int) -> tuple[int, int]:
        """A cube's group, and its place in it."""
        return divmod(self.cycle.index(cube), self.cubes_per_group)

    def cubes_of(self, group: int) -> list[int]:
        return self.cycle[group * self.cubes_per_group : (group + 1) * self.cubes_per_group]

    def rows_of(self, group: int) -> Range:
        return parts_of(self.rows, self.groups)[group]

    def columns_of(self, cube: int, pe: int) -> Range:
        at = self.group_of(cube)[1]
        return parts_of(self.n, self.cubes_per_group * self.sip.pes)[at * self.sip.pes + pe]

    @property
    def n_chunks(self) -> int:
        return -(-self.k // self.chunk)

    def chunk_at(self, number: int) -> Range:
        return number * self.chunk, min(self.k, (number + 1) * self.chunk)

    def chunks_of(self, pe: int) -> Range:
        """The chunks that lie in a PE's slice."""
        return parts_of(self.n_chunks, self.sip.pes)[pe]

    @property
    def most_rows(self) -> int:
        """Of a group."""
        return -(-self.rows // self.groups)

    @property
    def most_columns(self) -> int:
        """Of a PE."""
        return -(-self.n // (self.cubes_per_group * self.sip.pes))

    @property
    def copies(self) -> int:
        """Of each weight, on a SIP."""
        return self.groups

    def blocks_of(self, cube: int, pe: int) -> list[tuple[Range, Range]]:
        """What of a weight a PE has, as matrices one after the other: rows and columns of each."""
        return [((0, self.k), self.columns_of(cube, pe))]


@dataclass(frozen=True)
class SplitKPlan:
    """A product with K over the PEs of a cube. Its columns are done `block_columns` at a time. With `is_relayed`, rows
    are passed from cube to cube first, `relayed_columns` of K at a time; otherwise all read them from where they are.
    """

    sip: SipShape
    rows: int
    k: int
    n: int
    block_columns: int
    is_relayed: bool = False
    relayed_columns: int = 0

    @property
    def copies(self) -> int:
        """Of each weight, on a SIP."""
        return 1

    def joins_sums(self, weights: int, itemsize: int) -> bool:
        """Whether the sums of all columns of so many weights are added up together: TCM holds them twice."""
        return 2 * weights * self.rows * -(-self.n // self.sip.cubes) * F32_BYTES <= self._room(itemsize)

    def for_weights(self, count: int, itemsize: int) -> SplitKPlan:
        """The same, in blocks where `count` weights are too much for one round: TCM then holds the sums of a block that
        is streamed, those that are added up, twice, and what is complete of another weight.
        """
        columns = -(-self.n // self.sip.cubes)
        if self.joins_sums(count, itemsize):
            return replace(self, block_columns=columns)
        most = max(1, self._room(itemsize) * 4 // (13 + count) // (self.rows * F32_BYTES))
        return replace(self, block_columns=-(-columns // -(-columns // most)))

    def _room(self, itemsize: int) -> int:
        """Beside a PE's rows."""
        return self.sip.tcm_bytes * 15 // 16 - self.part_elements * itemsize

    def k_of(self, pe: int) -> Range:
        return parts_of(self.k, self.sip.pes)[pe]

    def columns_of(self, cube: int) -> list[Range]:
        """A cube's columns, in blocks."""
        first, end = parts_of(self.n, self.sip.cubes)[cube]
        return [(at, min(end, at + self.block_columns)) for at in range(first, end, self.block_columns)]

    def blocks_of(self, cube: int, pe: int) -> list[tuple[Range, Range]]:
        """What of a weight a PE has, as matrices one after the other: rows and columns of each."""
        return [(self.k_of(pe), columns) for columns in self.columns_of(cube)]

    # ---- who leads

    @property
    def stages(self) -> list[tuple[int, int]]:
        """How sums are added up: PEs whose numbers differ in one digit, by its place value and how many it has."""
        return stages_of(self.sip.pes)

    def leads(self, pe: int) -> bool:
        """Whether a PE leads: one of each corner, of each row and of each column of a cube's eight."""
        return sum(pe // place % count for place, count in self.stages) % 2 == 0

    def shares_of(self, size: int, pes: Sequence[int], *, is_last: bool) -> list[Range]:
        """What of `size` rows or columns each of some PEs adds up. In the last stage one of two takes all: one that
        leads.
        """
        if is_last and len(pes) == 2:
            return [(0, size) if self.leads(pe) else (0, 0) for pe in pes]
        return parts_of(size, len(pes))

    def relayed_by(self, pe: int) -> list[list[tuple[int, Range]]]:
        """The K parts that a PE takes through the mesh, at most `relayed_columns` at a time: whose, and which."""
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

    def relayed_blocks(self, columns: int, itemsize: int) -> int:
        """In how many blocks the pieces of so many columns are put together: TCM holds them, and one block."""
        return 1 if 2 * self.rows * columns * itemsize <= self.sip.tcm_bytes * 15 // 16 else RELAYED_BLOCKS

    @property
    def part_elements(self) -> int:
        """Of the largest K part of all rows."""
        return self.rows * -(-self.k // self.sip.pes)

    def part_at(self, cube: int, pe: int) -> int:
        """Where a PE's part begins among those of all PEs."""
        return (cube * self.sip.pes + pe) * self.part_elements


@cache
def stages_of(pes: int) -> list[tuple[int, int]]:
    """The digits of PE numbers, (place value, how many), in the order in which sums are added up: the lowest, which
    tells the PEs of a corner apart, then from the highest down.
    """
    digits: list[tuple[int, int]] = []
    place, left = 1, pes
    for factor in range(2, pes + 1):
        while left % factor == 0:
            digits.append((place, factor))
            place, left = place * factor, left // factor
    return digits[:1] + digits[:0:-1]


ProductPlan = ColumnsPlan | SplitKPlan


class QueryBlock(NamedTuple):
    """Queries of a sequence, from `first` on, of the heads that share a key head."""

    sequence: int
    kv_head: int
    first: int
    queries: int


@dataclass(frozen=True)
class PrefillAttention:
    """Blocks of queries by PE, cube by cube, and how many keys a PE takes at a time."""

    blocks: tuple[tuple[QueryBlock, ...], ...]
    block_keys: int


@dataclass(frozen=True)
class DecodeAttention:
    """The cache of every sequence and key head in `splits` parts of `part` keys; units are dealt over PEs in order.
    `block_keys` are taken at a time: loaded while the ones before are worked on, or streamed by composites.
    """

    batch: int
    kv_heads: int
    context: int
    splits: int
    block_keys: int
    streamed: bool = False
    units_at_once: int = 1  # of which queries and results are in TCM
    units_together: int = 1  # of which scores are, where they are streamed

    @property
    def part(self) -> int:
        return -(-self.context // self.splits)

    @property
    def room(self) -> int:
        """Rows of a part's cache: keys, the new token's, and where they are streamed what makes all begin alike."""
        unit = CACHE_ROWS if self.streamed else 1
        return -(-(self.part + 1) // unit) * unit

    @property
    def units(self) -> int:
        return self.batch * self.kv_heads * self.splits

    def unit(self, number: int) -> tuple[int, int, int]:
        """Sequence, key head and part of a unit."""
        pair, split = divmod(number, self.splits)
        return *divmod(pair, self.kv_heads), split

    def keys_of(self, split: int) -> int:
        return min(self.part, self.context - split * self.part)

    def keys_with_token(self, split: int) -> int:
        """With the last part comes the new token's own key."""
        return self.keys_of(split) + (split == self.splits - 1)


@runtime_checkable
class Mapping(Protocol):
    """A strategy: how the products and the attention of a layer are shared out on a SIP."""

    @property
    def name(self) -> str: ...

    def product(self, sip: SipShape, rows: int, k: int, n: int, itemsize: int) -> ProductPlan:
        """How a product is shared; `rows` are all rows, of all experts where there are several."""

    def prefill_attention(
        self, sip: SipShape, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> PrefillAttention: ...

    def decode_attention(
        self, sip: SipShape, batch: int, context: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> DecodeAttention: ...


# ---- the plans that come with the package


def columns_plan(sip: SipShape, rows: int, k: int, n: int, itemsize: int, groups: int) -> ColumnsPlan:
    """Chunks as long as TCM allows beside the blocks of results, and a multiple of them for each PE."""
    if groups < 1 or sip.cubes % groups:
        raise UsageError(f"{groups} groups of {sip.cubes} cubes", hint="use a divisor of the number of cubes")
    columns = -(-n // (sip.cubes // groups * sip.pes))
    pinned = sip.tcm_bytes * 5 // 8
    chunk, parts = k, sip.pes
    while True:
        chunk = -(-k // parts)
        chunk = min(k, -(-chunk // CHUNK_UNIT) * CHUNK_UNIT) if chunk >= CHUNK_UNIT // 2 else max(1, chunk)
        if chunk * columns * itemsize <= pinned or chunk <= 1:
            break
        parts += sip.pes
        if parts > k + sip.pes:
            raise UsageError(
                f"{columns} columns per PE do not fit TCM",
                where="mapping",
                hint="split columns over more cubes: fewer groups",
            )
    left = sip.tcm_bytes - chunk * columns * itemsize
    most = -(-rows // groups)
    block_rows = max(1, min(most, left * 7 // 8 // (2 * columns * F32_BYTES)))
    return ColumnsPlan(sip, rows, k, n, groups, chunk, block_rows)


def split_k_plan(sip: SipShape, rows: int, k: int, n: int, itemsize: int) -> SplitKPlan:
    """As few blocks of columns as TCM allows, for one weight."""
    columns = -(-n // sip.cubes)
    is_relayed = sip.cubes >= RELAYED_CUBES and rows * k * itemsize >= RELAYED_BYTES
    at_once = max(1, sip.tcm_bytes * 15 // 16 * RELAYED_BLOCKS // (RELAYED_BLOCKS + 1) // (rows * itemsize))
    plan = SplitKPlan(sip, rows, k, n, columns, is_relayed, at_once).for_weights(1, itemsize)
    if plan.block_columns < min(columns, sip.pes):
        raise UsageError(
            f"{rows} rows of {k} do not fit TCM", where="mapping", hint="use the mapping columns for so many rows"
        )
    return plan


def deal_queries(
    sip: SipShape, batch: int, seq: int, kv_heads: int, shared: int, block_rows: int, block_keys: int
) -> tuple[tuple[QueryBlock, ...], ...]:
    """Causal attention's blocks, the longest first, each to the PE with the least keys so far; of equals, the first."""
    count = max(1, min(seq, block_rows // shared))
    enough = -(-batch * kv_heads * seq // (2 * sip.size))  # two blocks for each PE, where there are as many queries
    count = max(1, min(count, max(enough, 8)))
    found = [
        QueryBlock(b, h, at, min(count, seq - at))
        for at in reversed(range(0, seq, count))
        for b in range(batch)
        for h in range(kv_heads)
    ]
    load = [(0, pe) for pe in range(sip.size)]
    heapify(load)
    dealt: list[list[QueryBlock]] = [[] for _ in range(sip.size)]
    for block in found:
        keys, pe = load[0]
        dealt[pe].append(block)
        steps = -(-(block.first + block.queries) // block_keys)
        heapreplace(load, (keys + steps * block.queries, pe))
    return tuple(map(tuple, dealt))


@dataclass(frozen=True)
class StudiedMapping:
    """`groups` of cubes for many rows (0: one for each cube); split_k for few rows where `split_k_rows` says so."""

    name: str
    groups: int = 1
    split_k_rows: int = 0

    def product(self, sip: SipShape, rows: int, k: int, n: int, itemsize: int) -> ProductPlan:
        if rows <= self.split_k_rows:
            return split_k_plan(sip, rows, k, n, itemsize)
        return columns_plan(sip, rows, k, n, itemsize, self.groups or sip.cubes)

    def prefill_attention(
        self, sip: SipShape, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> PrefillAttention:
        keys = min(KEYS_AT_ONCE, seq)
        per_row = keys * (3 * F32_BYTES + itemsize) + head_dim * (4 * F32_BYTES + itemsize)
        room = sip.tcm_bytes * 7 // 8 - 4 * keys * head_dim * itemsize
        shared = heads // kv_heads
        rows = max(shared, 1 << max(room // per_row, 1).bit_length() - 1)
        return PrefillAttention(deal_queries(sip, batch, seq, kv_heads, shared, rows, keys), keys)

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
            most = sip.tcm_bytes * 5 // 8 // (shared * (3 * F32_BYTES + itemsize))  # scores, and what becomes of them
        else:
            most = min(2 * KEYS_AT_ONCE, sip.tcm_bytes // 2 // (4 * head_dim * itemsize))
        at_once = max(1, sip.tcm_bytes // 8 // (heads // kv_heads * head_dim * 5 * F32_BYTES))
        keys = -(-context // splits) + 1  # with the new token's
        block, together = max(1, min(most, keys)), max(1, most // keys) if streamed else 1
        return DecodeAttention(batch, kv_heads, context, splits, block, streamed, at_once, together)


COLUMNS = StudiedMapping("columns", groups=1)
TOKENS = StudiedMapping("tokens", groups=0)
DECODE = StudiedMapping("decode", groups=1, split_k_rows=FEW_ROWS)
MAPPINGS: Table[str, Mapping] = {mapping.name: mapping for mapping in (COLUMNS, TOKENS, DECODE)}
COPIED_SHARE = 0.25  # of a SIP's memory that copies of all layers' weights may take
ROWS_PER_CUBE = 64  # at least, for tokens over cubes


def choose_mapping(sip: SipShape, rows: int, weights_bytes: int, memory_bytes: int) -> Mapping:
    """The one for so many rows of a model with so many bytes of weights on a SIP of so much memory."""
    if rows <= FEW_ROWS:
        return DECODE
    copied = sip.cubes * weights_bytes
    return TOKENS if copied <= COPIED_SHARE * memory_bytes and rows >= ROWS_PER_CUBE * sip.cubes else COLUMNS
