"""One memory channel with banks: its lines, and the state on which the rules of `bank_loop.py` work.

The scheduler has no clock of its own: `next_ns` says when it could issue a command, `issue` does so. Decisions are
plain Python on lists, or the same functions compiled by numba on arrays, with the same times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, inf
from typing import Any, NamedTuple

import numpy as np

from kernbench.common.bank_timing import BankTiming
from kernbench.common.compiled_code import compiled_with_calls
from kernbench.components.builtin import bank_loop as loop

NEVER = -1e18


class MemoryLine(NamedTuple):
    """What one command moves: where it lies, what it belongs to, and its place in the order of arrival."""

    bank: int
    row: int
    is_write: bool
    tag: object = None
    order: int = 0  # set on arrival


class IssuedLine(NamedTuple):
    """A command that moved a line, and when the last of its data is on the bus."""

    line: MemoryLine
    done_ns: float


class BankDecisions(NamedTuple):
    """The two functions of `bank_loop.py` that a scheduler calls."""

    next_ns: Callable[..., float]
    issue: Callable[..., tuple[int, float]]


PLAIN = BankDecisions(loop.next_ns, loop.issue)


@cache
def compiled_decisions() -> BankDecisions | None:
    """None where numba is not installed."""
    found = [compiled_with_calls(function, (loop,), lambda _: {}) for function in PLAIN]
    return BankDecisions(*found) if all(found) else None


class BankScheduler:
    """A channel. The data of a line occupy its bus for `line_ns`. Decisions are compiled if `may_compile` says so and
    numba is installed.
    """

    def __init__(self, timing: BankTiming, line_ns: float, *, may_compile: bool = False) -> None:
        self._timing = timing
        self._lines: dict[int, MemoryLine] = {}  # that have arrived and are neither read nor written, by their order
        self._arrived = 0
        limits = timing.bank_queue, timing.write_buffer, timing.row_hits, timing.banks_per_group
        numbers = [0] * loop.ACTIVE_GROUP + [-1] * (loop.BANK_QUEUE - loop.ACTIVE_GROUP) + list(limits)
        times = [NEVER] * loop.CLOCK + _timing_row(timing, line_ns)
        times[loop.REFRESH] = timing.refi_ns
        banks = [[-1, 0, 0] for _ in range(timing.banks)]
        allowed = [[NEVER] * loop.ALLOWED for _ in range(timing.banks)]
        longest = max(timing.bank_queue, timing.read_queue, timing.write_buffer)
        queues = [[(0, 0, 0, 0)] * longest for _ in range(timing.banks + 2)]
        state: tuple[Any, ...] = numbers, times, banks, allowed, queues
        made = compiled_decisions() if may_compile else None
        self.is_compiled = made is not None
        self._decisions = made or PLAIN
        self._state = tuple(map(np.array, state)) if self.is_compiled else state
        self._numbers, self._times, self._banks, _, self._queues = self._state

    # ---- lines

    def has_room(self, is_write: bool) -> bool:
        if is_write:
            return bool(self._numbers[loop.WRITES] < self._timing.write_buffer)
        return bool(self._numbers[loop.READS] < self._timing.read_queue)

    def add(self, line: MemoryLine) -> None:
        """A line arrives; there must be room."""
        self._arrived += 1
        self._lines[self._arrived] = line._replace(order=self._arrived)
        which = loop.WRITES if line.is_write else loop.READS
        queue = self._queues[self._timing.banks + which - loop.READS]
        queue[self._numbers[which]] = line.bank, line.row, self._arrived, int(line.is_write)
        self._numbers[which] += 1

    def resume(self, now: float) -> None:
        """Account for the refreshes that were due while the channel was idle, up to now."""
        timing, refresh_ns = self._timing, float(self._times[loop.REFRESH])
        if refresh_ns + timing.rfc_ns <= now:
            refresh_ns += ceil((now - timing.rfc_ns - refresh_ns) / timing.refi_ns) * timing.refi_ns
            self._times[loop.REFRESH] = refresh_ns
            loop.close_rows(self._banks)

    @property
    def is_idle(self) -> bool:
        return not self._lines

    # ---- commands

    def next_ns(self, now: float) -> float | None:
        """When a command can be issued; None where there is nothing to do."""
        if not self._lines:
            return None
        found = self._decisions.next_ns(*self._state, now)
        return None if found == inf else float(found)

    def issue(self, now: float) -> IssuedLine | None:
        """Issue the command that is due at `now`, as `next_ns` gave; returns the line that it moves, if any."""
        order, done_ns = self._decisions.issue(*self._state, now)
        return IssuedLine(self._lines.pop(order), done_ns) if order else None


def _timing_row(timing: BankTiming, line_ns: float) -> list[float]:
    """The part of `times` that does not change, from CLOCK on."""
    gaps = [
        _gap_ns(timing, line_ns, was_write, is_write, is_same_group)
        for was_write in (False, True)
        for is_write in (False, True)
        for is_same_group in (False, True)
    ]
    return [
        timing.clock_ns, timing.rcd_ns, timing.rp_ns, timing.ras_ns, timing.rrd_s_ns, timing.rrd_l_ns, timing.rtp_ns,
        timing.wr_ns, timing.faw_ns, timing.rfc_ns, timing.refi_ns, timing.cl_ns, timing.cwl_ns, line_ns, *gaps,
    ]  # fmt: skip


def _gap_ns(timing: BankTiming, line_ns: float, was_write: bool, is_write: bool, is_same_group: bool) -> float:
    """From one column command to the next."""
    if was_write == is_write:
        return max(line_ns, timing.ccd_l_ns if is_same_group else timing.ccd_s_ns)
    if was_write:
        return timing.cwl_ns + line_ns + (timing.wtr_l_ns if is_same_group else timing.wtr_s_ns)
    return timing.cl_ns + line_ns + 2 * timing.clock_ns - timing.cwl_ns
