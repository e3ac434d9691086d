"""The segment table of a PE: lookups, faults, and the physical requests of the worked examples."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.baaw import BaawSegment, BaawSegmentInstallMsg
from kernbench.common.errors import AddressError, KernBenchError
from kernbench.common.ids import PeId
from kernbench.policy.address.baaw import BaawTable, PhysicalRequest
from kernbench.policy.address.la_allocator import LA_BASE, LA_BYTES, LogicalAllocator
from kernbench.policy.address.phyaddr import PhysAddr

PA = PhysAddr.pe_hbm_addr(0, 0, 0, 0, 6 << 30).encode()
AGG = "sip0.cube0.hbm_ctrl.pe0"


def one_to_one(la: int, size: int, channels: int = 8) -> BaawSegment:
    ids = tuple(range(channels))
    nodes = tuple(PeId(0, 0, 0).channel_router(channel) for channel in ids)
    return BaawSegment(la, size, PA, AGG, "one_to_one", ids, tuple(PA + 256 * channel for channel in ids), nodes)


def table_of(*segments: BaawSegment, channels: int = 8) -> BaawTable:
    table = BaawTable(channels, 256)
    for segment in segments:
        table.install((segment,))
    return table


def test_logical_addresses_begin_at_4_gib_and_a_pe_has_64_gib_of_them() -> None:
    assert (LA_BASE, LA_BYTES) == (0x1_0000_0000, 64 << 30)
    space = LogicalAllocator()
    first, second = space.alloc(100), space.alloc(4096)
    assert (first, second) == (LA_BASE, LA_BASE + 256)
    space.free(first, 100)
    assert space.alloc(256) == LA_BASE
    with pytest.raises(KernBenchError, match="logical address space"):
        space.alloc(LA_BYTES)


def test_4_kib_become_8_requests_to_the_routers_of_8_channels() -> None:
    segment = one_to_one(LA_BASE, 4096)
    assert (segment.channel_count, segment.channel_size) == (8, 512)
    requests = table_of(segment).resolve(LA_BASE, 4096)
    assert requests == [PhysicalRequest(PA + 256 * ch, 512, f"sip0.cube0.pe0.ch_r{ch}") for ch in range(8)]


@pytest.mark.parametrize(("channels", "nbytes"), [(4, 1024), (16, 256)])
def test_other_numbers_of_channels_give_as_many_requests(channels: int, nbytes: int) -> None:
    requests = table_of(one_to_one(LA_BASE, 4096, channels), channels=channels).resolve(LA_BASE, 4096)
    assert [request.nbytes for request in requests] == [nbytes] * channels


def test_n_to_one_is_one_request_to_the_memory() -> None:
    table = table_of(BaawSegment(LA_BASE, 4096, PA, AGG))
    assert table.resolve(LA_BASE, 4096) == [PhysicalRequest(PA, 4096, AGG)]
    assert table.resolve(LA_BASE + 1000, 96) == [PhysicalRequest(PA + 1000, 96, AGG)]


def test_a_part_of_a_segment_uses_the_channels_of_its_own_bursts() -> None:
    requests = table_of(one_to_one(LA_BASE, 4096)).resolve(LA_BASE + 7 * 256, 512)
    assert requests == [
        PhysicalRequest(PA + 7 * 256, 256, "sip0.cube0.pe0.ch_r7"),
        PhysicalRequest(PA + 8 * 256, 256, "sip0.cube0.pe0.ch_r0"),
    ]


def test_a_translation_is_the_same_in_both_modes() -> None:
    for segment in (BaawSegment(LA_BASE, 4096, PA, AGG), one_to_one(LA_BASE, 4096)):
        assert table_of(segment).translate(LA_BASE + 300, 500) == [(PA + 300, 500)]


def test_two_tables_resolve_one_address_to_two_places() -> None:
    elsewhere = PA + (1 << 30)
    first, second = (table_of(BaawSegment(LA_BASE, 64, pa, AGG)) for pa in (PA, elsewhere))
    assert (first.translate(LA_BASE, 64), second.translate(LA_BASE, 64)) == ([(PA, 64)], [(elsewhere, 64)])


def test_an_address_in_no_segment_is_a_fault() -> None:
    table = table_of(BaawSegment(LA_BASE, 64, PA, AGG), BaawSegment(LA_BASE + 512, 64, PA + 512, AGG))
    for la in (LA_BASE - 1, LA_BASE + 64, LA_BASE + 511, LA_BASE + 576):
        with pytest.raises(AddressError, match=f"{la:#x} is in no segment"):
            table.translate(la, 1)


def test_an_access_across_the_end_of_a_segment_is_a_fault_even_where_another_follows() -> None:
    table = BaawTable(8, 256)
    table.install((BaawSegment(LA_BASE, 256, PA, AGG), BaawSegment(LA_BASE + 256, 256, PA + 4096, AGG)))
    assert table.translate(LA_BASE, 256) == [(PA, 256)]
    assert table.translate(LA_BASE + 256, 256) == [(PA + 4096, 256)]
    with pytest.raises(AddressError, match="cross the end of their segment at 0x100000100"):
        table.translate(LA_BASE + 255, 2)


@pytest.mark.parametrize(("la", "size"), [(0, 512), (128, 10), (0, 129), (255, 300), (64, 512)])
def test_an_overlapping_installation_is_a_fault_and_changes_nothing(la: int, size: int) -> None:
    table = table_of(BaawSegment(LA_BASE + 128, 128, PA, AGG))
    with pytest.raises(AddressError, match="overlap a segment"):
        table.install((BaawSegment(LA_BASE + la, size, PA, AGG),))
    assert len(table.segments) == 1


def test_a_removed_segment_is_a_fault_and_its_addresses_can_be_installed_again() -> None:
    table = table_of(BaawSegment(LA_BASE, 256, PA, AGG), BaawSegment(LA_BASE + 256, 256, PA, AGG))
    table.remove(LA_BASE, 256)
    with pytest.raises(AddressError, match="in no segment"):
        table.translate(LA_BASE, 1)
    assert table.translate(LA_BASE + 256, 1) == [(PA, 1)]
    table.install((BaawSegment(LA_BASE, 256, PA + 512, AGG),))
    assert table.translate(LA_BASE, 1) == [(PA + 512, 1)]


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 30)), min_size=1, max_size=30), st.integers(0, 2000))
def test_bisection_finds_what_a_search_through_all_segments_finds(sizes: list[tuple[int, int]], at: int) -> None:
    table, segments, la = BaawTable(8, 256), [], 0
    for size, gap in sizes:
        segments.append(BaawSegment(la, size, PA + 2 * la, AGG))
        table.install(segments[-1:])
        la += size + gap
    expected = [segment for segment in segments if segment.la_base <= at < segment.la_end]
    if expected:
        assert table.find(at, 1) is expected[0]
    else:
        with pytest.raises(AddressError):
            table.find(at, 1)


def test_a_message_is_a_run_where_segments_follow_one_another_and_are_for_all() -> None:
    a, b = BaawSegment(LA_BASE, 64, PA, AGG), BaawSegment(LA_BASE + 64, 64, PA, AGG)
    assert BaawSegmentInstallMsg(sip=0, segments=(a, b)).is_run
    assert not BaawSegmentInstallMsg(sip=0, segments=(b, a)).is_run
    assert not BaawSegmentInstallMsg(sip=0, segments=(BaawSegment(LA_BASE, 64, PA, AGG, pe=1),)).is_run


@pytest.mark.parametrize(
    ("segment", "what"),
    [
        (lambda: BaawSegment(LA_BASE, 0, PA, AGG), "la_size is 0"),
        (lambda: BaawSegment(LA_BASE, 64, PA, AGG, "two_to_one"), "mode is 'two_to_one'"),  # type: ignore[arg-type]  # refused
        (lambda: BaawSegment(LA_BASE, 64, PA, AGG, "one_to_one"), "0 channels with mode one_to_one"),
        (lambda: BaawSegmentInstallMsg(sip=0, segments=()), "has no segments"),
    ],
)
def test_a_segment_that_makes_no_sense_is_refused(segment: object, what: str) -> None:
    with pytest.raises(KernBenchError, match=what):
        segment()  # type: ignore[operator]  # a maker of segments
