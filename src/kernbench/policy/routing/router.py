"""Which way bytes and commands travel between two nodes.

A route is the least distance; among equals it moves along x first and then to the lower node (`roadmap` has the rule in
full), and crosses between an IO chiplet and a cube straight (`crossings`). A route is found once and then looked up.
Routes depend on the machine only, never on load.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from kernbench.common.errors import RoutingError
from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId, Place
from kernbench.policy.routing.crossings import Crossings
from kernbench.policy.routing.resolver import AddressResolver
from kernbench.policy.routing.roadmap import Costs, Roadmap, Traffic, Ways
from kernbench.topology.graph import Edge, TopologyGraph

__all__ = ["AddressResolver", "PathRouter"]

_MAX_TREES = 512  # each serves every source of one destination, or the other way round, and takes some 100 KB


@frozen
class _Route:
    nodes: tuple[str, ...]
    distance_mm: float


Found = TypeVar("Found", Ways, Costs)
_Search = tuple[int, Traffic, bytes]
_Routes = dict[tuple[str, str], _Route]


class PathRouter:
    """Routes of one machine, over four graphs: control, data, host memory, and data inside one cube."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._graph = graph
        self._map = Roadmap(graph)
        self._crossings = Crossings(graph)
        self._trees: dict[_Search, Ways] = {}  # towards a destination
        self._costs: dict[_Search, Costs] = {}  # from a source
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
        walks = self._walks(start, end, traffic)
        if not walks:
            raise RoutingError(
                f"no path from '{src}' to '{dst}' for {str(traffic.name).lower()} traffic",
                hint="host memory traffic reaches no PE, and data no command wire: ask for another kind of path",
            )
        return min(map(self._route, walks), key=lambda route: (route.distance_mm, len(route.nodes)))

    def _walks(self, start: int, end: int, traffic: Traffic) -> list[list[int]]:
        """The best path from each half of the start, if there is one."""
        hub, places = self._map.hub, self._map.places
        if (
            traffic is Traffic.DATA
            and hub is not None
            and places[start].sip >= 0 <= places[end].sip != places[start].sip
        ):
            # What leads to the hub is the same for all destinations behind it, and what leads on for all sources.
            onward = self._walks(hub, end, traffic)
            return [there + on[1:] for there in self._walks(start, hub, traffic) for on in onward]
        by = self._map.shift(start, end, traffic)
        if by:
            start, end = self._map.shifted((start, end), -by)
            return [self._map.shifted(way, by) for way in self._walks(start, end, traffic)]
        tree, last = self._ways(start, end, traffic), self._map.halves(end)
        walks = []
        for vertex in self._map.halves(start):
            if vertex in tree:
                way = [vertex]
                while way[-1] not in last:
                    way.append(tree[way[-1]])
                walks.append(way)
        return walks

    def _ways(self, start: int, end: int, traffic: Traffic) -> Ways | dict[int, int]:
        """The next vertex on the best path to `end`, for `start` and whatever comes after it."""
        scope = self._map.scope(start, end)
        # Commands, host traffic and what comes from other SIPs fan out from few blocks; data comes from many PEs to one
        # memory.
        fans_out = traffic in (Traffic.CONTROL, Traffic.HOST) or start == self._map.hub
        if fans_out and len(self._map.halves(start)) == 1:
            costs = self._costs.get((start, traffic, scope))
            if costs is None:
                costs = _keep(self._costs, (start, traffic, scope), self._map.costs_from(start, traffic, scope))
            return self._map.between(start, end, traffic, scope, costs)
        ways = self._trees.get((end, traffic, scope))
        if ways is None:
            ways = _keep(self._trees, (end, traffic, scope), self._map.towards(end, traffic, scope))
        for half in self._map.halves(start):
            ways.reach(half)
        return ways

    def _route(self, way: list[int]) -> _Route:
        nodes = [self._map.ids[v] for v in way]
        if self._map.passes_phy(way):
            nodes = self._crossings.straight(nodes)
        return _Route(tuple(nodes), self._map.length_mm(way))


def _keep(kept: dict[_Search, Found], key: _Search, found: Found) -> Found:
    """Keep what a search has found, in place of the oldest where there are too many."""
    if len(kept) >= _MAX_TREES:
        del kept[next(iter(kept))]
    kept[key] = found
    return found
