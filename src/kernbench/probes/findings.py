"""Input and result of the checks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernbench.probes.cases import AccessDirection
from kernbench.probes.measure import CaseResult, SweepPoint
from kernbench.topology.graph import TopologyGraph

DIRECTION_SUFFIXES: tuple[tuple[AccessDirection, str], ...] = (("read", ""), ("write", "-write"))


@dataclass(frozen=True, slots=True)
class Check:
    """An invariant: its name, whether it holds, and the figures that show it."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Findings:
    """The measurements that the checks examine."""

    graph: TopologyGraph
    results: Sequence[CaseResult]
    sweep: Sequence[SweepPoint]

    def named(self, name: str) -> CaseResult | None:
        return next((result for result in self.results if result.name == name), None)

    def of(self, category: str) -> list[CaseResult]:
        return [result for result in self.results if result.category == category]

    def family(self, family: str, direction: AccessDirection) -> list[CaseResult]:
        found = [result for result in self.results if result.case.family == family and result.direction == direction]
        return sorted(found, key=lambda result: result.issuers)


CheckRule = Callable[[Findings], Check | None]  # None: nothing to check


def all_of(name: str, comparisons: Sequence[tuple[bool, str]]) -> Check | None:
    """One check of many comparisons: when some fail, only those are reported."""
    if not comparisons:
        return None
    wrong = [text for ok, text in comparisons if not ok]
    return Check(name, not wrong, "; ".join(wrong or [text for _, text in comparisons]))
