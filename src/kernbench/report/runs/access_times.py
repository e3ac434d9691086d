"""The uncontended time of a PE's access to a memory, from the machine alone: the path, one latency and one bandwidth.

The model is that of composites (`components/builtin/path_timing.py`): the request travels to the memory and the reply
back, the bytes pass the narrowest link at its bandwidth and every other link one flit behind, and HBM adds one burst.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kernbench.common.errors import RoutingError
from kernbench.common.frozen import frozen
from kernbench.common.ids import Place
from kernbench.policy.routing.router import PathRouter
from kernbench.report.runs.parts import SavedPlace
from kernbench.topology.graph import EdgeKind, TopologyGraph


def channels_at_once(graph: TopologyGraph) -> int:
    """The HBM channels that an access uses together, each with a link of its own; 1 if they share the slice's link."""
    cube = graph.spec.cube
    return cube.hbm_channels_per_pe if cube.has_channel_routers else 1


def access_gbs(graph: TopologyGraph, link: SavedPlace) -> float:
    """The bandwidth of a link for an access; of a channel's own link, that of all channels together."""
    return link.gbs * (channels_at_once(graph) if link.link_class == "hbm port" else 1)


def is_of_channel(kind: EdgeKind) -> bool:
    """Whether a link is as wide as one channel where channels have links of their own."""
    return kind is EdgeKind.ROUTER_TO_HBM


def burst_ns(graph: TopologyGraph, memory: str, nbytes: int, runs: int) -> float:
    """How long the bursts of some equal runs of bytes take over all channels of a memory; 0 where it has none."""
    node = graph.nodes[memory]
    if "num_pcs" not in node.attrs:
        return 0.0
    each, burst_bytes = -(-nbytes // runs), int(node.attrs["burst_bytes"])  # bytes per run
    if node.kind == "far_memory":
        rate = int(node.attrs["num_pcs"]) * float(node.attrs["pc_bw_gbs"])
    else:
        spec = graph.cube_at(memory)
        rate = spec.hbm_channels_per_pe * spec.hbm_channel_peak_gbs
    return runs * -(-each // burst_bytes) * burst_bytes / rate


@frozen
class AccessTime:
    """The path of an access, from the memory to the PE, and its uncontended time: `latency_ns + nbytes / gbs`, less for
    one that is shorter than a flit, of which `flits_ns` is the time on all links but the narrowest.
    """

    path: tuple[str, ...]
    latency_ns: float
    gbs: float
    flits_ns: float
    flit_bytes: int

    def ns(self, nbytes: int) -> float:
        missing = 1 - min(nbytes, self.flit_bytes) / self.flit_bytes
        return self.latency_ns - self.flits_ns * missing + nbytes / self.gbs


class AccessTimes:
    """Access times of a machine, computed once for each PE and memory."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._graph = graph
        self._router = PathRouter(graph)
        self._found: dict[tuple[str, str], AccessTime] = {}

    def own_slice(self, pe: str) -> AccessTime | None:
        """The access of a PE to its own HBM slice, or to the first of the stacks that it shares; None where it has
        none.
        """
        place = Place.of(pe)
        memory = self._graph.home_node(place.sip, place.cube, place.pe)
        return self.of(pe, memory) if memory in self._graph.nodes else None

    def of(self, pe: str, memory: str) -> AccessTime | None:
        """The access of a PE to a memory node; None if no route leads there."""
        key = (pe, memory)
        if key not in self._found:
            try:
                path = self._router.find_path(pe, memory)
            except RoutingError:
                return None
            self._found[key] = self._time(path)
        return self._found[key]

    def _time(self, path: Sequence[str]) -> AccessTime:
        graph = self._graph
        spec, parts = graph.spec, graph.cube_at(path[0]).pe_template.components
        links = [graph.edge(a, b) for a, b in pairwise(path)]
        at_once, flit_bytes = channels_at_once(graph), spec.system.flit_bytes
        widths = [min(graph.payload_gbs(e) or 0.0 for e in (link, graph.edge(link.dst, link.src))) for link in links]
        own = [gbs for link, gbs in zip(links, widths, strict=True) if at_once > 1 and is_of_channel(link.kind)]
        shared = [gbs for link, gbs in zip(links, widths, strict=True) if at_once == 1 or not is_of_channel(link.kind)]
        narrowest = min([*shared, *(gbs * at_once for gbs in own)])
        flits_ns = sum(flit_bytes / gbs for gbs in shared) + (flit_bytes / min(own) if own else 0.0)
        flits_ns -= flit_bytes / narrowest if narrowest in shared else 0.0
        wires_ns = sum(link.distance_mm for link in links) * spec.system.ns_per_mm
        nodes_ns = [graph.nodes[node].overhead_ns for node in path]
        request_ns = parts.pe_dma.number_attr("overhead_ns")
        if spec.system.address_model == "va":
            request_ns += parts.pe_mmu.number_attr("tlb_overhead_ns")
        latency_ns = request_ns + 2 * wires_ns + sum(nodes_ns[1:]) + sum(nodes_ns[:-1]) + flits_ns
        far = spec.system.far_memory
        if far is not None and graph.nodes[path[-1]].kind == "far_memory":
            latency_ns += flit_bytes / far.channel_bw_gbs
            narrowest = min(narrowest, far.gbs)
        if graph.nodes[path[-1]].kind == "hbm_ctrl":
            memory = graph.cube_at(path[-1])
            channels = memory.hbm_channels_per_pe
            latency_ns += spec.cube.hbm_burst_bytes / memory.hbm_channel_peak_gbs
            narrowest = min(narrowest, channels * memory.hbm_channel_peak_gbs)
        return AccessTime(tuple(path[::-1]), latency_ns, narrowest, flits_ns, flit_bytes)
