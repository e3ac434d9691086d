"""Measures one case on a new engine and compares it with the formula.

A case of many issuers is described by the one that finishes last: its path, its terms, its breakdown. Each case has a
new engine; the sizes of a sweep run on it one after another, each on an idle machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.probes.breakdown import Breakdown, break_down
from kernbench.probes.cases import AccessDirection, Category, ProbeCase, resized
from kernbench.probes.fair_share import aggregate_peak_gbs
from kernbench.probes.formula import Prediction, access_gbs, is_plain, links_of, predict
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology.graph import TopologyGraph


@dataclass(frozen=True, slots=True)
class Outcome:
    """The path and time of one issuer's transfer."""

    path: tuple[str, ...]
    total_ns: float


@dataclass(frozen=True, slots=True)
class CaseResult:
    """A measured case. `prediction`, `breakdown` and `path` are those of the issuer that finished last."""

    case: ProbeCase
    nbytes: int  # of one issuer
    outcomes: tuple[Outcome, ...]
    path: tuple[str, ...]
    total_ns: float
    prediction: Prediction
    breakdown: Breakdown
    aggregate_peak_gbs: float
    is_plain: bool  # no user component on the path

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def category(self) -> Category:
        return self.case.category

    @property
    def direction(self) -> AccessDirection:
        return self.case.direction

    @property
    def issuers(self) -> int:
        return len(self.outcomes)

    @property
    def effective_gbs(self) -> float:
        return self.issuers * self.nbytes / self.total_ns

    @property
    def utilization(self) -> float:
        """Fraction of the bandwidth of a single path; above 1 for many issuers on separate paths."""
        return self.effective_gbs / self.prediction.bottleneck_gbs

    @property
    def utilization_aggregate(self) -> float:
        """Fraction of the peak of all paths together."""
        return self.effective_gbs / self.aggregate_peak_gbs


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """An uncontended case at another size."""

    case: ProbeCase
    nbytes: int
    total_ns: float
    formula_ns: float
    bottleneck_gbs: float

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def effective_gbs(self) -> float:
        return self.nbytes / self.total_ns

    @property
    def utilization(self) -> float:
        return self.effective_gbs / self.bottleneck_gbs


def measure(graph: TopologyGraph, case: ProbeCase) -> CaseResult:
    """Run a case on a fresh engine."""
    return measure_on(GraphEngine(graph), case)


def measure_on(engine: GraphEngine, case: ProbeCase) -> CaseResult:
    """Run a case on an idle engine."""
    return _measured(engine.graph, case, _run(engine, case))


def measure_sizes(graph: TopologyGraph, case: ProbeCase, sizes: Sequence[int]) -> tuple[CaseResult, list[SweepPoint]]:
    """Run an uncontended case on a new engine, then at each of `sizes` that its memory can hold."""
    engine = GraphEngine(graph)
    result = _measured(graph, case, _run(engine, case))
    points = []
    for nbytes in sizes:
        other = resized(graph, case, nbytes)
        if other is not None:
            (outcome,) = _run(engine, other)
            uncontended = predict(graph, outcome.path, nbytes, case.direction == "write")
            points.append(
                SweepPoint(other, nbytes, outcome.total_ns, uncontended.formula_ns, uncontended.bottleneck_gbs)
            )
    return result, points


def _run(engine: GraphEngine, case: ProbeCase) -> tuple[Outcome, ...]:
    """Submit all requests of a case at once and wait for them; returns the outcomes in order of the requests."""
    handles = [engine.submit(request) for request in case.requests]
    engine.wait_all()
    traces = [engine.get_completion(handle)[1] for handle in handles]
    return tuple(Outcome(tuple(trace["path"]), float(trace["total_ns"])) for trace in traces)


def _measured(graph: TopologyGraph, case: ProbeCase, outcomes: tuple[Outcome, ...]) -> CaseResult:
    nbytes, is_write = case.requests[0].nbytes, case.direction == "write"
    last = max(outcomes, key=lambda outcome: outcome.total_ns)
    uncontended = predict(graph, last.path, nbytes, is_write)
    flows = [links_of(graph, outcome.path, is_write) for outcome in outcomes]
    routes = [[(link.src, link.dst) for link in links] for links in flows]
    capacity = {(link.src, link.dst): access_gbs(graph, link) for links in flows for link in links}
    return CaseResult(
        case,
        nbytes,
        outcomes,
        last.path,
        last.total_ns,
        uncontended,
        break_down(graph, last.path, uncontended, last.total_ns),
        aggregate_peak_gbs(routes, capacity),
        all(is_plain(graph, outcome.path) for outcome in outcomes),
    )
