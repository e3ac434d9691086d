"""First fit, joined blocks and checked frees, against a map of bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import AllocationError
from kernbench.policy.address.block_allocator import BlockAllocator
from kernbench.policy.address.free_list import FreeList
from kernbench.policy.address.slot_list import SlotList

CAPACITY = 64


class ByteMap:
    """The slow and obvious model: one flag a byte."""

    def __init__(self) -> None:
        self.used = [False] * CAPACITY

    def alloc(self, nbytes: int, align: int) -> int | None:
        for start in range(0, CAPACITY - nbytes + 1, align):
            if not any(self.used[start : start + nbytes]):
                self.mark(start, nbytes, True)
                return start
        return None

    def mark(self, start: int, nbytes: int, flag: bool) -> None:
        self.used[start : start + nbytes] = [flag] * nbytes

    def blocks(self) -> tuple[tuple[int, int], ...]:
        found: list[tuple[int, int]] = []
        for at, used in enumerate(self.used):
            if used:
                continue
            if found and sum(found[-1]) == at:
                found[-1] = (found[-1][0], found[-1][1] + 1)
            else:
                found.append((at, 1))
        return tuple(found)


ALLOC = st.tuples(st.just("alloc"), st.integers(1, 24), st.sampled_from([1, 2, 3, 4, 8, 16]))
FREE = st.tuples(st.just("free"), st.integers(0, 100), st.just(0))


@given(st.lists(st.one_of(ALLOC, FREE), max_size=40))
def test_it_does_what_a_map_of_bytes_does(steps: list[tuple[str, int, int]]) -> None:
    ours, model, live = FreeList(CAPACITY), ByteMap(), list[tuple[int, int]]()
    for what, number, align in steps:
        if what == "alloc":
            expected = model.alloc(number, align)
            if expected is None:
                with pytest.raises(AllocationError):
                    ours.alloc(number, align)
            else:
                assert ours.alloc(number, align) == expected
                live.append((expected, number))
        elif live:
            start, nbytes = live.pop(number % len(live))
            ours.free(start, nbytes)
            model.mark(start, nbytes, False)
        assert ours.free_blocks == model.blocks()
        assert ours.used_bytes == sum(model.used) == CAPACITY - ours.free_bytes
        assert ours.largest_free_bytes == max((size for _, size in model.blocks()), default=0)
    for start, nbytes in live:
        ours.free(start, nbytes)
    assert ours.free_blocks == ((0, CAPACITY),)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=8), st.integers(-4, 80), st.integers(-2, 80))
def test_only_a_live_block_with_its_own_size_can_be_freed(sizes: list[int], start: int, nbytes: int) -> None:
    ours, live = FreeList(CAPACITY), dict[int, int]()
    for size in sizes:
        if ours.largest_free_bytes >= size:
            live[ours.alloc(size)] = size
    before = ours.free_blocks
    if live.get(start) == nbytes:
        ours.free(start, nbytes)
        before = ours.free_blocks
    with pytest.raises(AllocationError):
        ours.free(start, nbytes)
    assert ours.free_blocks == before


def test_the_lowest_hole_that_fits_is_taken() -> None:
    ours = FreeList(100)
    a, b, c, d = (ours.alloc(n) for n in (10, 20, 30, 40))
    assert (a, b, c, d) == (0, 10, 30, 60)
    ours.free(b, 20)
    ours.free(d, 40)
    assert ours.free_blocks == ((10, 20), (60, 40))
    assert ours.alloc(20) == 10
    assert ours.alloc(25) == 60


def test_alignment_leaves_the_bytes_before_the_block_free() -> None:
    ours = FreeList(1024)
    ours.alloc(10)
    assert ours.alloc(100, align=256) == 256
    assert ours.free_blocks == ((10, 246), (356, 668))
    assert ours.alloc(246) == 10


def test_alignment_counts_from_zero_and_not_from_the_base() -> None:
    assert FreeList(1000, base=1000).alloc(1, align=256) == 1024


def test_an_overflow_tells_the_size_required_and_the_largest_block() -> None:
    ours = FreeList(100, name="pe0 HBM")
    blocks = [ours.alloc(25) for _ in range(4)]
    ours.free(blocks[0], 25)
    ours.free(blocks[2], 25)
    with pytest.raises(AllocationError) as caught:
        ours.alloc(26)
    assert caught.value.what == "pe0 HBM overflow: 26 bytes required, the largest free block has 25 bytes"
    assert "50 of 100 bytes are free in 2 blocks" in str(caught.value.hint)


def test_a_wrong_free_says_what_is_wrong_with_it() -> None:
    ours = FreeList(100)
    start = ours.alloc(40)
    for bad, what in (
        ((start, 39), "has 40 bytes, not 39"),
        ((start + 8, 32), "no block was allocated at 0x8"),
        ((60, 10), "0x3c is free already"),
        ((200, 10), "no block was allocated at 0xc8"),
    ):
        with pytest.raises(AllocationError, match=what):
            ours.free(*bad)
    ours.free(start, 40)
    with pytest.raises(AllocationError, match="0x0 is free already"):
        ours.free(start, 40)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None, "8"])
def test_sizes_that_are_not_whole_and_positive_are_refused(bad: int) -> None:
    ours = FreeList(100)
    ours.alloc(1)
    for call in (lambda: ours.alloc(bad), lambda: ours.alloc(1, align=bad), lambda: ours.free(0, bad)):
        with pytest.raises(AllocationError):
            call()
    assert ours.used_bytes == 1


@pytest.mark.parametrize("allocator", [FreeList, SlotList])
@pytest.mark.parametrize("bad", [(0.0, 256), (0, 256.0), (False, 256), ([1], 2), (0, [256]), ("0", 256)])
def test_what_only_equals_a_live_block_or_has_no_hash_is_not_freed(
    allocator: type[BlockAllocator], bad: tuple[int, int]
) -> None:
    ours = allocator(1024)
    ours.alloc(256)
    with pytest.raises(AllocationError, match=r"memory: (start|nbytes) is "):
        ours.free(*bad)
    assert (ours.used_bytes, ours.free_blocks) == (256, ((256, 768),))


def test_a_memory_of_no_bytes_is_always_full() -> None:
    with pytest.raises(AllocationError, match="largest free block has 0 bytes"):
        FreeList(0).alloc(1)
