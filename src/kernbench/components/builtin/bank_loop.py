"""The controller of a memory channel with banks: it distributes lines to the queues of banks, chooses the next command
and applies it. Plain Python on lists, and the same functions compiled by numba on arrays.

Reads wait in a queue, writes in a buffer that is drained when it is full, or when there is nothing to read. From there
they go to queues of the banks, oldest first, where there is room. A bank serves its queue oldest first, but lines of
its open row before others, up to `row_hits` of them while others wait. The command bus takes one command per clock: of
banks that could use it, that with the oldest line. Commands keep the distances that the standards name; refresh closes
all rows.

`numbers` and `times` are the channel's own, `banks` and `allowed` have a row for each bank, `queues` a queue for each
bank, then that of reads and the buffer of writes. Constants name places in rows.
"""

from __future__ import annotations

from typing import Any

BankCells = Any  # nested lists, or an array of numba, which knows types by what it is called with

# numbers: writes of the batch being drained that have yet to go to banks, lines in queues of banks, reads and writes
# that wait, the bank groups of the last four activations, and limits.
DRAIN, QUEUED, READS, WRITES, ACTIVE_GROUP = 0, 1, 2, 3, 4
BANK_QUEUE, WRITE_BUFFER, ROW_HITS, GROUP_BANKS = 8, 9, 10, 11
# times: when the command bus is free, the next refresh, the last column commands (read, write) and the last four
# activations; then the timing parameters.
BUS, REFRESH, LAST, ACTIVE = 0, 1, 2, 4
CLOCK, RCD, RP, RAS, RRD_S, RRD_L, RTP, WR, FAW, RFC, REFI, CL, CWL, LINE, GAPS = range(8, 23)
# GAPS: eight least distances between column commands: [was a write][is a write][of the same group]
ROW, HITS, LENGTH = 0, 1, 2  # of a bank: its open row, hits of it while others waited, lines in its queue
ACT, COLUMN, PRE = 0, 1, 2  # of a bank in `allowed`: the earliest times of its commands
GROUP_LAST = 3  # the last read and write of its group, which bind even after a later one of another group
ALLOWED = 5
BANK, LINE_ROW, ORDER, IS_WRITE = 0, 1, 2, 3  # of a line


def distribute(numbers: BankCells, banks: BankCells, queues: BankCells) -> None:
    """Move lines to the queues of their banks: reads, or the writes of a batch."""
    if not numbers[DRAIN] and numbers[WRITES]:
        is_full = numbers[WRITES] >= numbers[WRITE_BUFFER]
        if is_full or not (numbers[READS] or numbers[QUEUED]):
            numbers[DRAIN] = numbers[WRITES]
    source = WRITES if numbers[DRAIN] else READS
    lines = queues[len(banks) + source - READS]
    kept = 0
    for at in range(numbers[source]):
        bank = lines[at][BANK]
        length = banks[bank][LENGTH]
        if length < numbers[BANK_QUEUE] and (source == READS or numbers[DRAIN]):
            queues[bank][length] = lines[at]
            banks[bank][LENGTH] += 1
            numbers[QUEUED] += 1
            if source == WRITES:
                numbers[DRAIN] -= 1
        else:
            lines[kept] = lines[at]
            kept += 1
    numbers[source] = kept


def candidate(numbers: BankCells, banks: BankCells, queues: BankCells, bank: int) -> int:
    """The line of a bank's queue that the next command is for: the oldest of the open row, or the oldest of all."""
    row, queue = banks[bank][ROW], queues[bank]
    if row < 0 or queue[0][LINE_ROW] == row or banks[bank][HITS] >= numbers[ROW_HITS]:
        return 0
    for at in range(banks[bank][LENGTH]):
        if queue[at][LINE_ROW] == row:
            return at
    return 0


def ready_ns(numbers: BankCells, times: BankCells, banks: BankCells, allowed: BankCells, line: BankCells) -> float:
    """The earliest time of the next command for a line."""
    bank = line[BANK]
    group, row = bank // numbers[GROUP_BANKS], banks[bank][ROW]
    ready: float
    if row < 0:
        ready = allowed[bank][ACT]
        for last in range(4):
            gap = times[RRD_L] if numbers[ACTIVE_GROUP + last] == group else times[RRD_S]
            ready = max(ready, times[ACTIVE + last] + gap)
        ready = max(ready, times[ACTIVE] + times[FAW])
    elif row != line[LINE_ROW]:
        ready = allowed[bank][PRE]
    else:
        ready = allowed[bank][COLUMN]
        for was_write in range(2):
            gaps = GAPS + 4 * was_write + 2 * line[IS_WRITE]
            ready = max(ready, times[LAST + was_write] + times[gaps])
            ready = max(ready, allowed[bank][GROUP_LAST + was_write] + times[gaps + 1])
    return ready


