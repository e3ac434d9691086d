"""Packets, answers and pauses: what the base classes give to every block."""

from __future__ import annotations

from functools import cache

from kernbench.common.messages import PeDmaMsg, Request
from kernbench.components.base import ActiveComponent, Packet, Process
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology


@cache
def machine() -> TopologyGraph:
    return load_topology(None, {"system.ns_per_mm": 0.0, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1})


def m_cpu(engine: GraphEngine) -> ActiveComponent:
    component = engine.component("sip0.cube0.m_cpu")
    assert isinstance(component, ActiveComponent)
    return component


def test_packet_knows_where_it_stands() -> None:
    packet = Packet(Request(), ("a", "b", "c"), place=1)
    assert (packet.node, packet.at_end) == ("b", False)
    packet.place = 2
    assert (packet.node, packet.at_end) == ("c", True)


def test_pause_lets_grid_time_pass_and_nothing_else() -> None:
    engine = GraphEngine(machine())
    block, seen = m_cpu(engine), []

    def wait() -> Process:
        for ns in (0.0, 2.5, 0.0, 0.1):
            yield from block.pause(ns)
            seen.append(engine.now_ns)

    engine.env.process(wait())
    engine.env.run()
    tenth = round(0.1 * 2**20) / 2**20
    assert seen == [0, 2.5, 2.5, 2.5 + tenth]


def test_plain_timeout_of_a_users_process_stays_on_the_grid() -> None:
    engine = GraphEngine(machine())
    block = m_cpu(engine)
    path = engine.router.find_mcpu_dma_path("sip0.cube0.m_cpu", "sip0.cube0.sram")
    request = PeDmaMsg(src_sip=0, src_cube=0, src_pe=0, dst_pa=0, nbytes=2560)
    ends = []

    def issue(at_ns: float) -> Process:
        yield engine.env.timeout(at_ns)
        yield block.write(request, path, 0, 2560, None)
        ends.append(engine.now_ns)

    # 0.7 lies below its grid time and 0.5 on it: neither may send a packet into the fabric's past.
    for at_ns in (0.5, 0.7):
        engine.env.process(issue(at_ns))
    engine.env.run()
    assert len(ends) == 2
    assert ends[1] - ends[0] == 10 * 2  # ten flits behind, at 128 GB/s


def test_answer_brings_the_reply_packet() -> None:
    engine = GraphEngine(machine())
    block = m_cpu(engine)
    path = tuple(engine.router.find_mcpu_dma_path("sip0.cube0.m_cpu", "sip0.cube0.sram"))
    event = block.read(Request(), path, 0, 300, None)
    engine.env.run()
    reply = event.value
    assert isinstance(reply, Packet)
    assert (reply.is_reply, reply.nbytes, reply.path, reply.node) == (True, 300, path[::-1], "sip0.cube0.m_cpu")
    # Routers r2c0 and r3c0 and the SRAM on the way there; the routers and the M_CPU on the way back. A first flit takes
    # 2 ns on the SRAM's link and 1 ns on the next; the last link, of 128 GB/s again, carries both, 256 B and 44 B, in
    # 300/128 ns from when the first is there.
    request, first_flit, routers, m_cpu_ns = 2 + 2 + 2, 2 + 1, 2 + 2, 5
    assert engine.now_ns == request + first_flit + routers + 300 / 128 + m_cpu_ns


def test_latency_of_a_control_message_is_what_it_takes() -> None:
    engine = GraphEngine(machine())
    block = m_cpu(engine)
    path = engine.router.find_node_path("sip0.cube0.m_cpu", "sip0.cube0.pe0.pe_cpu")
    # Routers r2c0, r1c0, r0c0 at 2 ns each, and 1 ns of the PE_CPU.
    assert block.ctx.latency_ns(path) == 3 * 2 + 1
