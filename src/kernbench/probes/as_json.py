"""A probe's report as JSON. Keys are a contract; `schema` is increased when the meaning of one changes.

Times are ns, bandwidths GB/s, utilisations fractions of 1. In a contention case `total_ns` is the makespan, `nbytes`
is the size of each issuer's transfer, and `path` and all terms are those of the issuer that finished last.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from kernbench.probes.measure import CaseResult, SweepPoint
from kernbench.probes.probe import ProbeReport

SCHEMA = 1


def report_as_json(report: ProbeReport) -> dict[str, Any]:
    """The whole report as plain values. `routes` is present if hops were traced."""
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
    uncontended = result.prediction
    return {
        "name": result.name,
        "category": result.category,
        "direction": result.direction,
        "nbytes": result.nbytes,
        "issuers": result.issuers,
        "total_ns": result.total_ns,
        "overhead_ns": uncontended.overhead_ns,
        "wire_ns": uncontended.wire_ns,
        "drain_ns": uncontended.drain_ns,
        "flit_ns": uncontended.flit_ns,
        "memory_ns": uncontended.memory_ns,
        "formula_ns": uncontended.formula_ns,
        "bottleneck_gbs": uncontended.bottleneck_gbs,
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
