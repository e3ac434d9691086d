"""The nodes and edges of a SIP: cubes joined by UCIe, and IO chiplets.

An IO chiplet has its own coordinate frame, x along the shoreline and y towards the cubes: io_noc in the middle, pcie_ep
and the ports of direct links to other SIPs at the outer edge, io_cpu next to io_noc, the PHYs evenly along the inner
edge, a PHY's connections evenly along its part of that edge. Wires inside it run along x and y; those of a PHY's
connections are matched in length, each as long as the wire to the middle of the PHY, so that routes spread over them by
position (`policy/routing/io_connections.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.common.ids import CubeId, IoId, Place
from kernbench.topology.build_cube import manhattan_mm
from kernbench.topology.graph import Edge, EdgeKind, Node
from kernbench.topology.mesh import snap_mm
from kernbench.topology.ports import Chiplet, wrap_links
from kernbench.topology.sip_links import port_sides
from kernbench.topology.spec import MachineSpec, SipsSpec
from kernbench.topology.spec_sip import IoChipletSpec
from kernbench.topology.template import Template, component_data


def io_template(io: IoChipletSpec, chiplet: Chiplet, sips: SipsSpec | None = None) -> Template:
    """One IO chiplet as a template, which is instantiated in every SIP; with the ports of direct links of `sips`."""
    me = IoId(0, chiplet.id)
    template = Template(str(me))
    parts, links = io.components, io.links
    w, h = io.size_mm.w, io.size_mm.h
    noc_at, ep_at, cpu_at = (w / 2, h / 2), (w / 2, 0.0), (w / 4, h / 2)
    template.add(me.pcie_ep(), component_data(parts.pcie_ep), ep_at)
    template.add(me.io_cpu(), component_data(parts.io_cpu), cpu_at)
    template.add(me.io_noc(), component_data(parts.io_noc), noc_at)
    internal = EdgeKind.IO_INTERNAL
    template.link(me.pcie_ep(), me.io_noc(), internal, links.pcie_ep_to_noc_bw_gbs, manhattan_mm(ep_at, noc_at))
    template.link(me.io_cpu(), me.io_noc(), internal, links.io_cpu_to_noc_bw_gbs, manhattan_mm(cpu_at, noc_at))
    if sips is not None and sips.links is not None:
        part = component_data(sips.links.port)
        port_gbs = sips.links.port_to_noc_bw_gbs or links.pcie_ep_to_noc_bw_gbs
        sides = port_sides(sips)
        for n, side in enumerate(sides):  # along the outer edge, beside the PCIe endpoint
            at = (w * (n + 0.5) / len(sides), 0.0)
            template.add(me.sip_port(side), part, at)
            template.link(me.sip_port(side), me.io_noc(), internal, port_gbs, manhattan_mm(at, noc_at))
    ucie, conn = component_data(parts.io_ucie), component_data(parts.conn)
    bw_gbs = links.per_connection_bw_gbs
    phy_w = w / len(chiplet.ports)
    for n, port in enumerate(chiplet.ports):
        phy_at = (phy_w * (n + 0.5), h)
        wire_mm = manhattan_mm(noc_at, phy_at)
        template.add(me.io_ucie(port.phy), ucie, phy_at)
        for c in range(io.n_connections):
            name = me.conn(port.phy, c)
            template.add(name, conn, (phy_w * (n + (c + 0.5) / io.n_connections), h))
            template.link(me.io_noc(), name, internal, bw_gbs, wire_mm)
            template.link(name, me.io_ucie(port.phy), internal, bw_gbs)
    return template


def add_sip(
    spec: MachineSpec,
    sip: int,
    cubes: Mapping[str, Template],
    chiplets: tuple[tuple[Chiplet, Template], ...],
    nodes: dict[str, Node],
    edges: list[Edge],
) -> None:
    """Add one SIP to the graph: IO chiplets, cubes, links between cubes, links to the chiplets. `cubes` are
    the templates by type.
    """
    for chiplet, template in chiplets:
        template.instantiate(str(IoId(sip, chiplet.id)), Place(sip=sip, io=chiplet.id), nodes, edges)
    for n in range(spec.sip.n_cubes):
        cubes[spec.cube_type(sip, n)].instantiate(str(CubeId(sip, n)), Place(sip, n), nodes, edges)
    _join_cubes(spec, sip, tuple(chiplet for chiplet, _ in chiplets), edges)
    bw_gbs = spec.io_chiplet.phy_bw_gbs
    for chiplet, _ in chiplets:
        for port in chiplet.ports:
            phy = IoId(sip, chiplet.id).io_ucie(port.phy)
            ucie = CubeId(sip, spec.sip.cube_at(port.x, port.y)).ucie(port.cube_side)
            mm = snap_mm(port.distance_mm)
            edges.append(Edge(phy, ucie, EdgeKind.IO_TO_CUBE, bw_gbs, mm))
            edges.append(Edge(ucie, phy, EdgeKind.CUBE_TO_IO, bw_gbs, mm))


def _join_cubes(spec: MachineSpec, sip: int, chiplets: tuple[Chiplet, ...], edges: list[Edge]) -> None:
    link = spec.sip.links.cube_to_cube
    w, h = spec.sip.cube_mesh.w, spec.sip.cube_mesh.h
    mm = snap_mm(link.distance_mm)
    for y in range(h):
        for x in range(w):
            here = CubeId(sip, spec.sip.cube_at(x, y))
            pairs = []
            if x + 1 < w:
                pairs.append((here.ucie("E"), CubeId(sip, spec.sip.cube_at(x + 1, y)).ucie("W")))
            if y + 1 < h:
                pairs.append((here.ucie("S"), CubeId(sip, spec.sip.cube_at(x, y + 1)).ucie("N")))
            for a, b in pairs:
                edges.append(Edge(a, b, EdgeKind.UCIE_MESH, link.bw_gbs, mm))
                edges.append(Edge(b, a, EdgeKind.UCIE_MESH, link.bw_gbs, mm))
    for closed in wrap_links(spec.sip, chiplets):
        bw_gbs, wire_mm = spec.wrap_link(closed.axis)
        a, b = (
            CubeId(sip, spec.sip.cube_at(*at)).ucie(side)
            for at, side in zip((closed.last, closed.first), closed.sides, strict=True)
        )
        edges.append(Edge(a, b, EdgeKind.UCIE_MESH, bw_gbs, snap_mm(wire_mm)))
        edges.append(Edge(b, a, EdgeKind.UCIE_MESH, bw_gbs, snap_mm(wire_mm)))
