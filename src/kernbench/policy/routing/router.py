"""Finds the path of bytes and commands between two nodes.

A route has the least distance; ties are broken by moving along x first and then by the lower node (`routing_graph` has
the full rule). `io_connections` chooses the connection of an IO chiplet. Routes are cached. They depend on the machine
only, never on load.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar

from kernbench.common.errors import RoutingError
from kernbench.common.frozen import frozen
from kernbench.common.ids import PeId, Place
from kernbench.policy.routing.io_connections import IoConnections
from kernbench.policy.routing.resolver import AddressResolver
from kernbench.policy.routing.routing_graph import NextHops, SourceCosts, Traffic, routing_graph_of
from kernbench.topology.graph import Edge, EdgeKind, TopologyGraph
from kernbench.topology.sip_links import ports_between

__all__ = ["AddressResolver", "PathRouter"]

_MAX_TREES = 512  # one search serves all sources of a destination, or all destinations of a source; about 100 KB each


@frozen
class _Route:
    nodes: tuple[str, ...]
    distance_mm: float


Found = TypeVar("Found", NextHops, SourceCosts)
_Search = tuple[int, Traffic, bytes]
_Routes = dict[tuple[str, str], _Route]


class PathRouter:
    """Routes of one machine, over four graphs: control, data, host memory, and data inside one cube."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._graph = graph
        self._routing = routing_graph_of(graph)
        self._io_connections = IoConnections(graph)
        self._has_direct_links = any(edge.kind is EdgeKind.SIP_LINK for edge in graph.edges)
        self._trees: dict[_Search, NextHops] = {}  # towards a destination
        self._costs: dict[_Search, SourceCosts] = {}  # from a source
        self._paths: dict[tuple[int, int, Traffic], list[list[int]]] = {}  # those that shifted ones are made of
        self._halves: dict[tuple[int, int], _Route | None] = {}  # of paths between SIPs, to and from a switch
        self._dma: _Routes = {}
        self._dma_engines: dict[str, str] = {}  # by PE
        self._host: _Routes = {}
        self._control: _Routes = {}

    def find_path(self, src_pe: str, dst_node: str) -> list[str]:
        """The path of a PE's DMA engine to a node. `src_pe` is the PE's name, say `sip0.cube0.pe0`."""
        return list(self.dma_path(src_pe, dst_node))

    def dma_path(self, src_pe: str, dst_node: str) -> tuple[str, ...]:
        """The same, as it is kept here: thousands of PEs have tens of thousands of paths."""
        route = self._dma.get((src_pe, dst_node)) or self._dma_route(src_pe, dst_node)
        return route.nodes

    def find_path_with_distance(self, src_pe: str, dst_node: str) -> tuple[list[str], float]:
        """`find_path`, and its length in mm."""
        route = self._dma.get((src_pe, dst_node)) or self._dma_route(src_pe, dst_node)
        return list(route.nodes), route.distance_mm

    def find_data_path(self, src: str, dst: str) -> list[str]:
        """The path of bytes between any two nodes."""
        return list(self._data_route(src, dst).nodes)

    def find_mcpu_dma_path(self, m_cpu_id: str, dst_hbm_id: str) -> list[str]:
        """The path of an M_CPU's DMA engine to a memory, which passes no PE."""
        return self.find_memory_path(m_cpu_id, dst_hbm_id)

    def find_memory_path(self, src: str, dst: str) -> list[str]:
        """The path of a host access between a PCIe endpoint and a memory, which passes no io_cpu, m_cpu or PE."""
        route = self._host.get((src, dst))
        if route is None:
            route = self._host[src, dst] = self._search(src, dst, Traffic.HOST)
        return list(route.nodes)

    def find_node_path(self, src: str, dst: str) -> list[str]:
        """The path of a command from any node to any other; it may use command wires."""
        route = self._control.get((src, dst))
        if route is None:
            route = self._control[src, dst] = self._search(src, dst, Traffic.CONTROL)
        return list(route.nodes)

    def links(self, path: Sequence[str]) -> list[Edge]:
        """The edges of a path, in order; raises RoutingError where two neighbours are not linked."""
        return [self._graph.edge(src, dst) for src, dst in pairwise(path)]

    def _dma_route(self, src_pe: str, dst: str) -> _Route:
        engine = self._dma_engines.get(src_pe)
        if engine is None:
            place = Place.of(src_pe)
            pe = PeId(place.sip, place.cube, place.pe)
            if place.pe < 0 or str(pe) != src_pe:
                raise RoutingError(f"'{src_pe}' is not a PE", hint="name a PE, say 'sip0.cube0.pe0'")
            engine = self._dma_engines[src_pe] = pe.part("pe_dma")
        route = self._dma[src_pe, dst] = self._data_route(engine, dst)
        return route

    def _data_route(self, src: str, dst: str) -> _Route:
        a, b = (self._routing.places[self._routing.vertex(end)] for end in (src, dst))
        same_cube = a.cube >= 0 and (a.sip, a.cube) == (b.sip, b.cube)
        return self._search(src, dst, Traffic.LOCAL if same_cube else Traffic.DATA)

    def _search(self, src: str, dst: str, traffic: Traffic) -> _Route:
        start, end = self._routing.vertex(src), self._routing.vertex(dst)
        if start == end:
            return _Route((src,), 0.0)
        hub = self._routing.hub_between(start, end) if traffic is Traffic.DATA else None
        route = self._shortest(start, end, traffic) if hub is None else self._over_hub(start, hub, end)
        if route is None:
            raise RoutingError(
                f"no path from '{src}' to '{dst}' for {str(traffic.name).lower()} traffic",
                hint="host memory traffic reaches no PE, and data no command wire: ask for another kind of path",
            )
        return route

    def _shortest(self, start: int, end: int, traffic: Traffic) -> _Route | None:
        routes = map(self._route, self._vertex_paths(start, end, traffic))
        return min(routes, key=lambda route: (route.distance_mm, len(route.nodes)), default=None)

    def _over_hub(self, start: int, hub: int, end: int) -> _Route | None:
        """The path to the hub is the same for all destinations behind it, and the path from the hub for all sources."""
        there, onward = self._half(start, hub), self._half(hub, end)
        if there is None or onward is None:
            return None
        return _Route(there.nodes + onward.nodes[1:], there.distance_mm + onward.distance_mm)

    def _half(self, start: int, end: int) -> _Route | None:
        """A path to or from a switch: that of its counterpart in the first SIP, where there is one, by other names."""
        ends = start, end
        if ends not in self._halves:
            routing = self._routing
            by = 0 if self._has_direct_links else routing.shift(start, end, Traffic.DATA)
            if by:
                first = self._half(*routing.shifted(ends, -by))
                self._halves[ends] = first and _Route(routing.shifted_nodes(first.nodes, by), first.distance_mm)
            else:
                self._halves[ends] = self._shortest(start, end, Traffic.DATA)
        return self._halves[ends]

    def _vertex_paths(self, start: int, end: int, traffic: Traffic) -> list[list[int]]:
        """The best path from each half of the start, if there is one."""
        places = self._routing.places
        if self._has_direct_links and places[start].sip >= 0 <= places[end].sip != places[start].sip:
            return self._paths_over_links(start, end, traffic)
        by = self._routing.shift(start, end, traffic)
        if by:
            start, end = self._routing.shifted((start, end), -by)
            return [self._routing.shifted(path, by) for path in self._vertex_paths(start, end, traffic)]
        paths = self._paths.get((start, end, traffic))
        if paths is None:
            paths = self._paths[start, end, traffic] = self._searched_paths(start, end, traffic)
        return paths

    def _searched_paths(self, start: int, end: int, traffic: Traffic) -> list[list[int]]:
        tree, last = self._next_hops(start, end, traffic), self._routing.halves(end)
        paths = []
        for vertex in self._routing.halves(start):
            if vertex in tree:
                path = [vertex]
                while path[-1] not in last:
                    path.append(tree[path[-1]])
                paths.append(path)
        return paths

    def _paths_over_links(self, start: int, end: int, traffic: Traffic) -> list[list[int]]:
        """From SIP to SIP over direct links: to the port, from port to port through the SIPs between, to the end."""
        places, vertex = self._routing.places, self._routing.vertex
        stops = [start]
        for ports in ports_between(self._graph.spec, places[start].sip, places[end].sip):
            stops += map(vertex, ports)
        stops.append(end)
        paths: list[list[int]] = [[start_half] for start_half in self._routing.halves(start)]
        for at, (a, b) in enumerate(pairwise(stops)):
            legs = [[a, b]] if at % 2 else self._vertex_paths(a, b, traffic)
            paths = [path + leg[1:] for path in paths for leg in legs if leg[0] == path[-1]]
        return paths

    def _next_hops(self, start: int, end: int, traffic: Traffic) -> NextHops | dict[int, int]:
        """The next vertex on the best path to `end`, for `start` and all vertices after it."""
        scope = self._routing.scope(start, end)
        # Commands, host traffic and data from other SIPs fan out from few blocks; other data fans in from many PEs to
        # one memory.
        fans_out = traffic in (Traffic.CONTROL, Traffic.HOST) or start in self._routing.hubs
        if fans_out and len(self._routing.halves(start)) == 1:
            costs = self._costs.get((start, traffic, scope))
            if costs is None:
                costs = _keep(self._costs, (start, traffic, scope), self._routing.costs_from(start, traffic, scope))
            return self._routing.next_hops_between(start, end, traffic, scope, costs)
        next_hops = self._trees.get((end, traffic, scope))
        if next_hops is None:
            next_hops = _keep(self._trees, (end, traffic, scope), self._routing.next_hops_to(end, traffic, scope))
        for half in self._routing.halves(start):
            next_hops.extend_to(half)
        return next_hops

    def _route(self, path: list[int]) -> _Route:
        nodes = [self._routing.ids[v] for v in path]
        if self._routing.passes_phy(path):
            nodes = self._io_connections.aligned(nodes)
        return _Route(tuple(nodes), self._routing.length_mm(path))


def _keep(kept: dict[_Search, Found], key: _Search, found: Found) -> Found:
    """Cache a search; the oldest one is evicted when the cache is full."""
    if len(kept) >= _MAX_TREES:
        del kept[next(iter(kept))]
    kept[key] = found
    return found
