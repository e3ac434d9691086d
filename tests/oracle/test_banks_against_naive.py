"""Channels with banks against a naive model of them: every command at the same time, plain and compiled."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle.naive_banks import NaiveChannel

from kernbench.common.units import on_grid
from kernbench.components.builtin.bank_scheduler import BankScheduler, MemoryLine, compiled_decisions
from kernbench.topology.spec_hbm import BANKS

CHANNELS = [BankScheduler, *([partial(BankScheduler, may_compile=True)] if compiled_decisions() else [])]


def commands(channel, given):
    """When each command is issued and what it moves, with lines that arrive `given` ns after the line before."""
    arrivals, at = [], 0.0
    for gap, line in given:
        at += gap
        arrivals.append((at, line))
    now, found = 0.0, []
    while True:
        if channel.is_idle:
            channel.resume(now)
        while arrivals and arrivals[0][0] <= now and channel.has_room(arrivals[0][1].is_write):
            channel.add(arrivals.pop(0)[1])
        due = channel.next_ns(now)
        following = [arrivals[0][0]] if arrivals and arrivals[0][0] > now else []
        if due is None and not arrivals:
            return found
        if due is None or (following and following[0] < due):
            now = following[0]
        elif due > now:
            now = due
        else:
            issued = channel.issue(now)
            moved = issued and (issued if isinstance(channel, NaiveChannel) else (issued.line.tag, issued.done_ns))
            found.append((now, moved))


def on_time(timing):
    """On the time grid, where sums are exact in every order."""
    return timing._replace(**{name: on_grid(ns) for name, ns in timing._asdict().items() if isinstance(ns, float)})


some_lines = st.builds(MemoryLine, st.integers(0, 15), st.integers(0, 3), st.booleans(), st.integers())
gaps = st.sampled_from([0.0, 0.0, 0.0, 0.5, 3.0, 20.0, 500.0, 9000.0])


@pytest.mark.parametrize("preset", BANKS)
@settings(max_examples=25)
@given(st.lists(st.tuples(gaps, some_lines), min_size=1, max_size=100), st.sampled_from([0.5, 1.0, 2.0]))
def test_random_lines_take_the_commands_of_the_naive_channel(preset, given, line_ns):
    timing = on_time(BANKS[preset])
    for t in (timing, timing._replace(row_hits=1, bank_queue=2, write_buffer=5, refi_ns=700.0)):
        expected = commands(NaiveChannel(t, line_ns), given)
        assert sum(moved is not None for _, moved in expected) == len(given)
        for channel in CHANNELS:
            assert commands(channel(t, line_ns), given) == expected