def choice(
    numbers: BankCells, times: BankCells, banks: BankCells, allowed: BankCells, queues: BankCells, now: float
) -> tuple[float, int, int]:
    """When, on which bank and for which of its lines the next command is issued: the earliest, and among equals that
    of the oldest line; bank -1 for a refresh, -2 for none.
    """
    least = max(now, times[BUS])
    if least >= times[REFRESH]:
        return least, -1, 0
    best_ns, best_order, best_bank, best_at = 0.0, 0, -2, 0
    for bank in range(len(banks)):
        if not banks[bank][LENGTH]:
            continue
        at = candidate(numbers, banks, queues, bank)
        line = queues[bank][at]
        ns, order = max(least, ready_ns(numbers, times, banks, allowed, line)), line[ORDER]
        if best_bank < 0 or ns < best_ns or (ns == best_ns and order < best_order):
            best_ns, best_order, best_bank, best_at = ns, order, bank, at
    if best_bank >= 0 and best_ns >= times[REFRESH]:
        return max(least, times[REFRESH]), -1, 0
    return best_ns, best_bank, best_at


def next_ns(
    numbers: BankCells, times: BankCells, banks: BankCells, allowed: BankCells, queues: BankCells, now: float
) -> float:
    """When a command can be issued; infinity where there is nothing to do."""
    distribute(numbers, banks, queues)
    ns, bank, _ = choice(numbers, times, banks, allowed, queues, now)
    return ns if bank > -2 else float("inf")


def issue(
    numbers: BankCells, times: BankCells, banks: BankCells, allowed: BankCells, queues: BankCells, now: float
) -> tuple[int, float]:
    """Issue the command that is due at `now`; returns the order of the line that it moves, 0 for none, and when the
    last of its data is on the bus.
    """
    if now >= times[REFRESH]:
        refresh(times, banks, allowed, now)
        return 0, 0.0
    _, bank, at = choice(numbers, times, banks, allowed, queues, now)
    times[BUS] = now + times[CLOCK]
    row = queues[bank][at][LINE_ROW]
    if banks[bank][ROW] < 0:
        activate(numbers, times, banks, allowed, bank, row, now)
        return 0, 0.0
    if banks[bank][ROW] != row:
        banks[bank][ROW], banks[bank][HITS] = -1, 0
        allowed[bank][ACT] = max(allowed[bank][ACT], now + times[RP])
        return 0, 0.0
    return move(numbers, times, banks, allowed, queues, bank, at, now)


def activate(
    numbers: BankCells, times: BankCells, banks: BankCells, allowed: BankCells, bank: int, row: int, now: float
) -> None:
    """Open a row."""
    banks[bank][ROW], banks[bank][HITS] = row, 0
    allowed[bank][COLUMN] = now + times[RCD]
    allowed[bank][PRE] = now + times[RAS]
    allowed[bank][ACT] = now + times[RAS] + times[RP]
    for last in range(3):
        times[ACTIVE + last] = times[ACTIVE + last + 1]
        numbers[ACTIVE_GROUP + last] = numbers[ACTIVE_GROUP + last + 1]
    times[ACTIVE + 3], numbers[ACTIVE_GROUP + 3] = now, bank // numbers[GROUP_BANKS]


def move(
    numbers: BankCells,
    times: BankCells,
    banks: BankCells,
    allowed: BankCells,
    queues: BankCells,
    bank: int,
    at: int,
    now: float,
) -> tuple[int, float]:
    """Read or write a line of the open row."""
    queue = queues[bank]
    order, is_write = queue[at][ORDER], queue[at][IS_WRITE]
    banks[bank][LENGTH] -= 1
    for after in range(at, banks[bank][LENGTH]):
        queue[after] = queue[after + 1]
    numbers[QUEUED] -= 1
    if at > 0:
        banks[bank][HITS] += 1
    times[LAST + is_write] = now
    first = bank - bank % numbers[GROUP_BANKS]
    for same in range(first, first + numbers[GROUP_BANKS]):
        allowed[same][GROUP_LAST + is_write] = now
    if is_write:
        done_ns = now + times[CWL] + times[LINE]
        allowed[bank][PRE] = max(allowed[bank][PRE], done_ns + times[WR])
    else:
        done_ns = now + times[CL] + times[LINE]
        allowed[bank][PRE] = max(allowed[bank][PRE], now + times[RTP])
    return order, done_ns


def close_rows(banks: BankCells) -> None:
    """Close the open rows of all banks."""
    for bank in range(len(banks)):
        banks[bank][ROW], banks[bank][HITS] = -1, 0


def refresh(times: BankCells, banks: BankCells, allowed: BankCells, now: float) -> None:
    """Close all rows, as early as that is allowed, and keep all banks busy for a refresh."""
    closed_ns = now
    for bank in range(len(banks)):
        if banks[bank][ROW] >= 0:
            closed_ns = max(closed_ns, allowed[bank][PRE] + times[RP])
    close_rows(banks)
    for bank in range(len(banks)):
        allowed[bank][ACT] = max(allowed[bank][ACT], closed_ns + times[RFC])
    times[BUS] = closed_ns + times[RFC]
    while times[REFRESH] <= now:
        times[REFRESH] += times[REFI]
