"""A PE as a picture sees it: its components inside the outline, its router and HBM slice next to it.

The parts of a PE have no extent in the model, so they are arranged to be read: control from the top, data below, every
part as long as it takes for its links to run straight.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernbench.common.ids import CubeId, PeId
from kernbench.common.units import format_bytes
from kernbench.report.diagrams.view import MachineView, ViewEdge, ViewNode
from kernbench.report.diagrams.view_cube import bandwidth_label
from kernbench.topology.build_pe import MMU, pe_links, pe_parts
from kernbench.topology.declarations import declaration_of
from kernbench.topology.graph import EdgeKind
from kernbench.topology.mesh import Mesh
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_cube import CubeSpec

PE_OUTLINE = "pe_outline"

_HBM, _ROUTER, _CHANNELS = "hbm_ctrl", "router", "channel_router"
_OUTSIDE = 2  # so many columns of the grid stand outside the PE, one more with channel routers
_MOST_CHANNELS = 16  # that are drawn one by one
_GAP = (0.18, 0.45)  # between boxes, of a column and of a row

_Cells = tuple[int, float, int, float]  # first column and row, columns and rows

_GRID: dict[str, _Cells] = {
    _HBM: (0, 0, 1, 4),
    _ROUTER: (1, 0, 1, 4),
    "pe_cpu": (2, 0, 5, 1),
    "pe_ipcq": (2, 1, 1, 1),
    "pe_scheduler": (3, 1, 4, 1),
    "pe_dma": (3, 2, 1, 1),
    "pe_gemm": (4, 2, 1, 1),
    "pe_fetch_store": (5, 2, 1, 1),
    "pe_math": (6, 2, 1, 1),
    "pe_mmu": (2, 3, 1, 1),
    "pe_tcm": (3, 3, 3, 1),
}


def _grid(further: Sequence[str]) -> dict[str, _Cells]:
    """Where the parts stand. Further ones stand in a row with GEMM and MATH; pe_fetch_store then lies below them all,
    and a free column lets the scheduler reach it.
    """
    if not further:
        return _GRID
    n = len(further)
    engines: dict[str, _Cells] = {name: (7 + at, 2, 1, 1) for at, name in enumerate(further)}
    return (
        _GRID
        | engines
        | {
            _HBM: (0, 0, 1, 5),
            _ROUTER: (1, 0, 1, 5),
            "pe_cpu": (2, 0, 5 + n, 1),
            "pe_scheduler": (3, 1, 4 + n, 1),
            "pe_dma": (3, 2, 1, 2),
            "pe_fetch_store": (4, 3, 3 + n, 1),
            "pe_tcm": (3, 4, 4 + n, 1),
        }
    )


def _channel_boxes(cube: CubeSpec) -> list[str]:
    """The names of the boxes that stand for channel routers: one for each, or one for many."""
    if not cube.has_channel_routers:
        return []
    n = cube.hbm_channels_per_pe
    return [f"ch_r{channel}" for channel in range(n)] if n <= _MOST_CHANNELS else ["ch_r"]


def _grid_of(spec: MachineSpec) -> dict[str, _Cells]:
    """Where everything stands: without an MMU if the machine has none, with channel routers if it has them."""
    grid = _grid(list(spec.cube.pe_template.components.further))
    if not spec.cube.has_slices:
        grid = {name: cells for name, cells in grid.items() if name != _HBM}
    if not spec.system.has_mmu:
        grid = {name: cells for name, cells in grid.items() if name != MMU}
    channels = _channel_boxes(spec.cube)
    if not channels:
        return grid
    moved = {name: (col + (name != _HBM), row, cols, height) for name, (col, row, cols, height) in grid.items()}
    each = (grid[_HBM][3] - _GAP[1]) / len(channels)  # beside the boxes of router and HBM
    return moved | {name: (1, _GAP[1] / 2 + at * each, 1, each) for at, name in enumerate(channels)}


def pe_view(spec: MachineSpec, mesh: Mesh) -> MachineView:
    """The components of a PE, and what it reaches first."""
    size = spec.cube.geometry.pe_mm
    further = spec.cube.pe_template.components.further
    roles = {name: declaration_of(name, part.impl).role for name, part in further.items()}
    grid, channels = _grid_of(spec), _channel_boxes(spec.cube)
    outside = _OUTSIDE + bool(channels)
    columns, rows_total = (max(cells[axis] + cells[axis + 2] for cells in grid.values()) for axis in (0, 1))
    step_x, step_y = size.w / (columns - outside), size.h / rows_total
    left = outside * step_x
    detail = f"{spec.cube.n_pes} in a cube"
    nodes = [
        ViewNode(str(PeId(0, 0, 0)), PE_OUTLINE, "PE", detail, left + size.w / 2, size.h / 2, size.w, size.h),
    ]
    details, ids = _details(spec), _ids(mesh, grid)
    for name, (col, row, cols, rows) in grid.items():
        kind = "noc_router" if name == _ROUTER else _CHANNELS if name in channels else name
        x, y = (col + cols / 2) * step_x, (row + rows / 2) * step_y
        w, h = (cols - _GAP[0]) * step_x, (rows - min(_GAP[1], 0.4 * rows)) * step_y
        nodes.append(ViewNode(ids[name], kind, name, details[name], x, y, w, h, roles.get(name, "")))
    return MachineView("pe", f"{spec.system.name}: a PE", left + size.w, size.h, tuple(nodes), tuple(_edges(spec, ids)))


def _ids(mesh: Mesh, names: Iterable[str]) -> dict[str, str]:
    """The nodes of PE 0 that the parts stand for."""
    cube, pe = CubeId(0, 0), PeId(0, 0, 0)
    outside = {_HBM: cube.hbm_ctrl(0), _ROUTER: cube.router(*mesh.pes[0])}
    return {name: outside.get(name, pe.part(name)) for name in names}


def _details(spec: MachineSpec) -> dict[str, str]:
    cube = spec.cube
    parts = pe_parts(cube, has_mmu=spec.system.has_mmu)
    details = {name: f"{part.attrs['overhead_ns']:g} ns" for name, part in parts.items()}
    details |= dict.fromkeys(_channel_boxes(cube), "")
    if not spec.system.has_mmu:
        details["pe_dma"] += ", segment table"
    ports = cube.pe_template.links
    return details | {
        _HBM: f"{cube.hbm_channels_per_pe} channels",
        _ROUTER: f"{cube.components.router.number_attr('overhead_ns'):g} ns, the cube's mesh",
        "pe_tcm": f"{cube.memory_map.tcm_mb_per_pe:g} MB, read {ports.tcm_read_bw_gbs:g} GB/s, "
        f"write {ports.tcm_write_bw_gbs:g} GB/s",
        "pe_mmu": f"{format_bytes(cube.page_bytes)} pages",
    }


def _edges(spec: MachineSpec, ids: dict[str, str]) -> list[ViewEdge]:
    cube = spec.cube
    ports, dma_bw, hbm_bw = cube.pe_template.links, cube.links.pe_dma_to_router_bw_gbs, cube.hbm_link_bw_gbs
    width = min(ports.tcm_read_bw_gbs, ports.tcm_write_bw_gbs)
    control, inside = bandwidth_label(None), EdgeKind.PE_INTERNAL
    control_links, data_links = pe_links(cube.pe_template.components, has_mmu=spec.system.has_mmu)
    edges = [ViewEdge(ids[a], ids[b], inside, control, None) for a, b in control_links]
    edges += [ViewEdge(ids[a], ids[b], inside, bandwidth_label(width), width) for a, b in data_links]
    channels = _channel_boxes(cube)
    for name in channels:
        inner_bw, own_bw = cube.links.router_bw_gbs * cube.hbm_channels_per_pe / len(channels), hbm_bw / len(channels)
        label, own = bandwidth_label(inner_bw), bandwidth_label(own_bw)
        edges.append(ViewEdge(ids[_ROUTER], ids[name], EdgeKind.ROUTER_TO_CHANNEL, label, inner_bw))
        edges.append(ViewEdge(ids[name], ids[_HBM], EdgeKind.ROUTER_TO_HBM, own, own_bw))
    if not channels and _HBM in ids:
        edges.append(ViewEdge(ids[_ROUTER], ids[_HBM], EdgeKind.ROUTER_TO_HBM, bandwidth_label(hbm_bw), hbm_bw))
    edges.append(ViewEdge(ids[_ROUTER], ids["pe_dma"], EdgeKind.PE_TO_ROUTER, bandwidth_label(dma_bw), dma_bw))
    commanded = ("pe_cpu", "pe_mmu") if spec.system.has_mmu else ("pe_cpu",)
    edges += [ViewEdge(ids[_ROUTER], ids[name], EdgeKind.COMMAND, control, None) for name in commanded]
    return edges
