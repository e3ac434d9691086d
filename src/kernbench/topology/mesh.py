"""The router mesh of a cube: positions of routers, PEs and ports in mm, from the cube's description.

Columns are placed at the PEs' x positions and at both margins, with relay columns where a gap is wider than
`max_spacing_mm`. Rows come in two halves of ceil(connections / 2), from the margin to a gap above the two HBM rows,
mirrored below; more where the PEs of a corner need several rows. The HBM takes the middle columns of its rows: no
routers there, unless the mesh is so narrow that this would cut it in two. The corners NW, NE, SW, SE have rows of their
own, so that PEs of different corners share none.
All coordinates are multiples of 2**-20 mm: distances then add up exactly and equal routes compare equal.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType

from kernbench.topology.spec_base import Corner, Side
from kernbench.topology.spec_cube import CubeSpec, GeometrySpec, PeLayout

HBM_ROW_OFFSET_MM = 1.5  # the two HBM rows lie this far above and below the middle of the die
SIDES: tuple[Side, ...] = ("N", "S", "E", "W")

_MM_GRID = 1 << 20
_LEFT: tuple[Corner, ...] = ("NW", "SW")

MeshPosition = tuple[int, int]  # row, column


def snap_mm(mm: float) -> float:
    """The nearest multiple of 2**-20 mm (about a nanometre)."""
    return round(mm * _MM_GRID) / _MM_GRID


@dataclass(frozen=True)
class Mesh:
    """The mesh of one cube. `hole` lists the slots that have no router."""

    w_mm: float
    h_mm: float
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    hole: tuple[MeshPosition, ...]
    pes: tuple[MeshPosition, ...]  # the router of each PE, its pe_dma, pe_cpu and hbm_ctrl
    m_cpu: MeshPosition
    sram: MeshPosition
    conns: Mapping[Side, tuple[MeshPosition, ...]]  # the router of each UCIe connection

    @cached_property
    def routers(self) -> tuple[MeshPosition, ...]:
        """Every slot that has a router, row by row."""
        hole = frozenset(self.hole)
        slots = ((row, col) for row in range(len(self.ys)) for col in range(len(self.xs)))
        return tuple(slot for slot in slots if slot not in hole)

    def position(self, slot: MeshPosition) -> tuple[float, float]:
        return self.xs[slot[1]], self.ys[slot[0]]

    def links(self) -> Iterator[tuple[MeshPosition, MeshPosition, float]]:
        """Neighbouring routers and the mm between them, each pair once."""
        there = frozenset(self.routers)
        for row, col in self.routers:
            if (row, col + 1) in there:
                yield (row, col), (row, col + 1), self.xs[col + 1] - self.xs[col]
            if (row + 1, col) in there:
                yield (row, col), (row + 1, col), self.ys[row + 1] - self.ys[row]

    def port_position(self, side: Side) -> tuple[float, float]:
        """A UCIe port sits in the middle of its edge."""
        x = {"W": 0.0, "E": self.w_mm}.get(side, snap_mm(self.w_mm / 2))
        y = {"N": 0.0, "S": self.h_mm}.get(side, snap_mm(self.h_mm / 2))
        return x, y

    def conn_position(self, side: Side, n: int) -> tuple[float, float]:
        """A connection sits where its router's row or column meets the edge."""
        x, y = self.position(self.conns[side][n])
        edge_x, edge_y = self.port_position(side)
        return (x, edge_y) if side in ("N", "S") else (edge_x, y)


