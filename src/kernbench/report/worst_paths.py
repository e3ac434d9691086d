"""The longest paths of a machine: distance in mm, and uncontended latency of a message of zero bytes.

Four kinds of path are considered: a PE and an HBM slice in one cube, in one SIP and in two SIPs, and the host and a
slice. All cubes are equal and wires are bidirectional, so few candidates suffice: all pairs in one cube, all pairs in
cubes at opposite corners of the package, and for paths through the switch the PE that is farthest from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kernbench.common.ids import HOST, SWITCH, PeId, SipId
from kernbench.common.units import on_grid
from kernbench.policy.routing.router import PathRouter
from kernbench.topology.far_memory import far_node
from kernbench.topology.graph import TopologyGraph


@dataclass(frozen=True, slots=True)
class WorstPath:
    """The longest path of its kind. `latency_ns` is that of one direction: every node and wire, no payload."""

    name: str
    distance_mm: float
    latency_ns: float
    path: tuple[str, ...]

    @property
    def src(self) -> str:
        return self.path[0]

    @property
    def dst(self) -> str:
        return self.path[-1]

    @property
    def hops(self) -> int:
        return len(self.path) - 1


def worst_paths(graph: TopologyGraph) -> tuple[WorstPath, ...]:
    """The farthest pairs, near ones first; kinds that the machine does not have are left out."""
    router, spec = PathRouter(graph), graph.spec
    pes = range(spec.cube.n_pes)
    memory = "HBM" if spec.cube.has_hbm else "SRAM"
    if spec.sip.hbm_stacks is not None:
        return _worst_to_stacks(graph, router)
    found = [_worst(f"PE to {memory}, same cube", graph, _between(graph, router, (0, 0), pes))]
    corners = _opposite_corners(graph)
    if corners:
        paths = (path for pair in corners for path in _between(graph, router, pair, pes))
        found.append(_worst(f"PE to {memory}, same SIP", graph, paths))
    far = _farthest_from_switch(graph, router)
    if spec.n_sips > 1:
        slice_there = graph.home_node(1, far.cube, far.pe)
        found.append(_worst(f"PE to {memory}, other SIP", graph, [router.find_path(str(far), slice_there)]))
    slice_here = graph.home_node(0, far.cube, far.pe)
    found.append(_worst(f"host to {memory}", graph, [router.find_memory_path(HOST, slice_here)]))
    return (*found, *_worst_to_far(graph, router))


def _worst_to_far(graph: TopologyGraph, router: PathRouter) -> list[WorstPath]:
    """From the PE that is farthest from the far memory of its SIP, if there is any."""
    spec = graph.spec
    if spec.system.far_memory is None:
        return []
    memory = far_node(spec, 0)
    pes = (PeId(0, cube, pe) for cube in range(spec.sip.n_cubes) for pe in range(spec.cube.n_pes))
    return [_worst("PE to far memory", graph, (router.find_path(str(pe), memory) for pe in pes))]


def _worst_to_stacks(graph: TopologyGraph, router: PathRouter) -> tuple[WorstPath, ...]:
    """The farthest pairs where PEs share stacks."""
    spec = graph.spec
    stacks = [place.id for place in spec.sip.hbm_stacks.places] if spec.sip.hbm_stacks is not None else []
    pes = [PeId(0, cube, pe) for cube in range(spec.sip.n_cubes) for pe in range(spec.cube.n_pes)]
    here = [SipId(0).hbm_stack(name) for name in stacks]
    found = [_worst("PE to HBM, same SIP", graph, (router.find_path(str(pe), stack) for pe in pes for stack in here))]
    if spec.n_sips > 1:
        far = _farthest_from_switch(graph, router)
        there = [SipId(1).hbm_stack(name) for name in stacks]
        paths = (router.find_path(str(far), stack) for stack in there)
        found.append(_worst("PE to HBM, other SIP", graph, paths))
    found.append(_worst("host to HBM", graph, (router.find_memory_path(HOST, stack) for stack in here)))
    return (*found, *_worst_to_far(graph, router))


def _between(
    graph: TopologyGraph, router: PathRouter, cubes: tuple[int, int], pes: Sequence[int]
) -> Iterator[list[str]]:
    """From every PE of one cube of SIP 0 to every slice of another."""
    for slice_ in pes:
        for pe in pes:
            yield router.find_path(str(PeId(0, cubes[0], pe)), graph.home_node(0, cubes[1], slice_))


def _opposite_corners(graph: TopologyGraph) -> list[tuple[int, int]]:
    """The two diagonals of the package; one when it is a row or a column, none when it is one cube."""
    sip = graph.spec.sip
    right, bottom = sip.cube_mesh.w - 1, sip.cube_mesh.h - 1
    pairs = [(sip.cube_at(0, 0), sip.cube_at(right, bottom)), (sip.cube_at(right, 0), sip.cube_at(0, bottom))]
    return [pair for pair in pairs[: 2 if right and bottom else 1] if pair[0] != pair[1]]


def _farthest_from_switch(graph: TopologyGraph, router: PathRouter) -> PeId:
    spec = graph.spec
    pes = [PeId(0, cube, pe) for cube in range(spec.sip.n_cubes) for pe in range(spec.cube.n_pes)]
    return max(pes, key=lambda pe: _length(graph, router.find_path(str(pe), SWITCH)))


def _worst(name: str, graph: TopologyGraph, paths: Iterator[list[str]] | list[list[str]]) -> WorstPath:
    measured = [(*_length(graph, path), path) for path in paths]
    distance_mm, latency_ns, path = max(measured, key=lambda item: item[:2])  # of equals, the first
    return WorstPath(name, distance_mm, latency_ns, tuple(path))


def _length(graph: TopologyGraph, path: Sequence[str]) -> tuple[float, float]:
    """The length of a path in mm, and the latency of its nodes and wires, both ends included."""
    links = [graph.edge(a, b) for a, b in pairwise(path)]
    wires_ns = sum(on_grid(link.distance_mm * graph.spec.system.ns_per_mm) for link in links)
    return sum(link.distance_mm for link in links), wires_ns + sum(on_grid(graph.node(n).overhead_ns) for n in path)
