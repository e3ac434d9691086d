"""A set of workloads, and what machines come to on it: by workload, and weighted.

A weight is a workload's share of all tokens. Weighted tokens per second are the tokens of all workloads over the time
that they take one after the other; energy per token is the mean by weight; the time to the first token is the mean over
workloads that have one. Times of layers of different work are not added, so there is no weighted `layer_ns`, and no row
is called best across different workloads.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from kernbench.common.errors import UsageError
from kernbench.sweep.driver import SweepPlan
from kernbench.sweep.objectives import Objective, pareto_front, ranked
from kernbench.sweep.points import MACHINE, JsonValue, Point
from kernbench.sweep.rows import SweepRow

BEST = 10
WEIGHTED = "weighted"
WEIGHED = (  # columns that a weighted row has
    *("tokens_per_s", "ttft_ms", "mj_per_token", "tokens_per_s_per_usd", "cost"),
    *("area_mm2", "area_low_mm2", "area_high_mm2", "sip_w", "sip_low_w", "sip_high_w", "static_w"),
    *("cost_usd", "cost_low_usd", "cost_high_usd"),
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Parameters of the bench, and the share of all tokens that is of this kind, before shares are scaled to 1."""

    name: str
    params: Mapping[str, JsonValue]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """Workloads by name, in order."""

    name: str
    workloads: tuple[Workload, ...]

    @property
    def identity(self) -> str:
        """Everything that figures weighted over it depend on."""
        return json.dumps([[dict(each.params), each.weight] for each in self.workloads], sort_keys=True)

    def share(self, workload: Workload) -> float:
        return workload.weight / fsum(each.weight for each in self.workloads)

    def points(self, machines: Sequence[Point]) -> list[Point]:
        """Every workload on every machine; the machine changes slowest."""
        return [
            Point({**machine.params, **workload.params}, machine.machine)
            for machine in machines
            for workload in self.workloads
        ]


class ScenarioPlan:
    """A search over machines that each run all workloads: the search gets one row per machine, the weighted one."""

    def __init__(self, scenario: Scenario, machines: SweepPlan) -> None:
        self._scenario = scenario
        self._machines = machines

    @property
    def total(self) -> int:
        return self._machines.total * len(self._scenario.workloads)

    def next_batch(self) -> Sequence[Point]:
        return self._scenario.points(self._machines.next_batch())

    def report(self, rows: Sequence[SweepRow]) -> None:
        names = [each.name for each in self._scenario.workloads]
        groups = [rows[at : at + len(names)] for at in range(0, len(rows), len(names))]
        self._machines.report(
            [
                _weighted(number, self._scenario, dict(zip(names, group, strict=True)))
                for number, group in enumerate(groups)
            ]
        )


@dataclass(frozen=True, slots=True)
class Ranking:
    """The best rows of one kind of work by the first objective, and the front over all of them."""

    best: list[SweepRow]
    front: list[SweepRow]

    def as_json(self) -> dict[str, object]:
        return {"best": [row.point for row in self.best], "front": [row.point for row in self.front]}


@dataclass(frozen=True, slots=True)
class ScenarioResults:
    """Rankings by workload, and rows and ranking of the weighted figures: one row per machine."""

    scenario: Scenario
    workloads: Mapping[str, Ranking]
    weighted: list[SweepRow]
    objectives: tuple[Objective, ...]  # that weighted rows are ranked by
    ranking: Ranking

    def as_json(self) -> dict[str, object]:
        named = {each.name: each for each in self.scenario.workloads}
        return {
            "name": self.scenario.name,
            "workloads": {
                name: {"params": dict(named[name].params), "share": self.scenario.share(named[name]), **ranks.as_json()}
                for name, ranks in self.workloads.items()
            },
            WEIGHTED: {
                "objectives": [str(each) for each in self.objectives],
                "rows": [row.flat() for row in self.weighted],
                **self.ranking.as_json(),
            },
        }


def results_of(scenario: Scenario, rows: Sequence[SweepRow], objectives: Sequence[Objective]) -> ScenarioResults:
    """Rankings of the rows of a scenario, whose points are those of `Scenario.points`."""
    by_workload = {each.name: rows_of(each, rows) for each in scenario.workloads}
    rankings = {name: _ranking(own, objectives) for name, own in by_workload.items()}
    numbers = machine_numbers(rows)
    weighted = []
    for number in dict.fromkeys(numbers.values()):
        own = {
            each.name: next((row for row in by_workload[each.name] if numbers[row.point] == number), None)
            for each in scenario.workloads
        }
        weighted.append(_weighted(number, scenario, own))
    weighed = weighed_of(objectives)
    return ScenarioResults(scenario, rankings, weighted, weighed, _ranking(weighted, weighed))


