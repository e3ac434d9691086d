"""The least time that a launch's bytes take at the memories it accessed, by kind of memory; kinds work side by side.

hbm   bytes in whole bursts over the channels of all slices or stacks together
far   the same over the channels of its nodes; and each way over their links, less what packets take
sram  each way over the ports of the SRAMs
tcm   each way over the ports of the TCMs, on machines whose tensors lie there
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kernbench.common.channel_traffic import ChannelTraffic
from kernbench.common.ids import memory_kind
from kernbench.topology.graph import EdgeKind, TopologyGraph
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_cube import TCM

NAMES = {"hbm": "HBM", "far": "far memory", "sram": "SRAM", "tcm": "TCM"}
_WITH_CHANNELS = ("hbm", "far")
_LINKS = {"far": EdgeKind.FAR_LINK, "sram": EdgeKind.ROUTER_TO_SRAM}


def memory_times(graph: TopologyGraph, memories: Mapping[str, ChannelTraffic]) -> dict[str, float]:
    """By kind of memory that was accessed, in ns."""
    found: dict[str, float] = {}
    for kind in NAMES:
        uses = {node: use for node, use in memories.items() if memory_kind(node) == kind}
        if not uses:
            continue
        times = [0.0]
        if kind in _WITH_CHANNELS:
            times.append(sum(use.burst_bytes for use in uses.values()) / memories_gbs(graph, uses))
        if kind != "hbm":
            read_gbs, write_gbs = _each_way_gbs(graph, uses, kind)
            times += [sum(use.read_bytes for use in uses.values()) / read_gbs]
            times += [sum(use.written_bytes for use in uses.values()) / write_gbs]
        found[kind] = max(times)
    return found


def memories_gbs(graph: TopologyGraph, memories: Collection[str]) -> float:
    """The bandwidth of the channels of some memories together."""
    stacks, far = graph.spec.sip.hbm_stacks, graph.spec.system.far_memory
    slices = [memory for memory in memories if memory_kind(memory) == "hbm"]
    far_gbs = (len(memories) - len(slices)) * far.gbs if far is not None else 0.0
    if stacks is not None:
        return len(slices) * stacks.channels * graph.spec.cube.hbm_channel_bw_gbs + far_gbs
    places = [graph.node(memory).place for memory in slices]
    of_cubes = [(place.sip, place.cube) for place in places]
    return graph.spec.sum_at(of_cubes, lambda cube: cube.hbm_link_bw_gbs) + far_gbs


def _each_way_gbs(graph: TopologyGraph, memories: Collection[str], kind: str) -> tuple[float, float]:
    """What some memories of a kind give to reads, and take of writes."""
    if kind == "tcm":
        places = [graph.node(memory).place for memory in memories]
        cubes = [graph.spec.cube_of(place.sip, place.cube) for place in places]
        return sum(map(TCM.read_gbs, cubes)), sum(map(TCM.write_gbs, cubes))
    gbs = _links_gbs(graph, memories, _LINKS[kind])
    return gbs, gbs


def _links_gbs(graph: TopologyGraph, memories: Collection[str], kind: EdgeKind) -> float:
    """What the links of some memories carry each way."""
    edges = (edge for edge in graph.edges if edge.kind is kind and edge.dst in memories)
    return sum(graph.payload_gbs(edge) or 0.0 for edge in edges)


def home_name(spec: MachineSpec) -> str:
    """What the memory is in which tensors lie by default; HBM may stand for SRAM."""
    return "SRAM" if spec.cube.has_hbm and spec.area.hbm_is_sram else spec.cube.home.name
