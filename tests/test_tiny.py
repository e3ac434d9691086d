"""One page: a machine, an address, a route, a transfer alone, two that meet, a number like the probe's."""

from __future__ import annotations

import pytest

from kernbench.common.messages import PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.routing.router import AddressResolver, PathRouter
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.fabric import Fabric, Network
from kernbench.topology import load_topology

# A machine: the shipped one, made small, and with no wire delay so that times are sums of whole numbers.
MACHINE = load_topology(
    None,
    {"system.sips.count": 1, "system.ns_per_mm": 0.0, "sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1},
)
SLICE_BYTES = MACHINE.spec.cube.hbm_slice_bytes


def read(pe: int, target: PhysAddr, nbytes: int) -> PeDmaMsg:
    return PeDmaMsg(src_sip=0, src_cube=0, src_pe=pe, dst_pa=target.encode(), nbytes=nbytes)


def test_a_machine_has_nodes_and_links_with_parameters() -> None:
    assert MACHINE.node("sip0.cube0.noc.r0c0").overhead_ns == 2
    assert MACHINE.edge("sip0.cube0.pe0.pe_dma", "sip0.cube0.noc.r0c0").bw_gbs == 256
    assert len([node for node in MACHINE.nodes.values() if node.kind == "hbm_ctrl"]) == 2 * 8


def test_an_address_names_a_byte_and_the_node_that_serves_it() -> None:
    address = PhysAddr.pe_hbm_addr(0, 1, 3, 0x100, SLICE_BYTES)
    assert PhysAddr.decode(address.encode()) == address
    assert (address.sip_id, address.die_id, address.kind) == (0, 1, "hbm")
    assert AddressResolver(MACHINE).resolve(address) == "sip0.cube1.hbm_ctrl.pe3"


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_route_is_the_shortest_way() -> None:
    path = PathRouter(MACHINE).find_path("sip0.cube0.pe0", "sip0.cube0.hbm_ctrl.pe1")
    assert [node.removeprefix("sip0.cube0.") for node in path] == ["pe0.pe_dma", "noc.r0c0", "noc.r0c1", "hbm_ctrl.pe1"]


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_transfer_alone_takes_the_textbook_sum() -> None:
    engine = GraphEngine(MACHINE)
    handle = engine.submit(read(0, PhysAddr.pe_hbm_addr(0, 0, 1, 0, SLICE_BYTES), 32768))
    engine.wait(handle)
    _, trace = engine.get_completion(handle)
    request, burst, routers, links = 2 + 2, 8, 2 + 2, 1 + 1
    assert trace["total_ns"] == request + burst + routers + links + 32768 / 256


def test_two_transfers_that_meet_share_the_link() -> None:
    network = Network(flit_bytes=64)
    for name in ("a", "b", "meet", "end"):
        network.add_node(name, overhead_ns=1.0)
    for src, dst in (("a", "meet"), ("b", "meet"), ("meet", "end")):
        network.add_link(src, dst, bw_gbs=64.0)
    fabric = Fabric(network)
    first, second = (fabric.inject((src, "meet", "end"), 640, at_ns=0.0) for src in ("a", "b"))
    fabric.run()
    # Alone: 10 flits over the first link, 1 ns in the node, the last flit over the second link, 1 ns at the end.
    # Together, the twenty flits take turns from 2 ns on; the link that was added first goes first.
    assert (first.done_ns, second.done_ns) == (2 + 19 + 1, 2 + 20 + 1)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_every_pe_reading_its_own_slice_gets_the_whole_bandwidth() -> None:
    engine, nbytes, pes = GraphEngine(MACHINE), 1 << 16, MACHINE.spec.cube.n_pes
    for pe in range(pes):
        engine.submit(read(pe, PhysAddr.pe_hbm_addr(0, 0, pe, 0, SLICE_BYTES), nbytes))
    engine.wait_all()
    latency = 2 + 8 + 2 + 1
    assert engine.now_ns == latency + nbytes / 256
    effective_gbs = pes * nbytes / engine.now_ns
    assert effective_gbs / (pes * 256) == nbytes / (nbytes + 256 * latency)  # 95 % of the peak


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_every_pe_reading_one_slice_gets_its_share_of_one_link() -> None:
    engine, nbytes, pes = GraphEngine(MACHINE), 1 << 16, MACHINE.spec.cube.n_pes
    for pe in range(pes):
        engine.submit(read(pe, PhysAddr.pe_hbm_addr(0, 0, 0, 0, SLICE_BYTES), nbytes))
    engine.wait_all()
    link_ns = pes * nbytes / 256
    # The slice's link is busy from the first burst on. The farthest PE, 11 routers away, asks last and is served last.
    assert engine.now_ns == 2 + 8 + link_ns + 11 * (2 + 1)
    hot = engine.link_counters()["sip0.cube0.hbm_ctrl.pe0", "sip0.cube0.noc.r0c0"]
    assert (hot.nbytes, hot.busy_ns) == (pes * nbytes, link_ns)
