"""Area of a machine's dies by block, the edge that PHYs take, and static power: amounts times coefficients with ranges.

A cube's die has MAC units and vector lanes of its PEs, TCM and SRAM with periphery, the PHYs and controllers of HBM and
UCIe, and the NoC; an IO chiplet has the PHYs of PCIe, UCIe and of a link to far memory. `area.mm2` by kind of block
replaces the coefficient of that block. A share of each die belongs to no named block (pads, clocks, test). The geometry
of a description decides distances; whether the blocks fit on its die is a warning of `kernbench compare`.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import fsum

from kernbench.common.frozen import frozen
from kernbench.common.ids import Place
from kernbench.components.builtin.product_cost import peak_macs
from kernbench.report.ranges import ZERO, Range, exactly, range_of, total
from kernbench.topology.coefficients import coefficient_of
from kernbench.topology.far_memory import far_chiplet
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_cube import CubeSpec
from kernbench.topology.spec_far import AT_SIP

CUBE, IO = "cube", "io_chiplet"
SIDES = 4
# Kind of block -> the block whose coefficient it replaces when `area.mm2` gives its area.
REPLACES = {
    "pe_gemm": "macs",
    "pe_math": "lanes",
    "hbm_ctrl": "hbm_phy",
    "ucie": "ucie_phy",
    "io_ucie": "ucie_phy",
    "pcie_ep": "pcie_phy",
    "noc_router": "noc",
    "pe_tcm": "tcm",
    "sram": "sram",
}
_OUTSIDE = ("host", "switch")
_WITH_OTHERS = ("pe_cpu", "pe_scheduler", "pe_dma", "pe_fetch_store", "ucie_conn", "io_ucie_conn", "channel_router")
MM2_PER_UM2 = 1e-6


@frozen
class Die:
    """One kind of die: the area of its blocks, and the part of its edge that PHYs take."""

    name: str
    count: int  # in the whole machine
    blocks_mm2: Mapping[str, Range]
    edge_mm: Mapping[str, Range]
    edge_has_mm: float
    geometry_mm2: float

    @property
    def area_mm2(self) -> Range:
        return total(self.blocks_mm2.values())

    @property
    def edge_share(self) -> Range:
        return total(self.edge_mm.values()) * (1 / self.edge_has_mm)


@frozen
class Area:
    """Area of a machine in mm2: dies as drawn in the geometry, and the blocks of all dies, with ranges."""

    dies_mm2: float
    blocks: Mapping[str, Range]
    not_counted: tuple[str, ...]

    @property
    def blocks_mm2(self) -> Mapping[str, float]:
        return {name: area.value for name, area in self.blocks.items()}

    @property
    def counted(self) -> Range:
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
    blocks: dict[str, Range] = {}
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


def dies_of(graph: TopologyGraph) -> tuple[Die, ...]:
    """The die of each type of cube, and then those of IO chiplets."""
    spec = graph.spec
    return (*(_cube_die(graph, name, count) for name, count in spec.type_counts().items()), *_io_dies(graph))


def _io_dies(graph: TopologyGraph) -> tuple[Die, ...]:
    """The die of an IO chiplet. Where only one of several has the link to far memory, that is a die of its own."""
    spec = graph.spec
    far, ids = spec.system.far_memory, [chiplet.id for chiplet in spec.sip.io_chiplets]
    gbs = far.bw_gbs if far is not None and far.at == AT_SIP else 0.0
    if not gbs or len(ids) == 1:
        return (_io_die(graph, IO, ids[0], len(ids), gbs),)
    linked = far_chiplet(spec)
    plain = next(name for name in ids if name != linked)
    return (_io_die(graph, IO, plain, len(ids) - 1, 0.0), _io_die(graph, f"{IO} far", linked, 1, gbs))


def _io_die(graph: TopologyGraph, name: str, io: str, per_sip: int, far_gbs: float) -> Die:
    spec = graph.spec
    size, ports = spec.io_chiplet.size_mm, _io_ports(graph, io)
    gbs = {"pcie": spec.system.links.io_ep_to_switch.bw_gbs, "ucie": ports * spec.io_chiplet.phy_bw_gbs}
    gbs |= {"far": far_gbs} if far_gbs else {}
    amounts = {f"{kind}_phy": (f"area.mm2_per_gbs.{kind}", amount) for kind, amount in gbs.items()}
    on_io = _blocks(graph, amounts, Place(sip=0, io=io))
    return Die(name, spec.n_sips * per_sip, on_io, _edges(spec, gbs), 2 * (size.w + size.h), size.w * size.h)


def _cube_die(graph: TopologyGraph, name: str, count: int) -> Die:
    """The die of one type of cube; types have the same blocks, in other sizes."""
    spec = graph.spec
    cube = spec.cube_types[name] if name else spec.cube
    on_die = _blocks(graph, _cube_amounts(cube), Place(0, 0))
    edge = {"ucie": SIDES * _port_gbs(cube)} | ({"hbm": _hbm_gbs(cube)} if spec.area.hbm_place == "edge" else {})
    size = cube.geometry.cube_mm
    title = f"{CUBE} {name}" if name else CUBE
    return Die(title, count, on_die, _edges(spec, edge), 2 * (size.w + size.h), size.w * size.h)


def static_w(graph: TopologyGraph) -> Range:
    """Idle power of all dies of the machine and of its far memory."""
    area = total(die.area_mm2 * die.count for die in dies_of(graph))
    per_mm2 = coefficient_range(graph.spec, "power.static_w_per_mm2")
    return area.times(per_mm2) + far_w(graph.spec)


def far_w(spec: MachineSpec) -> Range:
    """Idle power of all far memory."""
    return coefficient_range(spec, "power.far_w_per_gb") * spec.system.far_gb


# ------------------------------------------------------------------------------------------------------------ amounts


def _cube_amounts(cube: CubeSpec) -> dict[str, tuple[str, float]]:
    """Block -> its coefficient, and the amount on the die of a cube, in mm2 per unit of the coefficient."""
    parts = cube.pe_template.components
    macs = peak_macs(parts.pe_gemm) / parts.pe_gemm.number_attr("clock_ghz")
    lanes = parts.pe_math.number_attr("lanes_per_ns") / parts.pe_math.number_attr("clock_ghz")
    memory = cube.memory_map
    return {
        "macs": ("area.um2_per_mac.f16", cube.n_pes * macs * MM2_PER_UM2),
        "lanes": ("area.um2_per_lane.f16", cube.n_pes * lanes * MM2_PER_UM2),
        "tcm": ("area.mm2_per_mib.tcm", cube.n_pes * memory.tcm_mb_per_pe),
        "sram": ("area.mm2_per_mib.sram", memory.sram_mb_per_cube),
        "hbm_phy": ("area.mm2_per_gbs.hbm", _hbm_gbs(cube)),
        "ucie_phy": ("area.mm2_per_gbs.ucie", SIDES * _port_gbs(cube)),
        "noc": ("area.mm2_per_gbs.noc", cube.n_pes * cube.links.pe_dma_to_router_bw_gbs),
    }


def _hbm_gbs(cube: CubeSpec) -> float:
    """The peak bandwidth of a cube's HBM: PHYs are built for it, whatever is sustained."""
    return cube.hbm_pseudo_channels * cube.hbm_channel_peak_gbs


