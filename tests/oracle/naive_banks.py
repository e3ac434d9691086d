"""A memory channel with banks, written to be obviously right: every command that was issued stays in a list, and
the next one keeps its least distances from them.
"""

from __future__ import annotations

from math import ceil

from kernbench.common.bank_timing import BankTiming


class NaiveChannel:
    """The interface of `BankScheduler`; `issue` returns the tag of the line that it moves, and when that is done."""

    def __init__(self, timing: BankTiming, line_ns: float) -> None:
        self.t, self.line_ns = timing, line_ns
        self.commands = []  # (time, kind, bank)
        self.open_row = dict.fromkeys(range(timing.banks))
        self.hits = dict.fromkeys(range(timing.banks), 0)
        self.reads, self.writes, self.batch = [], [], 0
        self.queued = []  # lines in queues of banks, oldest first in each
        self.arrived = 0
        self.bus_ns = float("-inf")
        self.refresh_ns = timing.refi_ns

    # ---- lines: (order, bank, row, is_write, tag)

    def has_room(self, is_write):
        return len(self.writes) < self.t.write_buffer if is_write else len(self.reads) < self.t.read_queue

    def add(self, line):
        self.arrived += 1
        (self.writes if line.is_write else self.reads).append(
            (self.arrived, line.bank, line.row, line.is_write, line.tag)
        )

    def resume(self, now):
        late = now - self.t.rfc_ns - self.refresh_ns
        if late >= 0:
            self.refresh_ns += ceil(late / self.t.refi_ns) * self.t.refi_ns
            self.close_rows()

    @property
    def is_idle(self):
        return not (self.reads or self.writes or self.queued)

    def queue(self, bank):
        return [line for line in self.queued if line[1] == bank]

    def distribute(self):
        if not self.batch and (
            len(self.writes) >= self.t.write_buffer or (self.writes and not self.reads and not self.queued)
        ):
            self.batch = len(self.writes)
        drains = self.batch > 0
        for line in list(self.writes if drains else self.reads):
            if len(self.queue(line[1])) < self.t.bank_queue and (self.batch or not drains):
                (self.writes if drains else self.reads).remove(line)
                self.queued.append(line)
                self.batch -= drains

    # ---- commands

    def next_ns(self, now):
        if self.is_idle:
            return None
        self.distribute()
        found = self.choice(now)
        return None if found is None else found[0]

    def issue(self, now):
        if now >= self.refresh_ns:
            return self.refresh(now)
        line, kind = self.choice(now)[2:]
        bank = line[1]
        self.commands.append((now, kind, bank))
        self.bus_ns = now + self.t.clock_ns
        if kind == "ACT":
            self.open_row[bank], self.hits[bank] = line[2], 0
        elif kind == "PRE":
            self.open_row[bank] = None
        else:
            self.hits[bank] += line != self.queue(bank)[0]
            self.queued.remove(line)
            return line[4], now + (self.t.cl_ns if kind == "RD" else self.t.cwl_ns) + self.line_ns
        return None

    def choice(self, now):
        """When the next command is issued, its line's order, its line and its kind: a refresh has neither."""
        least = max(now, self.bus_ns)
        if least >= self.refresh_ns:
            return least, 0, None, "REF"
        found = []
        for bank, row in self.open_row.items():
            if queue := self.queue(bank):
                hits = [line for line in queue if line[2] == row]
                line = hits[0] if hits and self.hits[bank] < self.t.row_hits else queue[0]
                kind = "ACT" if row is None else "PRE" if line[2] != row else "WR" if line[3] else "RD"
                found.append((max(least, self.allowed_ns(kind, bank)), line[0], line, kind))
        if not found:
            return None
        if min(found)[0] >= self.refresh_ns:
            return max(least, self.refresh_ns), 0, None, "REF"
        return min(found)

    def allowed_ns(self, kind, bank):
        t, data = self.t, self.line_ns
        of_bank = {
            ("ACT", "ACT"): t.ras_ns + t.rp_ns, ("ACT", "RD"): t.rcd_ns, ("ACT", "WR"): t.rcd_ns,
            ("ACT", "PRE"): t.ras_ns, ("PRE", "ACT"): t.rp_ns, ("RD", "PRE"): t.rtp_ns,
            ("WR", "PRE"): t.cwl_ns + data + t.wr_ns, ("REF", "ACT"): t.rfc_ns,
        }  # fmt: skip
        earliest = [at + of_bank[first, kind] for at, first, other in self.commands
                    if other == bank and (first, kind) in of_bank]  # fmt: skip
        for first in ("ACT", "RD", "WR"):
            of_kind = [(at, other) for at, command, other in self.commands if command == first]
            for at, other in of_kind:
                earliest.append(
                    at + self.distance(first, kind, bank // t.banks_per_group == other // t.banks_per_group)
                )
            if first == kind == "ACT" and len(of_kind) >= 4:
                earliest.append(of_kind[-4][0] + t.faw_ns)
        return max(earliest, default=float("-inf"))

    def distance(self, first, second, is_same_group):
        """The least time between commands to any two banks, where the standards ask one."""
        t, data = self.t, self.line_ns
        ccd, wtr, rrd = (t.ccd_l_ns, t.wtr_l_ns, t.rrd_l_ns) if is_same_group else (t.ccd_s_ns, t.wtr_s_ns, t.rrd_s_ns)
        return {
            ("RD", "RD"): max(data, ccd), ("WR", "WR"): max(data, ccd), ("WR", "RD"): t.cwl_ns + data + wtr,
            ("RD", "WR"): t.cl_ns + data + 2 * t.clock_ns - t.cwl_ns, ("ACT", "ACT"): rrd,
        }.get((first, second), float("-inf"))  # fmt: skip

    def close_rows(self):
        self.open_row = dict.fromkeys(self.open_row)

    def refresh(self, now):
        """All rows are closed, then all banks are busy for tRFC."""
        closed = [self.allowed_ns("PRE", bank) + self.t.rp_ns for bank, row in self.open_row.items() if row is not None]
        start = max([now, *closed])
        self.close_rows()
        self.commands += [(start, "REF", bank) for bank in self.open_row]
        self.bus_ns = start + self.t.rfc_ns
        while self.refresh_ns <= now:
            self.refresh_ns += self.t.refi_ns
