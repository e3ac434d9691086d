"""The latency of a launch from the host's endpoint to its PEs, by kind of node.

A launch is a command: it goes from the PCIe endpoint to the IO CPU, from there to the M_CPU of each cube, and on to its
PEs, which start together when the last of them has received it. Its latency is that of the nodes and wires on the path.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import pairwise

from kernbench.policy.routing.router import AddressResolver, PathRouter
from kernbench.report.runs.parts import SavedLaunch
from kernbench.topology.graph import TopologyGraph


class LaunchDelays:
    """Delays by kind of node, per PE; computed once for each PE."""

    def __init__(self, graph: TopologyGraph) -> None:
        self._graph = graph
        self._router, self._resolver = PathRouter(graph), AddressResolver(graph)
        self._to_pe: dict[str, Mapping[str, float]] = {}

    def delay_ns(self, launch: SavedLaunch, kinds: Collection[str]) -> float:
        """The delay of a launch by nodes of these kinds, in one direction: the largest over its PEs."""
        by_pe = (self._delays_to(pe.sip, pe.cube, pe.name) for pe in launch.pes)
        return max((sum(delays.get(kind, 0.0) for kind in kinds) for delays in by_pe), default=0.0)

    def _delays_to(self, sip: int, cube: int, pe: str) -> Mapping[str, float]:
        if pe not in self._to_pe:
            io_cpu, m_cpu = self._resolver.find_io_cpu(sip), self._resolver.find_m_cpu(sip, cube)
            endpoint = f"{io_cpu.rpartition('.')[0]}.pcie_ep"
            stops = (endpoint, io_cpu, m_cpu, f"{pe}.pe_cpu")
            delays: defaultdict[str, float] = defaultdict(float)
            for start, end in pairwise(stops):
                for node in self._router.find_node_path(start, end)[1:]:
                    delays[self._graph.nodes[node].kind] += self._graph.nodes[node].overhead_ns
            delays[self._graph.nodes[endpoint].kind] += self._graph.nodes[endpoint].overhead_ns
            self._to_pe[pe] = delays
        return self._to_pe[pe]
