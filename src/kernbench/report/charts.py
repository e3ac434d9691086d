"""Charts as data. `chart_drawing.py` draws them.

A chart has panels. A line panel has lines over numbers; a bar panel has bars over names, grouped or stacked; a diagram
has boxes and arrows. A series has the same look wherever its label appears in a chart. Values come from the
results or from the machine: a chart defines no number itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kernbench.report.references import Reference

# measured: a line with markers; theory: dashed, no markers; point: markers only; limit: a thin dotted line
SeriesRole = Literal["measured", "theory", "point", "limit"]
AxisUnit = Literal["number", "short", "bytes", "percent"]  # short: 2k, 5M


@dataclass(frozen=True, slots=True)
class Line:
    """Points of one label, in order of x. `names` are written next to points, by index in `points`. A line that is
    `like` another has its colour, for example theory and its measurement.
    """

    label: str
    points: tuple[tuple[float, float], ...]
    role: SeriesRole = "measured"
    names: Mapping[int, str] | None = None
    like: str = ""


@dataclass(frozen=True, slots=True)
class LinePanel:
    """Lines over numbers. `log` names the axes that are logarithmic: "x", "y" or "xy". `every_x` has a tick at each.
    A square panel has the same limits, scale and ticks on both axes, with `log` "xy" where values span a decade or so.
    """

    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    title: str = ""
    log: Literal["", "x", "y", "xy"] = ""
    x_unit: AxisUnit = "number"
    y_unit: AxisUnit = "number"
    from_zero: bool = False
    every_x: bool = False
    is_square: bool = False


@dataclass(frozen=True, slots=True)
class Bars:
    """One value for each category; None if it has none."""

    label: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class BarPanel:
    """Bars over categories, side by side or stacked. `marks` are short lines across a category's bars: a limit."""

    y_label: str
    categories: tuple[str, ...]
    bars: tuple[Bars, ...]
    title: str = ""
    stacked: bool = False
    marks: tuple[Bars, ...] = ()
    x_label: str = ""
    log: bool = False
    y_unit: AxisUnit = "number"
    with_values: bool = False  # write the height of each bar or stack on top of it


@dataclass(frozen=True, slots=True)
class DiagramBox:
    """A box of a diagram, in units of one box with its margin; y grows downwards."""

    label: str
    x: float
    y: float
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Arrow:
    """From one box to another, by number. Arrows of one label look alike; `bend` bows it by a share of its length."""

    src: int
    dst: int
    label: str
    bend: float = 0.0


@dataclass(frozen=True, slots=True)
class DiagramPanel:
    """Boxes and arrows."""

    title: str
    boxes: tuple[DiagramBox, ...]
    arrows: tuple[Arrow, ...]


Panel = LinePanel | BarPanel | DiagramPanel


@dataclass(frozen=True, slots=True)
class Chart:
    """A figure: the name of its files, a title with what it shows, a caption with how it was made."""

    name: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    columns: int = 2  # panels next to each other
    height_in: float = 3.0  # of a row of panels
    references: tuple[Reference, ...] = ()  # published values that are drawn; the caption cites them

    def series(self) -> tuple[str, ...]:
        """Every label once, in order."""
        labels: dict[str, None] = {}
        for panel in self.panels:
            if isinstance(panel, LinePanel):
                found = [line.label for line in panel.lines]
            elif isinstance(panel, BarPanel):
                found = [bars.label for bars in (*panel.bars, *panel.marks)]
            else:
                found = [arrow.label for arrow in panel.arrows]
            labels |= dict.fromkeys(found)
        return tuple(labels)

    def likenesses(self) -> dict[str, str]:
        """Label -> label whose colour it takes."""
        lines = [line for panel in self.panels if isinstance(panel, LinePanel) for line in panel.lines]
        return {line.label: line.like for line in lines if line.like}


def reference_line(reference: Reference, panel_lines: Sequence[Line]) -> Line:
    """A reference as a level line over the other lines of a panel whose y is a share in percent."""
    xs = [x for line in panel_lines for x, _ in line.points]
    level = 100 * reference.share
    return Line(reference.title, ((min(xs), level), (max(xs), level)), "limit")


def reference_level(reference: Reference, panel_lines: Sequence[Line]) -> Line:
    """A reference as a level line over the other lines of a panel whose y is in the reference's unit."""
    xs = [x for line in panel_lines for x, _ in line.points]
    return Line(reference.title, ((min(xs), reference.value), (max(xs), reference.value)), "limit")


def reference_marks(reference: Reference, categories: Sequence[object]) -> Bars:
    """A reference as a mark across every category of a panel whose y is a share in percent."""
    return Bars(reference.title, (100 * reference.share,) * len(categories))
