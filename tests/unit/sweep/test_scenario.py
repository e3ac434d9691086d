"""Workload sets: figures of a layer, rankings by workload, weighted figures by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from kernbench.common.errors import UsageError
from kernbench.sweep.derived import derived
from kernbench.sweep.objectives import Objective, read_objectives
from kernbench.sweep.points import Point
from kernbench.sweep.rows import SweepRow, columns_of
from kernbench.sweep.scenario import Scenario, ScenarioPlan, Workload, check_weighed, not_weighed, results_of

PROMPT = Workload("prompt", {"phase": "prefill", "batch": 1}, 1.0)
ANSWER = Workload("answer", {"phase": "decode", "batch": 8}, 3.0)
MIX = Scenario("chat", (PROMPT, ANSWER))
TOKENS, COST = Objective("tokens_per_s", maximize=True), Objective("cost_usd")


def table(layer_us: float, tokens_per_s: float, step_ms: float, mj: float) -> tuple[dict[str, object], ...]:
    return (
        {"part": "layer", "time_us": layer_us},
        {"figure": "tokens per second in total", "value": tokens_per_s},
        {"figure": "time of 32 layers", "value": step_ms},
        {"figure": "energy per token", "value": mj, "low": mj / 2, "high": 2 * mj},
    )


def row(point: int, work: Workload, macs: int, tokens_per_s: float, cost: float = 100.0, **more: object) -> SweepRow:
    return SweepRow(
        point,
        work.params,
        {"macs": macs},
        ok=True,
        static_w=2.0,
        cost_usd=cost,
        sip_w=10.0 * point,
        table=table(5.0, tokens_per_s, 2.0, 0.5),
        **more,
    )


def test_figures_of_a_layer_come_from_the_table_of_the_bench() -> None:
    found = derived(table(5.0, 1000.0, 2.0, 0.5), {}, "prefill", (50.0, 100.0, 200.0))
    assert found == {
        "layer_ns": 5000.0,
        "tokens_per_s": 1000.0,
        "ttft_ms": 2.0,
        "mj_per_token": 0.5,  # of the bench, which counts static power
        "tokens_per_s_per_usd": 10.0,
        "mj_per_token_low": 0.25,
        "mj_per_token_high": 1.0,
        "tokens_per_s_per_usd_low": 5.0,  # at the high end of the price
        "tokens_per_s_per_usd_high": 20.0,
    }
    assert "ttft_ms" not in derived(table(5.0, 1000.0, 2.0, 0.5), {}, "decode")
    assert derived((), {}, None) == {}


def test_tokens_per_second_are_better_when_there_are_more() -> None:
    assert read_objectives("tokens_per_s,cost_usd,ttft_ms") == (TOKENS, COST, Objective("ttft_ms"))
    assert read_objectives("tokens_per_s:min") == (Objective("tokens_per_s"),)


def test_every_workload_runs_on_every_machine() -> None:
    machines = [Point({}, {"macs": 1}), Point({}, {"macs": 2})]
    points = MIX.points(machines)
    assert [(point.params["phase"], point.machine["macs"]) for point in points] == [
        ("prefill", 1), ("decode", 1), ("prefill", 2), ("decode", 2),
    ]  # fmt: skip


def test_rows_are_ranked_by_workload_and_by_weighted_figures() -> None:
    rows = [row(0, PROMPT, 1, 1000.0), row(1, ANSWER, 1, 300.0), row(2, PROMPT, 2, 4000.0), row(3, ANSWER, 2, 100.0)]
    found = results_of(MIX, rows, [TOKENS])
    assert [r.point for r in found.workloads["prompt"].best] == [2, 0]
    assert [r.point for r in found.workloads["answer"].best] == [1, 3]
    first, second = found.weighted
    # A quarter of the tokens at 1,000 per second and three quarters at 300: 1 / (0.25 / 1000 + 0.75 / 300) per second.
    assert first.derived()["tokens_per_s"] == pytest.approx(1 / (0.25 / 1000 + 0.75 / 300))
    assert second.derived()["tokens_per_s"] == pytest.approx(1 / (0.25 / 4000 + 0.75 / 100))
    assert first.derived()["ttft_ms"] == 2.0  # of the prompt alone
    assert first.derived()["mj_per_token"] == 0.5
    assert (first.derived()["mj_per_token_low"], first.derived()["mj_per_token_high"]) == (0.25, 1.0)
    assert "layer_ns" not in first.derived()  # layers of different work are not added
    assert [r.point for r in found.ranking.best] == [0, 1]
    assert first.sip_w == 10.0  # of the hotter workload


def test_a_machine_that_fails_one_workload_has_no_weighted_figure() -> None:
    late = row(1, ANSWER, 1, 300.0, infeasible="memory: the model does not fit")
    (only,) = results_of(MIX, [row(0, PROMPT, 1, 1000.0), late], [TOKENS]).weighted
    assert only.infeasible == "answer: memory: the model does not fit"
    assert only.derived() == {}


def test_weighted_rows_are_ranked_by_what_they_have_and_a_note_says_so() -> None:
    rows = [row(0, PROMPT, 1, 1000.0), row(1, ANSWER, 1, 300.0)]
    layer = Objective("layer_ns")
    found = results_of(MIX, rows, [layer, COST])
    assert [r.point for r in found.workloads["prompt"].best] == [0]
    assert (found.objectives, [r.point for r in found.ranking.best]) == ((COST,), [0])
    assert not_weighed([layer, COST])[0].endswith("machines over all workloads are ranked by cost_usd")
    alone = results_of(MIX, rows, [layer])
    assert (alone.objectives, alone.ranking.best) == ((), [])
    assert not_weighed([layer])[0].endswith("not ranked")
    assert not_weighed([COST]) == []
    with pytest.raises(UsageError, match="layer_ns: figures of different work are not added up"):
        check_weighed([layer, COST])


def test_a_workload_that_failed_says_why_its_machine_has_no_figure() -> None:
    failed = SweepRow(1, ANSWER.params, {"macs": 1}, error="a kernel raised\n  hint: fix it")
    (only,) = results_of(MIX, [row(0, PROMPT, 1, 1000.0), failed], [TOKENS]).weighted
    assert only.infeasible == "answer: failed: a kernel raised"


def test_derived_figures_are_columns_after_the_fixed_ones() -> None:
    names = columns_of([row(0, PROMPT, 1, 1000.0)])
    figures = ["layer_ns", "tokens_per_s", "ttft_ms", "mj_per_token", "tokens_per_s_per_usd"]
    assert names[-8:] == [*figures, "mj_per_token_low", "mj_per_token_high", "error"]


class Machines:
    """A search over machines that records the values it receives."""

    total = 2

    def __init__(self) -> None:
        self.rows: list[SweepRow] = []

    def next_batch(self) -> list[Point]:
        return [Point({}, {"macs": macs}) for macs in (1, 2)]

    def report(self, rows: Sequence[SweepRow]) -> None:
        self.rows += rows


def test_a_search_over_machines_gets_one_weighted_row_for_each() -> None:
    """A quarter of the tokens at 1000 and three quarters at 500 per second: 1 / (0.25 / 1000 + 0.75 / 500)."""
    machines = Machines()
    plan = ScenarioPlan(MIX, machines)
    assert plan.total == 4
    assert [(point.machine["macs"], point.params["phase"]) for point in plan.next_batch()] == [
        (1, "prefill"), (1, "decode"), (2, "prefill"), (2, "decode"),
    ]  # fmt: skip
    failed = replace(row(3, ANSWER, 2, 1.0), ok=False)
    plan.report([row(0, PROMPT, 1, 1000.0), row(1, ANSWER, 1, 500.0), row(2, PROMPT, 2, 1000.0), failed])
    assert [each.machine for each in machines.rows] == [{"macs": 1}, {"macs": 2}]
    assert TOKENS.worth(machines.rows[0]) == pytest.approx(-1 / (0.25 / 1000 + 0.75 / 500))
    assert TOKENS.worth(machines.rows[1]) is None


def test_a_study_of_other_weights_is_another_one() -> None:
    other = Scenario("chat", (PROMPT, replace(ANSWER, weight=1.0)))
    assert MIX.identity != other.identity
    assert MIX.identity == Scenario("another name", MIX.workloads).identity
