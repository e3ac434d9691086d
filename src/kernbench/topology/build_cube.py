"""Routers, PEs, M_CPU, SRAM, HBM controllers and UCIe ports of a cube, as a template.

Distances follow the layout. Between routers, it is the distance between their positions; from a router to m_cpu or
sram, the Manhattan distance to the block; from a UCIe connection to its port, the Manhattan distance from the
connection's router to the middle of the edge. The last rule gives each connection the length of its wire, so that
traffic takes the connection nearest to its path, and a hop through a port is never shorter than the mesh next to it.
"""

from __future__ import annotations

from kernbench.common.ids import CubeId, PeId
from kernbench.topology.build_pe import add_pe, pe_parts
from kernbench.topology.graph import EdgeKind
from kernbench.topology.mesh import SIDES, Mesh
from kernbench.topology.readers import Scalar
from kernbench.topology.spec_cube import CubeSpec
from kernbench.topology.template import ComponentData, Template, component_data

PointMm = tuple[float, float]


HBM_BANKS = "kernbench.components.builtin.hbm_banks:HbmBanksComponent"  # of the model `banks`


def manhattan_mm(a: PointMm, b: PointMm) -> float:
    """The length of a wire, which runs along x and y only."""
    return abs(a[0] - b[0]) + abs(a[1] - b[1])


def cube_template(cube: CubeSpec, mesh: Mesh, *, has_mmu: bool) -> Template:
    """One cube as a template."""
    me = CubeId(0, 0)
    template = Template(str(me))
    _add_mesh(template, me, cube, mesh)
    parts = pe_parts(cube, has_mmu=has_mmu)
    for pe, slot in enumerate(mesh.pes):
        add_pe(template, PeId(0, 0, pe), me.router(*slot), mesh.position(slot), parts, cube)
    if cube.has_slices:
        _add_hbm(template, me, cube, mesh)
    _add_m_cpu_and_sram(template, me, cube, mesh)
    _add_ucie(template, me, cube, mesh)
    return template


def _add_mesh(template: Template, me: CubeId, cube: CubeSpec, mesh: Mesh) -> None:
    router = component_data(cube.components.router)
    for slot in mesh.routers:
        template.add(me.router(*slot), router, mesh.position(slot))
    for a, b, mm in mesh.links():
        template.link(me.router(*a), me.router(*b), EdgeKind.ROUTER_MESH, cube.links.router_bw_gbs, mm)


def hbm_part(cube: CubeSpec, channels: int, bw_gbs: float, nbytes: int) -> ComponentData:
    """The controller of a slice, or of a stack, with all of its channels."""
    controller = cube.components.hbm_ctrl
    if cube.hbm.model == "banks":
        controller = controller.model_copy(update={"impl": HBM_BANKS})
    return component_data(
        controller,
        num_pcs=channels,
        pc_bw_gbs=bw_gbs / channels,
        slice_bytes=nbytes,
        **_memory_model(cube),
        **({"one_to_one": True} if cube.has_channel_routers else {}),
    )


def _add_hbm(template: Template, me: CubeId, cube: CubeSpec, mesh: Mesh) -> None:
    bw_gbs = cube.hbm_link_bw_gbs
    part = hbm_part(cube, cube.hbm_channels_per_pe, bw_gbs, cube.hbm_slice_bytes)
    for pe, slot in enumerate(mesh.pes):
        template.add(me.hbm_ctrl(pe), part, mesh.position(slot))
        if cube.has_channel_routers:
            _add_channel_routers(template, PeId(me.sip, me.cube, pe), me, cube, mesh)
        else:
            template.link(me.router(*slot), me.hbm_ctrl(pe), EdgeKind.ROUTER_TO_HBM, bw_gbs)


def _memory_model(cube: CubeSpec) -> dict[str, Scalar]:
    """What differs from a memory that always takes whole bursts."""
    found: dict[str, Scalar] = {}
    if cube.hbm_granule_bytes < cube.hbm_burst_bytes:
        found["granule_bytes"] = cube.hbm_granule_bytes
    if cube.hbm.model == "closed":
        timing = cube.hbm.timing
        found |= {"open_ns": timing.faw_ns / 4, "switch_penalty_ns": timing.turnaround_ns}
        found["drain_bytes"] = timing.drain_bytes
    return found


def _add_channel_routers(template: Template, pe: PeId, me: CubeId, cube: CubeSpec, mesh: Mesh) -> None:
    """The PE's router is divided: a small router for each channel of the slice, with a link as wide as the channel."""
    slot, part = mesh.pes[pe.pe], component_data(cube.components.channel_router)
    for channel in range(cube.hbm_channels_per_pe):
        name = pe.channel_router(channel)
        template.add(name, part, mesh.position(slot), pe.pe)
        template.link(me.router(*slot), name, EdgeKind.ROUTER_TO_CHANNEL, cube.links.router_bw_gbs)
        template.link(name, me.hbm_ctrl(pe.pe), EdgeKind.ROUTER_TO_HBM, cube.hbm_link_bw_gbs / cube.hbm_channels_per_pe)


def _add_m_cpu_and_sram(template: Template, me: CubeId, cube: CubeSpec, mesh: Mesh) -> None:
    at = cube.placement.m_cpu.pos_mm
    template.add(me.m_cpu(), component_data(cube.components.m_cpu), at)
    mm = manhattan_mm(at, mesh.position(mesh.m_cpu))
    template.link(me.m_cpu(), me.router(*mesh.m_cpu), EdgeKind.COMMAND, cube.links.m_cpu_to_router_bw_gbs, mm)
    at = cube.placement.sram.pos_mm
    template.add(me.sram(), component_data(cube.components.sram, size_bytes=cube.sram_bytes), at)
    mm = manhattan_mm(at, mesh.position(mesh.sram))
    template.link(me.router(*mesh.sram), me.sram(), EdgeKind.ROUTER_TO_SRAM, cube.links.sram_to_router_bw_gbs, mm)


def _add_ucie(template: Template, me: CubeId, cube: CubeSpec, mesh: Mesh) -> None:
    ucie, conn = component_data(cube.components.ucie), component_data(cube.components.ucie_conn)
    bw_gbs = cube.ucie.per_connection_bw_gbs
    for side in SIDES:
        port_at = mesh.port_position(side)
        template.add(me.ucie(side), ucie, port_at)
        for n, slot in enumerate(mesh.conns[side]):
            name = me.ucie_conn(side, n)
            template.add(name, conn, mesh.conn_position(side, n))
            template.link(
                me.router(*slot),
                name,
                EdgeKind.ROUTER_TO_UCIE_CONN,
                bw_gbs,
                back_kind=EdgeKind.UCIE_CONN_TO_ROUTER,
            )
            mm = manhattan_mm(mesh.position(slot), port_at)
            template.link(name, me.ucie(side), EdgeKind.UCIE_INTERNAL, bw_gbs, mm)
