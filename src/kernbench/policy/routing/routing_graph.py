"""The machine as a graph of integer vertices, and shortest paths: from all vertices to one, or from one to all.

The rule: least distance, then fewest hops, then along x before y, then the lower node. Distances are whole steps of
2**-20 mm, the grid on which machines are laid out, so equal distances compare equal. Distance and hops are one integer,
`steps << HOP_BITS | hops`: a link of length zero still costs a hop, and no route has a cycle.

A route may pass through transit nodes (routers, UCIe, io_noc, PCIe endpoints, the switch) and through the components of
the PE in which it starts or ends. A UCIe port is passed from die to die only: its connections are not a bus between the
routers of one die. So a port is two vertices, one for outgoing and one for incoming traffic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntFlag
from functools import lru_cache
from heapq import heappop, heappush
from itertools import pairwise

from kernbench.common.errors import RoutingError
from kernbench.common.ids import Place
from kernbench.topology.graph import UCIE_KINDS, Edge, EdgeKind, Node, TopologyGraph
from kernbench.topology.switches import common_switch

STEPS_PER_MM = 1 << 20
HOP_BITS = 20

_TRANSIT_KINDS = frozenset(
    {"noc_router", "channel_router", "ucie", "ucie_conn", "io_noc", "io_ucie", "io_ucie_conn", "switch", "pcie_ep"}
    | {"sip_port"}
)
_PORT_KINDS = frozenset({"ucie", "io_ucie"})
_OF_HBM = frozenset({"hbm_ctrl", "channel_router"})
_SEAM_KINDS = frozenset({EdgeKind.UCIE_MESH, EdgeKind.IO_TO_CUBE, EdgeKind.CUBE_TO_IO})
_NOT_ALONG_X = 1 << 32  # above any vertex number
_VERTEX = _NOT_ALONG_X - 1
_FAR = 1 << 100  # above any cost

_Incoming = list[list[tuple[int, int, int, int]]]
_Outgoing = list[list[tuple[int, int, int]]]


class Traffic(IntFlag):
    """Kinds of traffic. Each may use a subset of the edges, so there are four graphs over the same nodes."""

    CONTROL = 1  # every edge
    DATA = 2  # no command wires
    HOST = 4  # no edge in a PE, unless tensors lie in TCM: memory accesses of the host or an M_CPU
    LOCAL = 8  # no UCIe: data that stays in its cube. It may use command wires of the M_CPU, not those of a PE


_OF_PE = (EdgeKind.PE_INTERNAL, EdgeKind.PE_TO_ROUTER)


def _traffic_on(kind: EdgeKind, into_pe: bool) -> int:
    on = Traffic.CONTROL
    if kind is not EdgeKind.COMMAND:
        on |= Traffic.DATA
    if kind not in _OF_PE:
        on |= Traffic.HOST
    if kind not in UCIE_KINDS and not (kind is EdgeKind.COMMAND and into_pe):
        on |= Traffic.LOCAL
    return int(on)


_TRAFFIC = {kind: (_traffic_on(kind, False), _traffic_on(kind, True)) for kind in EdgeKind}


class NextHops:
    """The next vertex on the best path to one destination, for every requested vertex and all vertices on its path.

    This is Dijkstra's algorithm run backwards, extended on demand. A vertex is finalised after all successors on its
    best paths, because every edge costs at least one hop; so its next vertex can be chosen while edges are relaxed. PEs
    other than the destination's are searched only when one of their vertices is requested: routes may start there, but
    not pass through.
    """

    __slots__ = (
        "_block",
        "_cost",
        "_heap",
        "_home",
        "_into",
        "_outside",
        "_pe",
        "_rank",
        "_scope",
        "_transit",
        "_wanted",
    )

    def __init__(
        self,
        into: _Incoming,
        block: list[int],
        transit: list[bool],
        pe: list[int],
        ends: tuple[int, ...],
        wanted: int,
        scope: bytes,
    ) -> None:
        self._into = into
        self._block = block
        self._transit = transit
        self._pe = pe
        self._home = pe[ends[0]]
        self._wanted = wanted
        self._scope = scope
        self._cost = dict.fromkeys(ends, 0)
        self._rank: dict[int, int] = {}
        self._heap = [(0, end) for end in ends]
        self._outside: dict[
            int, list[tuple[int, int]] | None
        ] = {}  # PE -> heap entries to start with in it; None once started

    def __contains__(self, vertex: int) -> bool:
        return vertex in self._rank

    def __getitem__(self, vertex: int) -> int:
        return self._rank[vertex] & _VERTEX

    def extend_to(self, start: int) -> None:
        """Continue the search until the best path from `start` is found, or there is none."""
        cost, heap, pe = self._cost, self._heap, self._pe
        if not self._transit[start] and pe[start] not in (-1, self._home):
            for entry in self._outside.get(pe[start]) or ():
                heappush(heap, entry)
            self._outside[pe[start]] = None
        while heap and heap[0][0] < cost.get(start, _FAR):
            self._expand(*heappop(heap))

    def _expand(self, so_far: int, v: int) -> None:
        cost, rank, pe, transit = self._cost, self._rank, self._pe, self._transit
        if so_far > cost[v]:
            return
        block, scope, wanted, home = self._block, self._scope, self._wanted, self._home
        # From a PE other than the destination's the search stays in that PE.
        inside = pe[v] if not transit[v] and pe[v] != home else -1
        for u, step, order, allowed in self._into[v]:
            if not allowed & wanted or not scope[block[u]] or (inside >= 0 and pe[u] != inside):
                continue
            total = so_far + step
            known = cost.get(u)
            if known is None or total < known:
                cost[u] = total
                rank[u] = order
                if transit[u] or (pe[u] >= 0 and pe[u] == home):
                    heappush(self._heap, (total, u))
                elif pe[u] >= 0:
                    waiting = self._outside.setdefault(pe[u], [])
                    if waiting is None:
                        heappush(self._heap, (total, u))
                    else:
                        waiting.append((total, u))
            elif total == known and order < rank[u]:
                rank[u] = order


class SourceCosts:
    """The cost of the best path from one source to every requested vertex, and to all nearer ones.

    This is Dijkstra's algorithm, extended on demand. The search does not leave a PE other than the source's: routes may
    end there, but not pass through.
    """

    __slots__ = ("_block", "_cost", "_heap", "_home", "_out", "_pe", "_scope", "_transit", "_wanted")

    def __init__(
        self,
        out: _Outgoing,
        block: list[int],
        transit: list[bool],
        pe: list[int],
        src: int,
        wanted: int,
        scope: bytes,
    ) -> None:
        self._out = out
        self._block = block
        self._transit = transit
        self._pe = pe
        self._home = pe[src]
        self._wanted = wanted
        self._scope = scope
        self._cost = {src: 0}
        self._heap = [(0, src)]

    def up_to(self, ends: tuple[int, ...]) -> dict[int, int]:
        """Costs by vertex, exact up to the nearest of `ends`; an unreachable vertex is missing."""
        out, block, transit, pe, scope = self._out, self._block, self._transit, self._pe, self._scope
        wanted, home, cost, heap = self._wanted, self._home, self._cost, self._heap
        while heap and heap[0][0] < min(cost.get(end, _FAR) for end in ends):
            so_far, u = heappop(heap)
            if so_far > cost[u]:
                continue
            inside = pe[u] if not transit[u] and pe[u] != home else -1
            for v, step, allowed in out[u]:
                if not allowed & wanted or not scope[block[v]] or (inside >= 0 and pe[v] != inside):
                    continue
                total = so_far + step
                if total < cost.get(v, _FAR):
                    cost[v] = total
                    if transit[v] or pe[v] >= 0:
                        heappush(heap, (total, v))
        return cost


class RoutingGraph:
    """Vertices and incoming edges of one machine: the nodes in order, then the inward halves of the UCIe ports."""

    def __init__(self, graph: TopologyGraph) -> None:
        nodes = list(graph.nodes.values())
        self.ids = [node.id for node in nodes]
        self.index = {node_id: i for i, node_id in enumerate(self.ids)}
        self.places = [node.place for node in nodes]
        ports = [i for i, node in enumerate(nodes) if node.kind in _PORT_KINDS]
        self._inward = {port: len(nodes) + k for k, port in enumerate(ports)}
        self.ids += [self.ids[port] for port in ports]

        vertices = nodes + [nodes[port] for port in ports]
        self._phys = frozenset(v for v, node in enumerate(vertices) if node.kind == "io_ucie")
        self._transit = [node.kind in _TRANSIT_KINDS for node in vertices]
        blocks: dict[tuple[int, int, str], int] = {}
        self._block = [blocks.setdefault((v.place.sip, v.place.cube, v.place.io), len(blocks)) for v in vertices]
        self._blocks = list(blocks)
        # A PE is identified by its block and its number; -1 is no PE. Its HBM and the routers there are outside it.
        self._pe = [
            block << 10 | v.place.pe if v.place.pe >= 0 and v.kind not in _OF_HBM else -1
            for block, v in zip(self._block, vertices, strict=True)
        ]
        self._host_in_pes = any(node.kind == "pe_tcm" and "home_bytes" in node.attrs for node in nodes)
        self._into = self._incoming(graph.edges, nodes)
        self._out = self._outgoing()
        self._scopes: dict[tuple[int, int], bytes] = {}
        self._lengths: dict[tuple[int, int], int] = {}  # of links that routes were found over
        self._graph = graph
        self.hubs = self._hubs()
        # SIPs, and the cubes in them, are instances of one template each (`topology/compile.py`), so a path found in
        # one holds in every other.
        sips = max(max(place.sip for place in self.places) + 1, 1)
        self._on_tray = sum(place.sip < 0 for place in self.places)
        self._per_sip = (len(nodes) - self._on_tray) // sips
        self._ports_per_sip = len(ports) // sips
        self._per_cube = sum(place.cube == 0 == place.sip for place in self.places)

    def _hubs(self) -> tuple[int, ...]:
        """The switches, if every path from SIP to SIP passes one: no two SIPs are joined directly."""
        sip_of = [self._blocks[each][0] for each in self._block]
        for v, edges in enumerate(self._into):
            if any(sip_of[u] != sip_of[v] and sip_of[u] >= 0 <= sip_of[v] for u, _, _, _ in edges):
                return ()
        return tuple(v for v in range(len(self.places)) if self._transit[v] and self.places[v].sip < 0)

    def hub_between(self, src: int, dst: int) -> int | None:
        """The vertex on every path between two SIPs: the lowest switch that both are below. None within one SIP, to and
        from the tray, and where SIPs are joined directly.
        """
        a, b = self.places[src].sip, self.places[dst].sip
        if not self.hubs or a < 0 or b < 0 or a == b:
            return None
        return self.hubs[0] if len(self.hubs) == 1 else self.index[common_switch(self._graph.spec.system, a, b)]

    def _incoming(self, edges: Iterable[Edge], nodes: list[Node]) -> _Incoming:
        """For each vertex, (from, cost, rank among equals, traffic) of every edge that ends there."""
        into: _Incoming = [[] for _ in self.ids]
        index, inward, pe, block = self.index, self._inward, self._pe, self._block
        x_mm = [node.x_mm for node in nodes]
        costs: dict[float, int] = {}  # by distance: a machine has thousands of edges, of a few lengths
        for src, dst, kind, _, distance_mm in edges:
            u, v = index[src], index[dst]
            # Positions on two dies do not compare, so only a move inside a die can be one along x.
            along_x = block[u] == block[v] and x_mm[u] != x_mm[v]
            traffic = _TRAFFIC[kind][pe[u] >= 0 or pe[v] >= 0]
            if self._host_in_pes and kind in _OF_PE:
                traffic |= Traffic.HOST
            if kind in _SEAM_KINDS:
                v = inward.get(v, v)
            elif u in inward:
                u = inward[u]
            cost = costs.get(distance_mm)
            if cost is None:
                cost = costs[distance_mm] = round(distance_mm * STEPS_PER_MM) << HOP_BITS | 1
            into[v].append((u, cost, v if along_x else _NOT_ALONG_X | v, traffic))
        return into

    def _outgoing(self) -> _Outgoing:
        """For each vertex, (to, cost, traffic) of every edge that starts there."""
        out: _Outgoing = [[] for _ in self.ids]
        for v, edges in enumerate(self._into):
            for u, cost, _, traffic in edges:
                out[u].append((v, cost, traffic))
        return out

    def shift(self, src: int, dst: int, traffic: Traffic) -> int:
        """The difference between the numbers of these nodes and of their counterparts in the first SIP, or, for
        traffic within a cube, in the first cube.
        """
        a, b = self.places[src], self.places[dst]
        sip = max(a.sip, b.sip)
        if sip < 0 or -1 < min(a.sip, b.sip) < sip:
            return 0
        if min(a.sip, b.sip) < 0 and self._on_tray > 2:  # a host and several switches: SIPs are on different ones
            return 0
        return sip * self._per_sip + (a.cube * self._per_cube if traffic is Traffic.LOCAL else 0)

    def shifted(self, vertices: Iterable[int], by: int) -> list[int]:
        """The counterparts in another SIP, or in another cube if no port is passed. The tray has no counterparts."""
        ports = by // self._per_sip * self._ports_per_sip
        nodes, tray = len(self.places), self._on_tray
        return [v if v < tray else v + by if v < nodes else v + ports for v in vertices]

    def shifted_nodes(self, nodes: Iterable[str], by: int) -> tuple[str, ...]:
        """The same for nodes by name."""
        index, ids, tray = self.index, self.ids, self._on_tray
        return tuple([ids[v] if v < tray else ids[v + by] for v in map(index.__getitem__, nodes)])

    def length_mm(self, path: Sequence[int]) -> float:
        """The length of a chain of vertices; exact, because it is summed in steps."""
        return sum(map(self._length_of, pairwise(path))) / STEPS_PER_MM

    def _length_of(self, link: tuple[int, int]) -> int:
        """The steps from a vertex to the next one."""
        steps = self._lengths.get(link)
        if steps is None:
            src, dst = link
            steps = min(cost for u, cost, _, _ in self._into[dst] if u == src) >> HOP_BITS
            self._lengths[link] = steps
        return steps

    def passes_phy(self, path: Sequence[int]) -> bool:
        """Whether a chain of vertices leads through a PHY of an IO chiplet."""
        return not self._phys.isdisjoint(path)

    def vertex(self, node_id: str) -> int:
        """The vertex of a node; raises RoutingError when the machine has no such node."""
        try:
            return self.index[node_id]
        except KeyError:
            raise RoutingError(
                f"the machine has no node '{node_id:.80}'", hint="`kernbench topology --nodes` lists what there is"
            ) from None

    def halves(self, vertex: int) -> tuple[int, ...]:
        """A port's outward and inward vertex; any other node's only one."""
        return (vertex, self._inward[vertex]) if vertex in self._inward else (vertex,)

    def scope(self, src: int, dst: int) -> bytes:
        """The dies that a search may enter, one flag each: one cube, one SIP, or two SIPs and the tray.

        Inside a SIP no route passes through an IO chiplet, so only the chiplets of the two ends are included.
        """
        blocks = self._block[src], self._block[dst]
        if blocks not in self._scopes:
            self._scopes[blocks] = self._scope(self.places[src], self.places[dst])
        return self._scopes[blocks]

    def _scope(self, a: Place, b: Place) -> bytes:
        if a.sip == b.sip >= 0 and a.cube == b.cube >= 0:
            return bytes((sip, cube) == (a.sip, a.cube) for sip, cube, _ in self._blocks)
        if a.sip == b.sip >= 0:
            chiplets = ("", a.io, b.io)
            return bytes(sip == a.sip and io in chiplets for sip, _, io in self._blocks)
        return bytes(sip in (-1, a.sip, b.sip) for sip, _, _ in self._blocks)

    def next_hops_to(self, dst: int, traffic: Traffic, scope: bytes) -> NextHops:
        """The search for best paths to `dst` within the scope. For a destination of many routes."""
        return NextHops(self._into, self._block, self._transit, self._pe, self.halves(dst), int(traffic), scope)

    def costs_from(self, src: int, traffic: Traffic, scope: bytes) -> SourceCosts:
        """The search for the costs of best paths from `src` within the scope. For a source of many routes."""
        return SourceCosts(self._out, self._block, self._transit, self._pe, src, int(traffic), scope)

    def next_hops_between(
        self, src: int, dst: int, traffic: Traffic, scope: bytes, costs: SourceCosts
    ) -> dict[int, int]:
        """The next vertex on the best path to `dst`, for every vertex on the best paths there from `src`.

        `costs` are those from `src`. Ties are broken as in `next_hops_to`.
        """
        cost = costs.up_to(self.halves(dst))
        into, block, transit, pe = self._into, self._block, self._transit, self._pe
        wanted, home = int(traffic), pe[src]
        ends = [half for half in self.halves(dst) if half in cost]
        least = min((cost[end] for end in ends), default=0)
        todo = [end for end in ends if cost[end] == least]
        rank: dict[int, int] = {}
        for v in todo:
            for u, step, order, allowed in into[v]:
                if not allowed & wanted or not scope[block[u]] or cost.get(u, _FAR) + step != cost[v]:
                    continue
                if u != src and not transit[u] and (pe[u] < 0 or (pe[u] != home and pe[v] != pe[u])):
                    continue
                if u not in rank:
                    rank[u] = order
                    todo.append(u)
                elif order < rank[u]:
                    rank[u] = order
        return {u: order & _VERTEX for u, order in rank.items()}


@lru_cache(maxsize=4)  # bounded: a sweep has many machines
def routing_graph_of(graph: TopologyGraph) -> RoutingGraph:
    """The routing graph of a machine, shared by all its routers and by every thread: its caches do not depend on the
    order of requests.
    """
    return RoutingGraph(graph)
