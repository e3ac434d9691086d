"""Which rows are best."""

from __future__ import annotations

import random

import pytest

from kernbench.common.errors import UsageError
from kernbench.sweep.objectives import Objective, check_objectives, pareto_front, ranked, read_objectives
from kernbench.sweep.rows import SweepRow

TIME, COST = Objective("total_ns"), Objective("cost")


def row(point: int, total_ns: float | None, cost: float | None = 1.0, ok: bool = True, **params: int) -> SweepRow:
    return SweepRow(point, params, {}, ok=ok, total_ns=total_ns, cost=cost)


def numbers(rows: list[SweepRow]) -> list[int]:
    return [row.point for row in rows]


def test_a_row_on_the_front_is_beaten_by_none() -> None:
    # by hand: 1 is beaten by 0 (less time, same cost), 3 by 2; 0, 2 and 4 each have something the others have not
    rows = [row(0, 10, 5), row(1, 12, 5), row(2, 20, 2), row(3, 25, 3), row(4, 30, 1)]
    assert numbers(pareto_front(rows, [TIME, COST])) == [0, 2, 4]


def test_equal_rows_are_on_the_front_together() -> None:
    assert numbers(pareto_front([row(0, 10, 5), row(1, 10, 5), row(2, 10, 6)], [TIME, COST])) == [0, 1]


def test_more_is_better_where_it_is_said() -> None:
    assert numbers(pareto_front([row(0, 1), row(1, 2)], [Objective("total_ns", maximize=True)])) == [1]


def test_rows_that_failed_or_have_no_number_take_no_part() -> None:
    rows = [row(0, None, ok=False), row(1, 5, ok=False), row(2, 9, None), row(3, 10)]
    assert numbers(pareto_front(rows, [TIME, COST])) == [3]


def test_infeasible_rows_are_never_best_and_never_on_the_front() -> None:
    heavy = SweepRow(
        0, {}, {}, ok=True, total_ns=1, cost=1, infeasible="a SIP draws 900 W, more than 700 (limits.sip_w)"
    )
    large = SweepRow(1, {}, {}, ok=True, total_ns=2, cost=1, fits=False)
    rows = [heavy, large, row(2, 10), row(3, 20)]
    assert numbers(ranked(rows, [TIME])) == [2, 3]
    assert numbers(pareto_front(rows, [TIME, COST])) == [2]


def test_the_best_come_first_and_equals_by_the_next_objective_then_by_number() -> None:
    assert numbers(ranked([row(0, 2, 1), row(1, 1, 9), row(2, 1, 3), row(3, 1, 3)], [TIME, COST])) == [2, 3, 1, 0]


def test_the_front_is_what_comparing_every_pair_gives() -> None:
    draw = random.Random(7)
    objectives = [TIME, COST, Objective("m")]
    rows = [row(i, draw.randrange(8), draw.randrange(8), m=draw.randrange(8)) for i in range(100)]

    def worth(one: SweepRow) -> list[float]:
        return [objective.worth(one) or 0.0 for objective in objectives]

    def beaten(one: SweepRow) -> bool:
        pairs = [(worth(other), worth(one)) for other in rows]
        return any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for a, b in pairs)

    expected = sorted(one.point for one in rows if not beaten(one))
    assert sorted(numbers(pareto_front(rows, objectives))) == expected


def test_objectives_from_text() -> None:
    assert read_objectives("total_ns:min, flops:max") == (TIME, Objective("flops", maximize=True))
    assert read_objectives("machine:system.sips.count") == (Objective("machine:system.sips.count"),)
    with pytest.raises(UsageError):
        read_objectives("total_ns,,cost")
    with pytest.raises(UsageError, match="'total_ns:mn' has no such direction"):
        read_objectives("total_ns:mn")


def test_an_objective_that_no_row_has_is_refused_with_what_there_is() -> None:
    with pytest.raises(UsageError, match="did you mean 'total_ns'") as refused:
        check_objectives([Objective("totl_ns")], [row(0, 1, m=3)])
    assert "m, total_ns" in str(refused.value.hint)
    check_objectives([Objective("anything")], [row(0, None, ok=False)])  # nothing is known of it
