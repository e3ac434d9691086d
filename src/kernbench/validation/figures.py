"""Draws simulated against measured values, one square panel for each regime."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kernbench.report.chart_drawing import draw_chart
from kernbench.report.charts import AxisUnit, Chart, Line, LinePanel
from kernbench.validation.contract import Regime, SetVerdict


def draw(verdict: SetVerdict, out: Path) -> list[Path]:
    """Draw a set into a folder; returns the files: none where nothing was measured."""
    chart = chart_of(verdict)
    return draw_chart(chart, out / verdict.set.name) if chart.panels else []


def chart_of(verdict: SetVerdict) -> Chart:
    """The panels of all regimes that have measured cases."""
    is_share = verdict.set.unit == "points"
    unit: AxisUnit = "percent" if is_share else "short"
    panels = []
    for regime in verdict.regimes:
        rows = [row for row in verdict.rows if row.regime == regime.name]
        points = sorted((row.measured, row.simulated) for row in rows if row.measured is not None)
        if points:
            ends = [end(value for point in points for value in point) for end in (min, max)]
            equal = tuple((value, value) for value in ends)
            lines = (Line("simulated", tuple(points), "point"), Line("equal", equal, "limit"))
            panel = LinePanel("measured", "simulated", lines, _title(regime), "xy", unit, unit, is_square=True)
            panels.append(replace(panel, log="") if is_share else panel)
    title = f"{verdict.set.title}: {verdict.set.quantity}"
    return Chart(verdict.set.name, title, verdict.set.source, tuple(panels))


def _title(regime: Regime) -> str:
    assert regime.mean is not None
    unit = "%" if regime.unit == "pct" else "points"
    return f"{regime.name}: {regime.mean:.1f} {unit} in {regime.n} cases"
