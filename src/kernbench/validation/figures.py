"""Draws simulated against measured values, one panel for each regime."""

from __future__ import annotations

from pathlib import Path

from kernbench.report.chart_drawing import draw_chart
from kernbench.report.charts import Chart, Line, LinePanel
from kernbench.validation.contract import Verdict


def draw(verdict: Verdict, out: Path) -> list[Path]:
    """Draw a set into a folder; returns the files."""
    panels = []
    for regime in verdict.regimes:
        points = sorted(
            (row.measured, row.simulated)
            for row in verdict.rows
            if row.regime == regime.name and row.measured is not None
        )
        if points:
            equal = tuple((measured, measured) for measured, _ in (points[0], points[-1]))
            lines = (Line("simulated", tuple(points), "point"), Line("equal", equal, "limit"))
            panels.append(LinePanel("measured", "simulated", lines, regime.name, "xy"))
    if not panels:
        return []
    title = f"{verdict.set.title}: {verdict.set.quantity}"
    return draw_chart(Chart(verdict.set.name, title, verdict.set.source, tuple(panels)), out / verdict.set.name)
