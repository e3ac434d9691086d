"""The banks of a memory channel, and the least times between commands: `hbm: {model: banks}`."""

from __future__ import annotations

from typing import NamedTuple


class BankTiming(NamedTuple):
    """Names are those of the standards, in ns: `rcd_ns` is tRCD."""

    clock_ns: float
    banks: int
    banks_per_group: int
    row_bytes: int
    line_bytes: int
    cl_ns: float
    cwl_ns: float
    rcd_ns: float
    rp_ns: float
    ras_ns: float
    rrd_s_ns: float
    rrd_l_ns: float
    ccd_s_ns: float
    ccd_l_ns: float
    wtr_s_ns: float
    wtr_l_ns: float
    rtp_ns: float
    wr_ns: float
    faw_ns: float
    rfc_ns: float
    refi_ns: float
    read_queue: int = 32
    write_buffer: int = 32
    bank_queue: int = 8
    row_hits: int = 8


# DRAMsim3 2981759, configs/HBM2_8Gb_x128.ini: tCK 1 ns, 4 groups of 4 banks, rows of 2 KiB, lines of 128 bits x BL 4.
HBM2 = BankTiming(
    clock_ns=1.0, banks=16, banks_per_group=4, row_bytes=2048, line_bytes=64, cl_ns=14.0, cwl_ns=4.0, rcd_ns=14.0,
    rp_ns=14.0, ras_ns=34.0, rrd_s_ns=4.0, rrd_l_ns=6.0, ccd_s_ns=1.0, ccd_l_ns=2.0, wtr_s_ns=6.0, wtr_l_ns=8.0,
    rtp_ns=6.0, wr_ns=16.0, faw_ns=30.0, rfc_ns=260.0, refi_ns=3900.0,
)  # fmt: skip
