"""A dictionary that is bounded by bytes drops the oldest first."""

from __future__ import annotations

from kernbench.sim_engine.bounded_dict import BoundedDict


def test_the_oldest_are_dropped_first_as_far_as_there_is_no_room() -> None:
    kept: BoundedDict[str, int] = BoundedDict(100)
    assert kept.put("a", 1, 40) == []
    assert kept.put("b", 2, 40) == []
    assert kept.put("c", 3, 90) == [1, 2]  # 40 + 90 is still too much
    assert (kept.values(), kept.nbytes) == ([3], 90)


def test_the_last_one_that_is_too_large_is_kept_beside_the_others() -> None:
    kept: BoundedDict[str, int] = BoundedDict(100)
    kept.put("a", 1, 60)
    assert kept.put("b", 2, 1000) == []
    assert kept.put("c", 3, 60) == [1]
    assert (kept.values(), kept.nbytes) == ([2, 3], 1060)
    assert kept.put("d", 4, 101) == [2]
    assert (kept.values(), kept.nbytes) == ([3, 4], 161)


def test_one_that_is_too_large_may_be_replaced_and_discarded() -> None:
    kept: BoundedDict[str, int] = BoundedDict(100)
    kept.put("a", 1, 1000)
    assert kept.put("a", 2, 2000) == []
    assert kept.put("a", 3, 50) == []
    assert kept.put("b", 4, 60) == [3]
    kept.put("c", 5, 1000)
    kept.discard("c")
    assert kept.put("d", 6, 30) == []
    assert (kept.values(), kept.nbytes) == ([4, 6], 90)


def test_a_value_that_replaces_another_is_as_old_and_counted_once() -> None:
    kept: BoundedDict[str, int] = BoundedDict(100)
    kept.put("a", 1, 40)
    kept.put("b", 2, 40)
    assert kept.put("a", 3, 50) == []
    assert kept.nbytes == 90
    assert kept.put("c", 4, 30) == [3]


def test_what_is_discarded_leaves_room() -> None:
    kept: BoundedDict[str, int] = BoundedDict(100)
    kept.put("a", 1, 60)
    kept.discard("a")
    kept.discard("a")
    assert kept.put("b", 2, 100) == []
    assert kept.nbytes == 100
