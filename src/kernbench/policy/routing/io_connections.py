"""Choice of the IO chiplet connection of a route: the connection opposite the cube connection that the route uses.

The connections of a PHY are placed along the chiplet's edge as those of the cube port along the cube's, and their wires
have equal length. So distance cannot choose among them: io_noc and the PHY are one point each, and every route between
the two would take the same connection. The position chooses: a route takes the connection opposite its cube connection,
which the mesh has chosen by the row or column of the route's end. If the two edges have different numbers of
connections, the opposite connection is the one at the same fraction of the edge.
"""

from __future__ import annotations

from kernbench.topology.graph import TopologyGraph

_CONNECTION_KINDS = frozenset({"io_ucie_conn", "ucie_conn"})


class IoConnections:
    """The ports of one machine and their connections, in order along the edge."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._graph = graph
        self._connections: dict[str, list[str]] = {}
        for node in graph.nodes.values():
            if node.kind in ("io_ucie", "ucie"):
                self._connections[node.id] = []
        for edge in graph.edges:
            if edge.dst in self._connections and graph.nodes[edge.src].kind in _CONNECTION_KINDS:
                self._connections[edge.dst].append(edge.src)

    def aligned(self, path: list[str]) -> list[str]:
        """The path with every connection of an IO chiplet replaced by the opposite one, if their lengths are equal."""
        path = list(path)
        for at, phy in enumerate(path):
            if self._kind(phy) != "io_ucie":
                continue
            for step in (1, -1):  # the cube lies ahead on the path, or behind
                noc, near, port, far = at - 2 * step, at - step, at + step, at + 2 * step
                if min(noc, far) < 0 or max(noc, far) >= len(path):
                    continue
                if self._kind(path[near]) == "io_ucie_conn" and self._kind(path[far]) == "ucie_conn":
                    there = self._opposite(path[port], path[far], phy)
                    ends = (path[noc], phy) if step == 1 else (phy, path[noc])
                    if self._length_mm(ends, there) == self._length_mm(ends, path[near]):
                        path[near] = there
        return path

    def _kind(self, node: str) -> str:
        return self._graph.nodes[node].kind

    def _opposite(self, port: str, connection: str, phy: str) -> str:
        """The PHY's connection at the same fraction of its edge as a cube port's connection is of the cube's."""
        here, there = self._connections[port], self._connections[phy]
        return there[(2 * here.index(connection) + 1) * len(there) // (2 * len(here))]

    def _length_mm(self, ends: tuple[str, str], connection: str) -> float:
        edge = self._graph.edge
        return edge(ends[0], connection).distance_mm + edge(connection, ends[1]).distance_mm
