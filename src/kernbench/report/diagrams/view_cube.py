"""A cube as a picture sees it: routers and ports at their real mm, the rest in the cells between the routers.

A PE or an HBM controller stands at its router in the model; drawn there it would cover it. So each gets a place in a
cell of the mesh next to its router, towards the middle of the die, where no mesh link runs. Cells with several
tenants are cut into bands. Ports and connections share the margin: connections next to their routers, ports at the
edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from kernbench.common.ids import CubeId, PeId
from kernbench.common.units import counted
from kernbench.report.diagrams.view import MachineView, ViewEdge, ViewNode
from kernbench.topology.graph import EdgeKind
from kernbench.topology.mesh import SIDES, Mesh, MeshPosition
from kernbench.topology.spec_base import Side
from kernbench.topology.spec_cube import CubeSpec, GeometrySpec

CUBE_OUTLINE = "cube_outline"
HBM_ZONE = "hbm_zone"

_PORT_DEPTH = (0.04, 0.30)  # of the margin that routers leave free, from the edge
_CONN_DEPTH = (0.45, 0.65)
_PE_BOX = (0.24, 0.10, 0.98, 0.52)  # left, top, right, bottom as fractions of a cell, from its router's corner
_HBM_BOX = (0.08, 0.62, 0.56, 0.92)
_CHANNELS_BOX = (0.06, 0.60, 0.24, 0.94)  # the routers of the channels, between the router and their HBM
_HBM_BEHIND_BOX = (0.40, 0.62, 0.88, 0.92)
_LONE_BOX = (0.20, 0.22, 0.92, 0.78)

_Rect = tuple[float, float, float, float]  # left, top, right, bottom in mm


def bandwidth_label(bw_gbs: float | None) -> str:
    return "control" if bw_gbs is None else f"{bw_gbs:g} GB/s"


@dataclass(frozen=True, slots=True)
class _Tenant:
    """A block attached to a router and drawn in a cell next to it: its boxes as fractions of its share."""

    slot: MeshPosition
    boxes: tuple[tuple[str, str, str, str, tuple[float, float, float, float]], ...]  # id, kind, label, detail, place


def cube_view(machine: str, cube: CubeSpec, mesh: Mesh) -> MachineView:
    """Routers, PEs, HBM, m_cpu, sram, UCIe ports and connections of one cube."""
    me, geometry = CubeId(0, 0), cube.geometry
    side_mm = _router_mm(mesh, geometry.margin_mm)
    middle = (mesh.w_mm / 2, mesh.h_mm / 2)
    nodes = [
        ViewNode(
            str(me),
            CUBE_OUTLINE,
            "cube",
            f"router grid of {len(mesh.xs)} x {len(mesh.ys)}",
            *middle,
            mesh.w_mm,
            mesh.h_mm,
        ),
    ]
    if cube.has_slices:
        size, gb = geometry.hbm_mm, f"{cube.hbm_gb:g} GB"
        nodes.append(ViewNode(f"{me}.hbm", HBM_ZONE, "HBM", gb, *middle, size.w, size.h))
    for row, col in mesh.routers:
        x, y = mesh.position((row, col))
        nodes.append(ViewNode(me.router(row, col), "noc_router", f"r{row}c{col}", "", x, y, side_mm, side_mm))
    nodes += _cell_boxes(_tenants(cube, mesh), mesh, side_mm, geometry)
    for side in SIDES:
        nodes += _port_boxes(me, side, mesh, geometry.margin_mm, side_mm)
    edges = _cube_edges(cube, mesh, me)
    return MachineView(
        "cube",
        f"{machine}: a cube of {counted(cube.n_pes, 'PE')}",
        mesh.w_mm,
        mesh.h_mm,
        tuple(nodes),
        tuple(edges),
    )


def _router_mm(mesh: Mesh, margin_mm: float) -> float:
    gaps = [b - a for line in (mesh.xs, mesh.ys) for a, b in pairwise(line)]
    return min([0.44, 0.5 * margin_mm, *(0.25 * gap for gap in gaps)])


def _tenants(cube: CubeSpec, mesh: Mesh) -> list[_Tenant]:
    me = CubeId(0, 0)
    hbm, tcm = f"{cube.hbm_channels_per_pe} ch", f"{cube.memory_map.tcm_mb_per_pe:g} MB TCM"
    found = []
    for pe, slot in enumerate(mesh.pes):
        name = PeId(0, 0, pe)
        boxes = [(str(name), "pe", f"PE{pe}", tcm, _PE_BOX)]
        if cube.has_channel_routers:
            boxes.append((name.channel_routers(), "channel_router", "ch", "", _CHANNELS_BOX))
        if not cube.has_slices:
            found.append(_Tenant(slot, tuple(boxes)))
            continue
        box = _HBM_BEHIND_BOX if cube.has_channel_routers else _HBM_BOX
        boxes.append((me.hbm_ctrl(pe), "hbm_ctrl", f"HBM{pe}", hbm, box))
        found.append(_Tenant(slot, tuple(boxes)))
    found.append(_Tenant(mesh.m_cpu, ((me.m_cpu(), "m_cpu", "M_CPU", "", _LONE_BOX),)))
    sram = f"{cube.memory_map.sram_mb_per_cube:g} MB"
    found.append(_Tenant(mesh.sram, ((me.sram(), "sram", "SRAM", sram, _LONE_BOX),)))
    return found


def _cell_boxes(tenants: list[_Tenant], mesh: Mesh, side_mm: float, geometry: GeometrySpec) -> list[ViewNode]:
    """Give each tenant the roomiest cell next to its router, then cut the cells among their tenants."""
    cells: dict[MeshPosition, list[_Tenant]] = {}
    rects: dict[MeshPosition, _Rect] = {}
    for tenant in tenants:
        row, col = tenant.slot
        across = min(col, max(len(mesh.xs) - 2, 0)) if 2 * col < len(mesh.xs) else max(col - 1, 0)
        near = [(r, across) for r in (row - 1, row) if 0 <= r < len(mesh.ys) - 1]
        for cell in near:
            rect = _cell_rect(mesh, *cell, side_mm, geometry.margin_mm)
            rects.setdefault(cell, _beside_hbm(rect, mesh, geometry) if mesh.hole else rect)
        room = {cell: (rects[cell][3] - rects[cell][1]) / (len(cells.get(cell, ())) + 1) for cell in near}
        best = max(near, key=lambda cell: (room[cell], -cell[0]))
        cells.setdefault(best, []).append(tenant)
    nodes: list[ViewNode] = []
    for (row, col), inside in cells.items():
        for tenant, share in _shares(inside, rects[row, col]):
            nodes += _boxes(tenant, share, tenant.slot, row, col, len(mesh.xs))
    return nodes


def _shares(tenants: list[_Tenant], cell: _Rect) -> list[tuple[_Tenant, _Rect]]:
    """A cell cut among its tenants: side by side if two routers of one row share it, and into bands otherwise."""
    left, top, right, bottom = cell
    by_column: dict[int, list[_Tenant]] = {}
    for tenant in sorted(tenants, key=lambda tenant: tenant.slot):
        by_column.setdefault(tenant.slot[1], []).append(tenant)
    rows = [tenant.slot[0] for tenant in tenants]
    columns = list(by_column.values()) if len(set(rows)) < len(rows) else [sorted(tenants, key=lambda t: t.slot[0])]
    width = (right - left) / len(columns)
    shares = []
    for n, column in enumerate(columns):
        band = (bottom - top) / len(column)
        for m, tenant in enumerate(column):
            share = (left + n * width, top + m * band, left + (n + 1) * width, top + (m + 1) * band)
            shares.append((tenant, share))
    return shares


def _cell_rect(mesh: Mesh, row: int, col: int, side_mm: float, margin_mm: float) -> _Rect:
    half = side_mm / 2
    if len(mesh.xs) == 1:  # one column has no cells: use what the connections leave of the margin next to it
        right = mesh.xs[0] + half + (margin_mm - half) * (1 - _CONN_DEPTH[1])
    else:
        right = mesh.xs[col + 1] - half
    return mesh.xs[col] + half, mesh.ys[row] + half, right, mesh.ys[row + 1] - half


def _beside_hbm(cell: _Rect, mesh: Mesh, geometry: GeometrySpec) -> _Rect:
    """What the HBM leaves of a cell that it reaches into, on one side of it; the whole cell if that is little."""
    left, top, right, bottom = cell
    half_w, half_h = geometry.hbm_mm.w / 2, geometry.hbm_mm.h / 2
    west, east = mesh.w_mm / 2 - half_w, mesh.w_mm / 2 + half_w
    north, south = mesh.h_mm / 2 - half_h, mesh.h_mm / 2 + half_h
    if right <= west or left >= east or bottom <= north or top >= south:
        return cell
    left_over = [
        (left, top, right, min(bottom, north)),
        (left, max(top, south), right, bottom),
        (left, top, min(right, west), bottom),
        (max(left, east), top, right, bottom),
    ]
    best = max(left_over, key=_area)
    return best if _area(best) > 0.35 * _area(cell) else cell


def _area(rect: _Rect) -> float:
    return max(rect[2] - rect[0], 0.0) * max(rect[3] - rect[1], 0.0)


def _boxes(tenant: _Tenant, share: _Rect, slot: MeshPosition, row: int, col: int, n_cols: int) -> list[ViewNode]:
    """A tenant's boxes in its share of a cell, mirrored so that they open from its router's corner."""
    left, top, right, bottom = share
    flip_x = slot[1] > col and n_cols > 1
    flip_y = slot[0] > row
    nodes = []
    for node_id, kind, label, detail, (a, b, c, d) in tenant.boxes:
        u, v = (a + c) / 2, (b + d) / 2
        x = left + (right - left) * (1 - u if flip_x else u)
        y = top + (bottom - top) * (1 - v if flip_y else v)
        nodes.append(ViewNode(node_id, kind, label, detail, x, y, (c - a) * (right - left), (d - b) * (bottom - top)))
    return nodes


def _port_boxes(me: CubeId, side: Side, mesh: Mesh, margin_mm: float, side_mm: float) -> list[ViewNode]:
    free = margin_mm - side_mm / 2
    flat = side in ("N", "S")
    slots = mesh.conns[side]
    line = mesh.xs if flat else mesh.ys
    narrow = min([0.5, 0.6 * margin_mm, *(0.6 * (b - a) for a, b in pairwise(line))])
    port_at, axis = mesh.port_position(side), 0 if flat else 1
    reach = max(abs(mesh.conn_position(side, n)[axis] - port_at[axis]) for n in range(len(slots)))
    long = max(0.2 * (mesh.w_mm if flat else mesh.h_mm), 2 * reach + narrow)  # as long as its connections lie apart
    nodes = [_edge_box(me.ucie(side), "ucie", f"UCIe-{side}", side, mesh, port_at, _PORT_DEPTH, free, long)]
    for n, slot in enumerate(slots):
        sharing = [i for i, other in enumerate(slots) if other == slot]
        long = 0.9 * narrow / len(sharing)
        shift = (sharing.index(n) - (len(sharing) - 1) / 2) * narrow / len(sharing)
        x, y = mesh.conn_position(side, n)
        at = (x + shift, y) if flat else (x, y + shift)
        nodes.append(_edge_box(me.ucie_conn(side, n), "ucie_conn", f"{n}", side, mesh, at, _CONN_DEPTH, free, long))
    return nodes


def _edge_box(
    node_id: str,
    kind: str,
    label: str,
    side: Side,
    mesh: Mesh,
    at: tuple[float, float],
    depth: tuple[float, float],
    free: float,
    long: float,
) -> ViewNode:
    """A box in the margin: `depth` is a share of the free margin counted from the edge, `long` runs along the edge."""
    inwards, thick = free * (depth[0] + depth[1]) / 2, free * (depth[1] - depth[0])
    x, y = at
    if side in ("N", "S"):
        y = inwards if side == "N" else mesh.h_mm - inwards
        return ViewNode(node_id, kind, label, "", x, y, long, thick)
    x = inwards if side == "W" else mesh.w_mm - inwards
    return ViewNode(node_id, kind, label, "", x, y, thick, long)


def _cube_edges(cube: CubeSpec, mesh: Mesh, me: CubeId) -> list[ViewEdge]:
    links = cube.links

    def edge(a: str, b: str, kind: EdgeKind, bw_gbs: float | None) -> ViewEdge:
        return ViewEdge(a, b, kind, bandwidth_label(bw_gbs), bw_gbs)

    edges = [edge(me.router(*a), me.router(*b), EdgeKind.ROUTER_MESH, links.router_bw_gbs) for a, b, _ in mesh.links()]
    for pe, slot in enumerate(mesh.pes):
        router = me.router(*slot)
        edges.append(edge(str(PeId(0, 0, pe)), router, EdgeKind.PE_TO_ROUTER, links.pe_dma_to_router_bw_gbs))
        if cube.has_channel_routers:
            n, routers = cube.hbm_channels_per_pe, PeId(0, 0, pe).channel_routers()
            edges.append(edge(router, routers, EdgeKind.ROUTER_TO_CHANNEL, n * links.router_bw_gbs))
            router = routers
        if not cube.has_slices:
            continue
        edges.append(edge(router, me.hbm_ctrl(pe), EdgeKind.ROUTER_TO_HBM, cube.hbm_link_bw_gbs))
    edges.append(edge(me.m_cpu(), me.router(*mesh.m_cpu), EdgeKind.COMMAND, links.m_cpu_to_router_bw_gbs))
    edges.append(edge(me.router(*mesh.sram), me.sram(), EdgeKind.ROUTER_TO_SRAM, links.sram_to_router_bw_gbs))
    bw_gbs = cube.ucie.per_connection_bw_gbs
    for side in SIDES:
        for n, slot in enumerate(mesh.conns[side]):
            conn = me.ucie_conn(side, n)
            edges.append(edge(me.router(*slot), conn, EdgeKind.ROUTER_TO_UCIE_CONN, bw_gbs))
            edges.append(edge(conn, me.ucie(side), EdgeKind.UCIE_INTERNAL, bw_gbs))
    return edges
