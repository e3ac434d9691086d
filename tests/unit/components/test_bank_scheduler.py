"""Banks of a memory channel: commands at the times that the standards allow, by hand and for random lines."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.bank_timing import HBM2
from kernbench.components.builtin.bank_loop import ROW
from kernbench.components.builtin.bank_scheduler import BankScheduler, MemoryLine
from kernbench.topology.spec_hbm import BANKS

LINE_NS = 2.0


def lines(*places, is_write=False):
    return [MemoryLine(bank, row, is_write, tag=at) for at, (bank, row) in enumerate(places)]


def served(given, timing=HBM2, scheduler=None):
    """All lines, taken in order as room is; returns (line, done) in the order of service."""
    scheduler = scheduler or BankScheduler(timing, LINE_NS)
    waiting, now, found = list(given)[::-1], 0.0, []
    while True:
        while waiting and scheduler.has_room(waiting[-1].is_write):
            scheduler.add(waiting.pop())
        due = scheduler.next_ns(now)
        if due is None:
            return found
        assert due >= now
        now = due
        issued = scheduler.issue(now)
        if issued is not None:
            found.append((issued.line, issued.done_ns))


def times(given, timing=HBM2):
    return [done for _, done in served(given, timing)]


def test_a_lone_read_opens_its_row_and_waits_for_its_data():
    assert times(lines((0, 0))) == [14 + 14 + 2]  # tRCD, CL, the data


@pytest.mark.parametrize("preset", BANKS)
def test_every_preset_opens_reads_and_closes_rows_at_its_own_times(preset):
    t = BANKS[preset]
    read_ns = t.rcd_ns + t.cl_ns + LINE_NS
    assert times(lines((0, 0)), t) == pytest.approx([read_ns])
    conflict_ns = max(t.ras_ns, t.rcd_ns + t.rtp_ns) + t.rp_ns + read_ns
    assert times(lines((0, 0), (0, 1)), t) == pytest.approx([read_ns, conflict_ns])
    opened = times(lines(*((bank, 0) for bank in (0, 4, 8, 12, 1))), t)
    assert opened[4] == pytest.approx(max(t.faw_ns, 4 * t.rrd_s_ns) + read_ns)


def test_lines_of_an_open_row_follow_one_another_on_the_bus():
    assert times(lines((0, 0), (0, 0), (0, 0))) == [30, 32, 34]


def test_another_row_of_a_bank_waits_for_tras_trp_and_trcd():
    assert times(lines((0, 0), (0, 1))) == [30, 34 + 14 + 14 + 14 + 2]


def test_another_bank_is_opened_meanwhile():
    # of another group tRRD_S = 4 later; its data follow at once
    assert times(lines((0, 0), (4, 0))) == [30, 34]
    assert times(lines((0, 0), (1, 0))) == [30, 36]  # of the same group, tRRD_L = 6


def test_at_most_four_rows_are_opened_within_the_window():
    # activations of banks of four groups at 0, 4, 8, 12; the fifth at tFAW = 30
    assert times(lines((0, 0), (4, 0), (8, 0), (12, 0), (1, 0))) == [30, 34, 38, 42, 60]


def test_a_read_after_writes_waits_for_the_bus_to_turn():
    given = [*lines((0, 0), is_write=True)]
    assert times(given) == [14 + 4 + 2]  # tRCD, CWL, the data
    scheduler = BankScheduler(HBM2, LINE_NS)
    served(given, scheduler=scheduler)
    scheduler.add(MemoryLine(0, 0, False))
    # the write was issued at 14; write to read in one group is CWL + data + tWTR_L = 14
    assert scheduler.next_ns(20.0) == 14 + 14


def test_writes_wait_while_there_is_something_to_read_and_the_buffer_has_room():
    given = [*lines((0, 0), is_write=True), *lines((4, 0), (4, 0))]
    assert [line.is_write for line, _ in served(given)] == [False, False, True]


def test_a_full_buffer_is_drained_before_further_reads():
    small = HBM2._replace(write_buffer=2, bank_queue=1)
    given = [*lines((0, 0), (1, 0), is_write=True), *lines((4, 0), (5, 0), (6, 0))]
    order = [line.is_write for line, _ in served(given, small)]
    assert order[:2] == [True, True]


def test_hits_of_an_open_row_go_first_up_to_a_limit():
    limited = HBM2._replace(row_hits=2)
    given = lines((0, 0), (0, 1), (0, 0), (0, 0), (0, 0))
    assert [line.row for line, _ in served(given, limited)] == [0, 0, 0, 1, 0]
    assert [line.row for line, _ in served(given)] == [0, 0, 0, 0, 1]


def test_a_refresh_closes_all_rows_for_trfc():
    scheduler = BankScheduler(HBM2._replace(refi_ns=100.0), LINE_NS)
    scheduler.add(MemoryLine(0, 0, False))
    assert scheduler.next_ns(99.0) == 99.0
    scheduler.issue(99.0)  # opens the row
    assert scheduler.next_ns(100.0) == 100.0
    assert scheduler.issue(100.0) is None
    # the row may be closed at 99 + tRAS, which takes tRP, then tRFC
    assert scheduler.next_ns(100.0) == 99 + 34 + 14 + 260


def test_refreshes_that_were_due_while_it_was_idle_cost_nothing():
    scheduler = BankScheduler(HBM2, LINE_NS)
    scheduler.resume(1e6)
    scheduler.add(MemoryLine(0, 0, False))
    assert scheduler.next_ns(1e6) == 1e6
    assert scheduler.issue(1e6) is None
    assert scheduler.next_ns(1e6) == 1e6 + 14


class Logged(BankScheduler):
    """Notes its commands."""

    def __init__(self, timing, line_ns):
        super().__init__(timing, line_ns)
        self.log = []

    def open_rows(self):
        return [bank[ROW] for bank in self._banks]

    def issue(self, now):
        before = self.open_rows()
        issued = super().issue(now)
        for number, (row, opened) in enumerate(zip(before, self.open_rows(), strict=True)):
            if issued is not None and issued.line.bank == number:
                self.log.append((now, "WR" if issued.line.is_write else "RD", number))
            elif row < 0 <= opened:
                self.log.append((now, "ACT", number))
            elif opened < 0 <= row:
                self.log.append((now, "PRE", number))
        return issued


def least_ns(first, second, is_same_bank, is_same_group):
    """What the standards ask between two commands; 0 where nothing."""
    t, kinds = HBM2, (first, second)
    columns = {
        ("RD", "RD"): max(LINE_NS, t.ccd_l_ns if is_same_group else t.ccd_s_ns),
        ("WR", "WR"): max(LINE_NS, t.ccd_l_ns if is_same_group else t.ccd_s_ns),
        ("WR", "RD"): t.cwl_ns + LINE_NS + (t.wtr_l_ns if is_same_group else t.wtr_s_ns),
        ("RD", "WR"): t.cl_ns + LINE_NS + 2 - t.cwl_ns,
        ("ACT", "ACT"): t.rrd_l_ns if is_same_group else t.rrd_s_ns,
    }
    if is_same_bank:
        columns |= {
            ("ACT", "ACT"): t.ras_ns + t.rp_ns, ("ACT", "RD"): t.rcd_ns, ("ACT", "WR"): t.rcd_ns,
            ("ACT", "PRE"): t.ras_ns, ("PRE", "ACT"): t.rp_ns, ("RD", "PRE"): t.rtp_ns,
            ("WR", "PRE"): t.cwl_ns + LINE_NS + t.wr_ns,
        }  # fmt: skip
    return columns.get(kinds, t.clock_ns)


@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(0, 15), st.integers(0, 3), st.booleans()), min_size=1, max_size=60))
def test_random_lines_are_served_once_and_no_command_comes_too_early(given):
    scheduler = Logged(HBM2, LINE_NS)
    wanted = [MemoryLine(bank, row, is_write, tag=at) for at, (bank, row, is_write) in enumerate(given)]
    found = served(wanted, scheduler=scheduler)
    assert sorted(line.tag for line, _ in found) == list(range(len(wanted)))
    log = scheduler.log
    for at, (t, kind, bank) in enumerate(log):
        for earlier, first, other in log[max(0, at - 80) : at]:
            least = least_ns(first, kind, other == bank, other // 4 == bank // 4)
            assert t - earlier >= least, (first, other, earlier, kind, bank, t)
    opened = [t for t, kind, _ in log if kind == "ACT"]
    assert all(fifth - first >= HBM2.faw_ns for first, fifth in zip(opened, opened[4:], strict=False))


def test_streams_that_meet_on_one_bank_close_its_row_for_every_block():
    """Four streams of blocks of four lines in one bank: tRAS + tRP = 48 ns for a block, of which 8 have data; and
    refresh takes 260 of every 3900 ns.
    """
    blocks = [MemoryLine(0, stream, False) for _ in range(64) for stream in range(4) for _ in range(4)]
    share = len(blocks) * LINE_NS / times(blocks)[-1]
    assert share == pytest.approx(8 / 48 * (1 - 260 / 3900), abs=0.003)
