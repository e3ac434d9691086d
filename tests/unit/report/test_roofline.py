"""The roofline of a launch: bounds, shares and rates, worked out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import kernbench
from kernbench.report.roofline import LinkLoad, Peak, Roofline, limit_of, peak_of, roofline_of
from kernbench.runtime_api.context import RuntimeContext
from kernbench.topology import load_topology

SPEC = load_topology().spec


def test_peaks_come_from_the_machine() -> None:
    # 4096 f16 MACs a ns are 8192 flops a ns; a slice gives 256 bytes a ns.
    assert peak_of(SPEC, 1) == Peak(8192.0, 256.0)
    assert peak_of(SPEC, 8) == Peak(8 * 8192.0, 8 * 256.0)


def test_the_peak_of_a_memory_is_what_the_ports_of_the_pes_reach() -> None:
    """A slice of 512 GB/s behind a port of 256 each way: 256 for reads only, 512 for as many writes."""
    twice = load_topology(None, {"cube.memory_map.hbm_channel_bw_gbs": 64.0}).spec
    assert peak_of(twice, 8).gbs == 8 * 256.0
    assert peak_of(twice, 8, read_share=0.5).gbs == 8 * 512.0
    assert peak_of(twice, 8, read_share=0.25).gbs == 8 * 256.0 / 0.75


def test_a_port_slower_than_half_a_slice_is_the_peak() -> None:
    slow = load_topology(None, {"cube.links.pe_dma_to_router_bw_gbs": 64}).spec
    assert peak_of(slow, 4, read_share=0.5).gbs == 4 * 2 * 64.0
    assert peak_of(slow, 4).gbs == 4 * 64.0


def test_a_launch_under_the_memory_roof() -> None:
    peak = Peak(gflops=8192.0, gbs=256.0)
    roofline = Roofline(exec_ns=400.0, flops=16 * 51200, nbytes=51200, compute_ns=100.0, memory_ns=200.0, peak=peak)
    assert (roofline.bound, roofline.bound_ns, roofline.share) == ("memory", 200.0, 0.5)
    assert [limit_of("memory", share) for share in (0.5, 0.49)] == [roofline.limited_by, "latency"]
    assert limit_of("neither", 0.0) == "neither"
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


# ---- links


def swap(n, other, tl):
    """Send n numbers of two bytes to the other one, and receive as many."""
    sent = tl.send_async(other(tl), tl.zeros((n,), "f16"))
    tl.recv(other(tl), (n,), "f16")
    tl.wait(sent)


def hand_over(n, tl):
    """PE 0 sends n numbers of two bytes to PE 1."""
    if tl.program_id(0) == 0:
        tl.send("intra_1", tl.zeros((n,), "f16"))
    else:
        tl.recv("intra_0", (n,), "f16")


def rooflines_of(script: Callable[[RuntimeContext], None], **sizes: int) -> list[Roofline]:
    """The rooflines of a script's launches, on a machine of so many SIPs and cubes in a row."""
    machine = {"system.sips.count": sizes.get("sips", 1), "sip.cube_mesh.w": sizes.get("cubes", 1)}
    result = kernbench.run(script, None, {**machine, "sip.cube_mesh.h": 1}, device="whole")
    return [roofline_of(launch, result.engine.graph) for launch in result.launches]


def test_messages_between_cubes_are_bound_by_a_ucie_connection() -> None:
    def script(torch: RuntimeContext) -> None:
        torch.install_ipcq()

        def kernel(tl):
            swap(8192, lambda tl: f"cube_{1 - tl.program_id(1)}", tl)

        torch.launch("swap", kernel, target_cubes=(0, 1), target_pes=(0,))

    (roofline,) = rooflines_of(script, cubes=2)
    # Each way 8192 * 2 bytes cross one connection of 128 bytes a ns: 128 ns. The mesh and the ports give 256.
    assert roofline.link is not None
    assert (roofline.link.link_class, roofline.link.nbytes, roofline.link_ns) == ("UCIe", 16384, 128.0)
    assert (roofline.bound, roofline.bound_name, roofline.bound_ns) == ("link", "link (UCIe)", 128.0)
    assert roofline.nbytes_sent == 2 * 16384
    assert roofline.gbs_sent == 2 * 16384 / roofline.exec_ns
    assert 0.5 < roofline.share < 1.0
    data = roofline.as_json()
    assert (data["bound"], data["link_ns"]) == ("link", 128.0)


def test_messages_between_sips_are_bound_by_pcie() -> None:
    def script(torch: RuntimeContext) -> None:
        torch.install_ipcq()

        def kernel(tl):
            swap(8192, lambda tl: f"rank_{1 - tl.physical_id(2)}", tl)

        torch.launch("swap", kernel, sips=(0, 1), target_cubes=(0,), target_pes=(0, 1))

    (roofline,) = rooflines_of(script, sips=2)
    # Two PEs of a SIP send 16 KiB each over the one link of 128 bytes a ns to the switch: 256 ns.
    assert (roofline.bound_name, roofline.link_ns) == ("link (PCIe)", 256.0)


def test_messages_of_one_way_count_over_the_links_of_that_way() -> None:
    def script(torch: RuntimeContext) -> None:
        torch.install_ipcq()
        torch.launch("hand over", hand_over, 8192, target_cubes=(0,), target_pes=(0, 1))

    (roofline,) = rooflines_of(script)
    # 8192 * 2 bytes leave one PE's port of 256 bytes a ns: 64 ns.
    assert roofline.nbytes_sent == 16384
    assert roofline.link is not None
    assert (roofline.bound_name, roofline.link.nbytes, roofline.link_ns) == ("link (NoC)", 16384, 64.0)
    assert 0.5 < roofline.share <= 1.0


def test_a_launch_that_waits_longer_for_links_than_for_memory_is_link_bound() -> None:
    def bound(compute_ns: float, memory_ns: float, link_ns: float) -> str:
        link = LinkLoad("PCIe", "a", "b", 1, link_ns)
        return Roofline(100.0, 1, 1, compute_ns, memory_ns, Peak(1.0, 1.0), link=link).bound_name

    assert [bound(3, 2, 1), bound(1, 2, 2), bound(1, 2, 3)] == ["compute", "memory", "link (PCIe)"]
