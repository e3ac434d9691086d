"""Coefficients of energy and area in a machine description. None of them changes a simulated time.

A null coefficient takes the shipped value (`coefficients.py`), if there is one.
"""

from collections.abc import Mapping
from typing import Annotated

from kernbench.topology.readers import number
from kernbench.topology.record import Record

Picojoules = Annotated[float, number(0.0, 1e6)]
Watts = Annotated[float, number(0.0, 1e4)]
SquareMm = Annotated[float, number(0.0, 1e6)]


class PjPerByte(Record):
    """Energy per byte and link traversed (noc, ucie, pcie), and per byte read or written (hbm, sram, tcm)."""

    noc: Picojoules | None
    ucie: Picojoules | None
    pcie: Picojoules | None
    hbm: Picojoules | None
    sram: Picojoules | None
    tcm: Picojoules | None


class EnergySpec(Record):
    pj_per_mac: Mapping[str, Picojoules | None]  # by dtype
    pj_per_vector_op: Mapping[str, Picojoules | None]
    pj_per_byte: PjPerByte
    static_w: Mapping[str, Watts]  # kind of block -> static power of one such block


class Mm2PerMib(Record):
    tcm: SquareMm | None
    sram: SquareMm | None


class AreaSpec(Record):
    mm2: Mapping[str, SquareMm]  # kind of block -> area of one such block
    mm2_per_mib: Mm2PerMib