def machine_numbers(rows: Sequence[SweepRow]) -> dict[int, int]:
    """Point -> the number of its machine, in order of appearance: that of its weighted row."""
    keys = {row.point: Point({}, row.machine).machine_key for row in rows}
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    return {point: numbers[key] for point, key in keys.items()}


def failed_only(rows: Sequence[SweepRow]) -> set[int]:
    """The numbers of machines that are infeasible for no other reason than that points of theirs failed."""
    numbers = machine_numbers(rows)
    failed = {numbers[row.point] for row in rows if row.has_failed}
    return failed - {numbers[row.point] for row in rows if not row.has_failed and not row.is_feasible}


def weighed_of(objectives: Sequence[Objective]) -> tuple[Objective, ...]:
    """Those that weighted rows have a figure for."""
    return tuple(each for each in objectives if each.column in WEIGHED or each.column.startswith(MACHINE))


def not_weighed(objectives: Sequence[Objective]) -> list[str]:
    """A note on the objectives that weighted rows have no figure for."""
    weighed = weighed_of(objectives)
    others = ", ".join(each.column for each in objectives if each not in weighed)
    if not others:
        return []
    instead = f"ranked by {', '.join(each.column for each in weighed)}" if weighed else "not ranked"
    return [f"{others}: figures of different work are not added up, so machines over all workloads are {instead}"]


def check_weighed(objectives: Sequence[Objective]) -> None:
    """Raise UsageError where a search over machines would get no figure."""
    for note in not_weighed(objectives):
        raise UsageError(
            note,
            where="--objective",
            hint="search by tokens_per_s, mj_per_token or ttft_ms, or by a figure of the machine",
        )


def rows_of(workload: Workload, rows: Sequence[SweepRow]) -> list[SweepRow]:
    """The rows of one workload, one per machine."""
    return [row for row in rows if all(row.params.get(name) == value for name, value in workload.params.items())]


def _ranking(rows: Sequence[SweepRow], objectives: Sequence[Objective]) -> Ranking:
    if not objectives:
        return Ranking([], [])
    return Ranking(ranked(rows, objectives)[:BEST], pareto_front(rows, objectives))


def _weighted(number: int, scenario: Scenario, own: Mapping[str, SweepRow | None]) -> SweepRow:
    """The figures of one machine over all workloads; a workload that failed or is infeasible makes it infeasible."""
    found = {name: row for name, row in own.items() if row is not None}
    first = next(iter(found.values()))
    against = {name: row for name, row in found.items() if row.has_failed or not row.is_feasible}
    reasons: dict[str, list[str]] = {}
    for name, row in against.items():
        reasons.setdefault(row.infeasible or _failure(row), []).append(name)
    figures: dict[str, float] = {}
    if not reasons:
        shares = {each.name: scenario.share(each) for each in scenario.workloads}
        values = {name: row.derived() for name, row in found.items()}
        figures["tokens_per_s"] = 1 / fsum(shares[name] / _float(values[name]["tokens_per_s"]) for name in found)
        for column in ("mj_per_token", "mj_per_token_low", "mj_per_token_high"):
            if all(column in value for value in values.values()):
                figures[column] = fsum(shares[name] * _float(values[name][column]) for name in found)
        first_tokens = {name: _float(value["ttft_ms"]) for name, value in values.items() if "ttft_ms" in value}
        if first_tokens:
            parts = fsum(shares[name] for name in first_tokens)
            figures["ttft_ms"] = fsum(shares[name] * ms for name, ms in first_tokens.items()) / parts
    hottest = max(found.values(), key=lambda row: row.sip_w or 0.0)
    return SweepRow(
        number,
        {},
        first.machine,
        first.machine_hash,
        ok=all(row.ok for row in found.values()),
        area_mm2=first.area_mm2,
        area_low_mm2=first.area_low_mm2,
        area_high_mm2=first.area_high_mm2,
        sip_w=hottest.sip_w,
        sip_low_w=hottest.sip_low_w,
        sip_high_w=hottest.sip_high_w,
        static_w=first.static_w,
        cost_usd=first.cost_usd,
        cost_low_usd=first.cost_low_usd,
        cost_high_usd=first.cost_high_usd,
        cost=first.cost,
        returned=figures,
        warnings=first.warnings,
        infeasible="; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items()) or None,
    )


def _failure(row: SweepRow) -> str:
    return f"failed: {(row.error or 'its data is wrong').partition(chr(10))[0]}"


def _float(value: JsonValue) -> float:
    assert isinstance(value, int | float)
    return float(value)
