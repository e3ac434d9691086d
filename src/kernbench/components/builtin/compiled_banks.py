"""A memory channel with banks whose decisions are compiled (`bank_loop.py`): a `BankScheduler` on arrays."""

from __future__ import annotations

from math import ceil, inf

import numpy as np

from kernbench.common.bank_timing import BankTiming
from kernbench.components.builtin import bank_loop as loop
from kernbench.components.builtin.bank_scheduler import NEVER, BankScheduler, IssuedLine, MemoryLine


class CompiledBankScheduler(BankScheduler):
    """A channel, with the times of a plain `BankScheduler`."""

    def __init__(self, timing: BankTiming, line_ns: float) -> None:
        self._timing, self._line_ns = timing, line_ns
        self._lines: dict[int, MemoryLine] = {}  # by their place in the order of arrival
        self._arrived = 0
        longest = max(timing.bank_queue, timing.read_queue, timing.write_buffer)
        self._numbers = np.full(loop.NUMBERS, -1)
        self._numbers[: loop.LAST_GROUP] = 0
        self._numbers[loop.BANK_QUEUE :] = (
            timing.bank_queue, timing.write_buffer, timing.row_hits, timing.banks_per_group,
        )  # fmt: skip
        gaps = [
            self._gap_ns(was_write, is_write, is_same)
            for was_write in (False, True)
            for is_write in (False, True)
            for is_same in (False, True)
        ]
        self._times = np.full(loop.TIMES, NEVER)
        self._times[loop.REFRESH] = timing.refi_ns
        self._times[loop.CLOCK :] = (
            timing.clock_ns, timing.rcd_ns, timing.rp_ns, timing.ras_ns, timing.rrd_s_ns, timing.rrd_l_ns,
            timing.rtp_ns, timing.wr_ns, timing.faw_ns, timing.rfc_ns, timing.refi_ns, timing.cl_ns, timing.cwl_ns,
            line_ns, *gaps,
        )  # fmt: skip
        self._rows = np.zeros((timing.banks, 3), np.int64)
        self._rows[:, loop.ROW] = -1
        self._queues = np.zeros((timing.banks + 2, longest, 4), np.int64)
        self._state = self._numbers, self._times, self._rows, np.full((timing.banks, 3), NEVER), self._queues

    def has_room(self, is_write: bool) -> bool:
        if is_write:
            return bool(self._numbers[loop.WRITES] < self._timing.write_buffer)
        return bool(self._numbers[loop.READS] < self._timing.read_queue)

    def add(self, line: MemoryLine) -> None:
        self._arrived += 1
        self._lines[self._arrived] = line._replace(order=self._arrived)
        which = loop.WRITES if line.is_write else loop.READS
        place = len(self._rows) + which - loop.READS, self._numbers[which]
        self._queues[place] = line.bank, line.row, self._arrived, line.is_write
        self._numbers[which] += 1

    def resume(self, now: float) -> None:
        timing, refresh_ns = self._timing, float(self._times[loop.REFRESH])
        if refresh_ns + timing.rfc_ns <= now:
            refresh_ns += ceil((now - timing.rfc_ns - refresh_ns) / timing.refi_ns) * timing.refi_ns
            self._times[loop.REFRESH] = refresh_ns
            self._rows[:, loop.ROW], self._rows[:, loop.HITS] = -1, 0

    @property
    def is_idle(self) -> bool:
        return not self._lines

    def next_ns(self, now: float) -> float | None:
        if not self._lines:
            return None
        found = loop.next_ns(*self._state, now)
        return None if found == inf else float(found)

    def issue(self, now: float) -> IssuedLine | None:
        order, done_ns = loop.issue(*self._state, now)
        return IssuedLine(self._lines.pop(order), done_ns) if order else None
