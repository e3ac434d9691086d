"""Which way bytes and commands travel between two nodes.

A route is the least distance; among equals it moves along x first and then to the lower node (`roadmap` has the rule in
full), and crosses between an IO chiplet and a cube straight (`crossings`). A route is found once and then looked up.
Routes depend on the machine only, never on load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernbench.common.errors import RoutingError
from kernbench.common.ids import PeId, Place
from kernbench.policy.routing.crossings import Crossings
from kernbench.policy.routing.resolver import AddressResolver
from kernbench.policy.routing.roadmap import Roadmap, Traffic
from kernbench.topology.graph import Edge, TopologyGraph

__all__ = ["AddressResolver", "PathRouter"]

_MAX_TREES = 512  # each serves every source of one destination, or the other way round, and takes some 100 KB


@dataclass(frozen=True, slots=True)
class _Route:
    nodes: tuple[str, ...]
    distance_mm: float


_Routes = dict[tuple[str, str], _Route]


class PathRouter:
    """Routes of one machine, over four graphs: control, data, host memory, and data inside one cube."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._graph = graph
        self._map = Roadmap(graph)
        self._crossings = Crossings(graph)
        self._trees: dict[tuple[int, Traffic, bytes], dict[int, int]] = {}  # towards a destination
        self._costs: dict[tuple[int, Traffic, bytes], dict[int, int]] = {}  # from a source
        self._dma: _Routes = {}
        self._host: _Routes = {}
        self._control: _Routes = {}

    def find_path(self, src_pe: str, dst_node: str) -> list[str]:
        """How a PE's DMA engine reaches a node. `src_pe` is the PE's name, say `sip0.cube0.pe0`."""
        route = self._dma.get((src_pe, dst_node)) or self._dma_route(src_pe, dst_node)
        return list(route.nodes)

    def find_path_with_distance(self, src_pe: str, dst_node: str) -> tuple[list[str], float]:
        """`find_path`, and its length in mm."""
        route = self._dma.get((src_pe, dst_node)) or self._dma_route(src_pe, dst_node)
        return list(route.nodes), route.distance_mm

    def find_mcpu_dma_path(self, m_cpu_id: str, dst_hbm_id: str) -> list[str]:
        """How an M_CPU's DMA engine reaches a memory, passing no PE."""
        return self.find_memory_path(m_cpu_id, dst_hbm_id)

    def find_memory_path(self, src: str, dst: str) -> list[str]:
        """How a host read or write goes between a PCIe endpoint and a memory: past io_cpu, m_cpu and PEs."""
        route = self._host.get((src, dst))
        if route is None:
            route = self._host[src, dst] = self._search(src, dst, Traffic.HOST)
        return list(route.nodes)

    def find_node_path(self, src: str, dst: str) -> list[str]:
        """How a command goes from any node to any other; command wires count."""
        route = self._control.get((src, dst))
        if route is None:
            route = self._control[src, dst] = self._search(src, dst, Traffic.CONTROL)
        return list(route.nodes)

    def links(self, path: Sequence[str]) -> list[Edge]:
        """The edges of a path, in order; raises RoutingError where two neighbours are not linked."""
        return [self._graph.edge(src, dst) for src, dst in pairwise(path)]

    def _dma_route(self, src_pe: str, dst: str) -> _Route:
        place = Place.of(src_pe)
        pe = PeId(place.sip, place.cube, place.pe)
        if place.pe < 0 or str(pe) != src_pe:
            raise RoutingError(f"'{src_pe}' is not a PE", hint="name a PE, say 'sip0.cube0.pe0'")
        route = self._dma[src_pe, dst] = self._data_route(pe.part("pe_dma"), dst)
        return route

    def _data_route(self, src: str, dst: str) -> _Route:
        a, b = (self._map.places[self._map.vertex(end)] for end in (src, dst))
        same_cube = a.cube >= 0 and (a.sip, a.cube) == (b.sip, b.cube)
        return self._search(src, dst, Traffic.LOCAL if same_cube else Traffic.DATA)

    def _search(self, src: str, dst: str, traffic: Traffic) -> _Route:
        start, end = self._map.vertex(src), self._map.vertex(dst)
        if start == end:
            return _Route((src,), 0.0)
        tree = self._ways(start, end, traffic)
        walks = [self._walk(half, end, tree) for half in self._map.halves(start) if half in tree]
        if not walks:
            raise RoutingError(
                f"no path from '{src}' to '{dst}' for {str(traffic.name).lower()} traffic",
                hint="host memory traffic reaches no PE, and data no command wire: ask for another kind of path",
            )
        return min(walks, key=lambda route: (route.distance_mm, len(route.nodes)))

    def _ways(self, start: int, end: int, traffic: Traffic) -> dict[int, int]:
        """The next vertex on the best path to `end`, for `start` and whatever comes after it."""
        scope = self._map.scope(start, end)
        known = self._trees.get((end, traffic, scope))
        if known is not None:
            return known
        # Commands and host traffic fan out from few blocks; data comes from many PEs to one memory.
        if traffic in (Traffic.CONTROL, Traffic.HOST) and len(self._map.halves(start)) == 1:
            cost = self._costs.get((start, traffic, scope))
            if cost is None:
                cost = _keep(self._costs, (start, traffic, scope), self._map.costs_from(start, traffic, scope))
            return self._map.between(start, end, traffic, scope, cost)
        return _keep(self._trees, (end, traffic, scope), self._map.towards(end, traffic, scope))

    def _walk(self, vertex: int, end: int, tree: dict[int, int]) -> _Route:
        last = self._map.halves(end)
        vertices = [vertex]
        while vertex not in last:
            vertex = tree[vertex]
            vertices.append(vertex)
        nodes = [self._map.ids[v] for v in vertices]
        if self._map.passes_phy(vertices):
            nodes = self._crossings.straight(nodes)
        return _Route(tuple(nodes), self._map.length_mm(vertices))


def _keep(
    kept: dict[tuple[int, Traffic, bytes], dict[int, int]], key: tuple[int, Traffic, bytes], found: dict[int, int]
) -> dict[int, int]:
    """Keep what a search has found, in place of the oldest where there are too many."""
    if len(kept) >= _MAX_TREES:
        del kept[next(iter(kept))]
    kept[key] = found
    return found
