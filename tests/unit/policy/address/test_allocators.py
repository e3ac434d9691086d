"""Allocators of a PE, a cube and the virtual space."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.errors import AddressError, AllocationError
from kernbench.common.units import GIB, KIB, MIB
from kernbench.policy.address.allocator import (
    AddressConfig,
    CubeSramAllocator,
    PEMemAllocator,
    TcmLease,
    TcmRingAllocator,
)
from kernbench.policy.address.phyaddr import McpuSubUnit, PeSubUnit, PhysAddr
from kernbench.policy.address.va_allocator import VirtualAllocator

CFG = AddressConfig(
    n_sips=2,
    n_cubes=16,
    n_io_chiplets=1,
    n_pes=8,
    hbm_slice_bytes=6 * GIB,
    sram_bytes_per_cube=32 * MIB,
    tcm_bytes_per_pe=2 * MIB,
    tcm_scheduler_reserved_bytes=1 * MIB,
)


def test_hbm_comes_from_the_slice_of_its_pe() -> None:
    pe = PEMemAllocator(1, 4, 3, CFG)
    first, second = pe.alloc_hbm(1000), pe.alloc_hbm(1000, align=256)
    assert first == PhysAddr.hbm_addr(1, 4, 18 * GIB)
    assert second == PhysAddr.hbm_addr(1, 4, 18 * GIB + 1024)
    pe.free_hbm(first, 1000)
    assert pe.alloc_hbm(500) == first


def test_the_slice_can_be_filled_and_no_more() -> None:
    pe = PEMemAllocator(0, 0, 7, CFG)
    assert pe.alloc_hbm(6 * GIB).hbm_offset == 42 * GIB
    with pytest.raises(AllocationError, match=r"sip0\.cube0\.pe7 HBM overflow: 1 bytes required"):
        pe.alloc_hbm(1)


def test_tcm_of_the_scheduler_is_not_handed_out() -> None:
    pe = PEMemAllocator(0, 2, 1, CFG)
    assert pe.alloc_tcm(1 * MIB) == PhysAddr.pe_tcm_addr(0, 2, 1, 0)
    with pytest.raises(AllocationError, match="TCM overflow"):
        pe.alloc_tcm(1)


def test_tcm_goes_back_where_it_came_from() -> None:
    pe = PEMemAllocator(0, 2, 1, CFG)
    kept, given_back = pe.alloc_tcm(100), pe.alloc_tcm(100)
    pe.free_tcm(given_back, 100)
    assert (kept.sub_offset, pe.tcm.used_bytes) == (0, 100)
    with pytest.raises(AllocationError, match="free already"):
        pe.free_tcm(given_back, 100)


def test_memory_of_another_owner_is_refused() -> None:
    pe, sram = PEMemAllocator(0, 0, 1, CFG), CubeSramAllocator(0, 0, CFG)
    pe.alloc_hbm(64), pe.alloc_tcm(64), sram.alloc(64)
    neighbour = PEMemAllocator(0, 0, 2, CFG)
    other_cube = PEMemAllocator(0, 1, 1, CFG)
    for addr in (neighbour.alloc_hbm(64), other_cube.alloc_hbm(64), pe.alloc_tcm(64), sram.alloc(64)):
        with pytest.raises(AllocationError, match="is not in it"):
            pe.free_hbm(addr, 64)
    ipcq = PhysAddr.pe_resource_addr(0, 0, 1, PeSubUnit.IPCQ, 0)
    for addr in (neighbour.alloc_tcm(64), other_cube.alloc_tcm(64), ipcq, pe.alloc_hbm(64)):
        with pytest.raises(AllocationError, match="is not in it"):
            pe.free_tcm(addr, 64)
    mcpu = PhysAddr.mcpu_resource_addr(0, 0, McpuSubUnit.MCPU_SRAM, 0)
    for addr in (CubeSramAllocator(0, 1, CFG).alloc(64), mcpu, pe.alloc_tcm(64)):
        with pytest.raises(AllocationError, match="is not in it"):
            sram.free(addr, 64)


def test_rings_are_placed_in_the_part_of_a_tcm_that_is_kept_for_them() -> None:
    rings = TcmRingAllocator(0, 2, 1, TcmLease(1000, 5000))
    ring = rings.alloc(4096, align=16)
    assert ring == PhysAddr.pe_tcm_addr(0, 2, 1, 1904)
    with pytest.raises(AllocationError, match=r"sip0\.cube2\.pe1 TCM for rings overflow: 4096 bytes required"):
        rings.alloc(4096)
    for addr in (PhysAddr.pe_tcm_addr(0, 2, 0, 1904), PhysAddr.cube_sram_addr(0, 2, 1904)):
        with pytest.raises(AllocationError, match="is not in it"):
            rings.free(addr, 4096)
    rings.free(ring, 4096)
    assert rings.tcm.used_bytes == 0


def test_short_rings_leave_long_ones_their_room() -> None:
    """Three rings of 64 KiB lie at the end of 256 KiB. Three of 16 KiB fit the first quarter, less 4 KiB for credits; a
    fourth one takes the room of a long one only where it may go anywhere.
    """
    rings = TcmRingAllocator(0, 0, 0, TcmLease(0, 256 * KIB))
    long = [rings.alloc(64 * KIB, 256) for _ in range(3)]
    assert long == [PhysAddr.pe_tcm_addr(0, 0, 0, at * KIB) for at in (192, 128, 64)]
    rings.free(long[2], 64 * KIB)
    short = [rings.alloc(16 * KIB, 256, anywhere=False) for _ in range(3)]
    assert short == [PhysAddr.pe_tcm_addr(0, 0, 0, at * KIB) for at in (0, 16, 32)]
    with pytest.raises(AllocationError, match="TCM for rings overflow: 16384 bytes"):
        rings.alloc(16 * KIB, 256, anywhere=False)
    assert rings.alloc(64 * KIB, 256) == long[2]
    rings.free(long[2], 64 * KIB)
    assert rings.alloc(16 * KIB, 256) == PhysAddr.pe_tcm_addr(0, 0, 0, 48 * KIB)


def test_a_ring_of_half_the_room_leaves_the_start_to_words_of_credits() -> None:
    """A word that lay after it would part the room for good."""
    rings = TcmRingAllocator(0, 0, 0, TcmLease(0, 256 * KIB))
    ring = rings.alloc(128 * KIB, 256)
    word = rings.alloc(16, 16)
    rings.free(ring, 128 * KIB)
    assert (ring, word) == (PhysAddr.pe_tcm_addr(0, 0, 0, 128 * KIB), PhysAddr.pe_tcm_addr(0, 0, 0, 0))
    assert rings.alloc(128 * KIB, 256) == ring


def test_sram_is_shared_by_the_cube() -> None:
    sram = CubeSramAllocator(0, 5, CFG)
    first = sram.alloc(20 * MIB)
    assert first == PhysAddr.cube_sram_addr(0, 5, 0)
    with pytest.raises(AllocationError, match=r"sip0\.cube5 SRAM overflow"):
        sram.alloc(20 * MIB)
    sram.free(first, 20 * MIB)
    assert sram.alloc(20 * MIB, align=4096) == first


def test_an_allocator_for_a_place_the_machine_does_not_have_is_refused() -> None:
    for make in (
        lambda: PEMemAllocator(2, 0, 0, CFG),
        lambda: PEMemAllocator(0, 0, 8, CFG),
        lambda: CubeSramAllocator(0, 0, replace(CFG, n_cubes=0)),
        lambda: CubeSramAllocator(2, 0, CFG),
    ):
        with pytest.raises(AddressError):
            make()


@pytest.mark.parametrize(
    "change",
    [
        {"n_sips": 17},
        {"n_cubes": 17},
        {"n_pes": 17},
        {"n_io_chiplets": 6},
        {"hbm_slice_bytes": 17 * GIB},
        {"sram_bytes_per_cube": 33 * MIB},
        {"tcm_bytes_per_pe": 3 * MIB},
        {"tcm_scheduler_reserved_bytes": 3 * MIB},
    ],
)
def test_sizes_that_the_address_map_cannot_hold_are_refused(change: dict[str, int]) -> None:
    with pytest.raises(AddressError, match=f"{next(iter(change))} is "):
        replace(CFG, **change)


@pytest.mark.parametrize(
    ("addr", "fits"),
    [
        (PhysAddr.hbm_addr(0, 0, 0), 6 * GIB),
        (PhysAddr.hbm_addr(1, 15, 6 * GIB - 256), 256),  # the next byte belongs to the next slice
        (PhysAddr.hbm_addr(0, 0, 48 * GIB - 1), 1),
        (PhysAddr.pe_tcm_addr(0, 0, 7, 1 * MIB), 1 * MIB),
        (PhysAddr.cube_sram_addr(0, 0, 16), 32 * MIB - 16),
        (PhysAddr.pe_resource_addr(0, 0, 0, PeSubUnit.IPCQ, 0), 256 * KIB),
        (PhysAddr.mcpu_resource_addr(0, 0, McpuSubUnit.MCPU_SRAM, 0), 10 * MIB),
        (PhysAddr.iocpu_resource_addr(0, 16, 5, 0), 64 * MIB),
    ],
)
def test_an_access_may_reach_the_end_of_its_memory_and_not_beyond(addr: PhysAddr, fits: int) -> None:
    CFG.check(addr, fits)
    with pytest.raises(AddressError, match="run past the end") as caught:
        CFG.check(addr, fits + 1)
    assert f"at most {fits} bytes fit there" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("addr", "what"),
    [
        (PhysAddr.hbm_addr(2, 0, 0), "names SIP 2"),
        (PhysAddr.hbm_addr(0, 0, 48 * GIB), "names HBM slice 8"),
        (PhysAddr.pe_tcm_addr(0, 0, 8, 0), "names PE 8"),
        (PhysAddr.iocpu_resource_addr(0, 17, 0, 0), "names IO chiplet 1"),
        (PhysAddr.ual_addr(0, 16, 2 * GIB), "UAL"),
    ],
)
def test_an_access_to_what_the_machine_lacks_is_refused(addr: PhysAddr, what: str) -> None:
    with pytest.raises(AddressError, match=what):
        CFG.check(addr, 1)


def test_a_cube_the_machine_lacks_is_refused() -> None:
    with pytest.raises(AddressError, match="names cube 4"):
        replace(CFG, n_cubes=4).check(PhysAddr.hbm_addr(0, 4, 0), 1)


@pytest.mark.parametrize("bad", [0, -1, True, 2.0])
def test_an_access_has_a_whole_positive_size(bad: int) -> None:
    with pytest.raises(AddressError, match="an access of"):
        CFG.check(PhysAddr.hbm_addr(0, 0, 0), bad)


def test_virtual_blocks_are_whole_pages() -> None:
    space = VirtualAllocator(0x1_0000_0000, 64 * KIB, page_size=4096)
    first, second = space.alloc(1), space.alloc(4097)
    assert (first, second, space.alloc(4096)) == (0x1_0000_0000, 0x1_0000_1000, 0x1_0000_3000)
    assert space.used_bytes == 4 * 4096
    space.free(second, 4097)
    assert space.alloc(8192) == second


@given(st.lists(st.integers(1, 20_000), max_size=12), st.sampled_from([256, 4096]))
def test_virtual_blocks_are_aligned_apart_and_all_come_back(sizes: list[int], page: int) -> None:
    space = VirtualAllocator(1 << 32, 64 * MIB, page)
    blocks = sorted((space.alloc(size), size) for size in sizes)
    assert all(va % page == 0 for va, _ in blocks)
    assert all(va + size <= after for (va, size), (after, _) in pairwise(blocks))
    for va, size in blocks:
        space.free(va, size)
        with pytest.raises(AllocationError):
            space.free(va, size)
    assert space.free_blocks == ((1 << 32, 64 * MIB),)
    assert space.free_bytes == 64 * MIB


def test_virtual_space_that_is_not_whole_pages_is_refused() -> None:
    for args in ((100, 4096, 4096), (0, 5000, 4096), (0, 4096, 3000), (0, 4096, 0)):
        with pytest.raises(AllocationError):
            VirtualAllocator(*args)


def test_virtual_space_runs_out_with_the_size_required() -> None:
    space = VirtualAllocator(0, 8192, 4096)
    with pytest.raises(AllocationError, match="12288 bytes required, the largest free block has 8192 bytes"):
        space.alloc(8193)
