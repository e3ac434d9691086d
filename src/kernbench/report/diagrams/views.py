"""The machine as pictures see it: tray and SIP as boxes and lines in mm; `view_cube.py` and `view_pe.py` have the rest.

Each view shows one representative block and hides what is inside its boxes. SIP and cube are laid out at their real
positions; the tray, which has none, and the PE, whose parts have no extent in the model, are laid out to be read.
Boxes never overlap, but for outlines, whose kinds are in `CONTAINER_KINDS`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from kernbench.common.ids import HOST, SWITCH, CubeId, IoId, SipId, level_switch
from kernbench.common.units import MIB, counted
from kernbench.report.diagrams.view import MachineView, ViewEdge, ViewNode
from kernbench.report.diagrams.view_cube import CUBE_OUTLINE, HBM_ZONE, bandwidth_label, cube_view
from kernbench.report.diagrams.view_far import (
    far_at_chiplet,
    far_chiplet_edges,
    far_of_sip,
    far_switch_edges,
    with_far_at_switches,
)
from kernbench.report.diagrams.view_pe import PE_OUTLINE, pe_view
from kernbench.topology.graph import EdgeKind
from kernbench.topology.mesh import build_mesh
from kernbench.topology.ports import Chiplet, resolve_chiplets, wrap_links
from kernbench.topology.sip_links import neighbours
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_base import Side
from kernbench.topology.switches import level_switches, levels_from_top, switches_above

SIP_OUTLINE = "sip_outline"
CONTAINER_KINDS = (SIP_OUTLINE, CUBE_OUTLINE, PE_OUTLINE, HBM_ZONE)

_ONE_ROW = 4  # up to so many SIPs stand in one row below the switch; more stand on both sides of it


def machine_views(spec: MachineSpec) -> dict[str, MachineView]:
    """The four views of a machine, by name, and one more of each type of SIP, cube and PE, such as `cube-wide`."""
    mesh = build_mesh(spec.cube)
    chiplets = resolve_chiplets(spec.sip, spec.io_chiplet.cube_distance_mm)
    typed = {number for sips in spec.system.sips.types.values() for number in sips}
    sip = sip_view(spec, chiplets, next((number for number in range(spec.n_sips) if number not in typed), 0))
    views = {
        "system": system_view(spec, sip.w_mm, sip.h_mm, len(chiplets)),
        "sip": sip,
        "cube": cube_view(spec.system.name, spec.cube, mesh),
        "pe": pe_view(spec, mesh),
    }
    views |= {f"sip-{name}": sip_view(spec, chiplets, sips[0]) for name, sips in spec.system.sips.types.items() if sips}
    for name, cube in spec.cube_types.items():
        system = spec.system.model_copy(update={"name": f"{spec.system.name}, {name}"})
        of_type = spec.model_copy(update={"cube": cube, "system": system})
        views[f"cube-{name}"] = cube_view(system.name, cube, mesh)
        views[f"pe-{name}"] = pe_view(of_type, mesh)
    return views


def view_of(spec: MachineSpec, level: str, sip: int, cube: int) -> str:
    """The name of the view of a block: `level` is `system`, `sip`, `cube` or `pe`."""
    name = ""
    if level == "sip":
        name = next((name for name, sips in spec.system.sips.types.items() if sip in sips), "")
    elif level in ("cube", "pe"):
        name = spec.cube_type(sip, cube)
    return f"{level}-{name}" if name else level


# ---------------------------------------------------------------------------------------------------------- the tray


def system_view(spec: MachineSpec, sip_w_mm: float, sip_h_mm: float, n_chiplets: int) -> MachineView:
    """Host, switch and SIPs at their package size."""
    n, levels = spec.n_sips, levels_from_top(spec.system)
    below = n if n <= _ONE_ROW or levels else math.ceil(n / 2)
    gap = 0.2 * max(sip_w_mm, sip_h_mm)
    box_h, host_w = 0.3 * sip_h_mm, 0.7 * sip_w_mm
    pitch = sip_w_mm + gap
    left = 2 * gap + host_w  # the switch spans all SIPs, so that their links run straight; the host is next to it
    span = below * pitch - gap
    top = gap + (sip_h_mm + gap if n > below else 0.0)
    middle = top + box_h / 2
    cubes = spec.sip.cube_mesh
    direct = spec.system.sips.links
    about = f"{counted(n, 'SIP')}, {'logical ' if direct is None else ''}{spec.system.sips.topology}"
    nodes = [
        ViewNode(HOST, "host", "host", "", gap + host_w / 2, middle, host_w, box_h),
        ViewNode(SWITCH, "switch", "switch", about, left + span / 2, middle, span, box_h),
    ]
    nodes = with_far_at_switches(spec, [*nodes, *_level_boxes(spec, left, middle, gap, pitch, box_h)])
    bottom = top + len(levels) * (box_h + gap) + box_h
    common = f"{cubes.w} x {cubes.h} cubes, {counted(n_chiplets, 'IO chiplet')}{far_of_sip(spec)}"
    types = {number: name for name, sips in spec.system.sips.types.items() for number in sips}
    for sip in range(n):
        column = sip if sip < below else sip - below
        if direct is not None and sip >= below:  # neighbours are next to one another or above one another
            column = n - 1 - sip
        x = left + column * pitch + sip_w_mm / 2
        y = bottom + gap + sip_h_mm / 2 if sip < below else gap + sip_h_mm / 2
        detail = f"{types[sip]}: {common}" if sip in types else common
        nodes.append(ViewNode(str(SipId(sip)), "sip", f"SIP {sip}", detail, x, y, sip_w_mm, sip_h_mm))
    host, ep = spec.system.links.host_to_switch, spec.system.links.io_ep_to_switch
    edges = [ViewEdge(HOST, SWITCH, EdgeKind.PCIE, bandwidth_label(host.bw_gbs), host.bw_gbs), *far_switch_edges(spec)]
    label = bandwidth_label(ep.bw_gbs) if n_chiplets == 1 else f"{n_chiplets} x {bandwidth_label(ep.bw_gbs)}"
    for switch in level_switches(spec.system):
        gbs = switch.level.bw_gbs
        edges.append(ViewEdge(switch.above, switch.name, EdgeKind.PCIE, bandwidth_label(gbs), gbs))
    for sip in range(n):
        own = switches_above(spec.system, sip)[0]
        edges.append(ViewEdge(own, str(SipId(sip)), EdgeKind.PCIE, label, n_chiplets * ep.bw_gbs))
    if direct is not None:
        for sip, to, count in neighbours(spec.system.sips):
            label = bandwidth_label(direct.bw_gbs) if count == 1 else f"{count} x {bandwidth_label(direct.bw_gbs)}"
            edges.append(ViewEdge(str(SipId(sip)), str(SipId(to)), EdgeKind.SIP_LINK, label, count * direct.bw_gbs))
    width, height = left + span + gap, bottom + gap + sip_h_mm + gap
    return MachineView(
        "system",
        f"{spec.system.name}: {'all SIPs' if levels else 'the tray'}",
        width,
        height,
        tuple(nodes),
        tuple(edges),
    )


def _level_boxes(
    spec: MachineSpec, left: float, middle: float, gap: float, pitch: float, box_h: float
) -> Iterator[ViewNode]:
    """The switches below the top, a row for each level, each as wide as the SIPs below it."""
    for row, (name, level) in enumerate(levels_from_top(spec.system), 1):
        width = spec.n_sips // level.count * pitch - gap
        for number in range(level.count):
            x, y = left + number * (width + gap) + width / 2, middle + row * (box_h + gap)
            yield ViewNode(level_switch(name, number), "switch", f"{name} {number}", "", x, y, width, box_h)


# ----------------------------------------------------------------------------------------------------------- the SIP


def sip_view(spec: MachineSpec, chiplets: tuple[Chiplet, ...], sip: int = 0) -> MachineView:
    """One SIP, with the names of the first: cubes on their grid, IO chiplets along the shoreline; x and y from the
    north-west corner of the package.
    """
    mesh, die = spec.sip.cube_mesh, spec.cube.geometry.cube_mm
    seam = spec.sip.links.cube_to_cube
    step_x, step_y = die.w + max(seam.distance_mm, 0.05 * die.w), die.h + max(seam.distance_mm, 0.05 * die.h)
    grid_w, grid_h = mesh.w * step_x - (step_x - die.w), mesh.h * step_y - (step_y - die.h)
    boxes = [
        ViewNode(
            str(CubeId(0, spec.sip.cube_at(x, y))),
            "cube",
            f"cube {spec.sip.cube_at(x, y)}",
            _about_cube(spec, sip, spec.sip.cube_at(x, y)),
            x * step_x + die.w / 2,
            y * step_y + die.h / 2,
            die.w,
            die.h,
        )
        for y in range(mesh.h)
        for x in range(mesh.w)
    ]
    cubes = tuple(boxes)
    boxes += _stack_boxes(spec, cubes)
    boxes += _chiplet_boxes(spec, chiplets, cubes, grid_w, grid_h) + _phy_boxes(spec, chiplets, cubes)
    boxes += far_at_chiplet(spec, chiplets, boxes)
    margin = 2.0
    left = min(box.x_mm - box.w_mm / 2 for box in boxes) - margin
    top = min(box.y_mm - box.h_mm / 2 for box in boxes) - margin
    w_mm = max(box.x_mm + box.w_mm / 2 for box in boxes) + margin - left
    h_mm = max(box.y_mm + box.h_mm / 2 for box in boxes) + margin - top
    about = f"cubes of {die.w:g} x {die.h:g} mm"
    if sip:
        about = f"{about}, SIP {sip}"
    outline = ViewNode(str(SipId(0)), SIP_OUTLINE, "SIP", about, w_mm / 2, h_mm / 2, w_mm, h_mm)
    moved = [ViewNode(b.id, b.kind, b.label, b.detail, b.x_mm - left, b.y_mm - top, b.w_mm, b.h_mm) for b in boxes]
    title = f"{spec.system.name}: a SIP of {mesh.w} x {mesh.h} cubes"
    return MachineView("sip", title, w_mm, h_mm, (outline, *moved), tuple(_sip_edges(spec, chiplets)))


def _about_cube(spec: MachineSpec, sip: int, number: int) -> str:
    name, cube = spec.cube_type(sip, number), spec.cube_of(sip, number)
    if not cube.has_slices:
        home = "" if cube.has_hbm else f", {cube.home_bytes / MIB:g} MB {cube.home.name}"
        return f"{name + ': ' if name else ''}{counted(cube.n_pes, 'PE')}{home}"
    about = f"{counted(cube.n_pes, 'PE')}, {cube.hbm_gb:g} GB HBM"
    return f"{name}: {about}" if name else about


def _sip_edges(spec: MachineSpec, chiplets: tuple[Chiplet, ...]) -> list[ViewEdge]:
    mesh, seam = spec.sip.cube_mesh, spec.sip.links.cube_to_cube
    edges = []
    for y in range(mesh.h):
        for x in range(mesh.w):
            here = str(CubeId(0, spec.sip.cube_at(x, y)))
            for nx, ny in ((x + 1, y), (x, y + 1)):
                if nx < mesh.w and ny < mesh.h:
                    there = str(CubeId(0, spec.sip.cube_at(nx, ny)))
                    label = bandwidth_label(seam.bw_gbs)
                    edges.append(ViewEdge(here, there, EdgeKind.UCIE_MESH, label, seam.bw_gbs))
    for closed in wrap_links(spec.sip, chiplets):
        last, first = (str(CubeId(0, spec.sip.cube_at(*at))) for at in (closed.last, closed.first))
        gbs = spec.wrap_link(closed.axis)[0]
        edges.append(ViewEdge(last, first, EdgeKind.UCIE_MESH, f"{bandwidth_label(gbs)}, wrap", gbs))
    stacks = spec.sip.hbm_stacks
    if stacks is not None:
        label = f"{stacks.links} x {bandwidth_label(stacks.link_bw_gbs)}"
        for place in stacks.places:
            ends = SipId(0).hbm_stack(place.id), str(CubeId(0, place.cube))
            edges.append(ViewEdge(*ends, EdgeKind.ROUTER_TO_HBM, label, stacks.links * stacks.link_bw_gbs))
    bw_gbs = spec.io_chiplet.phy_bw_gbs
    inside = spec.io_chiplet.n_connections * spec.io_chiplet.links.per_connection_bw_gbs
    for chiplet in chiplets:
        for port in chiplet.ports:
            cube = str(CubeId(0, spec.sip.cube_at(port.x, port.y)))
            me = IoId(0, chiplet.id)
            phy = me.io_ucie(port.phy)
            edges.append(ViewEdge(str(me), phy, EdgeKind.IO_INTERNAL, bandwidth_label(inside), inside))
            edges.append(ViewEdge(phy, cube, EdgeKind.IO_TO_CUBE, bandwidth_label(bw_gbs), bw_gbs))
    return edges + far_chiplet_edges(spec)


def _stack_boxes(spec: MachineSpec, cubes: tuple[ViewNode, ...]) -> list[ViewNode]:
    """HBM stacks that PEs share, beside the sides of their cubes; as large as an HBM of the geometry, or less."""
    stacks, size = spec.sip.hbm_stacks, spec.cube.geometry.hbm_mm
    boxes = []
    for place in stacks.places if stacks is not None else ():
        assert stacks is not None
        cube, distance = cubes[place.cube], max(stacks.distance_mm, 0.5)
        beside = sum((each.cube, each.side) == (place.cube, place.side) for each in stacks.places)
        if place.side in ("W", "E"):
            w, h = size.w, min(size.h, 0.8 * cube.h_mm / beside)
            out = cube.w_mm / 2 + distance + w / 2
            x = cube.x_mm + (out if place.side == "E" else -out)
            y = cube.y_mm + min(max((place.at - 0.5) * cube.h_mm, (h - cube.h_mm) / 2), (cube.h_mm - h) / 2)
        else:
            w, h = min(size.w, 0.8 * cube.w_mm / beside), size.h
            out = cube.h_mm / 2 + distance + h / 2
            y = cube.y_mm + (out if place.side == "S" else -out)
            x = cube.x_mm + min(max((place.at - 0.5) * cube.w_mm, (w - cube.w_mm) / 2), (cube.w_mm - w) / 2)
        detail = f"{stacks.gb} GB, {stacks.channels * stacks.channel_bw_gbs:g} GB/s"
        boxes.append(ViewNode(SipId(0).hbm_stack(place.id), "hbm_ctrl", f"HBM {place.id}", detail, x, y, w, h))
    return boxes


def _chiplet_boxes(
    spec: MachineSpec, chiplets: tuple[Chiplet, ...], cubes: tuple[ViewNode, ...], grid_w: float, grid_h: float
) -> list[ViewNode]:
    """Each chiplet opposite the middle of its cubes; neighbours are pushed apart, east and west clear the corners."""
    size, gap = spec.io_chiplet.size_mm, _shore_mm(spec)
    by_side: dict[Side, list[tuple[float, Chiplet]]] = {}
    for chiplet in chiplets:
        ends = [cubes[spec.sip.cube_at(port.x, port.y)] for port in chiplet.ports]
        along = [end.x_mm if chiplet.side in ("N", "S") else end.y_mm for end in ends]
        by_side.setdefault(chiplet.side, []).append((sum(along) / len(along), chiplet))
    places: dict[str, tuple[float, float, float, float]] = {}
    out_x = 0.0
    north_south: tuple[Side, ...] = ("N", "S")
    for side in north_south:
        y = -gap - size.h / 2 if side == "N" else grid_h + gap + size.h / 2
        for x, chiplet in _apart(by_side.get(side, []), size.w):
            places[chiplet.id] = (x, y, size.w, size.h)
            out_x = max(out_x, size.w / 2 - x, x + size.w / 2 - grid_w)
    west_east: tuple[Side, ...] = ("W", "E")
    for side in west_east:
        far = gap + out_x + size.h / 2
        x = -far if side == "W" else grid_w + far
        for y, chiplet in _apart(by_side.get(side, []), size.w):
            places[chiplet.id] = (x, y, size.h, size.w)
    return [
        ViewNode(str(IoId(0, c.id)), "io_chiplet", c.id, f"PCIe, {counted(len(c.ports), 'PHY')}", *places[c.id])
        for c in chiplets
    ]


def _shore_mm(spec: MachineSpec) -> float:
    """Between cubes and chiplets: the real distance, or enough to draw the PHYs in."""
    return max(spec.io_chiplet.cube_distance_mm, 0.5)


def _phy_boxes(spec: MachineSpec, chiplets: tuple[Chiplet, ...], cubes: tuple[ViewNode, ...]) -> list[ViewNode]:
    """A chiplet's PHYs, drawn before the cube ports they face: so no link runs across a cube."""
    gap = _shore_mm(spec)
    nodes = []
    for chiplet in chiplets:
        for port in chiplet.ports:
            cube = cubes[spec.sip.cube_at(port.x, port.y)]
            out, thick, long = 0.45 * gap, 0.4 * gap, 0.2 * min(cube.w_mm, cube.h_mm)
            dx, dy = {"N": (0, -1), "S": (0, 1), "E": (1, 0), "W": (-1, 0)}[port.cube_side]
            x, y = cube.x_mm + dx * (cube.w_mm / 2 + out), cube.y_mm + dy * (cube.h_mm / 2 + out)
            w, h = (long, thick) if dx == 0 else (thick, long)
            phy = IoId(0, chiplet.id).io_ucie(port.phy)
            nodes.append(ViewNode(phy, "io_ucie", port.phy, "", x, y, w, h))
    return nodes


def _apart(wanted: list[tuple[float, Chiplet]], length: float) -> list[tuple[float, Chiplet]]:
    """Positions near the wanted ones, at least a box and a bit from each other, centred as a group."""
    step = 1.1 * length
    ordered = sorted(wanted, key=lambda item: (item[0], item[1].id))
    placed: list[tuple[float, Chiplet]] = []
    for at, chiplet in ordered:
        placed.append((max(at, placed[-1][0] + step) if placed else at, chiplet))
    shift = sum(new[0] - old[0] for new, old in zip(placed, ordered, strict=True)) / max(len(placed), 1)
    return [(at - shift, chiplet) for at, chiplet in placed]
