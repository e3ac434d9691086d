"""How long one request takes, alone, worked out by hand.

The tiny machine has no wire delay, so that everything is a sum of few numbers: a flit of 256 B takes 1 ns on a link of
256 GB/s, 2 ns at 128 GB/s, 0.5 ns at 512 GB/s; a router costs 2 ns, a UCIe port 8 ns, an HBM burst 8 ns on its channel.
"""

from __future__ import annotations

from functools import cache

import pytest

from kernbench.common.messages import HostMessage, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.common.units import on_grid
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

KIB = 1024


@cache
def tiny(sips: int = 1, pes: int = 1) -> TopologyGraph:
    return load_topology(
        None,
        {
            "system.sips.count": sips,
            "system.ns_per_mm": 0.0,
            "sip.cube_mesh.w": 1,
            "sip.cube_mesh.h": 1,
            "cube.pe_layout.corners": ["NW"],
            "cube.pe_layout.pe_per_corner": pes,
        },
    )


@cache
def default() -> TopologyGraph:
    return load_topology()


def hbm(graph: TopologyGraph, sip: int = 0, cube: int = 0, pe: int = 0, offset: int = 0) -> int:
    return PhysAddr.pe_hbm_addr(sip, cube, pe, offset, graph.spec.cube.hbm_slice_bytes).encode()


def sram() -> int:
    return PhysAddr.cube_sram_addr(0, 0, 0).encode()


def total_ns(graph: TopologyGraph, msg: HostMessage) -> float:
    engine = GraphEngine(graph)
    handle = engine.submit(msg)
    engine.wait(handle)
    total = engine.get_completion(handle)[1]["total_ns"]
    assert isinstance(total, float)
    return total


def dma(graph: TopologyGraph, pa: int, nbytes: int, write: bool) -> float:
    msg = PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=nbytes, is_write=write)
    return total_ns(graph, msg)


# One PE and its own slice: pe_dma - router - hbm_ctrl, two links of 256 GB/s.


@pytest.mark.parametrize("graph", [tiny(), default()], ids=["tiny", "default"])
class TestLocalHbm:
    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_read_of_one_flit(self, graph: TopologyGraph) -> None:
        request, burst, reply = 2, 8, 1 + 2 + 1
        assert dma(graph, hbm(graph), 256, write=False) == request + burst + reply == 14

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_write_of_one_flit(self, graph: TopologyGraph) -> None:
        there, burst, acknowledgement = 1 + 2 + 1, 8, 2
        assert dma(graph, hbm(graph), 256, write=True) == there + burst + acknowledgement == 14

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    @pytest.mark.parametrize("write", [False, True])
    def test_second_flit_follows_one_link_time_behind(self, graph: TopologyGraph, write: bool) -> None:
        assert dma(graph, hbm(graph), 512, write) == 14 + 1

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    @pytest.mark.parametrize("write", [False, True])
    def test_partial_flit_occupies_links_for_its_bytes_and_a_channel_for_a_burst(
        self, graph: TopologyGraph, write: bool
    ) -> None:
        link = 100 / 256
        assert dma(graph, hbm(graph), 100, write) == 2 + 8 + 2 + 2 * link == 12.78125

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    def test_partial_last_flit_waits_for_the_whole_one_ahead(self, graph: TopologyGraph) -> None:
        # 44 B cross the first link at once, and then wait until the whole flit has crossed the second.
        assert dma(graph, hbm(graph), 256 + 44, write=False) == 14 + 44 / 256
        # A write's last flit of 44 B is at the controller at 1 + 2 + 1 + 44/256, its burst is on a channel of its own.
        assert dma(graph, hbm(graph), 256 + 44, write=True) == 14 + 44 / 256

    @pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
    @pytest.mark.parametrize("write", [False, True])
    def test_32_kib_take_127_more_link_times(self, graph: TopologyGraph, write: bool) -> None:
        # 8 channels of 32 GB/s are as fast as the link of 256 GB/s: 128 flits, 1 ns each.
        assert dma(graph, hbm(graph), 32 * KIB, write) == 14 + 127


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_wire_costs_its_length_in_both_directions() -> None:
    # pe0 to pe1's slice on the default machine: one router more, and 2 mm of wire at 0.1 ns/mm.
    wire = on_grid(0.2)
    request, burst, reply = 2 + wire + 2, 8, 1 + 2 + 1 + wire + 2 + 1
    assert dma(default(), hbm(default(), pe=1), 256, write=False) == request + burst + reply


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_transfer_off_the_first_channel_is_as_fast() -> None:
    assert dma(tiny(), hbm(tiny(), offset=5 * 256), 32 * KIB, write=False) == 141


# SRAM: four routers away, behind a link of 128 GB/s, 2 ns of its own.


def test_sram_read() -> None:
    request, reply = 4 * 2 + 2, 2 + 4 * (2 + 1)
    assert dma(tiny(), sram(), 256, write=False) == request + reply == 24


def test_sram_write() -> None:
    there, acknowledgement = 4 * (1 + 2) + 2 + 2, 4 * 2
    assert dma(tiny(), sram(), 256, write=True) == there + acknowledgement == 24


@pytest.mark.parametrize("write", [False, True])
def test_sram_streams_at_its_link(write: bool) -> None:
    assert dma(tiny(), sram(), 32 * KIB, write) == 24 + 127 * 2


