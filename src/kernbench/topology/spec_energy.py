"""Coefficients of energy and area in a machine description. None changes a time.

A coefficient that is null is the shipped one (`coefficients.py`), where there is one.
"""

from collections.abc import Mapping
from typing import Annotated

from kernbench.topology.readers import number
from kernbench.topology.record import Record

Picojoules = Annotated[float, number(0.0, 1e6)]
Watts = Annotated[float, number(0.0, 1e4)]
SquareMm = Annotated[float, number(0.0, 1e6)]


class PjPerByte(Record):
    """Per byte on a link of a kind, each time one is crossed; per byte read from or written to a memory."""

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
    static_w: Mapping[str, Watts]  # by kind of block, for each of them


class Mm2PerMib(Record):
    tcm: SquareMm | None
    sram: SquareMm | None


class AreaSpec(Record):
    mm2: Mapping[str, SquareMm]  # by kind of block, for each of them
    mm2_per_mib: Mm2PerMib
