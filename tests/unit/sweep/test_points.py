"""Axes and how they are put together to points."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.errors import UsageError
from kernbench.sweep.points import MAX_POINTS, Point, check_keys, checked_axes, grid, grid_point, listed, zipped

AXES = {"m": [1, 2], "machine:system.sips.count": [3, 4], "n": [5]}


def test_a_grid_has_every_combination_and_its_first_axis_changes_slowest() -> None:
    points = grid(AXES, {"k": 9})
    assert [(p.params["m"], p.machine["system.sips.count"]) for p in points] == [(1, 3), (1, 4), (2, 3), (2, 4)]
    assert points[0] == Point({"k": 9, "m": 1, "n": 5}, {"system.sips.count": 3})


def test_a_point_of_the_grid_is_found_by_its_number() -> None:
    assert [grid_point(AXES, number, {"k": 9}) for number in range(4)] == grid(AXES, {"k": 9})


def test_axes_side_by_side() -> None:
    assert [dict(p.params) for p in zipped({"m": [1, 2], "n": [5, 6]}, {})] == [{"m": 1, "n": 5}, {"m": 2, "n": 6}]
    with pytest.raises(UsageError, match="m has 2, n has 1"):
        zipped({"m": [1, 2], "n": [5]}, {})


def test_a_point_sets_what_it_names_and_takes_the_rest_from_what_all_share() -> None:
    assert listed([{"m": 1}, {"machine:a.b": 2}], {"m": 7}) == [Point({"m": 1}, {}), Point({"m": 7}, {"a.b": 2})]


def test_a_point_that_is_written_twice_is_one() -> None:
    assert len(grid({"m": [1, 2, 1]}, {})) == 2


def test_an_axis_of_several_keys_has_a_part_for_each_or_one_value_for_all() -> None:
    assert checked_axes({"machine:a&machine:b": [[1, 8], [2, 16]]}) == {"machine:a&machine:b": [[1, 8], [2, 16]]}
    assert checked_axes({"machine:a&machine:b": [1, 2]}) == {"machine:a&machine:b": [1, 2]}
    for values in ([[1, 8], 2], [[1, 8], [2]], [[1, 2, 3]]):
        with pytest.raises(UsageError, match="sets 2 keys, and has"):
            checked_axes({"machine:a&machine:b": values})


def test_a_key_is_set_once() -> None:
    check_keys(["machine:a&machine:b", "machine:c", "m"])
    with pytest.raises(UsageError, match="'machine:a' is set twice by axis 'machine:a & machine:a'"):
        check_keys(["machine:a & machine:a"])
    with pytest.raises(UsageError, match="'machine:a' is set twice by axes 'machine:b&machine:a' and 'machine:a'"):
        check_keys(["machine:b&machine:a", "machine:a"])


def test_the_key_of_a_point_does_not_depend_on_the_order_of_its_parameters_and_knows_types() -> None:
    assert Point({"m": 1, "n": 2}, {}).key == Point({"n": 2, "m": 1}, {}).key
    keys = [Point({"m": value}, {}).key for value in (1, 1.0, "1", True, None)]
    assert len(dict.fromkeys(keys)) == 5
    assert Point({"m": 1}, {}).key != Point({}, {"m": 1}).key


def test_numbers_of_numpy_become_plain_ones() -> None:
    (values,) = checked_axes({"m": np.arange(2)}).values()
    assert values == [0, 1]
    assert [type(value) for value in values] == [int, int]


@pytest.mark.parametrize(
    "over", [{"m": []}, {"m": "abc"}, {"m": 3}, {"m": [object()]}, {"m": [float("nan")]}, {"": [1]}]
)
def test_what_is_no_axis_is_refused(over: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        checked_axes(over)  # type: ignore[arg-type]  # the mistake


def test_a_grid_that_would_take_years_is_refused_before_it_is_made() -> None:
    with pytest.raises(UsageError, match="points"):
        grid({"a": list(range(2000)), "b": list(range(MAX_POINTS // 1000))}, {})
