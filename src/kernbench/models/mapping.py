"""Which PE does what: the mapping of a decoder layer onto the cubes and PEs of one SIP. Pure functions of sizes.

A product (rows, K) x (K, N) is shared in one of two ways.

columns   Cubes form `groups`; the rows are split over groups, the columns over the cubes of a group (`plans.py`). PEs
          of a cube split columns, with a copy of the rows each, or K, and add their sums up. Products read and write
          the PE's own HBM slice only.
split_k   Columns over all cubes, K over the PEs of a cube: a PE reads its K part of the few rows, streams its weights,
          and the cube's PEs add their sums up by messages.

Prefill takes columns with as many groups as there is memory for copies of the weights. With a group for each cube, the
mapping `tokens`, rows never leave their cube: PEs split columns where x comes from rows, and K where it comes from
columns, which are then in place. With fewer groups PEs split K always. Decode takes split_k.

Attention at prefill deals blocks of queries, the longest first, to the PE with the least to do among those that have
the same key heads. At decode, the cache of a sequence's key head lies in one PE's own slice, or is split over several where
there are fewer heads than PEs. Few queries have all keys and then all values streamed past them; for more, blocks of
both are loaded ahead.

A mapping is any object with the methods of `Mapping`; `MAPPINGS` has those that come with the package.
"""

from __future__ import annotations

from collections.abc import Mapping as Table
from dataclasses import dataclass
from heapq import heapify, heapreplace
from math import gcd
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from kernbench.common.errors import UsageError
from kernbench.models.plans import ColumnsPlan, SipShape, columns_plan
from kernbench.policy.placement.dp import Range, parts_of

F32_BYTES = 4
FEW_ROWS = 64  # up to so many, weights are what a product moves
KEYS_AT_ONCE = 128  # at decode
MOST_QUERIES = 64  # of a block at prefill: as many of its own keys are worked on though only half are seen
MOST_QUERY_ROWS = 256  # tokens times heads that share a key head
CACHE_ROWS = 8
FEW_QUERIES = 2  # of a key head: nobody waits long for their softmax
LEAST_KEYS = 64  # of a sequence that are worth a PE of their own


@dataclass(frozen=True)
class SplitKPlan:
    """A product with K over the PEs of a cube. Its columns are done `block_columns` at a time."""

    sip: SipShape
    rows: int
    k: int
    n: int
    block_columns: int

    @property
    def copies(self) -> int:
        """Of each weight, on a SIP."""
        return 1

    def k_of(self, pe: int) -> Range:
        return parts_of(self.k, self.sip.pes)[pe]

    def columns_of(self, cube: int) -> list[Range]:
        """A cube's columns, in blocks."""
        first, end = parts_of(self.n, self.sip.cubes)[cube]
        return [(at, min(end, at + self.block_columns)) for at in range(first, end, self.block_columns)]

    def blocks_of(self, cube: int, pe: int) -> list[tuple[Range, Range]]:
        """What of a weight a PE has, as matrices one after the other: rows and columns of each."""
        return [(self.k_of(pe), columns) for columns in self.columns_of(cube)]


ProductPlan = ColumnsPlan | SplitKPlan
InputOrder = Literal["rows", "columns"]


class QueryBlock(NamedTuple):
    """Queries of a sequence, from `first` on, of the heads that share a key head."""

    sequence: int
    kv_head: int
    first: int
    queries: int


