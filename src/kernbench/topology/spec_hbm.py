"""How the HBM channels of a machine are modelled, as checked data: a model, a preset of a kind of memory, and values of
its own that take the preset's place.

`flat`: a burst takes its bytes over the sustained bandwidth of a channel; one that is not full takes its granules.
`closed`: so, and a burst that is not full and opens a row takes at least a quarter of the four-activate window;
reads and writes are separated by a controller that collects writes; refresh takes its share.
`banks`: rows, banks and the queues of a controller, command by command (`common/bank_timing.py`).
"""

from typing import Annotated, Literal, NamedTuple

from kernbench.common.bank_timing import GDDR6, HBM2, HBM2E, HBM3, BankTiming
from kernbench.topology.readers import choice, number, power_of_two, whole
from kernbench.topology.record import Record

Ns = Annotated[float, number(0.0, 1e6)]
Model = Literal["flat", "closed", "banks"]
PresetName = Literal["hbm2", "hbm2e", "hbm3", "gddr6"]


class HbmTiming(NamedTuple):
    """What is known of a kind of memory."""

    granule_bytes: int
    sustained: float  # share of the peak that long reads get, for the model `flat`
    faw_ns: float  # at most four rows are opened within this time
    turnaround_ns: float  # the bus is idle for so long when it is turned to writes and back
    drain_bytes: int  # writes that are collected before it is turned
    rfc_ns: float  # a refresh of all banks takes this long
    refi_ns: float  # and is due so often


# A turnaround is tWTR_L + CL + 2 clocks: from the end of the last write's data to the read command, to its data, and
# two clocks between the data of a read and of a write. 32 lines of 64 B are collected: DRAMsim3's transaction queue.
_DRAIN_BYTES = 32 * 64
PRESETS: dict[str, HbmTiming] = {
    # DRAMsim3 2981759, configs/HBM2_8Gb_x128.ini: tCK 1 ns; 128 bits x BL 4 = 64 B; CL 14, tWTR_L 8, tFAW 30, tRFC 260,
    # tREFI 3900. Sustained: its own 0.92 of the peak for sequential reads.
    "hbm2": HbmTiming(granule_bytes=64, sustained=0.92, faw_ns=30.0, turnaround_ns=24.0, drain_bytes=_DRAIN_BYTES,
                      rfc_ns=260.0, refi_ns=3900.0),
    # ramulator2 c5b1c3a, python/ramulator/dram/hbm2.py, 2400 Mbit/s (0.833 ns): CL 17, tWTR_L 10, tFAW 15 ns; pseudo
    # channels of 8 Gb (JESD235D): tRFC 350 ns, tREFI 3.9 us. 64 bits x BL 4 = 32 B, read in pairs by caches of 64 B.
    # Sustained: by the rate of refresh.
    "hbm2e": HbmTiming(granule_bytes=64, sustained=0.91, faw_ns=15.0, turnaround_ns=24.2, drain_bytes=_DRAIN_BYTES,
                       rfc_ns=350.0, refi_ns=3900.0),
    # ramulator2 c5b1c3a, python/ramulator/dram/hbm3.py, 6400 Mbit/s (0.625 ns): CL 20, tWTR_L 10, tFAW 24; pseudo
    # channels of 8 Gb (JESD238, table 84): tRFC 350 ns, tREFI 3.9 us. 32 bits x BL 8 = 32 B; an H200 reads pairs of
    # them. Sustained: 0.85 to 0.90 measured on an H200 (validation set `memory`).
    "hbm3": HbmTiming(granule_bytes=64, sustained=0.87, faw_ns=15.0, turnaround_ns=20.0, drain_bytes=_DRAIN_BYTES,
                      rfc_ns=350.0, refi_ns=3900.0),
    # DRAMsim3 2981759, configs/GDDR6_8Gb_x16.ini: tCK 0.66 ns; 16 bits x BL 16 = 32 B; CL 24, tWTR_L 7, tFAW 32,
    # tRFC 126, tREFI 11862 clocks. Sustained: by the rate of refresh.
    "gddr6": HbmTiming(granule_bytes=32, sustained=0.98, faw_ns=21.12, turnaround_ns=21.78, drain_bytes=_DRAIN_BYTES,
                       rfc_ns=83.16, refi_ns=7828.92),
}  # fmt: skip


BANKS: dict[str, BankTiming] = {"hbm2": HBM2, "hbm2e": HBM2E, "hbm3": HBM3, "gddr6": GDDR6}


class HbmSpec(Record):
    """Null values are those of the preset; without one they are neutral: whole bursts, no losses."""

    model: Annotated[Model, choice("flat", "closed", "banks")] = "flat"
    preset: Annotated[PresetName, choice(*PRESETS)] | None = None
    granule_bytes: Annotated[int, power_of_two(16, 65536)] | None = None
    efficiency: Annotated[float, number(0.001, 1.0)] | None = None  # beside that of hbm_ctrl, and beside refresh
    faw_ns: Ns | None = None
    turnaround_ns: Ns | None = None
    drain_bytes: Annotated[int, whole(64, 1 << 20)] | None = None
    rfc_ns: Ns | None = None
    refi_ns: Annotated[float, number(1.0, 1e9)] | None = None

    @property
    def timing(self) -> HbmTiming:
        """The preset with the values that are given; what is neither given nor preset is neutral."""
        base = PRESETS.get(self.preset or "", _NEUTRAL)
        given = {name: getattr(self, name) for name in HbmTiming._fields if name != "sustained"}
        return base._replace(**{name: value for name, value in given.items() if value is not None})

    @property
    def banks(self) -> BankTiming | None:
        """The preset's banks, with the values that are given; None without one, or with another model."""
        base = BANKS.get(self.preset or "")
        if self.model != "banks" or base is None:
            return None
        given = {name: getattr(self, name) for name in ("faw_ns", "rfc_ns", "refi_ns")}
        return base._replace(**{name: value for name, value in given.items() if value is not None})

    @property
    def share(self) -> float:
        """The share of a channel's peak that is sustained, besides what turning and opening rows cost."""
        timing = self.timing
        if self.model == "flat":
            return timing.sustained if self.efficiency is None else self.efficiency
        if self.model == "banks":
            return 1.0
        return (1.0 if self.efficiency is None else self.efficiency) * (1.0 - timing.rfc_ns / timing.refi_ns)


_NEUTRAL = HbmTiming(
    granule_bytes=0, sustained=1.0, faw_ns=0.0, turnaround_ns=0.0, drain_bytes=_DRAIN_BYTES, rfc_ns=0.0, refi_ns=3900.0
)