# A neighbour's TCM: two routers, then through the neighbour's DMA flit by flit, 512 GB/s at the TCM's port.


@pytest.mark.parametrize(("nbytes", "more_ns"), [(256, 0), (512, 1), (32 * KIB, 127)])
def test_remote_tcm_is_not_stored_and_forwarded_by_its_dma(nbytes: int, more_ns: int) -> None:
    pa = PhysAddr.pe_tcm_addr(0, 0, 1, 0).encode()
    read = 2 * 2 + (0.5 + 1 + 2 + 1 + 2 + 1)
    write = (1 + 2 + 1 + 2 + 1 + 0.5) + 2 * 2
    assert dma(tiny(pes=2), pa, nbytes, write=False) == read + more_ns
    assert dma(tiny(pes=2), pa, nbytes, write=True) == write + more_ns


def test_own_tcm_is_one_port_away() -> None:
    assert dma(tiny(), PhysAddr.pe_tcm_addr(0, 0, 0, 0).encode(), 1024, write=False) == 1024 / 512


# The host: pcie_ep (5 ns) - io_noc - conn - io_ucie - ucie - conn - router - hbm_ctrl.

HOST_LINKS_NS = 1 + 2 + 2 + 0.5 + 2 + 2 + 1  # 256, 128, 128, 512, 128, 128, 256 GB/s
HOST_NODES_NS = 8 + 8 + 2


def host_write(graph: TopologyGraph, nbytes: int) -> float:
    return total_ns(graph, MemoryWriteMsg(dst_sip=0, dst_cube=0, dst_pe=0, dst_pa=hbm(graph), nbytes=nbytes))


def host_read(graph: TopologyGraph, nbytes: int) -> float:
    return total_ns(graph, MemoryReadMsg(src_sip=0, src_cube=0, src_pe=0, src_pa=hbm(graph), nbytes=nbytes))


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_host_write() -> None:
    enter, there, burst, acknowledgement = 5, HOST_LINKS_NS + HOST_NODES_NS, 8, HOST_NODES_NS + 5
    assert host_write(tiny(), 256) == enter + there + burst + acknowledgement == 64.5


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_host_read() -> None:
    enter, request, burst, reply = 5, HOST_NODES_NS, 8, HOST_LINKS_NS + HOST_NODES_NS + 5
    assert host_read(tiny(), 256) == enter + request + burst + reply == 64.5


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_host_streams_at_the_narrowest_link() -> None:
    assert host_write(tiny(), 32 * KIB) == host_read(tiny(), 32 * KIB) == 64.5 + 127 * 2


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_host_on_the_default_machine_pays_its_wires_twice() -> None:
    # io_noc 2 mm, to the PHY 5.75 mm, to the cube 2 mm, from the port to its connection 7 mm.
    wires = sum(on_grid(mm * 0.1) for mm in (2.0, 5.75, 2.0, 7.0))
    assert host_write(default(), 32 * KIB) == host_read(default(), 32 * KIB) == 64.5 + 127 * 2 + 2 * wires


# PE to another SIP: three legs, because both PCIe endpoints take a packet whole before they send it on.

OUT_NS = HOST_LINKS_NS + 2 + 8 + 8 + 5  # PE to its own endpoint
ACROSS_NS = 2 + 5 + 2 + 5  # endpoint, switch, endpoint
IN_NS = HOST_LINKS_NS + 8 + 8 + 2  # endpoint to memory
CONTROL_NS = (2 + 8 + 8 + 5) + (5 + 5) + (8 + 8 + 2)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(("nbytes", "flits"), [(256, 1), (512, 2), (4096, 16), (32 * KIB, 128)])
def test_cross_sip_serialises_again_on_every_leg(nbytes: int, flits: int, write: bool) -> None:
    one_flit = OUT_NS + ACROSS_NS + IN_NS + 8 + CONTROL_NS
    assert one_flit == 135
    each_leg = (flits - 1) * 2
    assert dma(tiny(sips=2), hbm(tiny(sips=2), sip=1), nbytes, write) == one_flit + 3 * each_leg


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_cross_sip_trace_names_both_endpoints_and_the_switch() -> None:
    graph = tiny(sips=2)
    engine = GraphEngine(graph, trace_hops=True)
    pa = hbm(graph, sip=1)
    handle = engine.submit(PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=pa, nbytes=512, is_write=True))
    engine.wait(handle)
    trace = engine.get_completion(handle)[1]
    ends = [(leg["from"], leg["to"], leg["nbytes"]) for leg in trace["hops"]]
    ep0, ep1 = "sip0.io0.pcie_ep", "sip1.io0.pcie_ep"
    dma0, hbm1 = "sip0.cube0.pe0.pe_dma", "sip1.cube0.hbm_ctrl.pe0"
    there, back = [(dma0, ep0, 512), (ep0, ep1, 512), (ep1, hbm1, 512)], [(hbm1, ep1, 0), (ep1, ep0, 0), (ep0, dma0, 0)]
    assert ends == there + back
    assert [leg["end_ns"] for leg in trace["hops"]][:3] == [
        OUT_NS + 2,
        OUT_NS + 2 + ACROSS_NS + 2,
        OUT_NS + 2 + ACROSS_NS + 2 + IN_NS + 2 + 8,
    ]
    assert "fabric.switch0" in trace["path"]
