"""Checks that a cube's PEs, HBM, rows and columns fit on its die. Boxes may touch but not overlap or stick out."""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.topology.faults import UnplacedFault
from kernbench.topology.mesh import (
    HBM_ROW_OFFSET_MM,
    column_positions,
    gaps_across,
    pe_slots,
    pitch_mm,
    row_positions,
    rows_per_half,
)
from kernbench.topology.spec_cube import CubeSpec

MAX_COLUMNS = 64
_MIN_ROW_STEP_MM = 0.1
_TOUCH_MM = 1e-5
_KEY = "cube.geometry"
_USES = (_KEY, "cube.pe_layout", "cube.ucie.n_connections")

_Box = tuple[float, float, float, float]  # centre x, y, width, height


def check_fit(cube: CubeSpec) -> list[UnplacedFault]:
    """Everything that does not fit. Overlaps are checked only if rows, columns and placement are valid."""
    found = [*_check_columns(cube), *_check_rows(cube), *_check_placement(cube)]
    return found or list(_check_overlaps(cube))


def _check_columns(cube: CubeSpec) -> Iterator[UnplacedFault]:
    g, layout = cube.geometry, cube.pe_layout
    room = g.cube_mm.w - 2 * g.margin_mm
    if room < 0:
        hint = f"keep margin_mm at {g.cube_mm.w / 2:g} or less"
        yield UnplacedFault(
            f"{_KEY}.margin_mm", f"two margins of {g.margin_mm:g} mm are wider than the die", hint, _USES
        )
        return
    if room / g.max_spacing_mm + gaps_across(layout) + 3 > MAX_COLUMNS:
        what = f"relays every {g.max_spacing_mm:g} mm would make more than {MAX_COLUMNS} router columns"
        yield UnplacedFault(f"{_KEY}.max_spacing_mm", what, "make it larger, or the die narrower", _USES)
    pitch = pitch_mm(g, layout)
    if layout.n_pes > 1 and pitch < g.pe_mm.w - _TOUCH_MM:
        what = f"PEs of {g.pe_mm.w:g} mm overlap at a pitch of {pitch:.4g} mm"
        if pitch < g.pe_pitch_mm:
            what += f", all that {layout.pe_per_corner} per corner leave on a die of {g.cube_mm.w:g} mm"
            need = gaps_across(layout) * g.pe_mm.w + 2 * g.margin_mm
            hint = f"put fewer PEs in a corner, or set {_KEY}.cube_mm.w to {need:g} or more"
            yield UnplacedFault("cube.pe_layout.pe_per_corner", what, hint, _USES)
        else:
            yield UnplacedFault(f"{_KEY}.pe_pitch_mm", what, f"make it {g.pe_mm.w:g} or more", _USES)
    if max(g.pe_mm.w, g.pe_mm.h) > 2 * g.margin_mm:
        what = f"a PE of {g.pe_mm.w:g} x {g.pe_mm.h:g} mm sticks out of the die at a margin of {g.margin_mm:g} mm"
        hint = f"make margin_mm {max(g.pe_mm.w, g.pe_mm.h) / 2:g} or more"
        yield UnplacedFault(f"{_KEY}.margin_mm", what, hint, _USES)


def _check_rows(cube: CubeSpec) -> Iterator[UnplacedFault]:
    g = cube.geometry
    per_half = rows_per_half(cube)
    steps = _MIN_ROW_STEP_MM * (per_half - 1)
    need = 2 * (g.margin_mm + steps + g.hbm_gap_mm + HBM_ROW_OFFSET_MM)
    if per_half == 1:
        need = 2 * (g.margin_mm + _MIN_ROW_STEP_MM + HBM_ROW_OFFSET_MM)
    if g.cube_mm.h < need - _TOUCH_MM:
        what = f"{2 * per_half} PE rows and the HBM rows do not fit on a die {g.cube_mm.h:g} mm high"
        yield UnplacedFault(f"{_KEY}.cube_mm.h", what, f"make it {need:g} mm or more", _USES)
    for side, hbm, die in (("w", g.hbm_mm.w, g.cube_mm.w), ("h", g.hbm_mm.h, g.cube_mm.h)):
        if hbm > die and cube.has_slices:
            what = f"an HBM of {hbm:g} mm does not fit on a die of {die:g} mm"
            yield UnplacedFault(f"{_KEY}.hbm_mm.{side}", what, f"make it {die:g} mm or less", _USES)


def _check_placement(cube: CubeSpec) -> Iterator[UnplacedFault]:
    die = cube.geometry.cube_mm
    for name, place in (("m_cpu", cube.placement.m_cpu), ("sram", cube.placement.sram)):
        x, y = place.pos_mm
        if x > die.w or y > die.h:
            key = f"cube.placement.{name}.pos_mm"
            what = f"({x:g}, {y:g}) lies outside the die of {die.w:g} x {die.h:g} mm"
            yield UnplacedFault(key, what, "give [x, y] in mm from the north-west corner", (_KEY, key))


def _check_overlaps(cube: CubeSpec) -> Iterator[UnplacedFault]:
    g, layout = cube.geometry, cube.pe_layout
    per_half = rows_per_half(cube)
    ys = row_positions(g, per_half)
    columns = column_positions(g, layout)
    if len(columns) > MAX_COLUMNS:
        what = f"the mesh would have {len(columns)} router columns, more than {MAX_COLUMNS}"
        yield UnplacedFault(f"{_KEY}.max_spacing_mm", what, "make it larger, or the die narrower", _USES)
    boxes: list[_Box] = [(x, ys[row], g.pe_mm.w, g.pe_mm.h) for row, x in pe_slots(g, layout, per_half)]
    for pe, box in enumerate(boxes):
        for other in range(pe):
            if _overlap(box, boxes[other]):
                what = f"PE {other} and PE {pe} overlap on the die"
                hint = "make the die larger, the PEs smaller, or put fewer in a corner"
                yield UnplacedFault("cube.pe_layout", what, hint, _USES)
                return
    if not cube.has_slices:
        return
    hbm: _Box = (g.cube_mm.w / 2, g.cube_mm.h / 2, g.hbm_mm.w, g.hbm_mm.h)
    for pe, box in enumerate(boxes):
        if _overlap(box, hbm):
            hint = "make the HBM or the PEs smaller, or the die larger"
            yield UnplacedFault(f"{_KEY}.hbm_mm", f"the HBM overlaps PE {pe} on the die", hint, _USES)
            return


def _overlap(a: _Box, b: _Box) -> bool:
    apart_x = abs(a[0] - b[0]) >= (a[2] + b[2]) / 2 - _TOUCH_MM
    apart_y = abs(a[1] - b[1]) >= (a[3] + b[3]) / 2 - _TOUCH_MM
    return not (apart_x or apart_y)
