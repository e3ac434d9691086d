"""A probe's report as JSON: keys are a contract, and `schema` goes up when one changes its meaning.

Times are ns, bandwidths GB/s, utilisations fractions of 1. In a contention case `total_ns` is the makespan, `nbytes`
is what each issuer moves, and `path` and all terms are those of the issuer that finished last.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kernbench.probes.measure import CaseResult, SweepPoint
from kernbench.probes.probe import ProbeReport

SCHEMA = 1


def report_as_json(report: ProbeReport) -> dict[str, Any]:
    """The whole report as plain values. `routes` is there when hops were traced."""
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "command": "probe",
        "topology": report.topology,
        "nbytes": report.nbytes,
        "ok": report.ok,
        "cases": [case_as_json(result) for result in report.cases],
        "checks": [asdict(check) for check in report.checks],
        "sweep": [_point_as_json(point) for point in report.sweep],
        "notes": list(report.notes),
    }
    if report.routes:
        data["routes"] = [asdict(route) for route in report.routes]
    return data


def case_as_json(result: CaseResult) -> dict[str, Any]:
    alone = result.prediction
    return {
        "name": result.name,
        "category": result.category,
        "direction": result.direction,
        "nbytes": result.nbytes,
        "issuers": result.issuers,
        "total_ns": result.total_ns,
        "overhead_ns": alone.overhead_ns,
        "wire_ns": alone.wire_ns,
        "drain_ns": alone.drain_ns,
        "flit_ns": alone.flit_ns,
        "memory_ns": alone.memory_ns,
        "formula_ns": alone.formula_ns,
        "bottleneck_gbs": alone.bottleneck_gbs,
        "aggregate_peak_gbs": result.aggregate_peak_gbs,
        "effective_gbs": result.effective_gbs,
        "utilization": result.utilization,
        "utilization_aggregate": result.utilization_aggregate,
        "path": list(result.path),
        "breakdown": result.breakdown.parts(),
    }


def _point_as_json(point: SweepPoint) -> dict[str, Any]:
    return {
        "name": point.name,
        "category": point.case.category,
        "direction": point.case.direction,
        "nbytes": point.nbytes,
        "total_ns": point.total_ns,
        "formula_ns": point.formula_ns,
        "effective_gbs": point.effective_gbs,
        "utilization": point.utilization,
    }
