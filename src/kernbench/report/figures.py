"""Drawings of results as PNG and SVG: equal values give equal bytes. matplotlib is imported only when needed.

A stack chart has two panels: on the left one stacked bar of times for each case, on the right its achieved bandwidth
next to the peaks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kernbench.common.errors import UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# One colour per part, distinguishable with red-green colour blindness; contention stands out.
COLOURS = ("#332288", "#88CCEE", "#44AA99", "#DDCC77", "#117733", "#999933", "#CC6677")
_BLUE = "#4477AA"
_BAR = 0.62  # width of a bar; 1 is the distance between bars
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "kernbench",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


@dataclass(frozen=True, slots=True)
class Bar:
    """One case: its time in parts, and its bandwidth next to two peaks."""

    label: str
    parts: Mapping[str, float]  # part -> ns, the same parts in every bar of a chart
    effective_gbs: float
    path_peak_gbs: float
    aggregate_peak_gbs: float


@dataclass(frozen=True, slots=True)
class StackChart:
    """A chart before it is drawn."""

    title: str
    subtitle: str
    bars: tuple[Bar, ...]

    def as_json(self) -> dict[str, Any]:
        """The values that are drawn."""
        bars = [{**asdict(bar), "parts": dict(bar.parts), "label": bar.label.replace("\n", ", ")} for bar in self.bars]
        return {"schema": 1, "title": self.title, "subtitle": self.subtitle, "unit": {"parts": "ns"}, "bars": bars}


def draw_stack_chart(chart: StackChart, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; raises UsageError when matplotlib is not installed."""
    with drawing():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        width_in = 5.8 + 0.9 * len(chart.bars)
        figure = Figure(figsize=(width_in, 4.6), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"{chart.title}\n{chart.subtitle}", fontsize=10)
        times, rates = figure.subplots(1, 2, width_ratios=(3, 2))
        _stack(times, chart.bars)
        _bandwidths(rates, chart.bars)
        return save_figure(figure, stem)


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg, without date or version: same values, same bytes."""
    png, svg = stem.with_suffix(".png"), stem.with_suffix(".svg")
    figure.savefig(png, dpi=150, metadata={"Software": None})
    figure.savefig(svg, metadata={"Date": None, "Creator": None})
    return [png, svg]


@contextmanager
def drawing() -> Iterator[None]:
    """matplotlib with our settings, and no display."""
    try:
        import matplotlib
    except ImportError as error:
        raise UsageError("charts need matplotlib", hint="pip install 'kernbench[plot]'") from error
    with matplotlib.rc_context(_SETTINGS):
        yield


def _stack(axes: Axes, bars: Sequence[Bar]) -> None:
    places = range(len(bars))
    bottom = [0.0] * len(bars)
    for part, colour in zip(bars[0].parts, COLOURS, strict=True):
        heights = [bar.parts[part] for bar in bars]
        if any(heights):
            axes.bar(places, heights, _BAR, bottom, color=colour, label=part, edgecolor="white", linewidth=0.5)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    for place, top in zip(places, bottom, strict=True):
        axes.annotate(f"{top:,.0f}", (place, top), (0, 2), textcoords="offset points", ha="center", va="bottom")
    axes.set_ylabel("time (ns)")
    axes.set_ylim(0, max(bottom) * 1.08)
    _finish(axes, bars, columns=min(4, len(bars) + 1))


def _bandwidths(axes: Axes, bars: Sequence[Bar]) -> None:
    places = range(len(bars))
    axes.bar(places, [bar.effective_gbs for bar in bars], _BAR, color=_BLUE, label="effective (% of fair share)")
    peaks: tuple[tuple[str, str, Literal["solid", "dotted"], list[float]], ...] = (
        ("fair-share peak", "#CC3311", "solid", [bar.aggregate_peak_gbs for bar in bars]),
        ("single-path peak", "#222222", "dotted", [bar.path_peak_gbs for bar in bars]),
    )
    for label, colour, style, heights in peaks:
        ends = [place - 0.42 for place in places], [place + 0.42 for place in places]
        axes.hlines(heights, *ends, colors=colour, linestyles=style, label=label, linewidth=1.6)
    ceiling = 1.05 * max(max(bar.effective_gbs, bar.aggregate_peak_gbs, bar.path_peak_gbs) for bar in bars)
    for place, bar in zip(places, bars, strict=True):
        inside = bar.effective_gbs > 0.12 * ceiling
        # With a background, so that a peak line does not run through the text.
        axes.annotate(
            f"{bar.effective_gbs / bar.aggregate_peak_gbs:.0%}",
            (place, bar.effective_gbs),
            (0, -4 if inside else 3),
            textcoords="offset points",
            ha="center",
            va="top" if inside else "bottom",
            fontsize=8,
            color="white" if inside else "black",
            bbox={"facecolor": _BLUE if inside else "white", "edgecolor": "none", "pad": 0.5},
        )
    axes.set_ylabel("bandwidth (GB/s)")
    axes.set_ylim(0, ceiling)
    _finish(axes, bars, columns=1 if len(bars) < 4 else 2)


def _finish(axes: Axes, bars: Sequence[Bar], columns: int) -> None:
    """Tick labels, thousands separators, and the legend above the panel."""
    axes.set_xticks(range(len(bars)), [bar.label for bar in bars])
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), frameon=False, ncols=columns, borderaxespad=0.3)
