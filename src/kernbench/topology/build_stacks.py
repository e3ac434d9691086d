"""The HBM stacks of a SIP that PEs share: one controller each, linked to the routers nearest to it on its side.

A stack stands outside its cube, `distance_mm` from the edge; a link is as long as the wire from its router to the edge
and on to the stack, along x and y. So each PE takes the link nearest to its path.
"""

from __future__ import annotations

from kernbench.common.ids import CubeId, Place, SipId
from kernbench.common.units import GIB
from kernbench.topology.build_cube import hbm_part, manhattan_mm
from kernbench.topology.graph import Edge, EdgeKind, Node
from kernbench.topology.mesh import Mesh, MeshPosition, snap_mm
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_stacks import StackPlace

_OUTWARDS = {"N": (0, -1), "S": (0, 1), "E": (1, 0), "W": (-1, 0)}


def add_stacks(spec: MachineSpec, sip: int, mesh: Mesh, nodes: dict[str, Node], edges: list[Edge]) -> None:
    """Add the stacks of one SIP, if it has any, and both directions of their links."""
    stacks = spec.sip.hbm_stacks
    if stacks is None:
        return
    cube = spec.cube
    part = hbm_part(cube, stacks.channels, stacks.channels * cube.hbm_channel_bw_gbs, stacks.gb * GIB)
    for place in stacks.places:
        name, at = SipId(sip).hbm_stack(place.id), position(place, mesh, stacks.distance_mm)
        nodes[name] = Node(name, part.kind, part.impl, part.attrs, snap_mm(at[0]), snap_mm(at[1]), Place(sip))
        for slot in routers_at(place, mesh, stacks.links):
            router, mm = CubeId(sip, place.cube).router(*slot), snap_mm(manhattan_mm(mesh.position(slot), at))
            edges.append(Edge(router, name, EdgeKind.ROUTER_TO_HBM, stacks.link_bw_gbs, mm))
            edges.append(Edge(name, router, EdgeKind.ROUTER_TO_HBM, stacks.link_bw_gbs, mm))


def position(place: StackPlace, mesh: Mesh, distance_mm: float) -> tuple[float, float]:
    """Where a stack stands, in the frame of its cube."""
    dx, dy = _OUTWARDS[place.side]
    x = place.at * mesh.w_mm if dx == 0 else (mesh.w_mm if dx > 0 else 0.0) + dx * distance_mm
    y = place.at * mesh.h_mm if dy == 0 else (mesh.h_mm if dy > 0 else 0.0) + dy * distance_mm
    return x, y


def routers_at(place: StackPlace, mesh: Mesh, count: int) -> list[MeshPosition]:
    """The routers of the outermost row or column on a stack's side that are nearest to it, in order."""
    rows, columns = len(mesh.ys), len(mesh.xs)
    outer = {
        "N": [(0, col) for col in range(columns)],
        "S": [(rows - 1, col) for col in range(columns)],
        "W": [(row, 0) for row in range(rows)],
        "E": [(row, columns - 1) for row in range(rows)],
    }[place.side]
    at = position(place, mesh, 0.0)
    nearest = sorted(outer, key=lambda slot: (manhattan_mm(mesh.position(slot), at), slot))
    return sorted(nearest[:count])
