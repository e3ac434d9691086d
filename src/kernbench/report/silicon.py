"""Area of a machine's dies by block, the edge that PHYs take, and static power: amounts times coefficients with ranges.

A cube's die has MAC units, vector lanes and register files of its PEs, TCM and SRAM with periphery and ports, the PHYs
and controllers of HBM and UCIe, and the NoC; an IO chiplet has the PHYs of PCIe, UCIe, direct links between SIPs and
far memory (`silicon_amounts.py`). `area.mm2` by kind of block replaces the coefficients of that block. A share of each
die belongs to no named block (pads, clocks, test). The geometry of a description decides distances; whether the blocks
fit on its die is a warning of `kernbench compare`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import fsum

from kernbench.common.frozen import frozen
from kernbench.common.ids import Place
from kernbench.report.ranges import ZERO, FigureRange, exactly, range_of, total
from kernbench.report.silicon_amounts import (
    Amount,
    CubeOfType,
    cube_amounts,
    cube_phys_gbs,
    cubes_by_type,
    edge_key,
    has_hbm_at_edge,
    hbm_phys_gbs,
    io_amounts,
    io_phys,
    phy_amounts,
)
from kernbench.topology.coefficients import coefficient_of
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec

CUBE, SIP, IO = "cube", "sip", "io_chiplet"
LINKED = ("far", "sip")  # kinds of PHY that not all IO chiplets of a SIP have
# Kind of block -> the block whose coefficients it replaces when `area.mm2` gives its area.
REPLACES = {
    "pe_gemm": "macs",
    "pe_math": "lanes",
    "hbm_ctrl": "hbm_phy",
    "ucie": "ucie_phy",
    "io_ucie": "ucie_phy",
    "pcie_ep": "pcie_phy",
    "sip_port": "sip_phy",
    "noc_router": "noc",
    "pe_tcm": "tcm",
    "pe_fetch_store": "buffers",
    "sram": "sram",
}
_OUTSIDE = ("host", "switch")
_WITH_OTHERS = (
    "pe_cpu",
    "pe_scheduler",
    "pe_dma",
    "ucie_conn",
    "io_noc",
    "io_ucie_conn",
    "channel_router",
)


@frozen
class Die:
    """One kind of die: the area of its blocks, and the part of its edge that PHYs take."""

    name: str
    count: int  # in the whole machine
    blocks_mm2: Mapping[str, FigureRange]
    edge_mm: Mapping[str, FigureRange]
    edge_has_mm: float
    geometry_mm2: float

    @property
    def area_mm2(self) -> FigureRange:
        return total(self.blocks_mm2.values())

    @property
    def edge_share(self) -> FigureRange:
        return total(self.edge_mm.values()) * (1 / self.edge_has_mm)


@frozen
class Area:
    """Area of a machine in mm2: dies as drawn in the geometry, and the blocks of all dies, with ranges."""

    dies_mm2: float
    blocks: Mapping[str, FigureRange]
    not_counted: tuple[str, ...]

    @property
    def blocks_mm2(self) -> Mapping[str, float]:
        return {name: area.value for name, area in self.blocks.items()}

    @property
    def counted(self) -> FigureRange:
        return total(self.blocks.values())

    @property
    def counted_mm2(self) -> float:
        return self.counted.value

    def as_json(self) -> dict[str, object]:
        counted = self.counted
        return {
            "dies_mm2": self.dies_mm2,
            "blocks_mm2": dict(self.blocks_mm2),
            "counted_mm2": counted.value,
            "low_mm2": counted.low,
            "high_mm2": counted.high,
            "not_counted": list(self.not_counted),
        }


def area_of(graph: TopologyGraph) -> Area:
    """The silicon of a machine."""
    blocks: dict[str, FigureRange] = {}
    dies = dies_of(graph)
    for die in dies:
        for name, area in die.blocks_mm2.items():
            blocks[name] = blocks.get(name, ZERO) + area * die.count
    return Area(fsum(die.geometry_mm2 * die.count for die in dies), blocks, not_counted(graph.spec))


def not_counted(spec: MachineSpec) -> tuple[str, ...]:
    """Kinds of block without an area of their own. The control of a PE is counted with its vector lanes."""
    known = {*spec.area.mm2, *REPLACES, *_OUTSIDE, *_WITH_OTHERS}
    kinds = sorted({kind for _, kind, _ in spec.components()} - known)
    return tuple(f"area.mm2.{kind}" for kind in kinds)


@lru_cache(maxsize=4)  # bounded: a sweep has many machines
def dies_of(graph: TopologyGraph) -> tuple[Die, ...]:
    """The dies with cubes, one for each type, and then those of IO chiplets."""
    return (*cube_dies_of(graph), *_io_dies(graph))


def cube_dies_of(graph: TopologyGraph) -> tuple[Die, ...]:
    """The die of each type of cube, or with `area.die: sip` the die of each kind of SIP, which has all its cubes."""
    spec, cubes = graph.spec, cubes_by_type(graph.spec)
    if spec.area.die == "sip":
        kinds = Counter(tuple(spec.type_counts(sip).items()) for sip in range(spec.n_sips))
        return tuple(
            _die(graph, SIP if len(kinds) == 1 else f"{SIP} {n}", count, [(cubes[name], k) for name, k in kind])
            for n, (kind, count) in enumerate(kinds.items())
        )
    return tuple(
        _die(graph, f"{CUBE} {name}" if name else CUBE, count, [(cubes[name], 1)])
        for name, count in spec.type_counts().items()
    )


def _die(graph: TopologyGraph, title: str, count: int, cubes: Sequence[tuple[CubeOfType, int]]) -> Die:
    """A die with so many cubes of each type."""
    spec, size, mesh = graph.spec, graph.spec.cube.geometry.cube_mm, graph.spec.sip.cube_mesh
    across, down = (mesh.w, mesh.h) if spec.area.die == "sip" else (1, 1)
    amounts = [
        amount._replace(amount=amount.amount * times) for of, times in cubes for amount in cube_amounts(graph, of)
    ]
    phys = {"ucie": fsum(times * cube_phys_gbs(graph, of) for of, times in cubes)}
    edge = dict(phys)
    if has_hbm_at_edge(spec):
        edge["hbm"] = fsum(times * hbm_phys_gbs(graph, of) for of, times in cubes)
    counts: Counter[str] = Counter()
    for of, times in cubes:
        for kind, number in _kinds(graph, Place(of.sip, of.cube)).items():
            counts[kind] += number * times
    blocks = _blocks(spec, [*amounts, *phy_amounts(phys)], counts)
    edge_mm = 2 * (size.w * across + size.h * down)
    return Die(title, count, blocks, _edges(spec, edge), edge_mm, size.w * size.h * across * down)


def _io_dies(graph: TopologyGraph) -> tuple[Die, ...]:
    """The dies of IO chiplets. Where only some of a SIP have links to far memory or to other SIPs, those are dies of
    their own.
    """
    spec, size = graph.spec, graph.spec.io_chiplet.size_mm
    kinds: dict[tuple[str, ...], list[str]] = {}
    for chiplet in spec.sip.io_chiplets:
        kinds.setdefault(tuple(kind for kind in LINKED if kind in io_phys(graph, chiplet.id)), []).append(chiplet.id)
    found = []
    for linked, (io, *others) in sorted(kinds.items()):
        title = IO if len(kinds) == 1 else " ".join((IO, *linked))
        blocks = _blocks(spec, io_amounts(graph, io), _kinds(graph, Place(sip=0, io=io)))
        edges, count = _edges(spec, io_phys(graph, io)), spec.n_sips * (1 + len(others))
        found.append(Die(title, count, blocks, edges, 2 * (size.w + size.h), size.w * size.h))
    return tuple(found)


def static_w(graph: TopologyGraph) -> FigureRange:
    """Idle power of all dies of the machine and of its far memory."""
    area = total(die.area_mm2 * die.count for die in dies_of(graph))
    per_mm2 = coefficient_range(graph.spec, "power.static_w_per_mm2")
    return area.times(per_mm2) + far_w(graph.spec)


def far_w(spec: MachineSpec) -> FigureRange:
    """Idle power of all far memory."""
    return coefficient_range(spec, "power.far_w_per_gb") * spec.system.far_gb


# ------------------------------------------------------------------------------------------------------------- blocks


def _blocks(spec: MachineSpec, amounts: Iterable[Amount], counts: Mapping[str, int]) -> dict[str, FigureRange]:
    """The area of each block of one die: given by its kind, or its amounts times their coefficients."""
    given = spec.area.mm2
    replaced = {REPLACES[kind] for kind in given if kind in REPLACES}
    found: dict[str, FigureRange] = {}
    for block, key, amount in amounts:
        if block not in replaced:
            found[block] = found.get(block, ZERO) + coefficient_range(spec, key) * amount
    found |= {kind: exactly(mm2 * counts[kind]) for kind, mm2 in sorted(given.items()) if kind in counts}
    share, counted = coefficient_range(spec, "area.unattributed_share"), total(found.values())
    found["unattributed"] = FigureRange(
        counted.low * share.low / (1 - share.low),
        counted.value * share.value / (1 - share.value),
        counted.high * share.high / (1 - share.high),
    )
    return found


def _kinds(graph: TopologyGraph, place: Place) -> Counter[str]:
    """How many blocks of each kind a cube or an IO chiplet has."""
    return Counter(
        node.kind
        for node in graph.nodes.values()
        if (node.place.sip, node.place.cube, node.place.io) == (place.sip, place.cube, place.io)
    )


def _edges(spec: MachineSpec, gbs: Mapping[str, float]) -> dict[str, FigureRange]:
    return {name: coefficient_range(spec, edge_key(name)) * amount for name, amount in gbs.items()}


def coefficient_range(spec: MachineSpec, key: str) -> FigureRange:
    """A coefficient of the machine by its key, as a range."""
    found = coefficient_of(spec, key)
    assert found is not None, f"{key} is shipped"
    return range_of(found)
