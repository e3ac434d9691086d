"""The latency of a launch from the host's endpoint to its PEs, and of a barrier between them, by kind of node.

A launch is a command: it goes from the PCIe endpoint to the IO CPU, from there to the M_CPU of each cube, and on to its
PEs, which start together when the last of them has received it. Its latency is that of the nodes and wires on the path.
A barrier goes from each PE to the M_CPU of its cube and, if several cubes take part, to the IO CPU, and back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from kernbench.common.errors import RoutingError
from kernbench.policy.routing.router import AddressResolver, PathRouter
from kernbench.report.runs.parts import SavedLaunch
from kernbench.topology.graph import TopologyGraph


class LaunchDelays:
    """Delays by kind of node, per PE; computed once for each PE."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._graph = graph
        self._router, self._resolver = PathRouter(graph), AddressResolver(graph)
        self._to_pe: dict[str, Mapping[str, float]] = {}
        self._of_barrier: dict[tuple[str, bool], Mapping[str, float]] = {}

    def delay_ns(self, launch: SavedLaunch, kinds: Collection[str]) -> float:
        """The delay of a launch by nodes of these kinds, in one direction: the largest over its PEs."""
        by_pe = (self._delays_to(pe.sip, pe.cube, pe.name) for pe in launch.pes)
        return max((sum(delays.get(kind, 0.0) for kind in kinds) for delays in by_pe), default=0.0)

    def barrier_ns(self, launch: SavedLaunch, pe: str, kinds: Collection[str]) -> float:
        """The delay of a barrier of a launch by nodes of these kinds, from the PE and back to it."""
        key = (pe, len({(one.sip, one.cube) for one in launch.pes}) > 1)
        if key not in self._of_barrier:
            own = next(one for one in launch.pes if one.name == pe)
            above = [self._resolver.find_m_cpu(own.sip, own.cube)]
            if key[1]:
                above.append(self._resolver.find_io_cpu(own.sip))
            stops = [*above[::-1], f"{pe}.pe_cpu"]
            self._of_barrier[key] = self._between([*stops[::-1], *stops[1:]])
        delays = self._of_barrier[key]
        return sum(delays.get(kind, 0.0) for kind in kinds)

    def _between(self, stops: Sequence[str]) -> dict[str, float]:
        """Delays by kind of node along some stops, without the first."""
        delays: defaultdict[str, float] = defaultdict(float)
        for start, end in pairwise(stops):
            try:
                path = self._router.find_node_path(start, end)
            except RoutingError:  # commands have paths from processors down only
                path = self._router.find_node_path(end, start)[::-1]
            for node in path[1:]:
                delays[self._graph.nodes[node].kind] += self._graph.nodes[node].overhead_ns
        return delays

    def _delays_to(self, sip: int, cube: int, pe: str) -> Mapping[str, float]:
        if pe not in self._to_pe:
            io_cpu, m_cpu = self._resolver.find_io_cpu(sip), self._resolver.find_m_cpu(sip, cube)
            endpoint = f"{io_cpu.rpartition('.')[0]}.pcie_ep"
            stops = (endpoint, io_cpu, m_cpu, f"{pe}.pe_cpu")
            delays = self._between(stops)
            kind = self._graph.nodes[endpoint].kind
            self._to_pe[pe] = {**delays, kind: delays.get(kind, 0.0) + self._graph.nodes[endpoint].overhead_ns}
        return self._to_pe[pe]
