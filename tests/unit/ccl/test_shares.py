"""Which PE sends and receives which elements: every element of every output arrives once, from where it lies."""

from __future__ import annotations

import pytest

from kernbench.ccl.algorithms.direct import sent_before
from kernbench.ccl.algorithms.shares import Moves, Send, by_distance, by_groups, by_shards, shares_of
from kernbench.ccl.work import ShardElements


def shards(total: int, pes: int) -> tuple[ShardElements, ...]:
    """Elements over PEs of two cubes, in order; some PEs have one more."""
    bounds = [total * at // pes for at in range(pes + 1)]
    return tuple(
        (at // 4, at % 4, bounds[at], bounds[at + 1] - bounds[at]) for at in range(pes) if bounds[at + 1] > bounds[at]
    )


def moved(
    collective: str, works: dict[tuple[int, tuple[int, int]], Moves], block: int, n: int
) -> dict[int, list[object]]:
    """The output of each rank, as (rank, element of its input), after all messages; in a reduction, sets of them."""
    sent = {}
    for (rank, pe), work in works.items():
        for send in work.sends:
            for to, place in send.to:
                key = (rank, pe, to, place if place is not None else pe)
                assert key not in sent, "one message from a PE to a PE"
                sent[key] = [(rank, send.first + at) for at in range(send.size)]
    size = block if collective == "reduce_scatter" else n * block
    out: dict[int, list[object]] = {rank: [None] * size for rank in range(n)}
    for (rank, pe), work in works.items():
        for got in work.receives:
            values = sent.pop((got.rank, got.pe if got.pe is not None else pe, rank, pe))
            assert len(values) == got.size
            out[rank][got.first : got.first + got.size] = values
        for own in work.own:
            values = [(rank, own.source + at) for at in range(own.size)]
            if collective == "reduce_scatter":
                from_all = [
                    sent.pop((k, own.pe if own.pe is not None else pe, rank, pe)) for k in range(n) if k != rank
                ]
                values = [frozenset(each) for each in zip(values, *from_all, strict=True)]  # type: ignore[misc]
            out[rank][own.first : own.first + own.size] = values
    assert not sent, "nothing is sent that no PE receives"
    return out


def right(collective: str, rank: int, block: int, n: int) -> list[object]:
    if collective == "all_gather":
        return [(k, at) for k in range(n) for at in range(block)]
    if collective == "all_to_all":
        return [(k, rank * block + at) for k in range(n) for at in range(block)]
    return [frozenset((k, rank * block + at) for k in range(n)) for at in range(block)]


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize(("n", "block", "pes"), [(2, 8, 8), (3, 5, 8), (5, 7, 3), (8, 4, 8), (6, 1, 4)])
def test_shards_go_from_holder_to_holder(collective: str, n: int, block: int, pes: int) -> None:
    large, small = shards(n * block, pes), shards(block, pes)
    placed = (small, large) if collective == "all_gather" else (large, large if collective == "all_to_all" else small)
    works = {
        (rank, pe): work for rank in range(n) for pe, work in by_shards(collective, placed, block, rank, n).items()
    }
    found = moved(collective, works, block, n)
    for rank in range(n):
        assert found[rank] == right(collective, rank, block, n)
    holders = {(cube, pe): (first, size) for cube, pe, first, size in placed[0]}
    for (_, pe), work in works.items():
        for send in work.sends:
            assert holders[pe][0] <= send.first <= send.first + send.size <= sum(holders[pe])


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("n", "block", "channels"), [(2, 300, 8), (3, 5, 8), (5, 700, 3), (8, 129, 1)])
def test_groups_of_pes_divide_blocks(collective: str, n: int, block: int, channels: int) -> None:
    works = {
        (rank, (0, index)): by_groups(collective, block, rank, n, 2, index, channels)
        for rank in range(n)
        for index in range(channels)
    }
    found = moved(collective, works, block, n)
    for rank in range(n):
        assert found[rank] == right(collective, rank, block, n)


@pytest.mark.parametrize(("n", "channels"), [(2, 8), (3, 8), (5, 3), (8, 1)])
def test_blocks_of_different_sizes_are_divided_by_the_distance_of_ranks(n: int, channels: int) -> None:
    sizes = [[(3 * rank + peer) % 4 * 150 for peer in range(n)] for rank in range(n)]
    works = {
        (rank, (0, index)): by_distance(
            tuple(sizes[rank]), tuple(sizes[k][rank] for k in range(n)), rank, 2, index, channels
        )
        for rank in range(n)
        for index in range(channels)
    }
    for rank in range(n):
        sent = {
            (to, send.size) for index in range(channels) for send in works[rank, (0, index)].sends for to, _ in send.to
        }
        assert {to for to, _ in sent} == set(range(n)) - {rank}
        for k in range(n):
            if k != rank:
                given = [s.size for i in range(channels) for s in works[rank, (0, i)].sends if s.to == ((k, None),)]
                taken = [r.size for i in range(channels) for r in works[k, (0, i)].receives if r.rank == rank]
                assert given == taken
                assert sum(given) == sizes[rank][k]


def test_every_block_has_a_group_and_with_as_many_pes_as_ranks_each_pe_has_one() -> None:
    assert [list(shares_of(index, 4, 4)) for index in range(4)] == [[0], [1], [2], [3]]
    assert [list(shares_of(index, 2, 5)) for index in range(2)] == [[0, 1, 2], [3, 4]]
    assert shares_of(3, 8, 2) == {0: (3, 4)}


def test_a_pe_of_an_all_to_all_waits_for_the_first_chunks_of_the_ranks_that_are_nearer() -> None:
    # 8 ranks; 4 PEs hold the 2048 elements for each rank, 512 each: two chunks of 256, so all of them are in flight.
    # Rank 1 begins with rank 2, 1 away, at once; rank 0 is 7 away: it waits for the 6 blocks before it.
    to = {k: Moves((Send(0, 512, ((k, (0, 0)),)),)) for k in range(8)}
    assert [sent_before(to[k], 2048, 1, 8, 256) for k in (2, 3, 0)] == [0, 2048, 6 * 2048]
    longer = Moves((Send(0, 2048, ((0, (0, 0)),)),))  # of 2048 elements a PE has a quarter in flight
    assert sent_before(longer, 8192, 1, 8, 256) == 6 * 2048
    assert sent_before(Moves(), 2048, 1, 8, 256) == 0
