"""The path from a PE to the memory that another PE has tensors in: what closed models need of it."""

from __future__ import annotations

from itertools import pairwise

from kernbench.common.ids import PeId, PeKey
from kernbench.sim_engine.wiring import wiring_of
from kernbench.topology.graph import TopologyGraph


def path_between(machine: TopologyGraph, src: PeKey, dst: PeKey) -> tuple[list[str], float]:
    """Nodes from a PE to the memory of another, and the length of that path in mm."""
    path, distance_mm = wiring_of(machine).router.find_path_with_distance(str(PeId(*src)), machine.home_node(*dst))
    return list(path), distance_mm


def latency_ns(machine: TopologyGraph, src: PeKey, dst: PeKey) -> float:
    """Nodes and wires from one PE to another, one way."""
    path, _ = path_between(machine, src, dst)
    nodes = sum(machine.node(name).overhead_ns for name in path[1:-1])
    wires = sum(machine.edge(a, b).distance_mm for a, b in pairwise(path)) * machine.spec.system.ns_per_mm
    return nodes + wires


def narrowest_gbs(machine: TopologyGraph, src: PeKey, dst: PeKey) -> float:
    """Of the links on the way that carry data."""
    path, _ = path_between(machine, src, dst)
    return min(machine.access_gbs(machine.edge(a, b)) or float("inf") for a, b in pairwise(path))
