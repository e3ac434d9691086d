"""Whether a design stays within `limits` of its description: power of a SIP, area and edge of a die, price.

A limit is compared with the value of a figure, not with the ends of its range; both are reported. A die that is larger
than the field of a scanner is warned of without a limit. Whether a model fits
memory and TCM is found by the run itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kernbench.common.frozen import frozen
from kernbench.report.energy import RunEnergy
from kernbench.report.price import Price, price_of
from kernbench.report.ranges import ZERO, FigureRange, exactly
from kernbench.report.silicon import Die, dies_of, far_w
from kernbench.report.static_power import static_power
from kernbench.runtime_api.launches import Launch
from kernbench.topology.graph import TopologyGraph

WATTS, MM2, USD = "W", "mm2", "USD"
RETICLE_MM2 = 26 * 33  # the exposure field of ASML's TWINSCAN scanners, in their data sheets: what one mask prints


@frozen
class Feasibility:
    """The figures that limits are compared with, and the reasons why a design is infeasible."""

    sip_w: FigureRange  # of the hottest launch, with static power
    static_w: FigureRange  # of the whole machine
    far_w: FigureRange  # of far memory alone
    dies: tuple[Die, ...]
    price: Price
    infeasible: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        dies: Mapping[str, object] = {
            die.name: {"count": die.count, "area_mm2": die.area_mm2.as_json(), "edge_share": die.edge_share.as_json()}
            for die in self.dies
        }
        return {
            "sip_w": self.sip_w.as_json(),
            "static_w": self.static_w.as_json(),
            "far_w": self.far_w.as_json(),
            "dies": dies,
            "price_usd": self.price.as_json(),
            "infeasible": list(self.infeasible),
            "warnings": list(self.warnings),
        }


def feasibility_of(
    graph: TopologyGraph, energy: RunEnergy | None = None, launches: tuple[Launch, ...] = ()
) -> Feasibility:
    """The figures of a machine, with the power of a run on it; without a run, power is static power."""
    spec = graph.spec
    hottest = max((_sip_w(each, launch) for each, launch in _pairs(energy, launches)), key=_value, default=ZERO)
    idle = static_power(graph)
    power = idle * (1 / spec.n_sips) + hottest
    dies, price = dies_of(graph), price_of(graph)
    reasons, warnings = tuple(_reasons(graph, power, dies, price)), tuple(_over_reticle(dies))
    return Feasibility(power, idle, far_w(spec), dies, price, reasons, warnings)


def _over_reticle(dies: tuple[Die, ...]) -> Iterator[str]:
    for die in dies:
        if die.area_mm2.value > RETICLE_MM2:
            yield (
                _over(
                    f"a die of kind {die.name} has",
                    die.area_mm2,
                    RETICLE_MM2,
                    MM2,
                    "26 x 33 mm, the field of a scanner",
                )
                + ": it is stitched from several fields, as on a wafer-scale part, or divided into dies"
            )


def _pairs(energy: RunEnergy | None, launches: tuple[Launch, ...]) -> Iterator[tuple[FigureRange, Launch]]:
    for each, launch in zip(energy.launches if energy is not None else (), launches, strict=False):
        if each.span_ns:
            yield each.work_j * (1e9 / each.span_ns), launch


def _sip_w(watts: FigureRange, launch: Launch) -> FigureRange:
    return watts * (1 / max(len(launch.sips), 1))


def _value(figure: FigureRange) -> float:
    return figure.value


def _reasons(graph: TopologyGraph, power: FigureRange, dies: tuple[Die, ...], price: Price) -> Iterator[str]:
    limits = graph.spec.limits
    if limits.sip_w is not None and power.value > limits.sip_w:
        yield _over("a SIP draws", power, limits.sip_w, WATTS, "limits.sip_w")
    for die in dies:
        if limits.die_mm2 is not None and die.area_mm2.value > limits.die_mm2:
            yield _over(f"a die of kind {die.name} has", die.area_mm2, limits.die_mm2, MM2, "limits.die_mm2")
        if limits.edge_share is not None and die.edge_share.value > limits.edge_share:
            percent = die.edge_share * 100
            unit = f"% of the edge of a die of kind {die.name}"
            yield _over("PHYs take", percent, limits.edge_share * 100, unit, "limits.edge_share")
    if limits.cost_usd is not None and price.total_usd.value > limits.cost_usd:
        yield _over("the machine costs", price.total_usd, limits.cost_usd, USD, "limits.cost_usd")


def _over(what: str, figure: FigureRange, limit: float, unit: str, key: str) -> str:
    spread = "" if figure == exactly(figure.value) else f" ({figure.low:,.0f} to {figure.high:,.0f})"
    return f"{what} {figure.value:,.0f} {unit}{spread}, more than {limit:,.10g} ({key})"
