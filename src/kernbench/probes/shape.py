"""The shape of a machine as the probe needs it: cubes at growing distance from the host, the halves of a cube.

The cubes of the host cases lie on a straight line away from a port of the first IO chiplet, so that a route extends
the one before it. The line ends where the next cube is reached by another path, for example from another chiplet.
"""

from __future__ import annotations

from itertools import pairwise

from kernbench.common.ids import IoId
from kernbench.sim_engine.wiring import wiring_of
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.ports import PhyPort, resolve_chiplets
from kernbench.topology.spec_cube import PeLayout

_INWARDS = {"N": (0, 1), "S": (0, -1), "W": (1, 0), "E": (-1, 0)}  # from a side of the package, inwards


def hop_cubes(graph: TopologyGraph) -> tuple[int, ...]:
    """Cubes of SIP 0 that a host request reaches through 1, 2, 3, ... cubes: the longest line, the first of equals."""
    spec = graph.spec
    chiplet = resolve_chiplets(spec.sip, spec.io_chiplet.cube_distance_mm)[0]
    lines = [_line(graph, chiplet.id, port) for port in chiplet.ports]
    longest = max(lines, key=len)
    if longest:
        return longest
    nearest = min(range(spec.sip.n_cubes), key=lambda cube: (_host_path(graph, cube)[0], cube))
    return (nearest,)


def _line(graph: TopologyGraph, chiplet: str, port: PhyPort) -> tuple[int, ...]:
    sip = graph.spec.sip
    endpoint = IoId(0, chiplet).pcie_ep()
    dx, dy = _INWARDS[port.cube_side]
    x, y = port.x, port.y
    line: list[int] = []
    while 0 <= x < sip.cube_mesh.w and 0 <= y < sip.cube_mesh.h:
        cube = sip.cube_at(x, y)
        _, path = _host_path(graph, cube)
        if path[0] != endpoint or _cubes_on(graph, path) != [*line, cube]:
            break
        line.append(cube)
        x, y = x + dx, y + dy
    return tuple(line)


def _host_path(graph: TopologyGraph, cube: int) -> tuple[float, list[str]]:
    """Distance and path of a host request to PE 0's slice in a cube, from the endpoint that is nearest to it."""
    wiring = wiring_of(graph)
    memory = graph.home_node(0, cube, 0)
    paths = []
    for chiplet in graph.spec.sip.io_chiplets:
        path = wiring.router.find_memory_path(wiring.resolver.find_pcie_ep(0, chiplet.id), memory)
        paths.append((sum(graph.edge(a, b).distance_mm for a, b in pairwise(path)), path))
    return min(paths, key=lambda found: (found[0], found[1][0]))


def _cubes_on(graph: TopologyGraph, path: list[str]) -> list[int]:
    """The cubes a path passes, in order, each once."""
    return list(dict.fromkeys(place.cube for place in (graph.node(node).place for node in path) if place.cube >= 0))


def same_half_pe(layout: PeLayout) -> int | None:
    """The first other PE in the half of the cube of PE 0; halves are north and south."""
    return next((pe for pe in range(1, layout.n_pes) if _half(layout, pe) == _half(layout, 0)), None)


def far_half_pe(layout: PeLayout) -> int | None:
    """The first PE of the other half."""
    return next((pe for pe in range(1, layout.n_pes) if _half(layout, pe) != _half(layout, 0)), None)


def _half(layout: PeLayout, pe: int) -> str:
    return layout.corners[pe // layout.pe_per_corner][0]
