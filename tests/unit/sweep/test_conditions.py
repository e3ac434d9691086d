"""Conditions on points, coupled axes, and axes varied one at a time."""

from __future__ import annotations

import pytest

from kernbench.benches.registry import resolve
from kernbench.common.errors import UsageError
from kernbench.sweep.chosen_points import points_of
from kernbench.sweep.conditions import read_condition
from kernbench.sweep.context import machine_tree
from kernbench.sweep.description import SweepRequest
from kernbench.sweep.objectives import Objective
from kernbench.sweep.points import Point, grid, point_of
from kernbench.sweep.rows import SweepRow
from kernbench.sweep.sensitivity import effects_of, one_at_a_time, short_axis, span, without_effects
from kernbench.sweep.target import target_of

MACHINE = {"cube": {"ucie": {"n_connections": 4}}, "name": "m"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("m <= 8", True),
        ("m < 8", False),
        ("m * 2 == 16", True),
        ("m != 8", False),
        ("machine:a >= 3", True),
        ("machine:cube.ucie.n_connections * 2 > m", False),  # 4 of the machine, which the point does not set
        ("machine:cube.ucie.n_connections * 2 >= m", True),
    ],
)
def test_a_condition_compares_products_of_numbers_parameters_and_keys(text: str, holds: bool) -> None:
    assert read_condition(text).holds(Point({"m": 8}, {"a": 3}), MACHINE) is holds


@pytest.mark.parametrize("text", ["", "m", "m <= ", "1 < m < 3", "m * <= 2"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no condition"):
        read_condition(text)


@pytest.mark.parametrize("text", ["n <= 1", "machine:name <= 1", "machine:cube.nothing <= 1"])
def test_a_name_without_a_number_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="has no number"):
        read_condition(text).holds(Point({"m": 8}, {}), MACHINE)


def test_one_axis_sets_several_keys() -> None:
    points = grid({"machine:a&machine:b": [[1, 8], [2, 16]], "m": [5]}, {})
    assert [(dict(point.machine), dict(point.params)) for point in points] == [
        ({"a": 1, "b": 8}, {"m": 5}),
        ({"a": 2, "b": 16}, {"m": 5}),
    ]
    assert point_of({"machine:a&m": 3}, {}) == Point({"m": 3}, {"a": 3})


AXES = {"machine:a": [1, 4], "machine:b": [10]}


def test_axes_are_varied_one_at_a_time_from_the_machine_as_it_is() -> None:
    points = one_at_a_time(AXES, {"m": 8})
    assert [dict(point.machine) for point in points] == [{}, {"a": 1}, {"a": 4}, {"b": 10}]
    assert all(point.params == {"m": 8} for point in points)


@pytest.mark.parametrize("value", [4096, 4096.0])
def test_a_value_that_the_machine_has_is_no_point_however_it_is_written(value: float) -> None:
    axis = "machine:cube.pe_template.components.pe_gemm.attrs.macs_per_ns"
    target, axes = target_of(resolve("softmax").run), {axis: [2048, value]}
    request = SweepRequest(target=target, title="softmax", axes=axes, sensitivity=True)
    points = points_of(request, machine_tree(None, {}))
    assert [list(point.machine.values()) for point in points] == [[], [2048]]


def test_effects_are_relative_to_the_base_and_the_widest_axis_comes_first() -> None:
    machines = [{}, {"a": 1}, {"a": 4}, {"b": 10}]
    rows = [
        SweepRow(n, {}, machine, ok=True, total_ns=ns)
        for n, (machine, ns) in enumerate(zip(machines, (100.0, 110.0, 90.0, 200.0), strict=True))
    ]
    effects = effects_of(AXES, {}, rows, [Objective("total_ns")])
    assert [(e.axis, e.value, round(e.change, 3)) for e in effects] == [
        ("machine:b", 10, 1.0), ("machine:a", 1, 0.1), ("machine:a", 4, -0.1),
    ]  # fmt: skip
    assert span(effects[1:]) == pytest.approx(0.2)


def test_points_that_failed_have_no_effect() -> None:
    rows = [SweepRow(0, {}, {}, ok=True, total_ns=100.0), SweepRow(1, {}, {"b": 10}, error="no")]
    objectives = [Objective("total_ns")]
    assert effects_of(AXES, {}, rows, objectives) == []
    assert without_effects({}, rows, objectives, []) == ["no sensitivity of total_ns: no other point has a number"]
    assert without_effects({}, rows[1:], objectives, []) == [
        "no sensitivity of total_ns: the machine as it is breaks a condition"
    ]
    hot = SweepRow(0, {}, {}, ok=True, infeasible="too hot")
    assert without_effects({}, [hot], objectives, []) == [
        "no sensitivity of total_ns: the machine as it is has no number (too hot)"
    ]


def test_an_axis_is_shown_by_the_last_parts_of_its_keys() -> None:
    assert short_axis("machine:cube.links.router_bw_gbs&machine:a.b") == "links.router_bw_gbs & a.b"
