"""Runs and rounds against a loop over single flits."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.progressions import (
    Pace,
    Progression,
    append_progression,
    count_until,
    last_time,
    nth_time,
    part_of,
    times_of,
)

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


@given(rows(), eighths, st.data())
def test_progressions_can_be_asked_for_single_flits(
    progressions: list[Progression], now: float, data: st.DataObject
) -> None:
    times = list(times_of(progressions))
    index = data.draw(st.integers(0, len(times) - 1))
    stop = data.draw(st.integers(index, len(times)))
    assert nth_time(progressions, index) == times[index]
    assert last_time(progressions) == times[-1]
    assert count_until(progressions, now) == sum(time <= now for time in times)
    assert list(times_of(part_of(progressions, index, stop))) == times[index:stop]


def test_a_flit_beyond_the_end_is_not_there() -> None:
    with pytest.raises(IndexError):
        nth_time([(0.0, 1.0, 3)], 3)


@given(st.lists(eighths, min_size=1, max_size=20).map(sorted))
def test_appending_flit_by_flit_keeps_every_time(times: list[float]) -> None:
    progressions: list[Progression] = []
    for time in times:
        append_progression(progressions, time, 0.0, 1)
    assert list(times_of(progressions)) == times
    assert len(progressions) <= len(times)


@st.composite
def paces(draw: st.DrawFn) -> Pace:
    firsts = sorted(draw(st.lists(eighths, min_size=1, max_size=4)))
    if draw(st.booleans()):
        firsts = [firsts[0]] * len(firsts)
    return Pace(firsts, draw(durations), draw(st.integers(1, 30)), simultaneous=firsts[0] == firsts[-1])


@given(paces(), eighths)
def test_rounds_never_go_back_and_can_be_counted(pace: Pace, now: float) -> None:
    times = list(pace.times(0, pace.flits))
    assert times == [pace.time(i) for i in range(pace.flits)]
    assert all(a <= b for a, b in pairwise(times))
    assert pace.count_until(now, inclusive=True) == sum(time <= now for time in times)
    assert pace.count_until(now, inclusive=False) == sum(time < now for time in times)
    assert list(pace.moved(3.0).times(0, pace.flits)) == [time + 3 for time in times]


@given(st.integers(0, 3), st.integers(0, 40), durations, eighths, rows(), st.lists(st.integers(0, 3), max_size=6))
def test_a_progression_of_writes_is_its_bursts(
    log_channels: int,
    block: int,
    burst_ns: float,
    penalty_ns: float,
    progressions: list[Progression],
    before: list[int],
) -> None:
    """After some reads at time 0, which may leave channels busy and turned."""
    together = ChannelGroup(0, 1 << log_channels, 256, burst_ns, penalty_ns)
    singly = ChannelGroup(0, 1 << log_channels, 256, burst_ns, penalty_ns)
    for group in (together, singly):
        for channel in before:
            group.commit_reads(channel, 1, 0.0)
    end, _ = together.commit_writes(block, progressions)
    ends = [singly.commit_writes(block + i, [(time, 0.0, 1)])[0] for i, time in enumerate(times_of(progressions))]
    assert end == max(ends)
    assert together.done() == singly.done()


@given(st.integers(0, 3), st.integers(0, 9), st.integers(1, 40), durations, eighths, st.lists(st.integers(0, 9)))
def test_a_read_paces_its_flits_by_their_bursts(
    log_channels: int, block: int, flits: int, burst_ns: float, now: float, before: list[int]
) -> None:
    """Against the rule: every burst waits for its channel, no flit leaves before the one ahead of it."""
    group = ChannelGroup(0, 1 << log_channels, 256, burst_ns, 0.0)
    free = [0.0] * (1 << log_channels)
    for address in before:
        group.commit_reads(address, 1, 0.0)
        free[address % len(free)] += burst_ns
    pace = group.commit_reads(block, flits, now)
    latest, expected = 0.0, []
    for i in range(flits):
        channel = (block + i) % len(free)
        free[channel] = max(free[channel], now) + burst_ns
        latest = max(latest, free[channel])
        expected.append(latest)
    assert list(pace.times(0, flits)) == expected
    assert group.total_granules() == len(before) + flits


def test_a_channel_group_goes_back_to_the_state_before() -> None:
    group = ChannelGroup(0, 4, 256, 4.0, 1.0)
    group.commit_reads(0, 9, 0.0)
    before = group.done()
    _, state = group.commit_writes(3, [(1.0, 1.0, 30), (50.0, 0.0, 1)])
    assert group.done() != before
    group.restore(state)
    assert group.done() == before
