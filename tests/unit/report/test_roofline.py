"""The roofline of a launch: bounds, shares and rates, worked out by hand."""

from __future__ import annotations

import pytest

from kernbench.report.roofline import Peak, Roofline, peak_of
from kernbench.topology import load_topology

SPEC = load_topology().spec


def test_peaks_come_from_the_machine() -> None:
    # 4096 f16 MACs a ns are 8192 flops a ns; a slice gives 256 bytes a ns.
    assert peak_of(SPEC, 1) == Peak(8192.0, 256.0)
    assert peak_of(SPEC, 8) == Peak(8 * 8192.0, 8 * 256.0)


def test_a_port_slower_than_half_a_slice_is_the_peak() -> None:
    slow = load_topology(None, {"cube.links.pe_dma_to_router_bw_gbs": 64}).spec
    assert peak_of(slow, 4).gbs == 4 * 2 * 64.0


def test_a_launch_under_the_memory_roof() -> None:
    peak = Peak(gflops=8192.0, gbs=256.0)
    roofline = Roofline(exec_ns=400.0, flops=16 * 51200, nbytes=51200, compute_ns=100.0, memory_ns=200.0, peak=peak)
    assert (roofline.bound, roofline.bound_ns, roofline.share) == ("memory", 200.0, 0.5)
    assert (roofline.intensity, roofline.ridge) == (16.0, 32.0)
    assert (roofline.gflops, roofline.gbs) == (16 * 128.0, 128.0)
    data = roofline.as_json()
    assert (data["share_of_peak_gflops"], data["share_of_peak_gbs"]) == (0.25, 0.5)


def test_the_larger_time_is_the_bound() -> None:
    def bound(compute_ns: float, memory_ns: float) -> str:
        return Roofline(100.0, 1, 1, compute_ns, memory_ns, Peak(1.0, 1.0)).bound

    assert [bound(3, 2), bound(2, 3), bound(2, 2), bound(0, 0)] == ["compute", "memory", "compute", "neither"]


@pytest.mark.parametrize("exec_ns", [0.0, 10.0])
def test_a_kernel_that_did_nothing_has_no_rates(exec_ns: float) -> None:
    roofline = Roofline(exec_ns, 0, 0, 0.0, 0.0, Peak(8192.0, 256.0))
    assert (roofline.share, roofline.gflops, roofline.gbs, roofline.intensity) == (0.0, 0.0, 0.0, 0.0)
