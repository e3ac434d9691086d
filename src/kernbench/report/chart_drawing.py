"""Draws charts as PNG and SVG at the width of a page. Equal charts give equal bytes.

Series differ by lightness of colour and by marker, dash or hatch, so that a copy without colour is readable. There is
one legend below all panels; titles and labels are wrapped to the available width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor, log2, log10
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, NamedTuple

from kernbench.common.units import GIB, KIB, MIB
from kernbench.report.charts import AxisUnit, BarPanel, Bars, Chart, DiagramPanel, Line, LinePanel, Panel
from kernbench.report.figures import drawing, save_figure

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

PAGE_IN = 7.2
# All differ in grey, and neighbours differ most.
COLOURS = ("#22223b", "#e07a1f", "#1d8fd0", "#a4133c", "#8fc18d", "#6f4a9e", "#e3c34a")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++")
DASHES = ("-", "--", "-.", ":")
THEORY_DASHES = ((4, 2), (8, 2), (4, 1.5, 1, 1.5), (2, 1.2), (8, 1.5, 1, 1.5, 1, 1.5), (6, 4))
LIMIT_DASHES = ((1, 1.5), (1, 3), (1, 1, 1, 4), (2, 3))
GREY = "#666666"
TITLE_CHARS, PANEL_CHARS, TICK_CHARS = 76, 76, 92  # characters per page width, shared by panels and categories
NAME_WIDE = 0.07  # width of a point's name, as a fraction of the panel
FEW_DECADES = 500.0  # ratio of the largest to the smallest value
MOST_TICKS = 5  # of an axis of a square panel
LEAST_RATIO = 8.0  # of the largest to the smallest value for a logarithmic square panel
SQUARE_MARGIN = 0.06  # around its points
CROWDED = 40  # points
LEGEND_CHARS = 115  # characters per line of the legend


class Look(NamedTuple):
    """How a series is drawn."""

    colour: str
    marker: str
    hatch: str
    dash: str
    theory_dash: tuple[float, ...]
    limit_dash: tuple[float, ...]


def looks_of(labels: Sequence[str], likenesses: Mapping[str, str] | None = None) -> dict[str, Look]:
    """The look of each label: colours repeat after seven, with other markers and dashes. A label in `likenesses` takes
    the look of another label.
    """
    like = likenesses or {}
    found: dict[str, Look] = {}
    for at, label in enumerate(label for label in labels if like.get(label) not in labels):
        repeat = at // len(COLOURS)
        found[label] = Look(
            COLOURS[at % len(COLOURS)],
            MARKERS[at % len(MARKERS)],
            HATCHES[(at + repeat) % len(HATCHES)],
            DASHES[repeat % len(DASHES)],
            THEORY_DASHES[at % len(THEORY_DASHES)],
            LIMIT_DASHES[at % len(LIMIT_DASHES)],
        )
    return found | {label: found[other] for label, other in like.items() if label in labels and other in found}


def draw_chart(chart: Chart, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; raises UsageError when matplotlib is not installed."""
    with drawing():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        columns = min(chart.columns, len(chart.panels))
        rows = ceil(len(chart.panels) / columns)
        title = fill(chart.title, TITLE_CHARS)
        labels = chart.series()
        entries = _legend_columns(labels)
        extra_in = 0.25 + 0.17 * title.count("\n") + (0.2 * ceil(len(labels) / entries) if len(labels) > 1 else 0.0)
        figure = Figure(figsize=(PAGE_IN, rows * chart.height_in + extra_in), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(title, fontsize=10, fontweight="bold")
        grid = figure.subplots(rows, columns, squeeze=False)
        looks = looks_of(labels, chart.likenesses())
        places = [axes for row in grid for axes in row]
        for axes, panel in zip(places, chart.panels, strict=False):
            _draw_panel(axes, panel, looks, PANEL_CHARS // columns)
        for axes in places[len(chart.panels) :]:
            axes.set_axis_off()
        handles: dict[str, Artist] = {}
        for axes in places:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        if len(handles) > 1:
            names = [label for label in labels if label in handles]
            figure.legend(
                [handles[name] for name in names],
                names,
                loc="outside lower center",
                ncols=entries,
                frameon=False,
                fontsize=8,
            )
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # both files have the same layout, found once
        return save_figure(figure, stem)


def _legend_columns(labels: Sequence[str]) -> int:
    """The number of columns: as many as fit, with balanced rows."""
    widest = max((len(label) for label in labels), default=1) + 6
    most = max(1, min(len(labels), LEGEND_CHARS // widest))
    return ceil(len(labels) / ceil(len(labels) / most)) if labels else 1


def _draw_panel(axes: Axes, panel: Panel, looks: dict[str, Look], chars: int) -> None:
    if panel.title:
        axes.set_title(fill(panel.title, chars), fontsize=9)
    if isinstance(panel, DiagramPanel):
        _draw_diagram(axes, panel, looks)
        return
    if isinstance(panel, LinePanel):
        _draw_lines(axes, panel, looks)
    else:
        _draw_bars(axes, panel, looks, chars * TICK_CHARS // PANEL_CHARS)
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.y_label)
    axes.grid(visible=True, axis="y" if isinstance(panel, BarPanel) else "both", color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=8)


# -------------------------------------------------------------------------------------------------------------- lines


def _draw_lines(axes: Axes, panel: LinePanel, looks: dict[str, Look]) -> None:
    for at, line in enumerate(panel.lines):
        look, xs, ys = looks[line.label], [x for x, _ in line.points], [y for _, y in line.points]
        size = 4.5 + max(0.0, 2.4 - 0.8 * at)  # lines that coincide stay visible below each other
        if line.role == "measured":
            axes.plot(xs, ys, look.dash, color=look.colour, marker=look.marker, markersize=size, linewidth=size / 3.2,
                      markeredgecolor="white", markeredgewidth=0.4, label=line.label)  # fmt: skip
        elif line.role == "point":
            crowd = 4 if panel.is_square and len(xs) > CROWDED else 6
            axes.plot(xs, ys, linestyle="none", color=look.colour, marker=look.marker, markersize=crowd,
                      markeredgecolor="black", markeredgewidth=0.5, label=line.label)  # fmt: skip
        else:
            dash, width = (look.theory_dash, 1.3) if line.role == "theory" else (look.limit_dash, 1.6)
            dot = "_" if len(xs) == 1 else ""  # a line of one point would be invisible
            axes.plot(xs, ys, linestyle=(0, dash), color=look.colour, linewidth=width, marker=dot, markersize=14,
                      label=line.label)  # fmt: skip
        _write_names(axes, line, panel)
    if panel.is_square:
        _square(axes, panel)
        return
    if "x" in panel.log:
        axes.set_xscale("log", base=2)
    if "y" in panel.log:
        _log_y(axes, [y for line in panel.lines for _, y in line.points])
    _ticks_of_x(axes, panel)
    axes.yaxis.set_major_formatter(_formatter(panel.y_unit))
    if panel.from_zero and "y" not in panel.log:
        axes.set_ylim(0, 1.06 * max((y for line in panel.lines for _, y in line.points), default=1.0))
    axes.margins(x=0.06)


def _square(axes: Axes, panel: LinePanel) -> None:
    """Both axes alike, and linear where values span little."""
    from matplotlib.ticker import MaxNLocator

    values = [value for line in panel.lines for point in line.points for value in point]
    low, high = min(values), max(values)
    is_log = panel.log == "xy" and low > 0 and high >= LEAST_RATIO * low
    room = (high / low) ** SQUARE_MARGIN if is_log else 0.0
    margin = SQUARE_MARGIN * (high - low) or 0.1 * abs(high) or 1.0
    limits = (low / room, high * room) if is_log else (low - margin, high + margin)
    ticks = (
        _log_ticks(*limits) if is_log else [float(tick) for tick in MaxNLocator(MOST_TICKS - 1).tick_values(*limits)]
    )
    shown = [tick for tick in ticks if limits[0] <= tick <= limits[1]]
    for axis, unit, scale, limit in (
        (axes.xaxis, panel.x_unit, axes.set_xscale, axes.set_xlim),
        (axes.yaxis, panel.y_unit, axes.set_yscale, axes.set_ylim),
    ):
        if is_log:
            scale("log")
        text = _formatter(unit)
        axis.set_ticks(shown, [text(tick, 0) for tick in shown])
        limit(*limits)
    axes.minorticks_off()
    axes.set_box_aspect(1)


def _log_ticks(low: float, high: float) -> list[float]:
    """At most so many ticks: at 1, 2 and 5 of each decade, at each decade, or at every second one, and so on."""
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    between = [sub * 10.0**power for power in decades for sub in (1, 2, 5)]
    found = [tick for tick in between if low <= tick <= high]
    step = 1
    while len(found) > MOST_TICKS:
        found = [tick for tick in (10.0**power for power in decades if power % step == 0) if low <= tick <= high]
        step += 1
    return found


def _log_y(axes: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis with ticks at decades, and at 2 and 5 between them if there are few decades."""
    from matplotlib.ticker import LogLocator

    axes.set_yscale("log")
    low, high = min((y for y in values if y > 0), default=1.0), max(values, default=1.0)
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if high < FEW_DECADES * low else (1.0,)))
    axes.minorticks_off()


def _write_names(axes: Axes, line: Line, panel: LinePanel) -> None:
    """Names are placed above and to the right of their points; to the left if another point is close, and then below
    if there is room.
    """
    xs, ys = zip(*(point for each in panel.lines for point in each.points), strict=True)
    wide, high = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    for at, name in sorted((line.names or {}).items()):
        x, y = line.points[at]
        others = zip(xs, ys, strict=True)
        is_left = any(0 < (a - x) / wide < NAME_WIDE and abs(b - y) / high < NAME_WIDE for a, b in others)
        is_below = is_left and (y - min(ys)) / high > NAME_WIDE
        axes.annotate(
            name, (x, y), (-5 if is_left else 5, -4 if is_below else 4), textcoords="offset points", fontsize=7,
            color="#222222", ha="right" if is_left else "left", va="top" if is_below else "baseline",
        )  # fmt: skip


def _ticks_of_x(axes: Axes, panel: LinePanel) -> None:
    xs = sorted(dict.fromkeys(x for line in panel.lines for x, _ in line.points))
    text = _formatter(panel.x_unit)
    if panel.every_x:
        axes.set_xticks(xs, [text(x, 0) for x in xs])
        axes.minorticks_off()
        return
    if "x" in panel.log and xs and xs[0] > 0:
        low, high = ceil(log2(xs[0]) - 1e-9), int(log2(xs[-1]) + 1e-9)
        step = max(1, ceil((high - low + 1) / 7))
        shown = [2.0**power for power in range(low, high + 1, step)]
        axes.set_xticks(shown, [text(x, 0) for x in shown])
        axes.minorticks_off()
        return
    axes.xaxis.set_major_formatter(text)


class _Text:
    """Formats a tick; matplotlib calls it with the value and its position."""

    def __init__(self, unit: AxisUnit) -> None:
        self._unit = unit

    def __call__(self, value: float, _: float = 0.0) -> str:
        if self._unit == "bytes":
            return bytes_text(value)
        if self._unit == "percent":
            return f"{value:g}%"
        if self._unit == "short":
            return short_text(value)
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _formatter(unit: AxisUnit) -> _Text:
    return _Text(unit)


def short_text(value: float) -> str:
    """`0.5`, `20`, `2k`, `5M`, `1G`: short, for an axis."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def bytes_text(nbytes: float) -> str:
    """`256`, `4K`, `1M`: short, for an axis."""
    for size, letter in ((GIB, "G"), (MIB, "M"), (KIB, "K")):
        if nbytes >= size:
            return f"{nbytes / size:g}{letter}"
    return f"{nbytes:g}"


# --------------------------------------------------------------------------------------------------------------- bars


def _draw_bars(axes: Axes, panel: BarPanel, looks: dict[str, Look], chars: int) -> None:
    places = range(len(panel.categories))
    width = 0.66 if panel.stacked else 0.82 / max(len(panel.bars), 1)
    tops = [0.0] * len(panel.categories)
    for at, bars in enumerate(panel.bars):
        look = looks[bars.label]
        shift = 0.0 if panel.stacked else (at - (len(panel.bars) - 1) / 2) * width
        heights = [value or 0.0 for value in bars.values]
        axes.bar(
            [place + shift for place in places], heights, width, tops if panel.stacked else None, color=look.colour,
            hatch=look.hatch, edgecolor="white", linewidth=0.4, label=bars.label,
        )  # fmt: skip
        if panel.stacked:
            tops = [low + height for low, height in zip(tops, heights, strict=True)]
        elif panel.with_values:
            _write_heights(axes, [place + shift for place in places], bars, panel)
    if panel.stacked and panel.with_values:
        _write_heights(axes, [*places], Bars("", tuple(tops)), panel)
    for marks in panel.marks:
        found = [(place, value) for place, value in zip(places, marks.values, strict=True) if value is not None]
        axes.hlines(
            [value for _, value in found], [place - 0.44 for place, _ in found], [place + 0.44 for place, _ in found],
            colors=looks[marks.label].colour, linestyles=(0, looks[marks.label].theory_dash), linewidth=1.8,
            label=marks.label,
        )  # fmt: skip
    if panel.log:
        shown = [value for bars in panel.bars for value in bars.values if value]
        _log_y(axes, shown)
        axes.set_ylim(0.7 * min(shown, default=1.0), 1.5 * max(shown, default=1.0))
    else:
        marked = [value for marks in panel.marks for value in marks.values if value is not None]
        heights = tops if panel.stacked else [value or 0.0 for bars in panel.bars for value in bars.values]
        axes.set_ylim(0, 1.12 * max(*heights, *marked, 1e-9))
    axes.yaxis.set_major_formatter(_formatter(panel.y_unit))
    each = chars // max(len(panel.categories), 1)  # characters of a horizontal name
    crowded = any(len(word) > each for name in panel.categories for word in name.split())
    names = [name if crowded else fill(name, each) for name in panel.categories]
    axes.set_xticks([*places], names)
    if crowded:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")


def _write_heights(axes: Axes, places: Sequence[float], bars: Bars, panel: BarPanel) -> None:
    text = _formatter(panel.y_unit)
    for place, value in zip(places, bars.values, strict=True):
        if value is not None:
            shown = text(float(f"{value:.2g}" if panel.y_unit == "percent" or value < 10 else f"{value:.3g}"))
            axes.annotate(shown, (place, value), (0, 2), textcoords="offset points", ha="center", fontsize=7,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.8})  # fmt: skip


# ------------------------------------------------------------------------------------------------------------ diagrams


def _draw_diagram(axes: Axes, panel: DiagramPanel, looks: dict[str, Look]) -> None:
    drawn: dict[str, None] = {}
    for arrow in panel.arrows:
        src, dst, look = panel.boxes[arrow.src], panel.boxes[arrow.dst], looks[arrow.label]
        axes.annotate(
            "", (dst.x, -dst.y), (src.x, -src.y),
            arrowprops={"arrowstyle": "-|>", "color": look.colour, "linewidth": 1.5, "linestyle": look.dash,
                        "shrinkA": 13, "shrinkB": 13, "connectionstyle": f"arc3,rad={arrow.bend}"},
        )  # fmt: skip
        if arrow.label not in drawn:
            axes.plot([], [], look.dash, color=look.colour, linewidth=1.5, label=arrow.label)
            drawn[arrow.label] = None
    for box in panel.boxes:
        axes.text(
            box.x, -box.y, box.label, ha="center", va="center", fontsize=8, fontweight="bold" if box.strong else None,
            bbox={"boxstyle": "round,pad=0.35", "facecolor": "#FFE9A8" if box.strong else "white", "edgecolor": GREY},
        )  # fmt: skip
    xs, ys = [box.x for box in panel.boxes], [-box.y for box in panel.boxes]
    axes.set_xlim(min(xs) - 0.7, max(xs) + 0.7)
    axes.set_ylim(min(ys) - 0.7, max(ys) + 0.7)
    axes.set_aspect("equal")
    axes.set_axis_off()
