"""A command of the host: IO_CPU fans it out to cubes, each M_CPU's DMA moves bytes, one completion comes back.

Without wire delay, for one flit: in 5 + 10 (pcie_ep, io_cpu), on 8 + 8 + 3 x 2 + 5 = 27 to the M_CPU, back 3 x 2 + 8
+ 8 + 10 = 32 to the IO_CPU, and 5 to the endpoint. Between lies the M_CPU's DMA: to PE 0 over three routers, to PE 1
over four.
"""

from __future__ import annotations

from functools import cache

import pytest

from kernbench.common.messages import Completion, CubeDmaMsg
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

THERE_NS, BACK_NS = 5 + 10 + 27, 32 + 5
# The first link is the M_CPU's, of 128 GB/s; the acknowledgement pays the M_CPU's own 5 ns.
DMA_PE0_NS = (2 + 2) + 2 * (1 + 2) + 1 + 8 + (3 * 2 + 5)
DMA_PE1_NS = (2 + 2) + 3 * (1 + 2) + 1 + 8 + (4 * 2 + 5)


@cache
def machine(cubes: int = 1) -> TopologyGraph:
    return load_topology(
        None,
        {
            "system.sips.count": 1,
            "system.ns_per_mm": 0.0,
            "sip.cube_mesh.w": cubes,
            "sip.cube_mesh.h": 1,
            "cube.pe_layout.corners": ["NW"],
        },
    )


def total_ns(graph: TopologyGraph, msg: CubeDmaMsg) -> float:
    engine = GraphEngine(graph)
    handle = engine.submit(msg)
    assert engine.wait(handle) == Completion(ok=True)
    return float(engine.get_completion(handle)[1]["total_ns"])


def command(
    nbytes: int = 256, write: bool = True, pes: tuple[int, ...] = (0,), cubes: tuple[int, ...] = (0,)
) -> CubeDmaMsg:
    return CubeDmaMsg(sip=0, offset=0, nbytes=nbytes, is_write=write, target_cubes=cubes, target_pes=pes)


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.parametrize("write", [False, True])
@pytest.mark.parametrize(("pe", "dma_ns"), [(0, DMA_PE0_NS), (1, DMA_PE1_NS)])
def test_one_cube_one_pe(pe: int, dma_ns: float, write: bool) -> None:
    assert (DMA_PE0_NS, DMA_PE1_NS) == (30, 35)
    assert total_ns(machine(), command(write=write, pes=(pe,))) == THERE_NS + dma_ns + BACK_NS


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.parametrize("write", [False, True])
def test_two_pes_take_turns_on_the_m_cpus_channel_and_answer_once(write: bool) -> None:
    both = THERE_NS + DMA_PE0_NS + DMA_PE1_NS + BACK_NS
    assert total_ns(machine(), command(write=write, pes=(0, 1))) == both
    assert total_ns(machine(), CubeDmaMsg(sip=0, offset=0, nbytes=256, is_write=write)) == both


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_m_cpu_streams_at_its_own_link() -> None:
    assert total_ns(machine(), command(nbytes=4096)) == THERE_NS + DMA_PE0_NS + 15 * 2 + BACK_NS


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_read_and_write_commands_use_a_channel_each() -> None:
    engine = GraphEngine(machine())
    other = CubeDmaMsg(sip=0, offset=256, nbytes=256, is_write=False, target_cubes=(0,), target_pes=(0,))
    handles = [engine.submit(command()), engine.submit(other)]
    engine.wait_all()
    alone = THERE_NS + DMA_PE0_NS + BACK_NS
    assert [engine.get_completion(handle)[1]["end_ns"] for handle in handles] == [alone, alone]


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_two_write_commands_queue_for_the_channel() -> None:
    engine = GraphEngine(machine())
    handles = [engine.submit(command()), engine.submit(command())]
    engine.wait_all()
    first = THERE_NS + DMA_PE0_NS + BACK_NS
    assert [engine.get_completion(handle)[1]["end_ns"] for handle in handles] == [first, first + DMA_PE0_NS]


def test_cubes_work_side_by_side() -> None:
    graph = machine(cubes=2)
    one, other = (total_ns(graph, command(cubes=(cube,))) for cube in (0, 1))
    assert total_ns(graph, command(cubes=(0, 1))) == max(one, other)


def test_every_target_is_asked_once_and_the_host_answered_once() -> None:
    engine = GraphEngine(machine(cubes=2), trace_hops=True)
    handle = engine.submit(CubeDmaMsg(sip=0, offset=0, nbytes=256))
    engine.wait(handle)
    legs = [(leg["from"], leg["to"]) for leg in engine.get_completion(handle)[1]["hops"]]
    io_cpu, endpoint = "sip0.io0.io_cpu", "sip0.io0.pcie_ep"
    for cube in ("sip0.cube0", "sip0.cube1"):
        assert legs.count((io_cpu, f"{cube}.m_cpu")) == legs.count((f"{cube}.m_cpu", io_cpu)) == 1
        for pe in (0, 1):
            assert legs.count((f"{cube}.m_cpu", f"{cube}.hbm_ctrl.pe{pe}")) == 1
    assert legs[0] == (endpoint, io_cpu)
    assert legs[-1] == (io_cpu, endpoint)
    assert len(legs) == 2 + 2 * 2 + 4 * 2


def test_bytes_go_through_no_pe() -> None:
    engine = GraphEngine(machine())
    engine.wait(engine.submit(CubeDmaMsg(sip=0, offset=0, nbytes=4096)))
    assert not [link for link in engine.link_counters() if any(".pe_" in end for end in link)]
