"""Mappings are pure: all work is done, once, and fits TCM."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernbench.common.errors import UsageError
from kernbench.models.expert_routing import routing_of
from kernbench.models.layouts import ByHead, KParts, RowMajor
from kernbench.models.mapping import (
    COLUMNS,
    DECODE,
    TOKENS,
    SplitKPlan,
    StudiedMapping,
    choose_mapping,
    split_k_plan,
)
from kernbench.models.packing import packed, packed_shape
from kernbench.models.plans import ColumnsPlan, Job, SipShape, columns_plan, exchange_rounds
from kernbench.models.query_blocks import deal_queries
from kernbench.policy.placement.dp import ShardSpec, parts_of
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import ValueGraph

KIB = 1024
DEFAULT = SipShape(4, 4, 8, 512 * KIB)
ODD = SipShape(3, 1, 3, 64 * KIB)
GB = 10**9


def k_parts_of(sip: SipShape, share: str) -> int:
    """Of 3 PEs there is nothing between 1 and all."""
    return {"none": 1, "some": sip.pes // 2 if sip.pes % 2 == 0 else 1, "all": sip.pes}[share]


@pytest.mark.parametrize("sip", [DEFAULT, ODD])
@pytest.mark.parametrize("share", ["none", "some", "all"])  # of a cube's PEs that K is split over
@pytest.mark.parametrize(("rows", "k", "n", "groups"), [(128, 64, 160, 1), (70, 130, 50, 3), (5, 7, 3, 1)])
def test_columns_are_done_once_in_every_group(
    sip: SipShape, rows: int, k: int, n: int, groups: int, share: str
) -> None:
    groups = groups if sip.cubes % groups == 0 else 1
    plan = columns_plan(sip, rows, k, n, 2, groups, k_parts=k_parts_of(sip, share))
    done, delivered = np.zeros((rows, k, n), np.int8), np.zeros((rows, n), int)
    for cube in range(sip.cubes):
        assert cube in plan.cubes_of(cube)
        assert sorted(plan.ring_of(cube)) == list(plan.cubes_of(cube))
        for pe in range(sip.pes):
            columns = slice(*plan.columns_of(cube, pe))
            done[slice(*plan.rows_of(cube)), slice(*plan.k_of(pe)), columns] += 1
            delivered[slice(*plan.share_of(cube, pe)), columns] += 1
    assert (done == 1).all()
    assert (delivered == 1).all()


@pytest.mark.parametrize("pes", [1, 3, 4, 8])
def test_everybody_reads_from_everybody_and_each_is_read_once_per_round(pes: int) -> None:
    rounds = exchange_rounds(pes)
    assert all(sorted(sources) == list(range(pes)) for sources in rounds)
    assert all(sorted(sources[pe] for sources in rounds) == list(range(pes)) for pe in range(pes))


def test_of_two_pes_in_a_corner_one_sends_across_at_a_time() -> None:
    """PEs 0, 1, 4 and 5 are on one side: two of a corner would share the links along x."""
    for sources in exchange_rounds(8):
        across = [source // 2 for reader, source in enumerate(sources) if (source ^ reader) & 2]
        assert sorted(across) == [0, 1, 2, 3]


def test_rows_of_gpt3s_perceptron_are_pinned_where_they_fit_tcm() -> None:
    plan = columns_plan(DEFAULT, 2048, 12288, 24576, 2, 2)
    assert plan.splits_k
    assert plan.most_columns == 24576 // 8
    assert plan.block_rows == 64  # of 1536 elements: 192 KiB of 512
    assert columns_plan(DEFAULT, 4096, 14336, 4096, 2, 16, k_parts=1).block_rows == 0  # 32 rows are 896 KiB


@pytest.mark.parametrize("sip", [DEFAULT, ODD])
@pytest.mark.parametrize("groups", [1, 0])
def test_layouts_give_every_result_one_place(sip: SipShape, groups: int) -> None:
    rows, k = 24, 40
    plan = columns_plan(sip, rows, k, 8, 2, groups or sip.cubes, k_parts=sip.pes)
    by_head = ByHead(COLUMNS.prefill_attention(sip, 3, 8, 6, 2, 4, 2), shared=3, head_dim=4)
    for layout, columns in ((KParts(plan), k), (by_head, 40), (RowMajor(k), k)):
        places: set[tuple[int, int]] = set()
        for piece in layout.pieces((0, rows), (0, columns)):
            for at, _ in enumerate(range(*piece.rows)):
                first = piece.at + at * piece.stride
                places |= {(piece.tensor, first + column) for column in range(piece.columns[1] - piece.columns[0])}
        assert len(places) == rows * columns
    # Token 1 of sequence 2, key head 1: 3 query heads of 4 columns each, a key and a value come before its queries.
    (piece,) = by_head.pieces((17, 18), (32, 36))
    assert (piece.tensor, piece.at) == (1, ((2 * 2 + 1) * 8 + 1) * 4)
    (piece,) = by_head.pieces((17, 18), (20, 32))
    (block, at), *_ = by_head.plan.places[5]
    assert (block.sequence, block.kv_head, block.first) == (2, 1, 0)
    assert (piece.tensor, piece.at) == (0, (at + 1) * 12)


@pytest.mark.parametrize("blocks", [0, 1, 3])
@pytest.mark.parametrize("sip", [DEFAULT, ODD])
def test_split_k_multiplies_every_weight_once(sip: SipShape, blocks: int) -> None:
    plan = replace(split_k_plan(sip, 3, 130, 100, 2), blocks=blocks).for_weights(2, 2)
    assert plan.joins_sums(2, 2) == (blocks == 0)
    assert len(plan.columns_of(0)) == max(1, blocks)
    done = np.zeros((130, 100), int)
    for cube in range(sip.cubes):
        for pe in range(sip.pes):
            for rows, columns in plan.blocks_of(cube, pe):
                done[slice(*rows), slice(*columns)] += 1
    assert (done == 1).all()


@pytest.mark.parametrize("sip", [DEFAULT, ODD])
@pytest.mark.parametrize("at_once", [1000, 7])
def test_every_k_part_is_relayed_once_by_a_pe_of_its_corner(sip: SipShape, at_once: int) -> None:
    plan = replace(split_k_plan(sip, 3, 130, 100, 2), relayed_columns=at_once)
    found = [span for pe in range(sip.pes) for spans in plan.relayed_by(pe) for span in spans]
    assert sorted(k for pe, (a, b) in found for k in range(a, b)) == list(range(130))
    assert all(plan.k_of(pe)[0] <= a <= b <= plan.k_of(pe)[1] for pe, (a, b) in found)
    assert [pe for pe in range(sip.pes) if plan.relayed_by(pe)] == ([0, 3, 5, 6] if sip is DEFAULT else [0, 1, 2])


@pytest.mark.parametrize(("pes", "size"), [(8, 32), (8, 3), (6, 13), (3, 7), (1, 5)])
def test_stages_leave_every_sum_with_one_pe(pes: int, size: int) -> None:
    plan = split_k_plan(SipShape(1, 1, pes, 1 << 19), size, 64, 64, 2)
    has = {pe: set(range(size)) for pe in range(pes)}
    for number, (place, count) in enumerate(plan.stages):
        before = dict(has)
        for pe in range(pes):
            others = [pe + (digit - pe // place % count) * place for digit in range(count)]
            assert all(before[other] == before[pe] for other in others)  # so what comes is what is added to
            shares = plan.shares_of(len(before[pe]), others, is_last=number == len(plan.stages) - 1)
            has[pe] = set(sorted(before[pe])[slice(*shares[others.index(pe)])])
    assert sorted(row for rows in has.values() for row in rows) == list(range(size))


def test_rows_that_do_not_fit_tcm_are_refused() -> None:
    with pytest.raises(UsageError, match=r"512 rows of 12288 do not fit the .* of TCM that kernels have"):
        split_k_plan(DEFAULT, 512, 12288, 36864, 2)
    with pytest.raises(UsageError, match="3 groups of 16 cubes"):
        columns_plan(DEFAULT, 512, 128, 128, 2, 3)
    with pytest.raises(UsageError, match="3 parts of K for 8 PEs"):
        columns_plan(DEFAULT, 512, 128, 128, 2, 1, k_parts=3)


@pytest.mark.parametrize("rows", [1, 2, 5, 8, 15, 16, 17])
def test_relayed_rows_fit_tcm_with_what_is_joined_of_them(rows: int) -> None:
    """8 rows over 16 cubes are in the first 8: a quarter of the cubes has half of the rows."""
    sip = SipShape(4, 4, 4, 512 * KIB)
    plan = split_k_plan(sip, rows, 49152, 12288, 2)
    shares = parts_of(rows, sip.cubes)
    for spans in plan.relayed_by(0):
        columns = spans[-1][1][1] - spans[0][1][0]
        blocks = plan.relayed_blocks(columns, 2)
        assert [cube for first, end in blocks for cube in range(first, end)] == list(range(min(rows, 16)))
        joined = max(shares[end - 1][1] - shares[first][0] if end - first > 1 else 0 for first, end in blocks)
        assert (rows + joined) * columns * 2 <= sip.tcm_bytes


@pytest.mark.parametrize("make", [columns_plan, split_k_plan])
def test_packed_weights_are_each_pes_matrices_one_after_the_other(make: object) -> None:
    plan = columns_plan(ODD, 9, 10, 7, 2, 1) if make is columns_plan else split_k_plan(ODD, 9, 10, 7, 2)
    weights = np.arange(2 * 10 * 7).reshape(2, 10, 7)
    graph, (count, width) = ValueGraph(), packed_shape(plan, 2)
    contents = packed(graph, plan, graph.constant(weights))
    parts = [contents(ShardSpec(0, 0, 0, 0, 0, box=((at, at + 1), (0, width)))) for at in range(count)]
    rows = np.concatenate(evaluate(parts))
    for at, (cube, pe) in enumerate(np.ndindex(ODD.cubes, ODD.pes)):
        expected = [expert[a:b, c:d].ravel() for expert in weights for (a, b), (c, d) in plan.blocks_of(cube, pe)]
        flat = np.concatenate(expected) if expected else np.zeros(0)
        assert (rows[at, : flat.size] == flat).all()
        assert not rows[at, flat.size :].any()


def test_causal_blocks_are_dealt_evenly() -> None:
    dealt = deal_queries(DEFAULT, 1, 2048, 48, 128)
    seen = [(b.kv_head, at) for blocks in dealt for b in blocks for at in range(b.first, b.first + b.queries)]
    assert len(seen) == len({*seen}) == 48 * 2048
    work = [sum((b.first + b.queries) * b.queries for b in blocks) for blocks in dealt]
    assert max(work) <= 1.1 * sum(work) / len(work)
    assert {b.kv_head for blocks in dealt[:8] for b in blocks} == {0, 1, 2}  # a cube is a team of its own


def test_fewer_heads_than_cubes_have_several_cubes_each() -> None:
    plan = TOKENS.prefill_attention(DEFAULT, 1, 4096, 32, 8, 128, 2)
    assert (plan.teams, plan.cubes_per_team, plan.team_rows) == (8, 2, 4096)
    assert COLUMNS.prefill_attention(DEFAULT, 1, 64, 12, 12, 128, 2).teams == 4  # three heads for four cubes


@pytest.mark.parametrize(
    ("batch", "heads", "splits"),
    [
        (32, 48, 1),  # 1536 caches: 12 for each of 128 PEs
        (1, 48, 8),  # 384 parts: 3 for each
        (1, 4, 32),  # 128 parts: one for each
    ],
)
def test_a_cache_is_split_until_every_pe_has_work(batch: int, heads: int, splits: int) -> None:
    plan = DECODE.decode_attention(DEFAULT, batch, 4096, heads, heads, 128, 2)
    assert plan.splits == splits
    assert plan.units % DEFAULT.size == 0
    assert sum(plan.keys_of(split) for split in range(splits)) == 4096


def test_small_models_are_copied_and_few_rows_split_k() -> None:
    memory = 768 * GB
    gpt3 = choose_mapping(DEFAULT, 2048, 350 * GB // 2, memory)
    assert gpt3 == StudiedMapping("columns", groups=2)  # twice 175 GB are less than half
    assert choose_mapping(DEFAULT, 4096, 16 * GB, memory) is TOKENS  # llama3-8b
    assert choose_mapping(DEFAULT, 512, 8 * GB, memory) == StudiedMapping("columns", groups=8)  # of 64 rows each
    assert choose_mapping(DEFAULT, 2048, 500 * GB, memory) == COLUMNS
    assert choose_mapping(DEFAULT, 32, 8 * GB, memory) is DECODE
    assert isinstance(DECODE.product(DEFAULT, 32, 12288, 12288, 2, x_by="rows"), SplitKPlan)
    assert isinstance(DECODE.product(DEFAULT, 512, 12288, 12288, 2, x_by="rows"), ColumnsPlan)


def test_tokens_go_to_their_experts_in_order() -> None:
    routing = routing_of([[1, 0], [2, 1], [0, 2]], 4)
    assert routing.tokens == (0, 2, 0, 1, 1, 2)
    assert routing.jobs == (Job(0, 0, 2), Job(1, 2, 2), Job(2, 4, 2))
    # Token 0's first choice, expert 1, is row 2; token 1's, expert 2, is row 4; token 2's, expert 0, is row 1.
    assert routing.places == ((2, 4, 1), (0, 3, 5))
