"""Ranks: programs side by side on one clock, who runs when, errors, and waiting for what never happens."""

from __future__ import annotations

from functools import cache

import pytest
import simpy

from kernbench.common.errors import DeadlockError
from kernbench.runtime_api.ranks import Ranks
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import tiny_machine
from kernbench.topology import TopologyGraph


@cache
def machine() -> TopologyGraph:
    return tiny_machine()


class Program:
    """Waits for times and writes down when it ran."""

    def __init__(self) -> None:
        self.engine = GraphEngine(machine())
        self.ranks = Ranks(self.engine)
        self.log: list[tuple[str, float]] = []

    def sleep(self, ns: float) -> None:
        self.ranks.wait([self.engine.env.timeout(ns)])

    def steps(self, name: str, *times: float) -> str:
        for ns in times:
            self.sleep(ns)
            self.log.append((name, self.engine.now_ns))
        return name


def test_ranks_interleave_in_simulated_time() -> None:
    p = Program()
    assert p.ranks.run([lambda: p.steps("a", 10, 10), lambda: p.steps("b", 5, 20)]) == ["a", "b"]
    assert p.log == [("b", 5), ("a", 10), ("a", 20), ("b", 25)]


def test_ranks_that_wake_at_one_instant_run_in_the_order_of_what_woke_them() -> None:
    p = Program()
    p.ranks.run([lambda: p.steps("a", 10), lambda: p.steps("b", 10), lambda: p.steps("c", 10)])
    assert p.log == [("a", 10), ("b", 10), ("c", 10)]


def test_waiting_for_several_ends_with_the_last() -> None:
    p = Program()

    def body() -> float:
        p.ranks.wait([p.engine.env.timeout(3), p.engine.env.timeout(8), p.engine.env.timeout(5)])
        return p.engine.now_ns

    assert p.ranks.run([body]) == [8.0]
    assert body() == 16.0  # and outside of any rank


def test_what_has_happened_is_not_waited_for() -> None:
    p = Program()
    past = p.engine.env.timeout(1)
    p.ranks.wait([past])
    p.ranks.run([lambda: p.ranks.wait([past])])
    assert p.engine.now_ns == 1


def test_a_rank_may_wait_for_another() -> None:
    p = Program()
    met = p.ranks.event()

    def late() -> None:
        p.steps("late", 7)
        met.succeed()

    def early() -> None:
        p.ranks.wait([met])
        p.log.append(("early", p.engine.now_ns))

    p.ranks.run([early, late])
    assert p.log == [("late", 7), ("early", 7)]


def test_a_rank_may_start_others() -> None:
    p = Program()

    def parent() -> object:
        p.sleep(1)
        inner = p.ranks.run([lambda: p.steps("x", 4), lambda: p.steps("y", 2)])
        p.log.append(("parent", p.engine.now_ns))
        return inner

    assert p.ranks.run([parent, lambda: p.steps("z", 4)]) == [["x", "y"], "z"]
    assert p.log == [("y", 3), ("z", 4), ("x", 5), ("parent", 5)]


def test_the_first_error_ends_all_ranks() -> None:
    p = Program()
    cleaned: list[float] = []

    def waits() -> None:
        try:
            p.sleep(100)
        finally:
            cleaned.append(p.engine.now_ns)

    def fails() -> None:
        p.sleep(5)
        raise ValueError("no good")

    with pytest.raises(ValueError, match="no good"):
        p.ranks.run([waits, fails])
    assert cleaned == [5.0]
    assert not p.ranks.in_rank
    assert p.ranks.run([lambda: p.steps("again", 1)]) == ["again"]


def test_who_fails_at_the_same_instant_is_heard_too() -> None:
    p = Program()

    def fails(ns: float, name: str) -> None:
        p.sleep(ns)
        raise ValueError(name)

    bodies = [lambda: fails(5, "a"), lambda: fails(5, "b"), lambda: fails(6, "c"), lambda: p.steps("d", 1)]
    outcome = p.ranks.run_all(bodies)
    assert {number: str(error) for number, error in outcome.errors.items()} == {0: "a", 1: "b"}
    assert outcome.results == [None, None, None, "d"]
    assert p.engine.now_ns == 5


def test_who_is_ended_ends_what_it_has_started() -> None:
    p = Program()

    def parent() -> None:
        p.ranks.run([lambda: p.steps("child", 100)])

    def grandparent() -> None:
        def fails() -> None:
            p.sleep(5)
            raise ValueError("no good")

        with pytest.raises(ValueError, match="no good"):
            p.ranks.run([parent, fails])
        p.sleep(200)

    p.ranks.run([grandparent])
    assert p.log == []


def test_who_is_ended_waits_no_more() -> None:
    p = Program()

    def waits() -> None:
        try:
            p.sleep(100)
        finally:
            p.log.append(("ended", p.engine.now_ns))
            p.sleep(100)
            p.log.append(("never", p.engine.now_ns))

    def fails() -> None:
        p.sleep(5)
        raise ValueError("no good")

    with pytest.raises(ValueError, match="no good"):
        p.ranks.run([waits, fails])
    assert p.log == [("ended", 5)]


def test_an_error_in_started_programs_reaches_who_started_them() -> None:
    p = Program()

    def child() -> None:
        p.sleep(1)
        raise ValueError("child")

    def parent() -> str:
        with pytest.raises(ValueError, match="child"):
            p.ranks.run([child, lambda: p.steps("sibling", 50)])
        return "went on"

    assert p.ranks.run([parent]) == ["went on"]
    assert p.log == []


def test_waiting_for_what_never_happens_is_reported_for_every_rank() -> None:
    p = Program()

    def body(what: str) -> None:
        p.ranks.wait([simpy.Event(p.engine.env)], what)

    with pytest.raises(DeadlockError, match="nothing is left that could happen") as caught:
        p.ranks.run([lambda: body("a letter"), lambda: body("a call")])
    line = f"{__file__}:{body.__code__.co_firstlineno + 1}"
    assert caught.value.where == f"the host waits for: a letter at {line}; a call at {line}"
    assert caught.value.blocked == ()
    with pytest.raises(DeadlockError):
        body("outside of any rank")


def test_the_report_names_who_waits_and_leaves_out_who_waits_for_those() -> None:
    p = Program()

    def body(what: str) -> None:
        p.ranks.wait([simpy.Event(p.engine.env)], what)

    def parent() -> None:
        p.ranks.run([lambda: body("a letter"), lambda: body("a call")], ["ann", "bob"])

    p.ranks.unmatched.append(lambda: ["no rank calls"])
    with pytest.raises(DeadlockError) as caught:
        p.ranks.run([parent])
    line = f"{__file__}:{body.__code__.co_firstlineno + 1}"
    assert caught.value.where == f"the host waits for: ann: a letter at {line}; bob: a call at {line}"
    assert caught.value.unmatched == ("no rank calls",)


def test_no_programs_are_done_at_once() -> None:
    assert Program().ranks.run([]) == []
