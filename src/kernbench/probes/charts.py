"""One chart for each family of contention cases: the breakdown of the time and the achieved bandwidth.

The figures are drawn by `report.figures`; their values are written next to them as JSON.
"""

from __future__ import annotations

import json
from pathlib import Path

from kernbench.common.errors import UsageError
from kernbench.common.units import format_bytes
from kernbench.probes.breakdown import LABELS
from kernbench.probes.measure import CaseResult
from kernbench.probes.probe import ProbeReport
from kernbench.report.figures import Bar, StackChart, draw_stack_chart

_TITLES = {
    "to-slice": "PEs of a cube onto one HBM slice",
    "cube-to-next": "Every PE of a cube to its counterpart in the next cube",
    "sip-own-slice": "Every PE of a SIP to its own HBM slice",
    "sip-to-slice": "Every PE of a SIP onto one HBM slice",
    "host-to-cube": "The host and every HBM slice of a cube",
    "host-to-row": "The host and every HBM slice of the cubes at an IO chiplet",
    "hot-channel": "Every PE of a cube and one channel of a slice, one burst each",
    "spread-channels": "Every PE of a cube and the channels of a slice in turn, one burst each",
}


def charts_of(report: ProbeReport) -> dict[str, StackChart]:
    """The charts by family, in the order of the cases; none when no contention case was measured."""
    families: dict[str, list[CaseResult]] = {}
    for result in report.cases:
        if result.case.family:
            families.setdefault(result.case.family, []).append(result)
    return {family: _chart(report, family, results) for family, results in families.items()}


def write_charts(report: ProbeReport, folder: Path) -> list[Path]:
    """Write each chart as PNG, SVG and JSON; raises UsageError if there is nothing to draw or the folder cannot be
    written.
    """
    charts = charts_of(report)
    if not charts:
        raise UsageError(
            "there is no contention case to draw", hint="probe all cases, or one whose name starts with contention-"
        )
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for family, chart in charts.items():
            stem = folder / f"contention-{family}"
            written += draw_stack_chart(chart, stem)
            values = stem.with_suffix(".json")
            values.write_text(json.dumps(chart.as_json(), indent=2) + "\n", encoding="utf-8")
            written.append(values)
    except (OSError, ValueError) as error:  # ValueError: not a valid file name
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(
            f"charts cannot be written: {reason}", where=str(folder), hint="name a folder you may write to"
        ) from error
    return written


def _chart(report: ProbeReport, family: str, results: list[CaseResult]) -> StackChart:
    bars = tuple(
        Bar(
            label=f"{result.issuers} PE{'s' if result.issuers > 1 else ''}\n{result.direction}",
            parts={LABELS[name]: ns for name, ns in result.breakdown.parts().items()},
            effective_gbs=result.effective_gbs,
            path_peak_gbs=result.prediction.bottleneck_gbs,
            aggregate_peak_gbs=result.aggregate_peak_gbs,
        )
        for result in results
    )
    subtitle = f"machine {report.topology}, {format_bytes(results[0].nbytes)} per PE; time of the PE that finishes last"
    return StackChart(_TITLES[family], subtitle, bars)