def build_mesh(cube: CubeSpec) -> Mesh:
    """Lay out a cube. The spec must have passed the checks of `fit.py`."""
    geometry, layout = cube.geometry, cube.pe_layout
    per_half = rows_per_half(cube)
    ys = row_positions(geometry, per_half)
    xs = column_positions(geometry, layout)
    hole = _hole(per_half, len(xs)) if cube.has_slices else ()  # stacks are beside the die
    m_cpu, sram = cube.placement.m_cpu.pos_mm, cube.placement.sram.pos_mm
    return Mesh(
        w_mm=snap_mm(geometry.cube_mm.w),
        h_mm=snap_mm(geometry.cube_mm.h),
        xs=xs,
        ys=ys,
        hole=hole,
        pes=tuple((row, xs.index(x)) for row, x in pe_slots(geometry, layout, per_half)),
        m_cpu=_nearest(xs, ys, hole, m_cpu),
        sram=_nearest(xs, ys, hole, sram),
        conns=MappingProxyType({side: _conn_slots(side, cube.ucie.n_connections, xs, per_half) for side in SIDES}),
    )


def rows_per_half(cube: CubeSpec) -> int:
    """PE rows above the HBM, and as many below: one for each connection of the E and W ports, or, where corners have
    several rows, one for each row of the two corners of that half.
    """
    for_connections = math.ceil(max(cube.ucie.n_connections, 2) / 2)
    rows = cube.pe_layout.rows_per_corner
    return max(for_connections, 2 * rows) if rows > 1 else for_connections


def row_positions(geometry: GeometrySpec, per_half: int) -> tuple[float, ...]:
    """The y of every row: PE rows, two HBM rows, PE rows."""
    h = geometry.cube_mm.h
    hbm_row = h / 2 - HBM_ROW_OFFSET_MM
    first, last = geometry.margin_mm, hbm_row - geometry.hbm_gap_mm
    step = (last - first) / (per_half - 1) if per_half > 1 else 0.0
    top = [first + i * step for i in range(per_half)] + [hbm_row]
    return tuple(snap_mm(y) for y in top + [h - y for y in reversed(top)])


def gaps_across(layout: PeLayout) -> int:
    """The gaps between PEs from margin to margin, as if the corners of both sides stood in one row."""
    sides = len({corner in _LEFT for corner in layout.corners})
    return sides * layout.columns_per_corner - 1


def pitch_mm(geometry: GeometrySpec, layout: PeLayout) -> float:
    """Between the PEs of a corner: `pe_pitch_mm`, or what the die's width leaves when that is less."""
    gaps = gaps_across(layout)
    room = geometry.cube_mm.w - 2 * geometry.margin_mm
    return min(geometry.pe_pitch_mm, room / gaps) if gaps > 0 else geometry.pe_pitch_mm


def corner_xs(geometry: GeometrySpec, layout: PeLayout, corner: Corner) -> list[float]:
    """The x of the columns of a corner's PEs, west to east."""
    pitch = pitch_mm(geometry, layout)
    offsets = [geometry.margin_mm + i * pitch for i in range(layout.columns_per_corner)]
    if corner in _LEFT:
        return [snap_mm(x) for x in offsets]
    return [snap_mm(geometry.cube_mm.w - x) for x in reversed(offsets)]


def column_positions(geometry: GeometrySpec, layout: PeLayout) -> tuple[float, ...]:
    """The x of every column: margins and PEs, and relays where a gap is too wide."""
    fixed = {snap_mm(geometry.margin_mm), snap_mm(geometry.cube_mm.w - geometry.margin_mm)}
    for corner in layout.corners:
        fixed.update(corner_xs(geometry, layout, corner))
    ordered = sorted(fixed)
    xs = ordered[:1]
    for left, right in pairwise(ordered):
        pieces = max(1, math.ceil((right - left) / geometry.max_spacing_mm - 1e-6))
        xs += [snap_mm(left + (right - left) * i / pieces) for i in range(1, pieces)] + [right]
    return tuple(xs)


