"""What a machine costs in US dollars: dies by wafer price and yield, the package by area, HBM and far memory by the GB.

Dies per wafer are those of a round wafer (area over area, less those cut by the rim), yield is the negative binomial
model: (1 + area x defects / alpha) ** -alpha. SRAM is paid with its die. Test, substrate, boards, controllers of far
memory, cooling, masks, design and margins are not counted. The low end takes every parameter and area at the end that
makes the machine cheaper, the high end the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import pi, sqrt

from kernbench.common.frozen import frozen
from kernbench.report.ranges import FigureRange, total
from kernbench.report.silicon import Die, coefficient_range, dies_of
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec

MM2_PER_CM2 = 100.0


@frozen
class Price:
    """Dollars of a machine by part (`cube`, `io_chiplet`, `package`, `memory`, `far_memory`), and yields of dies."""

    usd: Mapping[str, FigureRange]
    yields: Mapping[str, FigureRange]

    @property
    def total_usd(self) -> FigureRange:
        return total(self.usd.values())

    def as_json(self) -> dict[str, object]:
        return {
            "total": self.total_usd.as_json(),
            "parts": {name: part.as_json() for name, part in self.usd.items()},
            "yields": {name: part.as_json() for name, part in self.yields.items()},
        }


def price_of(graph: TopologyGraph) -> Price:
    """The price of a machine."""
    spec, dies = graph.spec, dies_of(graph)
    usd = {die.name: _die_usd(spec, die) * die.count for die in dies}
    area = total(die.area_mm2 * die.count for die in dies)
    usd["package"] = area.times(coefficient_range(spec, "cost.package_usd_per_mm2"))
    gigabytes = 0.0 if spec.area.hbm_is_sram else float(spec.sum_over_cubes(lambda cube: cube.hbm_gb))
    usd["memory"] = coefficient_range(spec, "cost.memory_usd_per_gb") * gigabytes
    if spec.system.far_gb:
        usd["far_memory"] = coefficient_range(spec, "cost.far_usd_per_gb") * spec.system.far_gb
    return Price(usd, {die.name: _yield(spec, die) for die in dies})


def dies_per_wafer(die_mm2: float, wafer_mm: float) -> float:
    """Whole dies of that area on a round wafer; at least one where a square die of that area fits."""
    found = pi * wafer_mm**2 / 4 / die_mm2 - pi * wafer_mm / sqrt(2 * die_mm2)
    return max(found, 1.0) if 2 * die_mm2 <= wafer_mm**2 else 0.0


def yield_of(die_mm2: float, defects_per_cm2: float, alpha: float) -> float:
    """The share of dies without a defect, in the negative binomial model."""
    return float((1 + die_mm2 / MM2_PER_CM2 * defects_per_cm2 / alpha) ** -alpha)


def _yield(spec: MachineSpec, die: Die) -> FigureRange:
    defects, alpha = coefficient_range(spec, "cost.defects_per_cm2"), coefficient_range(spec, "cost.yield_alpha")
    area = die.area_mm2
    return FigureRange(
        yield_of(area.high, defects.high, alpha.high),
        yield_of(area.value, defects.value, alpha.value),
        yield_of(area.low, defects.low, alpha.low),
    )


def _die_usd(spec: MachineSpec, die: Die) -> FigureRange:
    wafer, mm, good, area = (
        coefficient_range(spec, "cost.wafer_usd"),
        spec.cost.wafer_mm,
        _yield(spec, die),
        die.area_mm2,
    )
    return FigureRange(
        _usd(wafer.low, area.low, mm, good.high),
        _usd(wafer.value, area.value, mm, good.value),
        _usd(wafer.high, area.high, mm, good.low),
    )


def _usd(wafer_usd: float, die_mm2: float, wafer_mm: float, good: float) -> float:
    """The price of a good die. One whose square is larger than a wafer takes a wafer, or as many as its area."""
    per_wafer = dies_per_wafer(die_mm2, wafer_mm) or min(1.0, pi * wafer_mm**2 / 4 / die_mm2)
    return wafer_usd / per_wafer / good
