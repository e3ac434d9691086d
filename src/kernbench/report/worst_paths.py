"""The longest paths of a machine: distance in mm, and uncontended latency of a message of zero bytes.

Four kinds of path are considered: a PE and an HBM slice in one cube, in one SIP and in two SIPs, and the host and a
slice. All cubes are equal and wires are bidirectional, so few candidates suffice: all pairs in one cube; all pairs in
cubes at opposite corners of the package, or on a torus in a corner and the cube farthest from it; for paths through the
switch the PE that is farthest from it, and a SIP below another switch of each level; over direct links a SIP that is
the most links away, and the PE and the memory that are farthest from the ports used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf

from kernbench.common.ids import HOST, SWITCH, PeId, SipId
from kernbench.common.units import on_grid
from kernbench.policy.routing.router import PathRouter
from kernbench.topology.far_memory import far_node
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.ports import resolve_chiplets, wrap_links
from kernbench.topology.sip_links import sides_between
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_sip import SipSpec

ROUNDING_MM = 1e-6  # of sums of lengths
MOST_ROUTERS = 8  # over which the ways of all pairs are looked at


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
    memory = spec.cube.home.name
    if spec.sip.hbm_stacks is not None:
        return _worst_to_stacks(graph, router)
    found = [_worst(f"PE to {memory}, same cube", graph, _farthest_between(graph, router, (0, 0), pes))]
    pairs = _far_cubes(graph, router)
    if pairs:
        paths = [path for pair in pairs for path in _farthest_between(graph, router, pair, pes)]
        found.append(_worst(f"PE to {memory}, same SIP", graph, paths))
    far = _farthest_from_switch(graph, router)
    if spec.n_sips > 1:
        places = [far] if spec.system.sips.links is None else _pes_of_sip(graph)
        there = {sip: [graph.home_node(sip, pe.cube, pe.pe) for pe in places] for sip in _far_sips(spec)}
        found.append(_worst(f"PE to {memory}, other SIP", graph, _to_other_sips(graph, router, far, there)))
    slice_here = graph.home_node(0, far.cube, far.pe)
    found.append(_worst(f"host to {memory}", graph, [router.find_memory_path(HOST, slice_here)]))
    return (*found, *_worst_to_far(graph, router))


def _worst_to_far(graph: TopologyGraph, router: PathRouter) -> list[WorstPath]:
    """From the PE that is farthest from the far memory of its SIP, if there is any."""
    spec = graph.spec
    if spec.system.far_memory is None:
        return []
    memory = far_node(spec, 0)
    return [_worst("PE to far memory", graph, (router.find_path(str(pe), memory) for pe in _pes_of_sip(graph)))]


def _worst_to_stacks(graph: TopologyGraph, router: PathRouter) -> tuple[WorstPath, ...]:
    """The farthest pairs where PEs share stacks."""
    spec = graph.spec
    stacks = [place.id for place in spec.sip.hbm_stacks.places] if spec.sip.hbm_stacks is not None else []
    pes = _pes_of_sip(graph)
    here = [SipId(0).hbm_stack(name) for name in stacks]
    found = [_worst("PE to HBM, same SIP", graph, (router.find_path(str(pe), stack) for pe in pes for stack in here))]
    if spec.n_sips > 1:
        far = _farthest_from_switch(graph, router)
        there = {sip: [SipId(sip).hbm_stack(name) for name in stacks] for sip in _far_sips(spec)}
        found.append(_worst("PE to HBM, other SIP", graph, _to_other_sips(graph, router, far, there)))
    found.append(_worst("host to HBM", graph, (router.find_memory_path(HOST, stack) for stack in here)))
    return (*found, *_worst_to_far(graph, router))


def _far_sips(spec: MachineSpec) -> list[int]:
    """The SIPs that are the most direct links away from SIP 0; of those that are behind a switch, one."""
    if spec.system.sips.links is None:
        return [spec.n_sips - 1 if spec.system.switch_levels else 1]
    hops = {sip: len(sides_between(spec.system.sips, 0, sip)) for sip in range(1, spec.n_sips)}
    return [sip for sip, n in hops.items() if n == max(hops.values())]


def _to_other_sips(
    graph: TopologyGraph, router: PathRouter, far: PeId, memories: Mapping[int, Sequence[str]]
) -> Iterator[list[str]]:
    """To each of the memories of other SIPs from the PE that is farthest: `far`, which is farthest from the switch, or
    over direct links the one that is farthest from the port there.
    """
    for there in memories.values():
        start = far
        if graph.spec.system.sips.links is not None:
            start = max(_pes_of_sip(graph), key=lambda pe: _length(graph, router.find_path(str(pe), there[0])))
        yield from (router.find_path(str(start), memory) for memory in there)


def _pes_of_sip(graph: TopologyGraph) -> list[PeId]:
    return [PeId(0, cube, pe) for cube in range(graph.spec.sip.n_cubes) for pe in range(graph.spec.cube.n_pes)]


def _farthest_between(
    graph: TopologyGraph, router: PathRouter, cubes: tuple[int, int], pes: Sequence[int]
) -> list[list[str]]:
    """Of the paths from every PE of one cube of SIP 0 to every slice of a cube those that are longest, and some others,
    in the order of slices and PEs.

    The search for paths to one slice goes through the whole SIP. No path is longer than the way over a router that
    others pass, which two searches know for all pairs: those that are nearer by that than the farthest so far are left
    out. Each path that is found, up to so many, has such a router in its middle.
    """
    engines, slices = [str(PeId(0, cubes[0], pe)) for pe in pes], [graph.home_node(0, cubes[1], pe) for pe in pes]
    at_most = [inf] * (len(engines) * len(slices))
    found: dict[int, list[str]] = {}
    longest = 0.0
    while True:
        left = [number for number in range(len(at_most)) if number not in found and at_most[number] >= longest]
        if not left:
            return [found[number] for number in sorted(found)]
        number = max(left, key=at_most.__getitem__)
        slice_, engine = divmod(number, len(engines))
        found[number] = path = router.find_path(engines[engine], slices[slice_])
        mm = _length(graph, path)[0]
        longest = max(longest, mm - ROUNDING_MM)
        routers = [node for node in path if graph.node(node).kind == "noc_router"]
        if routers and at_most[number] > mm + ROUNDING_MM and len(found) <= MOST_ROUTERS:
            middle = routers[len(routers) // 2]
            there = [_length(graph, router.find_path(each, middle))[0] for each in engines]
            onward = [_length(graph, router.find_data_path(each, middle))[0] for each in slices]
            at_most = [min(before, a + b) for before, (b, a) in zip(at_most, product(onward, there), strict=True)]


def _far_cubes(graph: TopologyGraph, router: PathRouter) -> list[tuple[int, int]]:
    """The two diagonals of the package; one when it is a row or a column, none when it is one cube. On a torus each
    corner with a cube that is farthest from it, of those with the most links between or one less.
    """
    sip = graph.spec.sip
    corners = _opposite_corners(sip)
    if sip.cube_mesh.wrap == "none":
        return corners

    def length(pair: tuple[int, int]) -> tuple[float, float]:
        return _length(graph, router.find_path(str(PeId(0, pair[0], 0)), graph.home_node(0, pair[1], 0)))

    found = []
    for corner in dict.fromkeys(cube for pair in corners for cube in pair):
        hops = _cube_hops(sip, corner)
        most = max(hops.values())
        found.append(max(((corner, cube) for cube, n in hops.items() if n >= most - 1), key=length))
    return found


def _cube_hops(sip: SipSpec, start: int) -> dict[int, int]:
    """How many links are between a cube and each cube of its SIP, those that close rows and columns included."""
    mesh = sip.cube_mesh
    links = [(cube, cube + 1) for cube in range(sip.n_cubes) if (cube + 1) % mesh.w]
    links += [(cube, cube + mesh.w) for cube in range(sip.n_cubes - mesh.w)]
    closed = wrap_links(sip, resolve_chiplets(sip, 0.0))
    links += [(sip.cube_at(*link.last), sip.cube_at(*link.first)) for link in closed]
    hops, order = {start: 0}, [start]
    for cube in order:
        beside = [a + b - cube for a, b in links if cube in (a, b)]
        new = [other for other in dict.fromkeys(beside) if other not in hops]
        hops |= dict.fromkeys(new, hops[cube] + 1)
        order += new
    return hops


def _opposite_corners(sip: SipSpec) -> list[tuple[int, int]]:
    right, bottom = sip.cube_mesh.w - 1, sip.cube_mesh.h - 1
    pairs = [(sip.cube_at(0, 0), sip.cube_at(right, bottom)), (sip.cube_at(right, 0), sip.cube_at(0, bottom))]
    return [pair for pair in pairs[: 2 if right and bottom else 1] if pair[0] != pair[1]]


def _farthest_from_switch(graph: TopologyGraph, router: PathRouter) -> PeId:
    return max(_pes_of_sip(graph), key=lambda pe: _length(graph, router.find_path(str(pe), SWITCH)))


def _worst(name: str, graph: TopologyGraph, paths: Iterator[list[str]] | list[list[str]]) -> WorstPath:
    measured = [(*_length(graph, path), path) for path in paths]
    distance_mm, latency_ns, path = max(measured, key=lambda item: item[:2])  # of equals, the first
    return WorstPath(name, distance_mm, latency_ns, tuple(path))


def _length(graph: TopologyGraph, path: Sequence[str]) -> tuple[float, float]:
    """The length of a path in mm, and the latency of its nodes and wires, both ends included."""
    links = [graph.edge(a, b) for a, b in pairwise(path)]
    wires_ns = sum(on_grid(link.distance_mm * graph.spec.system.ns_per_mm) for link in links)
    return sum(link.distance_mm for link in links), wires_ns + sum(on_grid(graph.node(n).overhead_ns) for n in path)