@dataclass(frozen=True)
class PrefillAttention:
    """Blocks of queries by PE, cube by cube. Cubes form teams, of as many cubes as makes the (sequence, key head) pairs
    of all teams as many; a PE has blocks of its team's pairs, and gets all their keys and values.
    """

    sip: SipShape
    batch: int
    tokens: int
    kv_heads: int
    blocks: tuple[tuple[QueryBlock, ...], ...]

    @property
    def teams(self) -> int:
        return teams_of(self.sip, self.batch * self.kv_heads)

    @property
    def cubes_per_team(self) -> int:
        return self.sip.cubes // self.teams

    @property
    def team_rows(self) -> int:
        """Keys of all pairs of a team."""
        return self.batch * self.kv_heads // self.teams * self.tokens

    def rows_at(self, place: int, pe: int) -> Range:
        """The keys of a team that lie with a PE of its cube number `place`."""
        first, end = parts_of(self.team_rows, self.cubes_per_team)[place]
        a, b = parts_of(end - first, self.sip.pes)[pe]
        return first + a, first + b

    def copies_of(self, cube: int, pe: int) -> int:
        """The row at which a PE's copies of its team's keys begin."""
        return (cube * self.sip.pes + pe) * self.team_rows

    def pair_of(self, block: QueryBlock) -> int:
        return block.sequence * self.kv_heads + block.kv_head

    def head_at(self, block: QueryBlock) -> int:
        """The row at which a block's keys begin within its team's."""
        return self.pair_of(block) * self.tokens % self.team_rows

    @property
    def most_tokens(self) -> int:
        """Of all blocks of a PE."""
        return max(1, *(sum(block.queries for block in some) for some in self.blocks))

    @property
    def most_queries(self) -> int:
        """Of a block."""
        return max((block.queries for some in self.blocks for block in some), default=1)


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

    def product(self, sip: SipShape, rows: int, k: int, n: int, itemsize: int, *, x_by: InputOrder) -> ProductPlan:
        """How a product is shared; `rows` are all rows, of all experts where there are several. `x_by` says whether x
        comes from rows, as from a norm, or from columns, as from heads or another product's columns.
        """

    def prefill_attention(
        self, sip: SipShape, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> PrefillAttention: ...

    def decode_attention(
        self, sip: SipShape, batch: int, context: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> DecodeAttention: ...


# ---- the plans that come with the package


def split_k_plan(sip: SipShape, rows: int, k: int, n: int, itemsize: int) -> SplitKPlan:
    """Blocks of columns of which four sums fit in half of TCM: two of a gated product, and the ones before."""
    columns = -(-n // sip.cubes)
    x_bytes = rows * -(-k // sip.pes) * itemsize
    room = (sip.tcm_bytes - x_bytes) * 3 // 4
    most = room // (rows * F32_BYTES * 5)
    if most < min(columns, sip.pes):
        raise UsageError(
            f"{rows} rows of {k} do not fit TCM", where="mapping", hint="use the mapping columns for so many rows"
        )
    blocks = max(-(-columns // most), min(4, columns // (8 * sip.pes)), 1)
    return SplitKPlan(sip, rows, k, n, -(-columns // blocks))


def teams_of(sip: SipShape, pairs: int) -> int:
    """Teams of cubes that have equally many pairs of sequence and key head, as many teams as can be."""
    return gcd(pairs, sip.cubes)


def deal_queries(
    sip: SipShape, batch: int, seq: int, kv_heads: int, most_queries: int
) -> tuple[tuple[QueryBlock, ...], ...]:
    """Causal attention's blocks within each team of cubes: the longest first, each to the PE with the least to do; of
    equals, the first.
    """
    pairs, teams = batch * kv_heads, teams_of(sip, batch * kv_heads)
    pes, own = sip.size // teams, pairs // teams
    enough = -(-own * seq // (2 * pes))  # two blocks for each PE, where there are as many queries
    count = max(1, min(seq, most_queries, max(enough, 8)))
    dealt: list[tuple[QueryBlock, ...]] = []
    for team in range(teams):
        load = [(0, pe) for pe in range(pes)]
        heapify(load)
        found: list[list[QueryBlock]] = [[] for _ in range(pes)]
        for at in reversed(range(0, seq, count)):
            for pair in range(team * own, (team + 1) * own):
                block = QueryBlock(*divmod(pair, kv_heads), at, min(count, seq - at))
                done, pe = load[0]
                found[pe].append(block)
                heapreplace(load, (done + (block.first + block.queries) * block.queries, pe))
        dealt += map(tuple, found)
    return tuple(dealt)


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
        splits_k = x_by == "columns" or groups < sip.cubes
        return columns_plan(sip, rows, k, n, itemsize, groups, splits_k=splits_k)

    def prefill_attention(
        self, sip: SipShape, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
    ) -> PrefillAttention:
        shared = heads // kv_heads
        count = max(1, min(MOST_QUERIES, MOST_QUERY_ROWS // shared))
        while count > 1 and count * shared * 4 * F32_BYTES * max(count, head_dim) > sip.tcm_bytes * 3 // 4:
            count //= 2
        return PrefillAttention(sip, batch, seq, kv_heads, deal_queries(sip, batch, seq, kv_heads, count))

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
        return DecodeAttention(batch, kv_heads, context, splits, max(1, min(most, context)), streamed, at_once)


COLUMNS = StudiedMapping("columns", groups=1)
TOKENS = StudiedMapping("tokens", groups=0)
DECODE = StudiedMapping("decode", groups=1, split_k_rows=FEW_ROWS)
MAPPINGS: Table[str, Mapping] = {mapping.name: mapping for mapping in (COLUMNS, TOKENS, DECODE)}
COPIED_SHARE = 0.5  # of a SIP's memory that copies of all layers' weights may take
ROWS_PER_GROUP = 64  # at least


def choose_mapping(sip: SipShape, rows: int, weights_bytes: int, memory_bytes: int) -> Mapping:
    """The one for so many rows of a model with so many bytes of weights on a SIP of so much memory: as many groups of
    cubes as there is memory for copies of the weights, since rows cross cubes within their group only.
    """
    if rows <= FEW_ROWS:
        return DECODE
    most = min(COPIED_SHARE * memory_bytes // max(1, weights_bytes), rows // ROWS_PER_GROUP)
    groups = max(g for g in range(1, sip.cubes + 1) if sip.cubes % g == 0 and g <= max(1, most))
    return TOKENS if groups == sip.cubes else StudiedMapping("columns", groups)
