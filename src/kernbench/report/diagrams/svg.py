"""A view as SVG: title, drawing, sizes, legend and scale bar on one canvas. The same view gives the same bytes.

Positions are the view's own, in mm. `picture_of` places everything and `render_svg` writes it down, so that a test can
look at the placed words and boxes. No dependency, no font file, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from xml.sax.saxutils import escape, quoteattr

from kernbench.report.diagrams.svg_layout import DrawnBox, DrawnLine, Frame, draw, is_outline, scale_px_per_mm, zoom_of
from kernbench.report.diagrams.svg_legend import Legend, dimensions, legend, scale_bar
from kernbench.report.diagrams.svg_route import Points
from kernbench.report.diagrams.svg_style import FAINT_INK, INK, PAPER
from kernbench.report.diagrams.svg_text import FONT_FAMILY, Rect, Text, shortened
from kernbench.report.diagrams.view import MachineView
from kernbench.topology.spec import MachineSpec

_MARGIN_PX = 22.0
_TITLE_PX = 17.0
_NOTE_PX = 11.0
_HEAD_PX = 52.0  # title and the line below it
_SIZES_PX = 44.0  # above and right of an outline that shows its size
_LEAST_W_PX = 460.0  # so that title and legend have room next to the smallest machine
_WIDE = 1.35  # a drawing wider than this has its legend below, not at its side

_SCHEMATIC = {
    "system": "SIPs at the size of their package, their places schematic",
    "pe": "the outline to scale, the places of the parts schematic",
}


@dataclass(frozen=True, slots=True)
class Picture:
    """A canvas with everything placed: shapes from back to front, then words. It is shown `zoom` times as large."""

    w: float
    h: float
    zoom: float
    shapes: tuple[DrawnBox | DrawnLine, ...]
    texts: tuple[Text, ...]


def render_svg(view: MachineView, spec: MachineSpec) -> str:
    """The view as an SVG document."""
    picture = picture_of(view, spec)
    about = f"{view.title}. {_counts(spec)}."
    shown = f'width="{_n(picture.w * picture.zoom)}" height="{_n(picture.h * picture.zoom)}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {shown} viewBox="0 0 {_n(picture.w)} {_n(picture.h)}" '
        f'role="img" font-family={quoteattr(FONT_FAMILY)}>'
    )
    lines = ['<?xml version="1.0" encoding="UTF-8"?>', head]
    lines.append(f"<title>{escape(view.title)}</title>")
    lines.append(f"<desc>{escape(about)}</desc>")
    lines.append(f'<rect width="{_n(picture.w)}" height="{_n(picture.h)}" fill="{PAPER}"/>')
    lines += [_shape(shape) for shape in picture.shapes]
    lines += [_text(text) for text in picture.texts]
    lines.append("</svg>")
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------------------------------ placing


def picture_of(view: MachineView, spec: MachineSpec) -> Picture:
    """Place title, drawing, sizes, legend and scale bar; nothing lies outside the canvas."""
    scale = scale_px_per_mm(view)
    outlines = [node for node in view.nodes if is_outline(node)]
    sizes = _SIZES_PX if outlines else 0.0
    frame = Frame(scale, _MARGIN_PX, _MARGIN_PX + _HEAD_PX + sizes)
    right, bottom = frame.left + view.w_mm * scale, frame.top + view.h_mm * scale
    zoom = zoom_of(view, scale)
    drawing = draw(view, frame, zoom)
    shapes, texts = list(drawing.shapes), list(drawing.texts)
    for node in outlines[:1]:
        more, words = dimensions(frame.rect(node), node.w_mm, node.h_mm)
        shapes += more
        texts += words

    beside = view.w_mm < _WIDE * view.h_mm
    key = legend(view, 0.0 if beside else max(right, _LEAST_W_PX) - 2 * _MARGIN_PX, zoom)
    more, words = scale_bar(scale, spec.system.ns_per_mm, frame.left, bottom + 24)
    shapes += more
    texts += words
    if view.name in _SCHEMATIC:
        x = words[-1].rect.right + 18
        texts.append(Text(x, words[-1].y, _SCHEMATIC[view.name], _NOTE_PX, "start", faint=True))
    below = bottom + 44
    notes = [f"{node.label}: {node.detail}" for node in drawing.unplaced]
    for note, node in zip(notes, drawing.unplaced, strict=True):
        texts.append(Text(frame.left, below, note, _NOTE_PX, "start", faint=True, owner=node.id))
        below += 16
    at = (right + sizes + 20, frame.top) if beside else (_MARGIN_PX, below)
    more, words = _moved(key, *at)
    shapes += more
    texts += words
    width = max(text.rect.right for text in texts)
    width = max(width, right, at[0] + key.w, _LEAST_W_PX) + _MARGIN_PX
    height = max(below, at[1] + key.h) + _MARGIN_PX / 2
    texts += _title(view, spec, width)
    return Picture(width, height, zoom, tuple(shapes), tuple(texts))


def _title(view: MachineView, spec: MachineSpec, width: float) -> list[Text]:
    room = width - 2 * _MARGIN_PX
    title = shortened(view.title, room, _TITLE_PX, bold=True)
    counts = shortened(_counts(spec), room, _NOTE_PX)
    y = _MARGIN_PX + _TITLE_PX * 0.8
    return [
        Text(_MARGIN_PX, y, title, _TITLE_PX, "start", bold=True),
        Text(_MARGIN_PX, y + 18, counts, _NOTE_PX, "start", faint=True),
    ]


def _counts(spec: MachineSpec) -> str:
    parts = ((spec.n_sips, "SIP"), (spec.sip.n_cubes, "cube"), (spec.cube.n_pes, "PE"))
    return " x ".join(f"{n} {name}{'' if n == 1 else 's'}" for n, name in parts)


def _moved(key: Legend, dx: float, dy: float) -> tuple[list[DrawnBox | DrawnLine], list[Text]]:
    shapes: list[DrawnBox | DrawnLine] = []
    for shape in key.shapes:
        if isinstance(shape, DrawnBox):
            r = shape.rect
            shapes.append(replace(shape, rect=Rect(r.left + dx, r.top + dy, r.right + dx, r.bottom + dy)))
        else:
            shapes.append(replace(shape, points=tuple((x + dx, y + dy) for x, y in shape.points)))
    return shapes, [replace(text, x=text.x + dx, y=text.y + dy) for text in key.texts]


# ------------------------------------------------------------------------------------------------------------ writing


def _n(value: float) -> str:
    """A coordinate with two decimals at most; never `-0`."""
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def _shape(shape: DrawnBox | DrawnLine) -> str:
    title = f"<title>{escape(shape.about)}</title>" if shape.about else ""
    dash = f' stroke-dasharray="{shape.dash}"' if shape.dash else ""
    if isinstance(shape, DrawnBox):
        r = shape.rect
        at = f'x="{_n(r.left)}" y="{_n(r.top)}" width="{_n(r.w)}" height="{_n(r.h)}"'
        radius = f' rx="{_n(shape.radius)}"' if shape.radius else ""
        paint = f'fill="{shape.fill}" stroke="{shape.stroke}" stroke-width="{_n(shape.stroke_px)}"'
        return _element("rect", f"{at}{radius} {paint}{dash}", title)
    paint = f'fill="none" stroke="{shape.colour}" stroke-width="{_n(shape.px)}"{dash}'
    return _element("path", f'd="{_path(shape.points)}" {paint}', title)


def _path(points: Points) -> str:
    return "M" + " L".join(f"{_n(x)} {_n(y)}" for x, y in points)


def _element(name: str, attributes: str, inside: str) -> str:
    return f"<{name} {attributes}>{inside}</{name}>" if inside else f"<{name} {attributes}/>"


def _text(text: Text) -> str:
    at = f'x="{_n(text.x)}" y="{_n(text.y)}" font-size="{_n(text.size_px)}"'
    if text.anchor != "start":
        at += f' text-anchor="{text.anchor}"'
    if text.bold:
        at += ' font-weight="bold"'
    if text.turned:
        at += f' transform="rotate(-90 {_n(text.x)} {_n(text.y)})"'
    return f'<text {at} fill="{FAINT_INK if text.faint else INK}">{escape(text.words)}</text>'
