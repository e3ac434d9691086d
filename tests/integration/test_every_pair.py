"""Every pair of (PE, HBM slice), (host, cube), (SIP, SIP) is connected, takes time, and takes the same time again.

Small machines are walked in full. Of large ones, an even sample is taken: every n-th of all pairs, by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from kernbench.common.messages import CubeDmaMsg, HostMessage, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.routing.router import AddressResolver
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import TopologyGraph, load_topology

NBYTES = 700  # two whole flits and a partial one
MOST_PAIRS = 100
ONE_CUBE = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
ONE_SIP = {"system.sips.count": 1}
MACHINES: dict[str, dict[str, Any]] = {
    "default": {},
    "one of each": {**ONE_SIP, **ONE_CUBE, "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1}},
    "one cube of 8": {**ONE_SIP, **ONE_CUBE},
    "two SIPs": {**ONE_CUBE, "cube.pe_layout": {"corners": ["SE"], "pe_per_corner": 2}},
    "3 x 2 cubes": {
        **ONE_SIP,
        "sip.cube_mesh.w": 3,
        "sip.cube_mesh.h": 2,
        "cube.pe_layout": {"corners": ["NE", "SW"], "pe_per_corner": 1},
    },
    "16 PEs": {**ONE_SIP, **ONE_CUBE, "cube.pe_layout.pe_per_corner": 4},
    "chiplets on other sides": {
        "system.sips.count": 3,
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 3,
        "sip.io_chiplets": [{"id": "io0", "side": "E"}, {"id": "io1", "side": "S"}, {"id": "io2", "side": "W"}],
    },
    "one UCIe connection, two channels": {
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 2,
        "cube.ucie.n_connections": 1,
        "io_chiplet.n_connections": 1,
        "cube.memory_map.hbm_channels_per_pe": 2,
    },
    "sixteen SIPs on a torus": {
        **ONE_CUBE,
        "system.sips": {"count": 16, "topology": "torus_2d", "w": 4, "h": 4},
        "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
    },
}
every_machine = pytest.mark.parametrize("name", MACHINES)

Place = tuple[int, int, int]


@cache
def machine(name: str) -> TopologyGraph:
    return load_topology(None, MACHINES[name])


def places(graph: TopologyGraph) -> list[Place]:
    """Every PE, and by that every HBM slice."""
    spec = graph.spec
    sips, cubes, pes = range(spec.n_sips), range(spec.sip.n_cubes), range(spec.cube.n_pes)
    return [(sip, cube, pe) for sip in sips for cube in cubes for pe in pes]


def hbm(graph: TopologyGraph, place: Place) -> int:
    return PhysAddr.pe_hbm_addr(*place, 0, graph.spec.cube.hbm_slice_bytes).encode()


def pe_pairs(graph: TopologyGraph) -> Iterator[PeDmaMsg]:
    """A read and a write by turns from every PE to every slice, thinned out where there are too many."""
    all_places = places(graph)
    pairs = len(all_places) ** 2
    step = max(1, pairs // MOST_PAIRS)
    step += step > 1 and step % 2 == 0  # an odd step visits every PE of a power of two
    for turn, number in enumerate(range(0, pairs, step)):
        src, dst = (all_places[i] for i in divmod(number, len(all_places)))
        (sip, cube, pe), pa = src, hbm(graph, dst)
        yield PeDmaMsg(src_sip=sip, src_cube=cube, src_pe=pe, dst_pa=pa, nbytes=NBYTES, is_write=turn % 2 == 1)


def host_pairs(graph: TopologyGraph) -> Iterator[HostMessage]:
    """The host writes, reads and commands every cube."""
    last_pe = graph.spec.cube.n_pes - 1
    for sip in range(graph.spec.n_sips):
        for cube in range(graph.spec.sip.n_cubes):
            pa = hbm(graph, (sip, cube, last_pe))
            yield MemoryWriteMsg(dst_sip=sip, dst_cube=cube, dst_pe=last_pe, dst_pa=pa, nbytes=NBYTES)
            yield MemoryReadMsg(src_sip=sip, src_cube=cube, src_pe=last_pe, src_pa=pa, nbytes=NBYTES)
            yield CubeDmaMsg(sip=sip, offset=0, nbytes=NBYTES, target_cubes=(cube,), target_pes=(last_pe,))


def sip_pairs(graph: TopologyGraph) -> Iterator[PeDmaMsg]:
    """The first PE of every SIP reads from the last slice of every other."""
    last_cube, last_pe = graph.spec.sip.n_cubes - 1, graph.spec.cube.n_pes - 1
    for src in range(graph.spec.n_sips):
        for dst in range(graph.spec.n_sips):
            if src != dst:
                pa = hbm(graph, (dst, last_cube, last_pe))
                yield PeDmaMsg(src_sip=src, src_cube=0, src_pe=0, dst_pa=pa, nbytes=NBYTES)


def run(graph: TopologyGraph, messages: list[HostMessage]) -> list[dict[str, Any]]:
    """Each message alone, one after the other: their traces."""
    engine = GraphEngine(graph)
    traces = []
    for message in messages:
        handle = engine.submit(message)
        assert engine.wait(handle).ok
        traces.append(engine.get_completion(handle)[1])
    return traces


def check(graph: TopologyGraph, messages: list[HostMessage]) -> list[dict[str, Any]]:
    traces = run(graph, messages)
    for trace in traces:
        path = trace["path"]
        assert trace["total_ns"] > 0
        assert len(path) >= 2
        assert len(dict.fromkeys(path)) == len(path)  # passes no node twice
        for src, dst in pairwise(path):
            assert (src, dst) in graph.edge_map
    assert run(graph, messages) == traces
    return traces


@every_machine
def test_every_pe_reaches_every_hbm_slice(name: str) -> None:
    graph = machine(name)
    messages = list(pe_pairs(graph))
    traces = check(graph, list(messages))
    resolver = AddressResolver(graph)
    for message, trace in zip(messages, traces, strict=True):
        assert trace["path"][0] == f"sip{message.src_sip}.cube{message.src_cube}.pe{message.src_pe}.pe_dma"
        assert trace["path"][-1] == resolver.resolve(PhysAddr.decode(message.dst_pa))


@every_machine
def test_host_reaches_every_cube(name: str) -> None:
    graph = machine(name)
    traces = check(graph, list(host_pairs(graph)))
    assert len(traces) == 3 * graph.spec.n_sips * graph.spec.sip.n_cubes
    for trace in traces:
        assert trace["path"][0].endswith(".pcie_ep")


@pytest.mark.parametrize("name", [name for name in MACHINES if "system.sips.count" not in MACHINES[name]])
def test_every_sip_reaches_every_other(name: str) -> None:
    graph = machine(name)
    traces = check(graph, list(sip_pairs(graph)))
    assert len(traces) == graph.spec.n_sips * (graph.spec.n_sips - 1)
    for trace in traces:
        assert sum(node.endswith(".pcie_ep") for node in trace["path"]) == 2
        assert "fabric.switch0" in trace["path"]


@every_machine
def test_own_slice_is_the_nearest(name: str) -> None:
    graph = machine(name)
    times: dict[Place, list[tuple[float, bool]]] = {}
    messages = [message for message in pe_pairs(graph) if not message.is_write]
    for message, trace in zip(messages, run(graph, list(messages)), strict=True):
        src = (message.src_sip, message.src_cube, message.src_pe)
        times.setdefault(src, []).append((trace["total_ns"], message.dst_pa == hbm(graph, src)))
    own = {src: min(ns for ns, is_own in rows if is_own) for src, rows in times.items() if any(o for _, o in rows)}
    assert own
    for src, own_ns in own.items():
        assert own_ns == min(ns for ns, _ in times[src])
