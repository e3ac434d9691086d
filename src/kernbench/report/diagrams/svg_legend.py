"""The surroundings of a drawing: the legend of links and boxes, a scale bar in mm, the sizes of the outline."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernbench.report.diagrams.svg_layout import DrawnBox, DrawnLine
from kernbench.report.diagrams.svg_style import (
    INK,
    OUTLINE,
    RULE,
    BoxRole,
    LinkStyle,
    bandwidth_range,
    link_px,
    link_style,
    role_of,
)
from kernbench.report.diagrams.svg_text import Rect, Text, width_px
from kernbench.report.diagrams.view import MachineView, ViewEdge
from kernbench.topology.graph import EdgeKind

LEGEND_PX = 11.0
_ROW_PX = 19.0
_SAMPLE_PX = 34.0
_GAP_PX = 8.0
_COLUMN_GAP_PX = 26.0
_SCALE_BAR_PX = 150.0
_FOOTNOTE = "a wider line has more bandwidth"
_FOOTNOTE_PX = 9.5

Shapes = list[DrawnBox | DrawnLine]


@dataclass(frozen=True, slots=True)
class LinkEntry:
    """A line of the legend: one kind of link, control apart from data."""

    kind: EdgeKind
    style: LinkStyle
    words: str
    px: float


def link_entries(view: MachineView, zoom: float = 1.0) -> list[LinkEntry]:
    """The kinds of link a view has, in the order of EdgeKind, data before control."""
    found: dict[tuple[int, bool], list[ViewEdge]] = {}
    order = list(EdgeKind)
    for edge in view.edges:
        found.setdefault((order.index(edge.kind), edge.bw_gbs is None), []).append(edge)
    entries = []
    for _, edges in sorted(found.items()):
        style = link_style(edges[0])
        px = max(link_px(edge.bw_gbs, zoom) for edge in edges)
        entries.append(LinkEntry(edges[0].kind, style, f"{style.name}: {bandwidth_range(edges)}", px))
    return entries


def role_entries(view: MachineView) -> list[BoxRole]:
    """The roles of a view's boxes, in order of appearance."""
    return list(dict.fromkeys(role_of(node) for node in view.nodes if role_of(node) is not OUTLINE))


@dataclass(frozen=True, slots=True)
class Legend:
    """The legend with (0, 0) at its top left corner."""

    w: float
    h: float
    shapes: tuple[DrawnBox | DrawnLine, ...]
    texts: tuple[Text, ...]


def legend(view: MachineView, room_px: float, zoom: float) -> Legend:
    """Links, then boxes, in as many columns as the room allows; a column is never split between the two."""
    entries: list[LinkEntry | BoxRole] = [*link_entries(view, zoom), *role_entries(view)]
    column = max(_SAMPLE_PX + _GAP_PX + width_px(_words(entry), LEGEND_PX) for entry in entries) + _COLUMN_GAP_PX
    columns = max(1, min(len(entries), int((room_px + _COLUMN_GAP_PX) // column)))
    rows = math.ceil(len(entries) / columns)
    shapes: Shapes = []
    texts: list[Text] = []
    for n, entry in enumerate(entries):
        x, y = (n // rows) * column, (n % rows + 0.5) * _ROW_PX
        shapes.append(_sample(entry, x, y))
        texts.append(Text(x + _SAMPLE_PX + _GAP_PX, y + 0.27 * LEGEND_PX, _words(entry), LEGEND_PX, "start"))
    used = math.ceil(len(entries) / rows)
    y = (rows + 0.7) * _ROW_PX
    texts.append(Text(0.0, y, _FOOTNOTE, _FOOTNOTE_PX, "start", faint=True))
    width = max(used * column - _COLUMN_GAP_PX, width_px(_FOOTNOTE, _FOOTNOTE_PX))
    return Legend(width, y + 4, tuple(shapes), tuple(texts))


def _words(entry: LinkEntry | BoxRole) -> str:
    return entry.words if isinstance(entry, LinkEntry) else entry.name


def _sample(entry: LinkEntry | BoxRole, x: float, y: float) -> DrawnBox | DrawnLine:
    if isinstance(entry, LinkEntry):
        return DrawnLine(((x, y), (x + _SAMPLE_PX, y)), entry.style.colour, entry.px, entry.style.dash)
    return DrawnBox(Rect(x + 6, y - 6, x + _SAMPLE_PX - 6, y + 6), entry.fill, entry.stroke, 1.0, radius=2.0)


def scale_bar(px_per_mm: float, ns_per_mm: float, x: float, y: float) -> tuple[Shapes, list[Text]]:
    """A bar of 1, 2 or 5 times a power of ten mm from (x, y), with the time a wire of that length takes."""
    power = 10.0 ** math.floor(math.log10(_SCALE_BAR_PX / px_per_mm))
    mm = max(step * power for step in (1, 2, 5) if step * power * px_per_mm <= _SCALE_BAR_PX)
    end = x + mm * px_per_mm
    shapes: Shapes = [
        DrawnLine(((x, y), (end, y)), INK, 2.0),
        DrawnLine(((x, y - 4), (x, y + 4)), INK, 1.2),
        DrawnLine(((end, y - 4), (end, y + 4)), INK, 1.2),
    ]
    words = f"{mm:g} mm, {mm * ns_per_mm:g} ns of wire"
    return shapes, [Text(end + _GAP_PX, y + 0.27 * LEGEND_PX, words, LEGEND_PX, "start")]


def dimensions(rect: Rect, w_mm: float, h_mm: float) -> tuple[Shapes, list[Text]]:
    """The width of an outline above it, its height to its right, each between two ticks."""
    y, x = rect.top - 26, rect.right + 14
    shapes: Shapes = [
        DrawnLine(((rect.left, y), (rect.right, y)), RULE, 0.8),
        DrawnLine(((rect.left, y - 4), (rect.left, y + 4)), RULE, 0.8),
        DrawnLine(((rect.right, y - 4), (rect.right, y + 4)), RULE, 0.8),
        DrawnLine(((x, rect.top), (x, rect.bottom)), RULE, 0.8),
        DrawnLine(((x - 4, rect.top), (x + 4, rect.top)), RULE, 0.8),
        DrawnLine(((x - 4, rect.bottom), (x + 4, rect.bottom)), RULE, 0.8),
    ]
    middle_x, middle_y = rect.middle
    texts = [
        Text(middle_x, y - 5, f"{w_mm:.4g} mm", LEGEND_PX, faint=True),
        Text(x + 15, middle_y, f"{h_mm:.4g} mm", LEGEND_PX, faint=True, turned=True),
    ]
    return shapes, texts
