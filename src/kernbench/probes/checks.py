"""Invariants of every machine. A check is omitted if its cases were not measured or do not exist on the machine."""

from __future__ import annotations

from kernbench.common.units import counted
from kernbench.probes.bandwidth_checks import BANDWIDTH_RULES
from kernbench.probes.cases import HOST_FAMILIES
from kernbench.probes.findings import Check, Findings
from kernbench.probes.latency_checks import LATENCY_RULES
from kernbench.probes.measure import measure


def run_checks(findings: Findings) -> tuple[Check, ...]:
    """Every check that applies, in the order they are shown."""
    rules = (*LATENCY_RULES, *BANDWIDTH_RULES, _same_twice)
    return tuple(check for rule in rules if (check := rule(findings)) is not None)


def _same_twice(findings: Findings) -> Check | None:
    """Run the last case of each category (PEs and host apart) of at most one cube's PEs again on a fresh engine."""
    few = [result for result in findings.results if result.issuers <= findings.graph.spec.cube.n_pes]
    kinds = {(result.category, result.case.family in HOST_FAMILIES): result for result in few or findings.results}
    again = list(kinds.values())
    wrong = [result.name for result in again if measure(findings.graph, result.case).outcomes != result.outcomes]
    return Check("same input, same result", not wrong, "; ".join(wrong) or f"{counted(len(again), 'case')} run twice")
