"""How work is cut, and how PEs stand in rings and trees: pure functions."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from types import SimpleNamespace

import pytest

from kernbench.ccl.algorithms.parts import CollectiveChannel, parts_of
from kernbench.ccl.algorithms.rings import mesh_cycle
from kernbench.ccl.algorithms.trees import Neighbours, binomial, chain, cube_mesh


@pytest.mark.parametrize(("n", "parts"), [(0, 3), (1, 3), (128, 3), (1000, 3), (5000, 7), (4096, 8)])
def test_parts_follow_one_another_and_begin_at_bursts(n: int, parts: int) -> None:
    found = parts_of(n, parts, itemsize=2)
    assert [first for first, _ in found] == [sum(count for _, count in found[:at]) for at in range(parts)]
    assert sum(count for _, count in found) == n
    assert all(first % 128 == 0 for first, count in found if count)  # 256 bytes


@pytest.mark.parametrize(
    ("live", "expected"),
    [
        (12, 8192),  # 98,304 / 12: two slots
        (15, 6400),  # 6,553: a second slot that is more than half full is worth its message; in whole bursts of 256
        (20, 4096),  # 4,915: one slot, since a second would be sent for 819 bytes
        (30, 3072),  # 3,276: less than a slot, in whole bursts of 256
        (400, 245),  # less than a burst
    ],
)
def test_a_chunk_sends_no_slot_with_little_in_it(live: int, expected: int) -> None:
    x = SimpleNamespace(dtype="i8", itemsize=1)
    channel = CollectiveChannel(None, x, chunk_bytes=16384, work_bytes=98304, live=live, slot_size=4096)  # type: ignore[arg-type]  # it moves nothing
    assert channel.chunk == expected


def test_a_chunk_of_a_sparse_direction_is_as_large_as_its_room() -> None:
    x = SimpleNamespace(dtype="i8", itemsize=1)
    channel = CollectiveChannel(None, x, chunk_bytes=16384, work_bytes=98304, live=20, slot_size=4096, is_sparse=True)  # type: ignore[arg-type]  # it moves nothing
    assert channel.chunk == 4864  # 4,915, in whole bursts of 256: a slot and a bit


@pytest.mark.parametrize(("w", "h"), [(1, 1), (4, 1), (1, 4), (2, 2), (4, 4), (3, 2), (2, 3), (3, 3), (5, 4)])
def test_a_cycle_visits_every_cube_and_neighbours_follow_each_other_where_the_mesh_allows_it(w: int, h: int) -> None:
    order = mesh_cycle(w, h)
    assert sorted(order) == list(range(w * h))
    far = [abs(a % w - b % w) + abs(a // w - b // w) for a, b in pairwise([*order, order[0]])]
    if w > 1 and h > 1 and w * h % 2 == 0:
        assert far == [1] * len(order)
    assert far.count(1) >= len(order) - 2 or w * h == 1


@pytest.mark.parametrize("shape", [binomial, chain])
@pytest.mark.parametrize("n", [1, 2, 3, 6, 8, 13])
def test_trees_of_ranks_reach_everybody_once_and_both_ends_know_of_each_other(
    shape: Callable[..., Neighbours], n: int
) -> None:
    for root in range(n):
        trees = [shape(rank, n, root, str) for rank in range(n)]
        assert [rank for rank in range(n) if trees[rank].parent is None] == [root]
        edges = sorted((rank, int(child)) for rank in range(n) for child in trees[rank].children)
        assert edges == sorted((int(tree.parent), rank) for rank, tree in enumerate(trees) if tree.parent is not None)


def test_cubes_reduce_along_rows_and_then_along_the_column_of_the_root_from_both_sides() -> None:
    # a mesh of 4 x 4 has its root at column 2, row 2
    assert cube_mesh(2, 2, 4, 4, "center") == Neighbours(None, ("W", "E", "N", "S"))
    assert cube_mesh(0, 1, 4, 4, "center") == Neighbours("E", ())
    assert cube_mesh(1, 1, 4, 4, "center") == Neighbours("E", ("W",))
    assert cube_mesh(3, 0, 4, 4, "center") == Neighbours("W", ())
    assert cube_mesh(2, 0, 4, 4, "center") == Neighbours("S", ("W", "E"))
    assert cube_mesh(2, 3, 4, 4, "center") == Neighbours("N", ("W", "E"))
    assert cube_mesh(3, 3, 4, 4, "corner") == Neighbours(None, ("W", "N"))
    assert cube_mesh(0, 0, 1, 1, "center") == Neighbours(None, ())
