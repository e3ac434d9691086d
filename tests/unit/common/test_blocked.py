"""Reports of kernels that wait: entries of those that wait alike, the cycle among those that wait for each other."""

from __future__ import annotations

from kernbench.common.blocked import (
    BlockedKernel,
    RingWait,
    causes,
    places,
    report,
    standing,
    unmatched_calls,
    waiting_cycle,
)


def blocked(pe: int, *peers: int) -> BlockedKernel:
    rings = tuple(RingWait("recv", f"intra_{peer}", (0, 0, peer), 0, 4) for peer in peers)
    return BlockedKernel(0, 0, pe, "kernel", "file.py", 1, "", "a message", rings)


def test_a_cycle_begins_with_the_first_pe_in_it() -> None:
    assert waiting_cycle([blocked(0, 1), blocked(1, 2), blocked(2, 1)]) == ((0, 0, 1), (0, 0, 2))


def test_a_pe_that_waits_for_one_that_runs_is_in_no_cycle() -> None:
    assert waiting_cycle([blocked(0, 1), blocked(1, 7)]) == ()


def test_a_cycle_goes_through_whichever_kernel_of_a_pe_waits() -> None:
    # PE 0 runs two kernels, one per stream: the first waits for PE 1, the second for a PE that is not blocked
    assert waiting_cycle([blocked(0, 1), blocked(0, 5), blocked(1, 0)]) == ((0, 0, 0), (0, 0, 1))


def test_places_are_ranges_of_pes_cubes_and_sips() -> None:
    everywhere = [(sip, cube, pe) for sip in range(2) for cube in range(16) for pe in range(8)]
    assert places(everywhere) == "sip0..sip1.cube0..cube15.pe0..pe7 (256 PEs)"
    assert places([(0, 0, 0), (0, 0, 2), (1, 3, 1)]) == "sip0.cube0.pe0,pe2, sip1.cube3.pe1 (3 PEs)"


def test_of_a_long_cycle_the_ends_are_named() -> None:
    ring = [blocked(pe, (pe + 1) % 12) for pe in range(12)]
    (text,) = causes(ring)
    assert text.startswith("cycle: sip0.cube0.pe0 -> sip0.cube0.pe1 -> ")
    assert " -> ... 4 more ... -> " in text
    assert text.endswith("sip0.cube0.pe11 -> sip0.cube0.pe0")


def test_without_a_cycle_the_cause_is_who_never_sends() -> None:
    assert causes([blocked(0, 1), blocked(1, 7)]) == (
        "cause: sip0.cube0.pe7 never sends what sip0.cube0.pe1 waits for in intra_7: no kernel runs there any more, or "
        "none ever did",
    )


def waiting(pe: int, waits: str, line: int = 7) -> BlockedKernel:
    return BlockedKernel(0, pe // 8, pe % 8, "kernel", "file.py", line, "tl.wait()", waits)


def test_pes_that_wait_for_transfers_of_their_own_addresses_are_one_entry() -> None:
    pes = [waiting(pe, f"a DMA write of 64 bytes at {4096 * pe:#x} (number {pe})") for pe in range(128)]
    assert standing(pes) == [
        "  running: kernel 'kernel' on sip0.cube0..cube15.pe0..pe7 (128 PEs) waits for a DMA write of 64 bytes\n"
        "    at file.py:7  tl.wait()"
    ]


def test_equal_transfers_of_one_pe_are_counted() -> None:
    words = "; ".join(f"a DMA write of 64 bytes at {at:#x} (number {at})" for at in range(3))
    other = words.replace("0x1", "0x5")
    (entry,) = report([waiting(0, words), waiting(1, other)])
    assert "waits for 3 x a DMA write of 64 bytes\n" in entry


def test_a_pe_that_waits_alone_keeps_its_address() -> None:
    (entry,) = report([waiting(3, "a DMA read of 64 bytes at 0x40")])
    assert "on rank 0 (sip 0, cube 0, pe 3) waits for a DMA read of 64 bytes at 0x40" in entry


def test_many_kinds_of_waits_at_one_line_are_four_entries() -> None:
    entries = list(report([waiting(pe, f"a GEMM of {pe} x 1 x 1") for pe in range(64)]))
    assert len(entries) == 4
    assert entries[-1].startswith(
        "kernel 'kernel' on sip0.cube0.pe3..pe7, sip0.cube1..cube7.pe0..pe7 (61 PEs) waits for 61 "
    )
    assert "other things, such as a GEMM of 3 x 1 x 1\n    at file.py:7" in entries[-1]


def test_different_lines_are_different_entries() -> None:
    assert len(list(report([waiting(0, "x", 1), waiting(1, "x", 2)]))) == 2


def test_of_many_calls_without_a_counterpart_the_first_are_listed() -> None:
    assert unmatched_calls(["a", "b"]) == ["a", "b"]
    assert unmatched_calls([str(n) for n in range(20)]) == [*map(str, range(16)), "4 more calls"]
