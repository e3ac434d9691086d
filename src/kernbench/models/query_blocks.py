"""Blocks of queries in causal attention: their size, and their assignment to PEs. Pure functions of sizes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from heapq import heapify, heapreplace
from math import gcd
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.errors import CapacityError
from kernbench.common.units import format_bytes
from kernbench.models.plans import F32_BYTES, SipShape
from kernbench.policy.placement.dp import Range, parts_of
from kernbench.triton_emu.tcm_arena import ALIGN_BYTES

FAR_BELOW = -1e30  # a masked score: its exponential is 0
MOST_QUERIES = 128  # of a block: half of the scores of its own keys are masked, but computed
ONLINE_QUERIES = (256, 192, 128, 96, 64, 48, 32, 16, 8, 4, 2, 1)  # tokens of a block whose scores stay in TCM
MOST_ONLINE_ROWS = 256  # queries of a block, of all heads: keys are read once for each block
LEAST_ONLINE_KEYS = 96  # at a time: fewer take more time for the results than for scores
MOST_KEY_SIZES = 8  # of blocks of keys
STEP_KEYS = 24  # a block of keys costs as much as so many scores, besides its own: results are rescaled, commands
MASK_COST = 0.25  # of a score that may be masked, beside others
MOST_COLUMNS = 512  # tokens times heads that share a key head


class QueryBlock(NamedTuple):
    """Queries of a sequence, from `first` on, of the heads that share a key head."""

    sequence: int
    kv_head: int
    first: int
    queries: int


@dataclass(frozen=True)
class PrefillAttention:
    """Blocks of queries by PE, cube by cube. Cubes form teams with equally many (sequence, key head) pairs; a PE has
    blocks of its team's pairs. With scores in HBM it also has copies of all their keys and values.
    """

    sip: SipShape
    batch: int
    tokens: int
    kv_heads: int
    blocks: tuple[tuple[QueryBlock, ...], ...]
    keys_at_once: int = 0  # whose scores stay in TCM; 0: scores of all keys are in HBM
    key_step: int = 1  # of which the number of a block's last keys is a multiple: so tensors have few sizes

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

    @property
    def all_keys(self) -> int:
        return self.batch * self.kv_heads * self.tokens

    def taken_by(self, pe: int) -> Range:
        """The keys of a team that the PEs of this number copy, each for its cube: one contiguous piece, however many
        cubes a team has, so that copies within the cube are contiguous too.
        """
        return parts_of(self.team_rows, self.sip.pes)[pe]

    def taken_from(self, place: int, pe: int) -> Range:
        """The part of `taken_by` that lies in the team's cube number `place`, if any."""
        (a, b), (first, end) = self.taken_by(pe), parts_of(self.team_rows, self.cubes_per_team)[place]
        return max(a, first), max(a, first, min(b, end))

    def copies_of(self, cube: int, pe: int) -> int:
        """The row at which a PE's copies of its team's keys begin."""
        return (cube * self.sip.pes + pe) * self.team_rows

    def pair_of(self, block: QueryBlock) -> int:
        return block.sequence * self.kv_heads + block.kv_head

    def head_at(self, block: QueryBlock) -> int:
        """The row at which a block's keys begin within its team's."""
        return self.pair_of(block) * self.tokens % self.team_rows

    @cached_property
    def most_tokens(self) -> int:
        """The most tokens of a PE, over all of its blocks."""
        return max(1, *(sum(block.queries for block in some) for some in self.blocks))

    def blocks_at(self, number: int) -> Iterator[tuple[QueryBlock, int]]:
        """A PE's blocks, by its number on the SIP, and the offset of each in tokens among those of all PEs."""
        at = number * self.most_tokens
        for block in self.blocks[number]:
            yield block, at
            at += block.queries

    @cached_property
    def places(self) -> dict[int, list[tuple[QueryBlock, int]]]:
        """The blocks of each pair, with their offsets as in `blocks_at`."""
        found: dict[int, list[tuple[QueryBlock, int]]] = {}
        for number in range(len(self.blocks)):
            for block, at in self.blocks_at(number):
                found.setdefault(self.pair_of(block), []).append((block, at))
        return {pair: sorted(some) for pair, some in found.items()}

    def stretches(self, rows: Range, heads: range) -> Iterator[tuple[Range, list[int]]]:
        """Rows of all sequences as ranges that lie in one block of each of these key heads, with the offsets of those
        blocks as in `blocks_at`.
        """
        row = rows[0]
        while row < rows[1]:
            sequence, token = divmod(row, self.tokens)
            end, places = rows[1], list[int]()
            for head in heads:
                some = self.places[sequence * self.kv_heads + head]
                block, at = some[bisect_right(some, token, key=lambda each: each[0].first) - 1]
                end = min(end, row + block.first + block.queries - token)
                places.append(at + token - block.first)
            yield (row, end), places
            row = end

    def key_spans(self, block: QueryBlock) -> list[Range]:
        """The keys of a block at a time: all before it and its own, and after those some that it does not see, so that
        the last are a multiple of `key_step`.
        """
        most, end = self.keys_at_once, self._keys_end(block)
        return [(first, min(first + most, end)) for first in range(0, end, most)]

    def _keys_end(self, block: QueryBlock) -> int:
        before, last = divmod(block.first + block.queries, self.keys_at_once)
        return before * self.keys_at_once + -(-last // self.key_step) * self.key_step

    def whole_spans(self, block: QueryBlock) -> int:
        """How many of them all queries see."""
        return (block.first + 1) // self.keys_at_once

    @property
    def costs(self) -> list[float]:
        """The time of every PE, in scores of one head that are seen."""
        return [sum(block.queries * self._keys_cost(block) for block in some) for some in self.blocks]

    def _keys_cost(self, block: QueryBlock) -> float:
        most, end = self.keys_at_once, self._keys_end(block)
        masked = end - self.whole_spans(block) * most
        return end + MASK_COST * masked + STEP_KEYS * -(-end // most)

    @cached_property
    def mask_sizes(self) -> tuple[int, ...]:
        """The distinct sizes of blocks, largest first."""
        return tuple(sorted({block.queries for some in self.blocks for block in some}, reverse=True))

    @property
    def most_queries(self) -> int:
        """The size of the largest block."""
        return max(self.mask_sizes, default=1)

    def mask_at(self, block: QueryBlock) -> int:
        """Where the mask of a block's size begins in `mask_table`, for one head."""
        return sum(size * size for size in self.mask_sizes if size > block.queries)

    def mask_table(self, shared: int) -> NDArray[np.float32]:
        """For each size of blocks the mask that is added to the scores of a block's own keys: a row for each key, a
        column for each query and head that shares it.
        """
        masks = [np.repeat(np.tril(np.ones((n, n), bool)).T, shared, axis=1) for n in self.mask_sizes]
        return np.where(np.concatenate([mask.ravel() for mask in masks]), 0.0, FAR_BELOW).astype(np.float32)


def teams_of(sip: SipShape, pairs: int) -> int:
    """The largest number of teams of cubes with equally many (sequence, key head) pairs."""
    return gcd(pairs, sip.cubes)


def deal_queries(
    sip: SipShape, batch: int, seq: int, kv_heads: int, most_queries: int
) -> tuple[tuple[QueryBlock, ...], ...]:
    """Assign blocks within each team of cubes: the longest first, each to the least loaded PE; ties go to the first."""
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


def prefill_attention(
    sip: SipShape, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
) -> PrefillAttention:
    """Blocks as large as load balance and TCM allow, which holds the queries, twice, and a key's scores."""
    shared = heads // kv_heads
    room = sip.tcm_bytes // (shared * max(8 * F32_BYTES, 2 * head_dim * max(itemsize, F32_BYTES)))
    count = max(1, min(MOST_QUERIES, MOST_COLUMNS // shared, room))
    return PrefillAttention(sip, batch, seq, kv_heads, deal_queries(sip, batch, seq, kv_heads, count))


def online_attention(
    sip: SipShape, batch: int, seq: int, heads: int, kv_heads: int, head_dim: int, itemsize: int
) -> PrefillAttention:
    """Scores stay in TCM: as many queries at a time as leave room for those of `LEAST_ONLINE_KEYS` keys. Raises
    CapacityError if not even one query and one key fit.
    """
    shared = heads // kv_heads
    sizes = shared, head_dim, itemsize
    found = [(tokens, online_keys(sip, tokens, seq, *sizes)) for tokens in ONLINE_QUERIES if tokens <= seq]
    least = min(LEAST_ONLINE_KEYS, seq)
    enough = [each for each in found if each[1] >= least and each[0] * shared <= MOST_ONLINE_ROWS]
    tokens, keys = max(enough) if enough else max(found, key=lambda each: each[1])
    if not keys:
        raise CapacityError(
            f"{shared} queries and a key of {head_dim} elements do not fit the {format_bytes(sip.tcm_bytes)} of TCM "
            "that kernels have",
            hint="keep scores in HBM, or make the TCM larger",
        )
    plan = PrefillAttention(sip, batch, seq, kv_heads, deal_queries(sip, batch, seq, kv_heads, tokens), keys, keys)
    return _with_best_keys(plan, *sizes)


def _with_best_keys(plan: PrefillAttention, shared: int, head_dim: int, itemsize: int) -> PrefillAttention:
    """The keys at a time, and their step, that take the least time of those that fit TCM: many keys at a time, or in
    large steps, compute scores of masked keys; with few, results are rescaled often.
    """
    count, fitting = plan.most_queries, [plan]
    for step in (count, 2 * count, 4 * count):
        for keys in range(step, min(plan.tokens, MOST_KEY_SIZES * step) + 1, step):
            if online_bytes(count, range(step, keys + 1, step), shared, head_dim, itemsize) <= plan.sip.tcm_bytes:
                fitting.append(replace(plan, keys_at_once=keys, key_step=step))
    return min(fitting, key=lambda each: max(each.costs))


def online_keys(sip: SipShape, tokens: int, seq: int, shared: int, head_dim: int, itemsize: int) -> int:
    """The most keys that fit TCM beside `tokens` queries, as many each time: a multiple of 32, or less than 32."""
    sizes = [*range(1, min(seq, 31) + 1), *range(32, seq + 1, 32)]
    fitting = bisect_right(
        sizes, sip.tcm_bytes, key=lambda keys: online_bytes(tokens, [keys], shared, head_dim, itemsize)
    )
    return sizes[fitting - 1] if fitting else 0


def online_bytes(tokens: int, key_sizes: Sequence[int], shared: int, head_dim: int, itemsize: int) -> int:
    """The most TCM that a block of queries takes, if blocks of keys have these sizes: for each size of tensors the most
    at a time. Tensors of a size reuse their places (`slot_list.py`), so in so many bytes each of them has room.
    """
    rows = tokens * shared
    tensors = [
        (3, rows * head_dim * itemsize),  # queries, the next ones or these before scaling, and the stored result
        (2, rows * head_dim * F32_BYTES),  # results
        (8, rows * F32_BYTES),  # largest scores, sums, factors
        (1, tokens * F32_BYTES),  # numbers of tokens
    ]
    for keys in key_sizes:
        tensors += [
            (4, keys * head_dim * itemsize),  # keys and values, and the next ones
            (2, rows * keys * F32_BYTES),  # scores
            (1, rows * keys * itemsize),  # exponentials
            (3, tokens * keys),  # whether a token sees a key
            (3, keys * F32_BYTES),  # numbers of keys
        ]
    return sum(count * -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES for count, nbytes in tensors)
