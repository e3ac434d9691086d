"""A sweep as a picture: the first objective over the first axis, and the Pareto front of the first two objectives.

Left: a line for each combination of the other axes, as long as there are few; points otherwise. Bars are
the ends of a figure's range. Right: every row, the
front on top, its rows joined. With one objective there is only the left panel.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernbench.report.figures import drawing, save_figure
from kernbench.report.ranges import FigureRange
from kernbench.sweep.ends import with_ends
from kernbench.sweep.objectives import Objective
from kernbench.sweep.points import JsonValue
from kernbench.sweep.rows import SweepRow, short_axis, varying

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STEM = "sweep"
COLOURS = ("#332288", "#88CCEE", "#44AA99", "#DDCC77", "#117733", "#999933", "#CC6677", "#AA4499")
_GREY, _RED, _BLUE = "#BBBBBB", "#CC3311", "#4477AA"
WIDE = 8  # an axis whose ends are that far apart is drawn in powers of two
MAX_TICKS = 10
LEAST_SPAN = 0.01
BARS: dict[str, Any] = {"fmt": "none", "ecolor": "#999999", "elinewidth": 0.8, "capsize": 2, "zorder": 1}
MAX_NAMED = 12  # rows of the front that have their number next to them


def plot_files(folder: Path) -> list[Path]:
    return [folder / f"{STEM}.png", folder / f"{STEM}.svg"]


def prepare() -> None:
    """Import matplotlib in the background, while the points of the sweep run."""

    def load() -> None:
        with suppress(ImportError):
            for name in ("matplotlib.figure", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg"):
                import_module(name)

    threading.Thread(target=load, daemon=True).start()


def draw_sweep(
    title: str,
    rows: Sequence[SweepRow],
    objectives: Sequence[Objective],
    front: Sequence[SweepRow],
    folder: Path,
    what: str = "points",
) -> list[Path]:
    """Write `sweep.png` and `sweep.svg`; raises UsageError when matplotlib is not installed."""
    known = [row for row in rows if all(objective.worth(row) is not None for objective in objectives)]
    with drawing():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        panels = min(len(objectives), 2)
        figure = Figure(figsize=(1.0 + 5.2 * panels, 4.8), layout="constrained")
        FigureCanvasAgg(figure)
        failed = len(rows) - len(known)
        figure.suptitle(
            f"{title}: {len(rows)} {what}" + (f", {failed} failed or infeasible" if failed else ""), fontsize=10
        )
        axes = figure.subplots(1, panels, squeeze=False)[0]
        _over_axis(axes[0], known, objectives[0])
        if panels == 2:
            _front(axes[1], known, objectives[0], objectives[1], front, what)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # both files have the same layout, found once
        part = folder / f".{STEM}.{os.getpid()}.part"
        made = save_figure(figure, part)
        return [file.replace(final) for file, final in zip(made, plot_files(folder), strict=True)]


def _over_axis(axes: Axes, rows: Sequence[SweepRow], objective: Objective) -> None:
    names = varying(rows) or ["point"]
    axis, others = names[0], names[1:]
    flats = [row.flat(objective.column) for row in rows]
    series: dict[str, list[tuple[JsonValue, float, float, float]]] = {}
    for flat in flats:
        label = ", ".join(f"{short_axis(name)}={flat.get(name)}" for name in others)
        ((low,), (high,)) = _spread(flat, objective) or ((0.0,), (0.0,))
        series.setdefault(label, []).append((flat.get(axis), _number(flat, objective), low, high))
    numeric = all(isinstance(flat.get(axis), int | float) for flat in flats)
    places = {} if numeric else {str(flat.get(axis)): None for flat in flats}
    at = {text: place for place, text in enumerate(places)}
    if len(series) <= len(COLOURS):
        for below, ((label, points), colour) in enumerate(zip(series.items(), COLOURS, strict=False)):
            ordered = sorted((_place(value, at), y, low, high) for value, y, low, high in points)
            size = 4.0 + 1.2 * (len(series) - 1 - below)  # lines that coincide stay visible below each other
            xs, ys = [x for x, *_ in ordered], [y for _, y, *_ in ordered]
            axes.plot(xs, ys, "o-", color=colour, label=label, markersize=size, linewidth=size / 3)
            if any(low or high for _, _, low, high in ordered):
                ends = [[low for _, _, low, _ in ordered], [high for _, _, _, high in ordered]]
                axes.errorbar(xs, ys, yerr=ends, **BARS)
        if others:
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False, ncols=2, fontsize=7)
    else:
        cloud = [(_place(value, at), y) for pairs in series.values() for value, y, *_ in pairs]
        axes.scatter([x for x, _ in cloud], [y for _, y in cloud], s=14, color=_BLUE, alpha=0.6, linewidths=0)
    if at:
        axes.set_xticks(list(at.values()), list(at))
    else:
        _scale(axes, [_place(flat.get(axis), at) for flat in flats])
    _label(axes, short_axis(axis), _titled(objective))


def _front(
    axes: Axes, rows: Sequence[SweepRow], across: Objective, up: Objective, front: Sequence[SweepRow], what: str
) -> None:
    flats = [row.flat(across.column, up.column) for row in rows]
    xs, ys = [_number(flat, across) for flat in flats], [_number(flat, up) for flat in flats]
    axes.scatter(xs, ys, s=14, color=_GREY, linewidths=0, label=what)
    for row in front:
        flat = row.flat(across.column, up.column)
        x, y = _number(flat, across), _number(flat, up)
        axes.errorbar(x, y, xerr=_spread(flat, across), yerr=_spread(flat, up), **BARS)
    shown = [(row.flat(across.column, up.column), row.point) for row in front]
    best = sorted((_number(flat, across), _number(flat, up), point) for flat, point in shown)
    axes.plot([x for x, _, _ in best], [y for _, y, _ in best], "o-", color=_RED, markersize=5, label="Pareto front")
    for x, y, number in best[:MAX_NAMED]:
        axes.annotate(f"{number}", (x, y), (4, 4), textcoords="offset points", fontsize=7, color=_RED)
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False, ncols=2, fontsize=7)
    _label(axes, _titled(across), _titled(up))
    axes.xaxis.set_major_formatter(_plain)
    axes.set_xlim(*_at_least(*axes.get_xlim()))


def _scale(axes: Axes, xs: Sequence[float]) -> None:
    """Use a log scale for wide ranges, and one tick per value if there are few."""
    values = list(dict.fromkeys(sorted(xs)))
    if values and values[0] > 0 and values[-1] >= WIDE * values[0]:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter("{x:g}")
    if len(values) <= MAX_TICKS:
        axes.set_xticks(values, [f"{value:g}" for value in values])


def _titled(objective: Objective) -> str:
    return f"{objective.column} ({'more' if objective.maximize else 'less'} is better)"


def _label(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.yaxis.set_major_formatter(_plain)
    axes.set_ylim(*_at_least(*axes.get_ylim()))
    axes.grid(visible=True, color="#EEEEEE")
    axes.set_axisbelow(True)


def _at_least(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis of figures, LEAST_SPAN of the value apart or more: what differs by less looks alike."""
    middle, half = (low + high) / 2, LEAST_SPAN * max(abs(low), abs(high)) / 2
    return min(low, middle - half), max(high, middle + half)


def _plain(value: float, _position: float) -> str:
    """A tick without a power of ten."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:g}"


def _number(flat: Mapping[str, JsonValue], objective: Objective) -> float:
    value = flat[objective.column]
    assert isinstance(value, int | float)
    return float(value)


def _spread(flat: Mapping[str, JsonValue], objective: Objective) -> tuple[tuple[float], tuple[float]] | None:
    """How far the ends of a figure's range are below and above it; None without a range."""
    found = with_ends(flat, objective.column)
    return ((found.value - found.low,), (found.high - found.value,)) if isinstance(found, FigureRange) else None


def _place(value: JsonValue, at: Mapping[str, int]) -> float:
    return float(at[str(value)]) if at else float(value)  # type: ignore[arg-type]  # numbers, when it has no places
