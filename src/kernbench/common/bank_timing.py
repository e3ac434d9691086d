"""The banks of a memory channel, and the least times between commands: `hbm: {model: banks}`."""

from __future__ import annotations

from typing import NamedTuple


class BankTiming(NamedTuple):
    """Names are those of the standards, in ns: `rcd_ns` is tRCD, for reads and writes alike."""

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
# ramulator2 0aba192, python/ramulator/dram/hbm2.py, 2400 Mbit/s: tCK 0.833 ns, 4 groups of 4 banks per pseudo channel,
# rows of 32 columns x 32 B, lines of 64 bits x BL 4; CL 17, CWL 6, RCDRD 17, RP 17, RAS 40, CCDS 2, CCDL 4, WTRS 8,
# WTRL 10, RTPL 6, WR 19 clocks; tRRD 4 ns, tFAW 15 ns, tRFC 350 ns (8 Gb), tREFI 3.9 us.
HBM2E = BankTiming(
    clock_ns=0.833, banks=16, banks_per_group=4, row_bytes=1024, line_bytes=32, cl_ns=17 * 0.833, cwl_ns=6 * 0.833,
    rcd_ns=17 * 0.833, rp_ns=17 * 0.833, ras_ns=40 * 0.833, rrd_s_ns=4.165, rrd_l_ns=4.165, ccd_s_ns=2 * 0.833,
    ccd_l_ns=4 * 0.833, wtr_s_ns=8 * 0.833, wtr_l_ns=10 * 0.833, rtp_ns=6 * 0.833, wr_ns=19 * 0.833, faw_ns=15.0,
    rfc_ns=350.0, refi_ns=3900.0,
)  # fmt: skip
# The same, hbm3.py, 6400 Mbit/s: tCK 0.625 ns, lines of 32 bits x BL 8; CL 26, CWL 8, RCDRD 26, RP 26, RAS 48, CCDS 2,
# CCDL 4, WTRS 8, WTRL 12, RTP 6, WR 24 clocks; tRRD 5 ns, tFAW 15 ns, tRFC 350 ns (pseudo channels of 4 Gb).
HBM3 = BankTiming(
    clock_ns=0.625, banks=16, banks_per_group=4, row_bytes=1024, line_bytes=32, cl_ns=26 * 0.625, cwl_ns=8 * 0.625,
    rcd_ns=26 * 0.625, rp_ns=26 * 0.625, ras_ns=48 * 0.625, rrd_s_ns=5.0, rrd_l_ns=5.0, ccd_s_ns=2 * 0.625,
    ccd_l_ns=4 * 0.625, wtr_s_ns=8 * 0.625, wtr_l_ns=12 * 0.625, rtp_ns=6 * 0.625, wr_ns=24 * 0.625, faw_ns=15.0,
    rfc_ns=350.0, refi_ns=3900.0,
)  # fmt: skip
# ramulator2 525d045, src/dram/impl/GDDR6.cpp, GDDR6_2000_1350mV_double and GDDR6_8Gb_x16: tCK 0.57 ns, 4 groups of 4
# banks, rows of 1024 columns x 16 bits, lines of 16 bits x BL 16; CL 24, CWL 6, RCDRD 26, RP 26, RAS 53, RRD 7, CCDS 4,
# CCDL 6, WTRS 9, WTRL 11, RTP 4, WR 26, FAW 28 clocks. Refresh as in the preset of the model `closed`.
GDDR6 = BankTiming(
    clock_ns=0.57, banks=16, banks_per_group=4, row_bytes=2048, line_bytes=32, cl_ns=24 * 0.57, cwl_ns=6 * 0.57,
    rcd_ns=26 * 0.57, rp_ns=26 * 0.57, ras_ns=53 * 0.57, rrd_s_ns=7 * 0.57, rrd_l_ns=7 * 0.57, ccd_s_ns=4 * 0.57,
    ccd_l_ns=6 * 0.57, wtr_s_ns=9 * 0.57, wtr_l_ns=11 * 0.57, rtp_ns=4 * 0.57, wr_ns=26 * 0.57, faw_ns=28 * 0.57,
    rfc_ns=83.16, refi_ns=7828.92,
)  # fmt: skip
