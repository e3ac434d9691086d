"""Coefficients of energy, power, area and cost, and limits, in a machine description. None changes a simulated time.

A null coefficient takes the shipped value (`coefficients.py`), if there is one.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from kernbench.topology.readers import choice, number
from kernbench.topology.record import Record

Picojoules = Annotated[float, number(0.0, 1e6)]
Watts = Annotated[float, number(0.0, 1e4)]
Positive = Annotated[float, number(0.0, 1e9)]
SquareMm = Annotated[float, number(0.0, 1e6)]


class PjPerByte(Record):
    """Energy per byte and link traversed (noc, ucie, pcie), and per byte read or written (hbm, sram, tcm, far)."""

    noc: Picojoules | None
    ucie: Picojoules | None
    pcie: Picojoules | None
    hbm: Picojoules | None
    sram: Picojoules | None
    tcm: Picojoules | None
    far: Picojoules | None = None


class EnergySpec(Record):
    pj_per_mac: Mapping[str, Picojoules | None]  # by dtype
    pj_per_vector_op: Mapping[str, Picojoules | None]
    pj_per_byte: PjPerByte
    static_w: Mapping[str, Watts]  # kind of block -> static power of one such block


class Mm2PerMib(Record):
    tcm: SquareMm | None
    sram: SquareMm | None


class PerF16(Record):
    f16: Positive | None


class Mm2PerGbs(Record):
    """Area per GB/s of one direction: PHYs with their controllers; the NoC's share of a PE's port; a link that leaves a
    router; ports of TCM and SRAM. `far` is the PHY of an IO chiplet to its far memory, `pcie` also that of direct links
    between SIPs.
    """

    hbm: Positive | None
    ucie: Positive | None
    pcie: Positive | None
    noc: Positive | None
    far: Positive | None = None
    router: Positive | None = None
    tcm: Positive | None = None
    sram: Positive | None = None


class MmPerGbs(Record):
    """The edge of a die per GB/s of one direction."""

    hbm: Positive | None
    ucie: Positive | None
    pcie: Positive | None
    far: Positive | None = None


class AreaSpec(Record):
    mm2: Mapping[str, SquareMm]  # kind of block -> area of one such block
    mm2_per_mib: Mm2PerMib
    um2_per_mac: PerF16
    um2_per_lane: PerF16
    mm2_per_gbs: Mm2PerGbs
    mm_per_gbs: MmPerGbs
    unattributed_share: Annotated[float, number(0.0, 0.9)] | None
    hbm_place: Annotated[Literal["stacked", "edge", "sram"], choice("stacked", "edge", "sram")] | None
    die: Annotated[Literal["cube", "sip"], choice("cube", "sip")] = "cube"

    @property
    def hbm_is_sram(self) -> bool:
        """Whether what is described as HBM stands for arrays of SRAM on the die."""
        return self.hbm_place == "sram"


class PowerSpec(Record):
    static_w_per_mm2: Positive | None
    far_w_per_gb: Positive | None = None


class CostSpec(Record):
    wafer_usd: Positive | None
    wafer_mm: Annotated[float, number(50.0, 1000.0)]
    defects_per_cm2: Positive | None
    yield_alpha: Annotated[float, number(0.1, 1e3)] | None
    package_usd_per_mm2: Positive | None
    memory_usd_per_gb: Positive | None
    far_usd_per_gb: Positive | None = None


class LimitsSpec(Record):
    """What a design may not exceed; null: not checked."""

    sip_w: Positive | None
    die_mm2: Positive | None
    edge_share: Positive | None
    cost_usd: Positive | None
