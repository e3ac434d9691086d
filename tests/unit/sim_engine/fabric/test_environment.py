"""SimPy processes and the fabric on one clock."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
import simpy

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment, Network, Transfer
from kernbench.sim_engine.fabric.clock import SimProcess

FLIT = 256


def environment() -> FabricEnvironment:
    """a - b - c, 1 ns a flit, 2 ns a node."""
    network = Network()
    for name in "abc":
        network.add_node(name, 2.0)
    network.add_link("a", "b", 256.0)
    network.add_link("b", "c", 256.0)
    return FabricEnvironment(Fabric(network))


def test_a_process_waits_for_its_transfer() -> None:
    env, log = environment(), []

    def process() -> SimProcess:
        yield env.timeout(4)
        transfer = yield env.transfer("abc", 2 * FLIT)
        log.append((env.now, transfer.done_ns, transfer.total_ns))
        transfer = yield env.transfer("ab", FLIT)
        log.append((env.now, transfer.done_ns, transfer.total_ns))

    env.process(process())
    env.run()
    assert log == [(11.0, 11.0, 7.0), (14.0, 14.0, 3.0)]


def test_what_the_fabric_does_at_an_instant_comes_before_processes() -> None:
    env, log = environment(), []

    def waiting() -> SimProcess:
        yield env.transfer("ab", FLIT)
        log.append("transfer")

    def sleeping() -> SimProcess:
        yield env.timeout(3)
        log.append("timeout")

    env.process(sleeping())
    env.process(waiting())
    env.run()
    assert (env.now, log) == (3.0, ["transfer", "timeout"])


def test_transfers_done_at_one_instant_are_reported_in_order_of_injection() -> None:
    env, log = environment(), []

    def process(name: str, path: str) -> SimProcess:
        yield env.transfer(path, FLIT)
        log.append(name)

    env.process(process("first", "bc"))
    env.process(process("second", "ab"))
    env.run()
    assert log == ["first", "second"]


def test_a_process_woken_by_one_transfer_can_meet_another_at_once() -> None:
    """At 3 ns the first is done and its process injects at b; the flit from a is ready there then, and goes first."""
    env, done = environment(), {}

    def first() -> SimProcess:
        yield env.transfer("ab", FLIT)
        transfer = yield env.transfer("bc", FLIT)
        done["injected"] = transfer.done_ns

    def through() -> SimProcess:
        transfer = yield env.transfer("abc", FLIT)
        done["through"] = transfer.done_ns

    env.process(through())
    env.process(first())
    env.run()
    # `through` takes a's link until 1 and is ready at 3; `first` takes it until 2 and is done at 4.
    assert done == {"through": 3 + 1 + 2, "injected": 4 + 1 + 2}


def test_delays_are_rounded_to_the_grid() -> None:
    env = environment()

    def process() -> SimProcess:
        for _ in range(10):
            yield env.timeout(0.1)

    env.process(process())
    env.run()
    assert env.now == 10 * round(0.1 * 2**20) / 2**20


def test_the_clock_can_be_stopped_in_the_middle_of_a_transfer() -> None:
    env = environment()
    event = env.transfer("abc", 100 * FLIT)
    env.run(until=50)
    assert (env.now, event.triggered) == (50, False)
    transfer = env.run(until=event)
    assert isinstance(transfer, Transfer)
    assert env.now == transfer.done_ns == 2 * 3 + 99


def test_peek_tells_whichever_comes_first() -> None:
    env = environment()
    assert env.peek() == float("inf")
    env.timeout(9)
    assert env.peek() == 9
    env.transfer("ab", FLIT)
    assert env.peek() == 3


def test_a_transfer_that_is_not_waited_for_still_runs() -> None:
    env = environment()
    event = env.transfer("ab", FLIT)
    env.run()
    assert event.processed
    assert env.now == 3


def test_a_call_is_made_at_its_time_with_its_subject() -> None:
    env, log = environment(), []

    def done(transfer: Transfer) -> None:
        env.at(transfer.done_ns + 5.0, lambda late: log.append((env.now, late.done_ns)), transfer)

    env.fabric.inject("ab", FLIT, on_done=done)
    env.run()
    assert log == [(8.0, 3.0)]


def test_at_one_instant_the_fabric_comes_first_then_calls_as_asked_then_processes() -> None:
    env, log = environment(), []

    def process() -> SimProcess:
        yield env.timeout(3)
        log.append("process")

    env.process(process())
    env.at(3.0, log.append, "first call")
    env.fabric.inject("ab", FLIT, on_done=lambda _: log.append("transfer"))
    env.at(3.0, log.append, "second call")
    env.run()
    assert log == ["transfer", "first call", "second call", "process"]


def test_a_call_may_ask_for_another_at_the_same_instant() -> None:
    env, log = environment(), []

    def again(n: int) -> None:
        log.append((env.now, n))
        if n < 2:
            env.at(env.now, again, n + 1)

    env.at(4.0, again, 0)
    assert env.peek() == 4
    env.run()
    assert log == [(4.0, 0), (4.0, 1), (4.0, 2)]


def test_a_transfer_the_network_cannot_carry_is_an_error_in_the_process() -> None:
    env = environment()

    def process() -> SimProcess:
        yield env.transfer("ca", FLIT)

    env.process(process())
    with pytest.raises(FabricError, match="no link from 'c' to 'a'") as error:
        env.run()
    assert error.value.hint


def test_conditions_of_simpy_work_on_transfers() -> None:
    env, log = environment(), []

    def process() -> SimProcess:
        results: Any = yield simpy.AllOf(env, [env.transfer("ab", FLIT), env.transfer("bc", 5 * FLIT)])
        log.append((env.now, [transfer.nbytes for transfer in results.values()]))

    env.process(process())
    env.run()
    assert log == [(7.0, [FLIT, 5 * FLIT])]


# ---- going back


def test_what_starts_late_ends_as_if_it_had_started_in_time() -> None:
    def ends(late_at: float | None) -> list[tuple[str, float]]:
        env, log = environment(), []

        def sends(name: str, path: str, times: int) -> SimProcess:
            for _ in range(times):
                yield env.transfer(path, 2 * FLIT)
                log.append((name, env.now))

        def start(_: object = None) -> None:
            env.process(sends("late", "abc", 4))

        def wakes() -> SimProcess:
            yield env.timeout(late_at or 0.0)
            env.rewind(2.0, start)
            assert (env.now, env.fabric.now) == (late_at, late_at)

        if late_at is None:
            env.at(2.0, start, None)
        else:
            env.process(wakes())
        env.run()
        return log

    plain = ends(None)
    assert plain == [("late", 9.0), ("late", 16.0), ("late", 23.0), ("late", 30.0)]
    assert all(ends(half / 2) == plain for half in range(2, 61))  # before it begins, too


@pytest.mark.parametrize("turn", [0, 1 << 50])
@pytest.mark.parametrize("compiled", [False, True])
def test_an_owner_that_rewinds_when_it_is_interrupted(turn: int, compiled: bool) -> None:
    """At every quarter of a ns a transfer interferes with reserved links; its sequence number is before or behind."""

    def ends(at_ns: float, *, late: bool) -> object:
        env, log, turns = environment(), [], count(2)
        if compiled:
            env.fabric.engine.compile()

        def send(name: str, later_ns: float = 0.0) -> None:
            at_ns = env.now + later_ns
            env.fabric.inject("abc", 3 * FLIT, at_ns, on_done=lambda _: done(name), seq=next(turns))

        def done(name: str) -> None:
            log.append((name, env.now))
            if name < "c":
                send(chr(ord(name) + 2), 1.25)
            elif name < "f":
                env.at(env.now + 1.25, send, chr(ord(name) + 2))

        def start() -> None:
            send("a")
            send("b")

        if late:
            reservation = env.fabric.reserve(range(2), (), lambda _: env.rewind(2.0, start))
            assert reservation is not None
        else:
            env.at(2.0, lambda _: start(), None)
        env.fabric.inject("abc", 4 * FLIT, at_ns, on_done=lambda _: log.append(("interfering", env.now)), seq=turn)
        env.run()
        return [entry for entry in log if entry[1] > at_ns], sorted(log), env.fabric.all_link_counters()

    for quarter in range(200):
        assert ends(quarter / 4, late=True) == ends(quarter / 4, late=False), quarter


def test_what_goes_back_within_the_past_joins_that() -> None:
    env, log = environment(), []

    def inner() -> None:
        log.append(("inner", env.now))
        env.at(5.0, lambda _: log.append(("in between", env.now)), None)
        env.at(9.0, lambda _: log.append(("later", env.now)), None)

    def outer() -> None:
        log.append(("outer", env.now))
        env.at(4.0, lambda _: env.rewind(1.0, inner), None)
        env.at(6.0, lambda _: log.append(("after", env.now)), None)

    env.at(8.0, lambda _: env.rewind(2.0, outer), None)
    env.run()
    assert log == [("outer", 2.0), ("inner", 1.0), ("in between", 5.0), ("after", 6.0), ("later", 9.0)]


def test_a_failure_in_the_past_leaves_the_clock_where_it_was() -> None:
    env = environment()

    def fails(_: object) -> None:
        raise ValueError("no")

    def goes_back(_: object) -> None:
        with pytest.raises(ValueError, match="no"):
            env.rewind(1.0, lambda: env.at(3.0, fails, None))
        assert (env.now, env.fabric.now) == (8.0, 8.0)
        env.transfer("ab", FLIT)

    env.at(8.0, goes_back, None)
    env.run()
    assert env.now == 11.0
