"""Shares of variance by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernbench.sweep.importance import importance_of
from kernbench.sweep.objectives import Objective
from kernbench.sweep.rows import SweepRow

TIME = Objective("total_ns")


def rows(times: dict[tuple[int, int], float]) -> list[SweepRow]:
    return [SweepRow(n, {"m": m}, {"k": k}, ok=True, total_ns=ns) for n, ((m, k), ns) in enumerate(times.items())]


def test_the_share_of_an_axis_is_the_variance_of_its_means() -> None:
    # total_ns = 10 m + k: the mean is 21; means by m are 10 away from it, those by k 1.
    found = importance_of(rows({(1, 0): 10.0, (1, 2): 12.0, (3, 0): 30.0, (3, 2): 32.0}), [TIME])
    total = 11.0**2 + 9.0**2 + 9.0**2 + 11.0**2
    assert found == {"total_ns": {"m": pytest.approx(400 / total), "machine:k": pytest.approx(4 / total)}}
    assert sum(found["total_ns"].values()) == pytest.approx(1.0)  # a sum of two axes has nothing left


def test_what_axes_do_together_is_in_no_share() -> None:
    found = importance_of(rows({(0, 0): 0.0, (0, 1): 1.0, (1, 0): 1.0, (1, 1): 0.0}), [TIME])
    assert found == {"total_ns": {"m": 0.0, "machine:k": 0.0}}


def test_an_axis_that_does_nothing_has_no_share_where_a_search_tried_it_with_another() -> None:
    tried = {
        (1, 0): 10.0,
        (2, 0): 10.0,
        (3, 0): 10.0,
        (3, 1): 20.0,
        (4, 1): 20.0,
        (1, 1): 20.0,
        (4, 2): 30.0,
        (3, 2): 30.0,
    }
    found = importance_of(rows(tried), [TIME])["total_ns"]
    assert found["m"] == 0.0
    assert 0.5 < found["machine:k"] < 1.0


def test_axes_that_always_change_together_are_one() -> None:
    some = rows({(m, k): 10.0 * m + k for m in (1, 2, 3) for k in (0, 1)})
    found = importance_of([replace(row, machine={**row.machine, "also": row.params["m"]}) for row in some], [TIME])
    assert list(found["total_ns"]) == ["m + machine:also", "machine:k"]


def test_a_number_with_many_values_counts_by_its_trend() -> None:
    some = rows({(m, m * 7 % 3): 100.0 - (m - 5) ** 2 for m in range(12)})
    found = importance_of(some, [TIME])["total_ns"]
    assert found["m"] > 0.9
    assert found["machine:k"] == 0.0


def test_few_rows_one_axis_or_no_spread_have_no_shares() -> None:
    assert importance_of(rows({(0, 0): 1.0, (1, 1): 2.0}), [TIME]) == {}
    assert importance_of(rows({(n, 0): float(n) for n in range(5)}), [TIME]) == {}
    assert importance_of(rows({(m, k): 7.0 for m in (0, 1) for k in (0, 1)}), [TIME]) == {}


def test_infeasible_rows_are_left_out() -> None:
    some = rows({(1, 0): 10.0, (1, 2): 12.0, (3, 0): 30.0, (3, 2): 32.0})
    wild = SweepRow(9, {"m": 9}, {"k": 9}, ok=True, total_ns=1e9, infeasible="too hot")
    assert importance_of([*some, wild], [TIME]) == importance_of(some, [TIME])
