"""The cycle among kernels that wait for each other."""

from __future__ import annotations

from kernbench.common.blocked import BlockedKernel, RingWait, waiting_cycle


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