def _port_gbs(cube: CubeSpec) -> float:
    return cube.ucie.n_connections * cube.ucie.per_connection_bw_gbs


def _io_ports(graph: TopologyGraph, io: str) -> int:
    return sum(node.kind == "io_ucie" for node in graph.nodes.values() if (node.place.sip, node.place.io) == (0, io))


def _blocks(graph: TopologyGraph, amounts: Mapping[str, tuple[str, float]], place: Place) -> dict[str, Range]:
    """The area of each block of one die: given by its kind, or its amount times the coefficient."""
    spec, given = graph.spec, graph.spec.area.mm2
    replaced = {REPLACES[kind] for kind in given if kind in REPLACES}
    found = {
        name: coefficient_range(spec, key) * amount for name, (key, amount) in amounts.items() if name not in replaced
    }
    counts: dict[str, int] = {}
    for node in graph.nodes.values():
        if (node.place.sip, node.place.cube, node.place.io) == (place.sip, place.cube, place.io):
            counts[node.kind] = counts.get(node.kind, 0) + 1
    found |= {kind: exactly(mm2 * counts[kind]) for kind, mm2 in sorted(given.items()) if kind in counts}
    share, counted = coefficient_range(spec, "area.unattributed_share"), total(found.values())
    found["unattributed"] = Range(
        counted.low * share.low / (1 - share.low),
        counted.value * share.value / (1 - share.value),
        counted.high * share.high / (1 - share.high),
    )
    return found


def _edges(spec: MachineSpec, gbs: Mapping[str, float]) -> dict[str, Range]:
    return {name: coefficient_range(spec, f"area.mm_per_gbs.{name}") * amount for name, amount in gbs.items()}


def coefficient_range(spec: MachineSpec, key: str) -> Range:
    """A coefficient of the machine by its key, as a range."""
    found = coefficient_of(spec, key)
    assert found is not None, f"{key} is shipped"
    return range_of(found)
