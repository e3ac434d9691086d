"""One memory channel with banks: lines that wait, commands that open rows, move lines and close rows.

Reads wait in a queue, writes in a buffer that is drained when it is full, or when there is nothing to read. From there
they go to queues of the banks, oldest first, where there is room. A bank serves its queue oldest first, but lines of
its open row before others, up to `row_hits` of them while others wait. The command bus takes one command per clock: of
banks that could use it, that with the oldest line. Commands keep the distances that the standards name; refresh closes
all rows.

The scheduler has no clock of its own: `next_ns` says when it could issue a command, `issue` does so.
"""

from __future__ import annotations

from collections import deque
from math import ceil
from typing import NamedTuple

from kernbench.common.bank_timing import BankTiming

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


class _Bank:
    """One bank: its open row, its queue, and from when on commands are allowed."""

    __slots__ = ("act_ns", "column_ns", "group", "hits", "pre_ns", "queue", "row")

    def __init__(self, group: int) -> None:
        self.group = group
        self.row = -1
        self.hits = 0  # lines of the open row that were moved while others waited
        self.queue: list[MemoryLine] = []
        self.act_ns = self.column_ns = self.pre_ns = NEVER


class BankScheduler:
    """A channel. `line_ns` is how long the data of a line take on its bus."""

    def __init__(self, timing: BankTiming, line_ns: float) -> None:
        self._timing, self._line_ns = timing, line_ns
        self._banks = [_Bank(bank // timing.banks_per_group) for bank in range(timing.banks)]
        self._reads: deque[MemoryLine] = deque()
        self._writes: deque[MemoryLine] = deque()
        self._drain = 0  # writes of this batch that are not in their banks' queues yet
        self._queued = 0  # lines in queues of banks
        self._arrived = 0  # lines
        self._bus_ns = NEVER  # the command bus is free
        self._activated: deque[tuple[float, int]] = deque(maxlen=4)  # time and group of the last ones
        self._last: dict[bool, tuple[float, int]] = {}  # is_write -> time and group of the last column command
        self._refresh_ns = timing.refi_ns

    # ---- lines

    def has_room(self, is_write: bool) -> bool:
        if is_write:
            return len(self._writes) < self._timing.write_buffer
        return len(self._reads) < self._timing.read_queue

    def add(self, line: MemoryLine) -> None:
        """A line arrives; there must be room."""
        self._arrived += 1
        (self._writes if line.is_write else self._reads).append(line._replace(order=self._arrived))

    def resume(self, now: float) -> None:
        """It was idle until now: refreshes that were due meanwhile are done."""
        timing = self._timing
        if self._refresh_ns + timing.rfc_ns <= now:
            self._refresh_ns += ceil((now - timing.rfc_ns - self._refresh_ns) / timing.refi_ns) * timing.refi_ns
            for bank in self._banks:
                bank.row, bank.hits = -1, 0

    @property
    def is_idle(self) -> bool:
        return not (self._reads or self._writes or self._queued)

    def _distribute(self) -> None:
        """Lines go to the queues of their banks: reads, or the writes of a batch."""
        if not self._drain and self._writes:
            is_full = len(self._writes) >= self._timing.write_buffer
            if is_full or not (self._reads or self._queued):
                self._drain = len(self._writes)
        source = self._writes if self._drain else self._reads
        kept: deque[MemoryLine] = deque()
        while source:
            line = source.popleft()
            queue = self._banks[line.bank].queue
            if len(queue) < self._timing.bank_queue and (not line.is_write or self._drain):
                queue.append(line)
                self._queued += 1
                self._drain -= line.is_write
            else:
                kept.append(line)
        source.extend(kept)

    # ---- commands

    def next_ns(self, now: float) -> float | None:
        """When a command can be issued; None where there is nothing to do."""
        if self.is_idle:
            return None
        self._distribute()
        found = self._choice(now)
        return None if found is None else found[0]

    def issue(self, now: float) -> IssuedLine | None:
        """Issue the command that is due at `now`, as `next_ns` gave; returns the line that it moves, if any."""
        if now >= self._refresh_ns:
            self._refresh(now)
            return None
        found = self._choice(now)
        assert found is not None
        _, _, number, at = found
        bank = self._banks[number]
        self._bus_ns = now + self._timing.clock_ns
        line = bank.queue[at]
        if bank.row < 0:
            self._activate(bank, line, now)
        elif bank.row != line.row:
            bank.row, bank.hits = -1, 0
            bank.act_ns = max(bank.act_ns, now + self._timing.rp_ns)
        else:
            return self._move(bank, at, now)
        return None

    def _choice(self, now: float) -> tuple[float, int, int, int] | None:
        """When, for a line of which place in order, on which bank and for which of its lines the next command is
        issued: the earliest, and among equals that of the oldest line.
        """
        best: tuple[float, int, int, int] | None = None
        least = max(now, self._bus_ns)
        if least >= self._refresh_ns:
            return least, 0, 0, 0
        for number, bank in enumerate(self._banks):
            at = self._candidate(bank)
            if at is None:
                continue
            found = max(least, self._ready_ns(bank, bank.queue[at])), bank.queue[at].order, number, at
            if best is None or found < best:
                best = found
        if best is not None and best[0] >= self._refresh_ns:
            return max(least, self._refresh_ns), 0, 0, 0
        return best

    def _candidate(self, bank: _Bank) -> int | None:
        """The line of a bank's queue that the next command is for: the oldest of the open row, or the oldest of all."""
        queue = bank.queue
        if not queue:
            return None
        if bank.row < 0 or queue[0].row == bank.row or bank.hits >= self._timing.row_hits:
            return 0
        return next((at for at, line in enumerate(queue) if line.row == bank.row), 0)

    def _ready_ns(self, bank: _Bank, line: MemoryLine) -> float:
        """From when on the next command for a line is allowed."""
        timing = self._timing
        if bank.row < 0:
            ready = bank.act_ns
            for at_ns, group in self._activated:
                ready = max(ready, at_ns + (timing.rrd_l_ns if group == bank.group else timing.rrd_s_ns))
            if len(self._activated) == 4:
                ready = max(ready, self._activated[0][0] + timing.faw_ns)
            return ready
        if bank.row != line.row:
            return bank.pre_ns
        ready = bank.column_ns
        for was_write, (at_ns, group) in self._last.items():
            ready = max(ready, at_ns + self._gap_ns(was_write, line.is_write, group == bank.group))
        return ready

    def _gap_ns(self, was_write: bool, is_write: bool, is_same_group: bool) -> float:
        """From one column command to the next."""
        timing, data_ns = self._timing, self._line_ns
        if was_write == is_write:
            return max(data_ns, timing.ccd_l_ns if is_same_group else timing.ccd_s_ns)
        if was_write:
            return timing.cwl_ns + data_ns + (timing.wtr_l_ns if is_same_group else timing.wtr_s_ns)
        return timing.cl_ns + data_ns + 2 * timing.clock_ns - timing.cwl_ns

    def _activate(self, bank: _Bank, line: MemoryLine, now: float) -> None:
        timing = self._timing
        bank.row, bank.hits = line.row, 0
        bank.column_ns = now + timing.rcd_ns
        bank.pre_ns = now + timing.ras_ns
        bank.act_ns = now + timing.ras_ns + timing.rp_ns
        self._activated.append((now, bank.group))

    def _move(self, bank: _Bank, at: int, now: float) -> IssuedLine:
        timing, line = self._timing, bank.queue.pop(at)
        self._queued -= 1
        bank.hits += at > 0
        self._last[line.is_write] = now, bank.group
        if line.is_write:
            done_ns = now + timing.cwl_ns + self._line_ns
            bank.pre_ns = max(bank.pre_ns, done_ns + timing.wr_ns)
        else:
            done_ns = now + timing.cl_ns + self._line_ns
            bank.pre_ns = max(bank.pre_ns, now + timing.rtp_ns)
        return IssuedLine(line, done_ns)

    def _refresh(self, now: float) -> None:
        """All rows are closed, and all banks are busy."""
        timing = self._timing
        closed_ns = max([now] + [bank.pre_ns + timing.rp_ns for bank in self._banks if bank.row >= 0])
        for bank in self._banks:
            bank.row, bank.hits = -1, 0
            bank.act_ns = max(bank.act_ns, closed_ns + timing.rfc_ns)
        self._bus_ns = closed_ns + timing.rfc_ns
        while self._refresh_ns <= now:
            self._refresh_ns += timing.refi_ns
