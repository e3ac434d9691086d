"""Slots: loops never fragment, and whatever happens the bytes are accounted for."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import AllocationError
from kernbench.policy.address.block_allocator import BlockAllocator
from kernbench.policy.address.free_list import FreeList
from kernbench.policy.address.slot_list import SlotList

SIZES = st.lists(st.integers(1, 40).map(lambda n: 16 * n), min_size=1, max_size=4, unique=True)
Step = tuple[bool, int]  # allocate or free, which


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    """("alloc", size, _) and ("free", _, which of the live ones), of few sizes, in any order."""
    sizes, live, found = draw(SIZES), 0, []
    for allocates, number in draw(st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=80)):
        if allocates or not live:
            found.append(("alloc", sizes[number % len(sizes)], 0))
            live += 1
        else:
            found.append(("free", 0, number % live))
            live -= 1
    return found


def most_live(program: list[tuple[str, int, int]]) -> Counter[int]:
    """How many blocks of each size are live at a time, at most."""
    live: list[int] = []
    most: Counter[int] = Counter()
    for what, size, which in program:
        if what == "alloc":
            live.append(size)
        else:
            live.pop(which)
        most |= Counter(live)
    return most


@given(programs())
def test_the_most_live_blocks_of_every_size_always_suffice(program: list[tuple[str, int, int]]) -> None:
    capacity = sum(size * count for size, count in most_live(program).items())
    ours, live = SlotList(capacity), list[tuple[int, int]]()
    for what, size, which in program:
        if what == "alloc":
            live.append((ours.alloc(size, 16), size))  # never raises
        else:
            ours.free(*live.pop(which))
        assert [ours.has_room(n) for n in (16, 64, 320)] == [ours.largest_free_bytes >= n for n in (16, 64, 320)]


@given(st.integers(1, 20), st.lists(st.tuples(st.booleans(), st.integers(0, 1000)), max_size=80))
def test_blocks_of_one_size_fit_whenever_the_live_bytes_do(count: int, steps: list[Step]) -> None:
    size = 48
    ours, live = SlotList(size * count), list[int]()
    for allocates, number in steps:
        if allocates and len(live) < count:
            live.append(ours.alloc(size, 16))
        elif live:
            ours.free(live.pop(number % len(live)), size)


@st.composite
def loops(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, int]]]:
    """The body of a double-buffered loop: every buffer is filled anew once and its old contents go at some time."""
    sizes = draw(st.lists(st.integers(1, 16).map(lambda n: 16 * n), min_size=1, max_size=4))
    body = [("fill", buffer) for buffer in range(len(sizes))]
    for buffer in range(len(sizes)):
        if draw(st.booleans()):
            body.append(("drop", buffer))
    return sizes, draw(st.permutations(body))


def run_loop(space: BlockAllocator, sizes: list[int], body: list[tuple[str, int]], times: int = 12) -> None:
    now: dict[int, int] = {}
    for _ in range(times):
        following: dict[int, int] = {}
        for what, buffer in body:
            if what == "fill":
                following[buffer] = space.alloc(sizes[buffer], 16)
            elif buffer in now:
                space.free(now.pop(buffer), sizes[buffer])
        for buffer, start in following.items():
            if buffer in now:
                space.free(now.pop(buffer), sizes[buffer])
            now[buffer] = start


@given(loops())
def test_a_double_buffered_loop_needs_twice_its_buffers_and_no_byte_more(
    loop: tuple[list[int], list[tuple[str, int]]],
) -> None:
    sizes, body = loop
    run_loop(SlotList(2 * sum(sizes)), sizes, body)


def test_such_a_loop_that_first_fit_cuts_to_pieces() -> None:
    # Buffers of 256, 128 and 128: twice that is the capacity, and half of it is free when first fit gives up.
    body = [("fill", 0), ("drop", 2), ("fill", 1), ("drop", 0), ("fill", 2)]
    with pytest.raises(AllocationError, match="256 bytes aligned to 16 required, the largest free block has 128 bytes"):
        run_loop(FreeList(1024), [256, 128, 128], body)
    run_loop(SlotList(1024), [256, 128, 128], body)


@given(programs(), st.integers(1, 200))
def test_blocks_never_overlap_and_free_ones_never_touch(program: list[tuple[str, int, int]], slots: int) -> None:
    capacity = 16 * slots
    ours, live = SlotList(capacity, base=4096), list[tuple[int, int]]()
    for what, size, which in program:
        if what == "alloc":
            largest = ours.largest_free_bytes
            try:
                start = ours.alloc(size, 16)
            except AllocationError:
                assert largest < size  # room that is there is found
                live.append((-1, size))
                continue
            assert not start % 16
            live.append((start, size))
        else:
            start, size = live.pop(which)
            if start >= 0:
                ours.free(start, size)
        blocks = sorted((start, size, "live") for start, size in live if start >= 0)
        blocks = sorted(blocks + [(start, size, "free") for start, size in ours.free_blocks])
        at = 4096
        for index, (start, size, kind) in enumerate(blocks):
            assert start == at  # no byte is missing, none is there twice
            assert kind == "live" or index == 0 or blocks[index - 1][2] == "live"
            at += size
        assert at == 4096 + capacity
        assert ours.used_bytes == sum(size for _, size, kind in blocks if kind == "live")


def test_a_size_takes_its_own_lowest_slot_before_new_bytes() -> None:
    ours = SlotList(100)
    a, b, c = ours.alloc(20), ours.alloc(10), ours.alloc(20)
    assert (a, b, c) == (0, 20, 30)
    ours.free(c, 20)
    ours.free(a, 20)
    assert ours.alloc(10) == 50  # not in a slot of 20
    assert [ours.alloc(20), ours.alloc(20)] == [0, 30]


def test_without_new_bytes_the_smallest_place_with_room_is_taken() -> None:
    ours = SlotList(100)
    starts = [ours.alloc(n) for n in (40, 10, 20, 30)]
    ours.free(starts[0], 40)
    ours.free(starts[2], 20)
    assert ours.alloc(15) == starts[2]
    assert ours.alloc(40) == 0
    with pytest.raises(AllocationError, match="the largest free block has 5 bytes"):
        ours.alloc(6)


def test_when_nothing_is_live_it_begins_anew() -> None:
    ours = SlotList(100)
    a, b = ours.alloc(60), ours.alloc(40)
    ours.free(a, 60)
    ours.free(b, 40)
    assert ours.alloc(100) == 0
