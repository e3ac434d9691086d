"""Bandwidth invariants: no link exceeds its bandwidth, a slice is serial, disjoint paths do not interfere.

The bounds allow for rounding of each flit's time to the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

from kernbench.common.units import GRID_NS, counted
from kernbench.probes.cases import CHANNEL_FAMILIES, AccessDirection
from kernbench.probes.findings import DIRECTION_SUFFIXES, Check, CheckRule, Findings, all_of
from kernbench.probes.formula import links_of, occupancy_ns, predict
from kernbench.probes.measure import CaseResult
from kernbench.report.memory_times import memories_gbs


def _within(findings: Findings, name: str, peak_gbs: Callable[[CaseResult], float]) -> Check | None:
    comparisons = []
    for result in findings.results:
        peak = peak_gbs(result)
        if peak > 0:
            flits = result.issuers * -(-result.nbytes // findings.graph.spec.system.flit_bytes)
            least_ns = result.issuers * result.nbytes / peak - flits * GRID_NS
            comparisons.append(
                (result.total_ns >= least_ns, f"{result.name} {result.effective_gbs:.2f} of {peak:.2f} GB/s")
            )
    wrong = [text for ok, text in comparisons if not ok]
    return Check(name, not wrong, "; ".join(wrong) or counted(len(comparisons), "case")) if comparisons else None


def _within_fair_peak(findings: Findings) -> Check | None:
    return _within(findings, "bandwidth stays within the fair-share peak", lambda result: result.aggregate_peak_gbs)


def _within_hbm_peak(findings: Findings) -> Check | None:
    graph = findings.graph

    def peak_gbs(result: CaseResult) -> float:
        memories = dict.fromkeys(outcome.path[-1] for outcome in result.outcomes)
        slices = [memory for memory in memories if graph.node(memory).kind == "hbm_ctrl"]
        return memories_gbs(graph, slices)

    return _within(findings, "bandwidth stays within the HBM peak", peak_gbs)


def _to_slice(findings: Findings) -> Iterator[tuple[AccessDirection, list[CaseResult]]]:
    for direction, _ in DIRECTION_SUFFIXES:
        found = findings.family("to-slice", direction) + findings.family("sip-to-slice", direction)
        if found:
            yield direction, found


def _makespan_grows(findings: Findings) -> Check | None:
    comparisons = []
    for direction, row in _to_slice(findings):
        if len(row) > 1:
            ok = all(few.total_ns <= many.total_ns for few, many in pairwise(row))
            comparisons.append((ok, f"{direction} " + " <= ".join(f"{result.total_ns:.2f}" for result in row) + " ns"))
    return all_of("makespan onto one slice grows with issuers", comparisons)


def _slice_is_serial(findings: Findings) -> Check | None:
    comparisons = []
    for _, row in _to_slice(findings):
        for result in row:
            links = links_of(findings.graph, result.path, result.direction == "write")
            at_memory = links[-1] if result.direction == "write" else links[0]
            least_ns = result.issuers * occupancy_ns(findings.graph, at_memory, result.nbytes)
            text = f"{result.name} {result.total_ns:.2f} >= {least_ns:.2f} ns"
            comparisons.append((result.total_ns >= least_ns, text))
    wrong = [text for ok, text in comparisons if not ok]
    name = "a slice serves its issuers one after another"
    detail = "; ".join(wrong) or f"at least issuers x bytes / bandwidth in {counted(len(comparisons), 'case')}"
    return Check(name, not wrong, detail) if comparisons else None


def _hot_channel_is_serial(findings: Findings) -> Check | None:
    comparisons = []
    cube = findings.graph.spec.cube_of(0, 0)
    burst_ns = cube.hbm_burst_bytes / cube.hbm_channel_bw_gbs
    for direction, _ in DIRECTION_SUFFIXES:
        if direction == "write" and findings.graph.spec.hbm.model == "banks":
            continue  # a write is acknowledged once it is in the write buffer, before its channel has served it
        for hot in findings.family(CHANNEL_FAMILIES[0], direction):
            least_ns = hot.issuers * (burst_ns - GRID_NS)
            comparisons.append((hot.total_ns >= least_ns, f"{direction} {hot.total_ns:.2f} >= {least_ns:.2f} ns"))
    return all_of("a channel serves its bursts one after another", comparisons)


def _own_slices_apart(findings: Findings) -> Check | None:
    comparisons = []
    for direction, _ in DIRECTION_SUFFIXES:
        for result in findings.family("sip-own-slice", direction):
            if not result.is_plain:
                continue
            uncontended = {
                outcome.path: predict(findings.graph, outcome.path, result.nbytes, direction == "write").formula_ns
                for outcome in result.outcomes
            }
            late = sum(outcome.total_ns != uncontended[outcome.path] for outcome in result.outcomes)
            comparisons.append(
                (not late, f"{direction}: {late} of {result.issuers} PEs differ from their uncontended time")
            )
    return all_of("own slices do not interfere", comparisons)


BANDWIDTH_RULES: tuple[CheckRule, ...] = (
    _within_fair_peak,
    _within_hbm_peak,
    _makespan_grows,
    _slice_is_serial,
    _hot_channel_is_serial,
    _own_slices_apart,
)