def pe_slots(geometry: GeometrySpec, layout: PeLayout, per_half: int) -> list[tuple[int, float]]:
    """Row and x of every PE, in the order of their numbers: corner by corner as listed, row by row, west to east."""
    first_bottom = per_half + 2
    rows: dict[Corner, int] = {
        "NW": 0,
        "NE": min(1, per_half - 1),
        "SW": first_bottom,
        "SE": first_bottom + min(1, per_half - 1),
    }
    found: list[tuple[int, float]] = []
    for corner in layout.corners:
        xs, first = corner_xs(geometry, layout, corner), rows[corner]
        found += [(first + 2 * (n // len(xs)), xs[n % len(xs)]) for n in range(layout.pe_per_corner)]
    return found


def _hole(per_half: int, n_cols: int) -> tuple[MeshPosition, ...]:
    if n_cols < 3:
        return ()  # a hole would separate the top rows from the bottom rows
    middle = (n_cols // 2,) if n_cols % 2 else (n_cols // 2 - 1, n_cols // 2)
    return tuple((row, col) for row in (per_half, per_half + 1) for col in middle)


def _nearest(
    xs: Sequence[float], ys: Sequence[float], hole: tuple[MeshPosition, ...], at: tuple[float, float]
) -> MeshPosition:
    """The router nearest to a point; of equals, the first row by row."""
    slots = [(r, c) for r in range(len(ys)) for c in range(len(xs)) if (r, c) not in hole]
    return min(slots, key=lambda slot: (math.hypot(xs[slot[1]] - at[0], ys[slot[0]] - at[1]), slot))


def _conn_slots(side: Side, n: int, xs: Sequence[float], per_half: int) -> tuple[MeshPosition, ...]:
    n_rows, n_cols = 2 * per_half + 2, len(xs)
    if side in ("E", "W"):
        col = 0 if side == "W" else n_cols - 1
        top, bottom = list(range(per_half)), list(range(per_half + 2, n_rows))
        return tuple((row, col) for row in _from_both_ends(n, top, bottom))
    row = 0 if side == "N" else n_rows - 1
    half = math.ceil(n_cols / 2)
    left, right = list(range(half)), list(range(half, n_cols)) or [n_cols - 1]
    return tuple((row, col) for col in _from_both_ends(n, left, right))


def _from_both_ends(n: int, first: list[int], second: list[int]) -> list[int]:
    """Half of `n` on the first slots of one end, the rest on the last of the other; slots are shared if too few."""
    ahead, behind = math.ceil(n / 2), n // 2
    low = first[:ahead] if ahead <= len(first) else [first[i * len(first) // ahead] for i in range(ahead)]
    if behind <= len(second):
        return low + second[len(second) - behind :]
    return low + [second[i * len(second) // behind] for i in range(behind)]


def attachments(mesh: Mesh) -> dict[MeshPosition, list[str]]:
    """What is attached to each router, by the names used in the dumped mesh."""
    found: dict[MeshPosition, list[str]] = {slot: [] for slot in mesh.routers}
    for pe, slot in enumerate(mesh.pes):
        found[slot] += [f"pe{pe}.dma", f"pe{pe}.cpu", f"pe{pe}.hbm"]
    found[mesh.m_cpu].append("m_cpu")
    found[mesh.sram].append("sram")
    for side in SIDES:
        for n, slot in enumerate(mesh.conns[side]):
            found[slot].append(f"ucie_{side.lower()}.c{n}")
    return found


def mesh_as_yaml(mesh: Mesh) -> str:
    """The expanded mesh as YAML: every router, its position and what is attached to it."""
    lines = [
        "# The router mesh of one cube, expanded. Positions in mm from the north-west corner of the die.",
        f"cube_mm: {{ w: {mesh.w_mm:g}, h: {mesh.h_mm:g} }}",
        f"rows: {len(mesh.ys)}",
        f"columns: {len(mesh.xs)}",
        f"row_y_mm: [{', '.join(f'{y:.6g}' for y in mesh.ys)}]",
        f"column_x_mm: [{', '.join(f'{x:.6g}' for x in mesh.xs)}]",
        f"hbm_hole: [{', '.join(f'r{row}c{col}' for row, col in mesh.hole)}]",
        "routers:",
    ]
    for (row, col), names in attachments(mesh).items():
        x, y = mesh.position((row, col))
        lines.append(f"  r{row}c{col}: {{ pos_mm: [{x:.6g}, {y:.6g}], attach: [{', '.join(names)}] }}")
    return "\n".join(lines) + "\n"
