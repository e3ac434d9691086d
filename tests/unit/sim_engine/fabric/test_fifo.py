"""The rule of a link, and every closed form of it against the rule itself, flit by flit."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.sim_engine.fabric import Fabric, Network
from kernbench.sim_engine.fabric.fifo import (
    EXAMINE,
    leave_ns,
    leave_together,
    occupy_ns,
    pass_link,
    pass_paced,
    serve,
    serve_with_last,
    wait_ns,
)
from kernbench.sim_engine.fabric.progressions import Pace, Progression, times_of

eighths = st.integers(0, 80).map(lambda n: n / 8)
durations = st.integers(1, 40).map(lambda n: n / 8)


@st.composite
def rows(draw: st.DrawFn) -> list[Progression]:
    """Runs whose times never go back."""
    t, progressions = draw(eighths), []
    for _ in range(draw(st.integers(1, 4))):
        n, step = draw(st.integers(1, 12)), draw(eighths)
        progressions.append((t, step, n))
        t += (n - 1) * step + draw(eighths)
    return progressions


@st.composite
def paces(draw: st.DrawFn) -> Pace:
    firsts = sorted(draw(st.lists(eighths, min_size=1, max_size=4)))
    if draw(st.booleans()):
        firsts = [firsts[0]] * len(firsts)
    return Pace(firsts, draw(durations), draw(st.integers(1, 30)), simultaneous=firsts[0] == firsts[-1])


def served(times: list[float], occupy: list[float], free: float) -> list[float]:
    """Flit by flit, by the rule."""
    out = []
    for ready, duration in zip(times, occupy, strict=True):
        free = leave_ns(ready, free, duration)
        out.append(free)
    return out


# ---- the rule


def test_a_flit_occupies_a_link_for_its_bytes_over_the_bandwidth() -> None:
    assert occupy_ns(256, 64.0) == 4.0
    assert occupy_ns(256, None) == 0.0  # control only


def test_a_flit_leaves_an_idle_link_after_its_own_time_and_a_busy_one_after_the_flit_before() -> None:
    assert leave_ns(ready=10.0, free=3.0, occupy=4.0) == 14.0
    assert leave_ns(ready=10.0, free=10.0, occupy=4.0) == 14.0
    assert leave_ns(ready=10.0, free=12.5, occupy=4.0) == 16.5
    assert wait_ns(ready=10.0, leave=16.5, occupy=4.0) == 2.5


@settings(deadline=None)
@pytest.mark.parametrize("options", [{}, {"mode": "flits"}, {"record": True}])
@given(st.lists(st.tuples(eighths, durations), min_size=1, max_size=12))
def test_the_engine_moves_flits_by_the_rule(options: dict[str, Any], flits: list[tuple[float, float]]) -> None:
    """The loop of the engine has the rule written out: flits from many sides queue for one link, the first by index."""
    network = Network(flit_bytes=64)
    network.add_node("hub")
    network.add_node("end")
    for n, _ in enumerate(flits):
        network.add_node(n)
        network.add_link(n, "hub", 64.0)  # 1 ns a flit
    network.add_link("hub", "end", 64.0)
    fabric = Fabric(network, **options)
    sizes = [max(1, round(64 * duration / 5)) for _, duration in flits]
    sent = [
        fabric.inject((n, "hub", "end"), size, at) for n, (size, (at, _)) in enumerate(zip(sizes, flits, strict=True))
    ]
    fabric.run()
    taken = [occupy_ns(size, 64.0) for size in sizes]
    ready = [at + duration for (at, _), duration in zip(flits, taken, strict=True)]
    order = sorted(range(len(flits)), key=lambda n: (ready[n], n))
    expected = served([ready[n] for n in order], [taken[n] for n in order], 0.0)
    assert [sent[n].done_ns for n in order] == expected
    waits = [wait_ns(ready[n], leave, taken[n]) for n, leave in zip(order, expected, strict=True)]
    assert fabric.link_counters("hub", "end").longest_queue_ns == max(waits)


# ---- closed forms


@given(eighths, eighths, durations, durations, st.integers(0, 20))
def test_flits_that_are_ready_together_leave_as_one_by_one(
    ready: float, free: float, occupy: float, last_occupy: float, last: int
) -> None:
    expected = served([ready] * (last + 1), [*[occupy] * last, last_occupy], free)
    first_leave, last_leave = leave_together(ready, free, occupy, last_occupy, last)
    assert last_leave == expected[-1]
    if last:
        assert first_leave == expected[0]
        assert all(b - a == occupy for a, b in pairwise(expected[:-1]))


@given(rows(), durations, eighths)
def test_serving_progressions_is_serving_their_flits(
    progressions: list[Progression], occupy: float, free: float
) -> None:
    times = list(times_of(progressions))
    expected = served(times, [occupy] * len(times), free)
    out, after = serve(progressions, occupy, free)
    assert list(times_of(out)) == expected
    assert after == expected[-1]


@given(rows(), durations, durations, eighths)
def test_a_last_flit_of_its_own_size_is_served_as_such(
    progressions: list[Progression], occupy: float, last: float, free: float
) -> None:
    times = list(times_of(progressions))
    expected = served(times, [*[occupy] * (len(times) - 1), last], free)
    out, after = serve_with_last(progressions, occupy, last, free)
    assert list(times_of(out)) == expected
    assert after == expected[-1]


@given(rows(), durations, durations, eighths, eighths)
def test_passing_a_link_tells_times_and_the_longest_wait(
    progressions: list[Progression], occupy: float, last: float, tail: float, free: float
) -> None:
    times = list(times_of(progressions))
    occupied = [*[occupy] * (len(times) - 1), last]
    expected = served(times, occupied, free)
    out, after, wait, at = pass_link(progressions, occupy, last, tail, free)
    assert list(times_of(out)) == [time + tail for time in expected]
    assert after == expected[-1]
    if wait != EXAMINE:
        waits = [leave - taken - ready for leave, taken, ready in zip(expected, occupied, times, strict=True)]
        assert wait == max(waits)
        assert not wait or at == times[waits.index(wait)]


@given(paces(), durations, durations, eighths, eighths)
def test_rounds_pass_a_link_as_their_flits_do(
    pace: Pace, occupy: float, shorter: float, tail: float, free: float
) -> None:
    last = min(occupy, shorter)
    times = list(pace.times(0, pace.flits))
    expected = served(times, [*[occupy] * (len(times) - 1), last], free)
    passage = pass_paced(pace, 0, occupy, last, tail, free)
    if passage is None:
        assert pace.flits > 2 * len(pace.firsts)  # a short read always has a description
        return
    out, after, wait, at = passage
    found = list(out.times(0, out.flits)) if isinstance(out, Pace) else list(times_of(out))
    assert found == [time + tail for time in expected]
    assert after == expected[-1]
    if wait != EXAMINE:
        starts = [max(ready, before) for ready, before in zip(times, [free, *expected], strict=False)]
        waits = [start - ready for start, ready in zip(starts, times, strict=True)]
        assert wait == max(waits)
        assert not wait or at == times[waits.index(wait)]


@given(paces(), st.data(), durations, durations, eighths, eighths)
def test_rounds_of_which_some_flits_have_passed_pass_a_link_as_the_others_do(
    pace: Pace, data: st.DataObject, occupy: float, shorter: float, tail: float, free: float
) -> None:
    start, last = data.draw(st.integers(0, pace.flits - 1)), min(occupy, shorter)
    times = list(pace.times(start, pace.flits))
    passage = pass_paced(pace, start, occupy, last, tail, free)
    if passage is None:
        assert len(times) > 2 * len(pace.firsts)
        return
    expected = served(times, [*[occupy] * (len(times) - 1), last], free)
    out, after, _, _ = passage
    found = list(out.times(0, out.flits)) if isinstance(out, Pace) else list(times_of(out))
    assert found == [time + tail for time in expected]
    assert after == expected[-1]
