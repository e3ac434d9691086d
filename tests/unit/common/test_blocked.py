"""The cycle among kernels that wait for each other."""

from __future__ import annotations

from kernbench.common.blocked import BlockedKernel, RingWait, causes, places, waiting_cycle


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
