"""A view placed on a canvas: boxes, links and labels in pixels, at a scale that keeps labels readable.

The scale is one number of pixels for a millimetre in both directions. `svg_route.py` decides how links run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from kernbench.report.diagrams.svg_route import XY, crosses, link_points
from kernbench.report.diagrams.svg_style import OUTLINE, ZONE, link_px, link_style, role_of
from kernbench.report.diagrams.svg_text import READABLE_PX, Rect, Tag, Text, fitted, room_for, width_px
from kernbench.report.diagrams.view import MachineView, ViewNode

_PAGE_PX2 = 860.0 * 640.0  # what a drawing takes up
_LONGEST_PX = 1300.0
_MOST_ZOOM = 3.0


@dataclass(frozen=True, slots=True)
class DrawnBox:
    """A filled rectangle; `about` is its tooltip."""

    rect: Rect
    fill: str
    stroke: str
    stroke_px: float = 1.0
    dash: str = ""
    radius: float = 0.0
    about: str = ""


@dataclass(frozen=True, slots=True)
class DrawnLine:
    """A chain of straight pieces."""

    points: tuple[XY, ...]
    colour: str
    px: float
    dash: str = ""
    about: str = ""


@dataclass(frozen=True, slots=True)
class Frame:
    """From mm of a view to pixels of a canvas."""

    px_per_mm: float
    left: float
    top: float

    def rect(self, node: ViewNode) -> Rect:
        x, y = self.left + node.x_mm * self.px_per_mm, self.top + node.y_mm * self.px_per_mm
        w, h = node.w_mm * self.px_per_mm / 2, node.h_mm * self.px_per_mm / 2
        return Rect(x - w, y - h, x + w, y + h)


@dataclass(frozen=True, slots=True)
class Drawing:
    """The view itself, without title and legend: shapes from back to front, then words. `unplaced` found no room."""

    shapes: tuple[DrawnBox | DrawnLine, ...]
    texts: tuple[Text, ...]
    unplaced: tuple[ViewNode, ...]


def is_outline(node: ViewNode) -> bool:
    """Whether a node frames others: its label stands above it."""
    return role_of(node) is OUTLINE


def is_zone(node: ViewNode) -> bool:
    """Whether a node is an area that others may lie in: its label goes where there is room."""
    return role_of(node) is ZONE


def scale_px_per_mm(view: MachineView) -> float:
    """All drawings have about the same area, but for very long ones."""
    return min(math.sqrt(_PAGE_PX2 / (view.w_mm * view.h_mm)), _LONGEST_PX / max(view.w_mm, view.h_mm))


def zoom_of(view: MachineView, px_per_mm: float) -> float:
    """How much larger than its page a picture is shown so that the smallest label is readable; at most three times."""
    zoom = 1.0
    for node in view.nodes:
        if not is_outline(node) and not is_zone(node):
            w, h = room_for(node.label)
            upright = max(w / node.w_mm, h / node.h_mm)
            sideways = max(w / node.h_mm, h / node.w_mm) if node.h_mm > 1.5 * node.w_mm else upright
            zoom = max(zoom, min(upright, sideways) / px_per_mm)
    return min(zoom, _MOST_ZOOM)


def draw(view: MachineView, frame: Frame, zoom: float) -> Drawing:
    """Everything at its place."""
    rects = {node.id: frame.rect(node) for node in view.nodes}
    back: list[DrawnBox | DrawnLine] = []
    front: list[DrawnBox | DrawnLine] = []
    groups: dict[str, list[Tag]] = {}  # labels of one size: by kind, or all the parts of a PE
    for node in view.nodes:
        box = _box(node, rects[node.id])
        if is_outline(node) or is_zone(node):
            back.append(box)
        else:
            front.append(box)
            groups.setdefault("" if view.name == "pe" else node.kind, []).append(
                Tag(node.id, rects[node.id], node.label, node.detail)
            )
    solid = {node.id: rects[node.id] for node in view.nodes if not is_outline(node) and not is_zone(node)}
    lines = _lines(view, rects, solid, zoom)
    texts = [text for tags in groups.values() for text in fitted(tags, READABLE_PX / zoom)]
    unplaced = []
    for node in view.nodes:
        if is_outline(node):
            texts.append(_above(node, rects[node.id]))
        elif is_zone(node):
            text = _inside(node, rects[node.id], list(solid.values()), lines)
            if text is None:
                unplaced.append(node)
            else:
                texts.append(text)
    return Drawing((*back, *lines, *front), tuple(texts), tuple(unplaced))


# ------------------------------------------------------------------------------------------------------------- boxes


def _box(node: ViewNode, rect: Rect) -> DrawnBox:
    role = role_of(node)
    about = f"{node.id}: {node.label}" + (f", {node.detail}" if node.detail else "")
    if role is ZONE:
        return DrawnBox(rect, role.fill, role.stroke, 1.0, "4 3", 2.0, about)
    radius = 0.0 if role is OUTLINE else min(4.0, 0.12 * min(rect.w, rect.h))
    return DrawnBox(rect, role.fill, role.stroke, 1.2 if role is OUTLINE else 1.0, "", radius, about)


def _above(node: ViewNode, rect: Rect) -> Text:
    words = f"{node.label}: {node.detail}" if node.detail else node.label
    return Text(rect.left + 1, rect.top - 6, words, 11.0, "start", owner=node.id)


def _inside(node: ViewNode, area: Rect, solid: list[Rect], lines: list[DrawnLine]) -> Text | None:
    """A zone's label where it covers neither a box nor a link: near the middle, as large as it goes."""
    words = f"{node.label}, {node.detail}" if node.detail else node.label
    pieces = [piece for line in lines for piece in pairwise(line.points)]
    x, y = area.middle
    for size in (15.0, 13.0, 11.0, 9.0):
        w = width_px(words, size)
        for step in range(21):
            for sign in (1, -1):
                at = Text(x, y + sign * step * area.h / 44 + 0.27 * size, words, size, owner=node.id)
                taken = at.rect
                if w > area.w - 4 or not area.holds(taken) or any(taken.overlaps(box) for box in solid):
                    continue
                if not any(crosses(taken, a, b) for a, b in pieces):
                    return at
    return None


# ------------------------------------------------------------------------------------------------------------- links


def _lines(view: MachineView, rects: dict[str, Rect], solid: dict[str, Rect], zoom: float) -> list[DrawnLine]:
    in_cube = view.name == "cube"
    routers = [node.id for node in view.nodes if node.kind == "noc_router"]
    lines = []
    for edge in view.edges:
        # In a cube a line that is not straight starts at a router, whatever the direction of the edge.
        is_reversed = in_cube and edge.src not in routers
        ends = (edge.dst, edge.src) if is_reversed else (edge.src, edge.dst)
        others = [rect for name, rect in solid.items() if name not in ends]
        points = link_points(rects[ends[0]], rects[ends[1]], others, from_corner=in_cube)
        style, about = link_style(edge), f"{edge.src} - {edge.dst}: {edge.label}"
        lines.append(DrawnLine(points, style.colour, link_px(edge.bw_gbs, zoom), style.dash, about))
    return lines
