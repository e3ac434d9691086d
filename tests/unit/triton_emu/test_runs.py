"""Runs, groups and requests of lanes, against a search byte by byte."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import dtype_of
from kernbench.triton_emu.block_access import of_offsets, placed
from kernbench.triton_emu.runs import covered_runs, lane_runs, strided_groups

lanes = st.lists(st.tuples(st.integers(0, 60), st.booleans()), max_size=30)


def bytes_of(starts, lengths) -> list[int]:
    return [byte for start, n in zip(starts, lengths, strict=True) for byte in range(start, start + n)]


@given(lanes, st.sampled_from([1, 2, 4]))
def test_lane_runs_are_the_live_lanes_in_their_order_and_as_long_as_can_be(items, size):
    offsets, mask = np.array([o for o, _ in items], np.int64), np.array([live for _, live in items], bool)
    starts, lengths, at = lane_runs(offsets, size, mask)
    wanted = [(o + i, lane * size + i) for lane, (o, live) in enumerate(items) if live for i in range(size)]
    assert list(zip(bytes_of(starts, lengths), bytes_of(at, lengths), strict=True)) == wanted
    for i in range(1, len(starts)):
        follows = starts[i] == starts[i - 1] + lengths[i - 1] and at[i] == at[i - 1] + lengths[i - 1]
        assert not follows


@given(lanes, st.sampled_from([1, 2, 4]))
def test_covered_runs_are_each_byte_once_in_ascending_maximal_runs(items, size):
    offsets = np.array([o for o, _ in items], np.int64)
    starts, lengths = covered_runs(offsets, np.full(len(items), size))
    found = bytes_of(starts, lengths)
    assert found == sorted({byte for o, _ in items for byte in range(o, o + size)})
    assert all(b > a + n for a, n, b in zip(starts, lengths, starts[1:], strict=False))


def greedy_groups(starts, lengths):
    """The definition, one run after the other."""
    found, first = [], 0
    while first < len(starts):
        end = first + 1
        while end < len(starts) and lengths[end] == lengths[first]:
            step = starts[first + 1] - starts[first]
            if step < lengths[first] or starts[end] - starts[end - 1] != step:
                break
            end += 1
        found.append((first, end))
        first = end
    return found


@given(st.lists(st.tuples(st.integers(0, 24), st.integers(1, 3)), max_size=24))
def test_groups_are_runs_of_one_length_at_one_distance(runs):
    starts, lengths = (np.array(column, np.int64) for column in (list(zip(*runs, strict=True)) or [(), ()]))
    assert strided_groups(lengths, starts) == greedy_groups(starts.tolist(), lengths.tolist())


@given(lanes, st.integers(1, 40))
def test_the_patches_of_a_block_bring_every_live_lane_from_its_place(items, page):
    """Pages of `page` bytes lie anywhere in physical memory, so that runs are cut where pages are."""
    offsets = np.array([2 * o for o, _ in items], np.int64)
    mask = np.array([live for _, live in items], bool)

    def translate(address: int, nbytes: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for byte in range(address, address + nbytes):
            pa = 1000 * (7 - byte // page) + byte % page
            if found and sum(found[-1]) == pa:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((pa, 1))
        return found

    block = placed(of_offsets(offsets, dtype_of("i16"), mask), 0, translate)
    brought = {lane + i: pa + i for pa, n, lane in block.pieces for i in range(n)}
    wanted = {
        2 * lane + i: translate(2 * o + i, 1)[0][0] for lane, (o, live) in enumerate(items) if live for i in (0, 1)
    }
    assert brought == wanted
    touched = [pa + i for request in block.requests for pa, n in request for i in range(n)]
    assert sorted(touched) == sorted(set(wanted.values()))
    assert touched == [pa + i for pa, n in block.segments for i in range(n)]
