"""Latency invariants: more hops take longer, farther is no faster, the formula is exact, load never helps."""

from __future__ import annotations

from itertools import pairwise

from kernbench.common.units import counted, transfer_ns
from kernbench.probes.findings import DIRECTION_SUFFIXES, Check, CheckRule, Findings, all_of
from kernbench.probes.formula import predict
from kernbench.probes.measure import CaseResult, SweepPoint
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec_cube import TCM
from kernbench.topology.switches import levels_from_top

_TIERS = (
    ("local", ("pe-local-hbm",)),
    ("other PE", ("pe-same-half-hbm", "pe-cross-half-hbm")),
    ("other cube", ("pe-cross-cube-hbm-best", "pe-cross-cube-hbm-worst")),
    ("other SIP", ("pe-cross-sip-hbm",)),
)


def _hops_grow(category: str) -> CheckRule:
    def check(findings: Findings) -> Check | None:
        times = [result.total_ns for result in findings.of(category)]
        spec = findings.graph.spec
        if len(times) < 2 or spec.cube_types or spec.sip.hbm_stacks is not None:
            return None  # a memory of another type of cube may be faster although it is farther; stacks have no order
        ok = all(near < far for near, far in pairwise(times))
        return Check(f"{category} latency grows with hops", ok, " < ".join(f"{ns:.2f}" for ns in times) + " ns")

    return check


def _reads_not_faster(findings: Findings) -> Check | None:
    comparisons = []
    for write, read in zip(findings.of("h2d"), findings.of("d2h"), strict=False):
        if not (write.is_plain and read.is_plain):
            continue  # a user component may treat the two directions differently
        if _reads_faster(findings.graph, read.path[-1]):
            continue
        # A partial last flit is quicker on links behind the narrowest, and these differ between the two directions.
        partial = read.nbytes % findings.graph.spec.system.flit_bytes
        flit_ns = transfer_ns(findings.graph.spec.system.flit_bytes, read.prediction.bottleneck_gbs)
        ok = read.total_ns >= write.total_ns - (flit_ns if partial else 0.0)
        comparisons.append((ok, f"{read.name} {read.total_ns:.2f} >= {write.total_ns:.2f} ns"))
    return all_of("d2h is no faster than h2d", comparisons)


def _reads_faster(graph: TopologyGraph, memory: str) -> bool:
    """Whether a memory is read faster than it is written: a TCM with such ports."""
    node = graph.node(memory)
    if node.kind != "pe_tcm":
        return False
    cube = graph.spec.cube_of(node.place.sip, node.place.cube)
    return TCM.read_gbs(cube) > TCM.write_gbs(cube)


def _adjacent_before_farthest(findings: Findings) -> Check | None:
    """Unless the farthest cube in mm has fewer hops or wider links: a path may cut the corner of a cube."""
    comparisons = []
    for direction, suffix in DIRECTION_SUFFIXES:
        best = findings.named(f"pe-cross-cube-hbm-best{suffix}")
        worst = findings.named(f"pe-cross-cube-hbm-worst{suffix}")
        if best and worst and _is_farther(worst, best):
            ok = best.total_ns < worst.total_ns or best.prediction == worst.prediction
            comparisons.append((ok, f"{direction} {best.total_ns:.2f} < {worst.total_ns:.2f} ns"))
    return all_of("adjacent cube is quicker than the farthest", comparisons)


def _tiers_in_order(findings: Findings) -> Check | None:
    """Compares the nearest memory of each tier. A tier with a wider or shorter path than the one before is left out."""
    comparisons = []
    from_lowest = reversed(levels_from_top(findings.graph.spec.system))
    levels = [(f"other {name}", (f"pe-cross-{name}-hbm",)) for name, _ in from_lowest if name != "sip"]
    for direction, suffix in DIRECTION_SUFFIXES:
        tiers = []
        for tier, names in (*_TIERS, *levels):
            found = [result for name in names if (result := findings.named(name + suffix))]
            if found:
                tiers.append((tier, min(found, key=lambda result: result.total_ns)))
        for (near, a), (far, b) in pairwise(tiers):
            if _is_farther(b, a):
                text = f"{direction} {near} {a.total_ns:.2f} <= {far} {b.total_ns:.2f} ns"
                comparisons.append((a.total_ns <= b.total_ns, text))
    return all_of("farther memory is no faster", comparisons)


def _is_farther(far: CaseResult, near: CaseResult) -> bool:
    """Whether the far path is worse than or equal to the near one by every measure."""
    a, b = near.prediction, far.prediction
    return (
        b.bottleneck_gbs <= a.bottleneck_gbs
        and b.overhead_ns + b.wire_ns >= a.overhead_ns + a.wire_ns
        and b.drain_ns + b.flit_ns >= a.drain_ns + a.flit_ns
        and len(far.path) >= len(near.path)
    )


# ---- the formula


def _formula_holds(findings: Findings) -> Check | None:
    lone = [result for result in findings.results if result.case.is_uncontended and result.is_plain]
    rows = [(r.name, r.nbytes, r.total_ns, r.prediction.formula_ns) for r in lone]
    names = [result.name for result in lone]
    rows += [(p.name, p.nbytes, p.total_ns, p.formula_ns) for p in findings.sweep if p.name in names]
    if not rows:
        return None
    wrong = [
        f"{name} of {nbytes} B took {total} ns, not {formula}"
        for name, nbytes, total, formula in rows
        if total != formula
    ]
    return Check(
        "formula equals measurement, bit for bit", not wrong, "; ".join(wrong) or counted(len(rows), "lone transfer")
    )


def _none_faster_than_uncontended(findings: Findings) -> Check | None:
    """Checks every issuer, not only the last: contention never makes a transfer faster."""
    plain = [result for result in findings.results if result.is_plain]
    wrong = []
    for result in plain:
        for outcome in result.outcomes:
            uncontended = predict(findings.graph, outcome.path, result.nbytes, result.direction == "write").formula_ns
            if outcome.total_ns < uncontended:
                wrong.append(
                    f"{result.name} from {outcome.path[0]} took {outcome.total_ns} ns, {uncontended} uncontended"
                )
    transfers = sum(result.issuers for result in plain)
    return (
        Check("load makes no transfer faster", not wrong, "; ".join(wrong) or counted(transfers, "transfer"))
        if plain
        else None
    )


def _larger_is_better(findings: Findings) -> Check | None:
    """With banks not in HBM: refresh meets long transfers only, and a write buffer makes short ones fast."""
    by_case: dict[str, list[SweepPoint]] = {}
    has_banks = findings.graph.spec.hbm.model == "banks"
    for point in findings.sweep:
        result = findings.named(point.name)
        if not (has_banks and result is not None and findings.graph.node(result.path[-1]).kind == "hbm_ctrl"):
            by_case.setdefault(point.name, []).append(point)
    if not by_case:
        return None
    wrong = [name for name, row in by_case.items() if any(a.utilization > b.utilization for a, b in pairwise(row))]
    detail = "; ".join(wrong) or f"{counted(len(by_case), 'case')} at {max(map(len, by_case.values()))} sizes"
    return Check("utilization grows with size", not wrong, detail)


LATENCY_RULES: tuple[CheckRule, ...] = (
    _hops_grow("h2d"),
    _hops_grow("d2h"),
    _reads_not_faster,
    _adjacent_before_farthest,
    _tiers_in_order,
    _formula_holds,
    _none_faster_than_uncontended,
    _larger_is_better,
)
