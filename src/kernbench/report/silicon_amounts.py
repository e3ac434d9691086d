"""What is on a die, in the units of the coefficients of area: MACs, MiB of memory, GB/s of ports, links and PHYs.

The NoC of a die is its PEs' ports and every link that leaves a router. A die of cubes is the same for all cubes of a
type, so it has the PHYs of the cube with the most links to other dies, and with the most stacks. A direct link between
SIPs has a PHY like PCIe on the first IO chiplet of a SIP.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import fsum
from typing import NamedTuple

from kernbench.common.units import MIB
from kernbench.components.builtin.product_cost import peak_macs
from kernbench.topology.far_memory import far_chiplet
from kernbench.topology.graph import EdgeKind, TopologyGraph
from kernbench.topology.sip_links import port_sides
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_cube import CubeSpec
from kernbench.topology.spec_far import AT_SIP

MM2_PER_UM2 = 1e-6
MIB_PER_GIB = 1024
_ROUTERS = ("noc_router", "io_noc")
_PHY_KEYS = {"sip": "pcie"}  # kind of PHY -> that of its coefficients, where it has another name


class Amount(NamedTuple):
    """A block, the key of a coefficient, and how much of the coefficient's unit the block has, in mm2 per unit."""

    block: str
    key: str
    amount: float


class CubeOfType(NamedTuple):
    """A type of cube, and the place of one cube of that type."""

    spec: CubeSpec
    sip: int
    cube: int


def cube_amounts(graph: TopologyGraph, of: CubeOfType) -> Iterator[Amount]:
    """The blocks of one cube, without PHYs to other dies."""
    cube, parts, links = of.spec, of.spec.pe_template.components, of.spec.pe_template.links
    macs = peak_macs(parts.pe_gemm) / parts.pe_gemm.number_attr("clock_ghz")
    lanes = parts.pe_math.number_attr("lanes_per_ns") / parts.pe_math.number_attr("clock_ghz")
    memory, hbm_gbs = cube.memory_map, hbm_phys_gbs(graph, of)
    yield Amount("macs", "area.um2_per_mac.f16", cube.n_pes * macs * MM2_PER_UM2)
    yield Amount("lanes", "area.um2_per_lane.f16", cube.n_pes * lanes * MM2_PER_UM2)
    yield Amount("tcm", "area.mm2_per_mib.tcm", cube.n_pes * memory.tcm_mb_per_pe)
    yield Amount("tcm", "area.mm2_per_gbs.tcm", cube.n_pes * (links.tcm_read_bw_gbs + links.tcm_write_bw_gbs))
    yield Amount("buffers", "area.mm2_per_mib.tcm", cube.n_pes * _buffers_mib(of.spec))
    yield Amount("sram", "area.mm2_per_mib.sram", memory.sram_mb_per_cube)
    yield Amount("sram", "area.mm2_per_gbs.sram", 2 * cube.links.sram_to_router_bw_gbs)  # each way
    if graph.spec.area.hbm_is_sram:
        yield Amount("sram", "area.mm2_per_mib.sram", cube.hbm_gb * MIB_PER_GIB)
        yield Amount("sram", "area.mm2_per_gbs.sram", hbm_gbs)
    else:
        yield Amount("hbm_phy", "area.mm2_per_gbs.hbm", hbm_gbs)
    yield Amount("noc", "area.mm2_per_gbs.noc", cube.n_pes * cube.links.pe_dma_to_router_bw_gbs)
    yield Amount("noc", "area.mm2_per_gbs.router", _router_gbs(graph, f"sip{of.sip}.cube{of.cube}."))


def _buffers_mib(cube: CubeSpec) -> float:
    """A PE's register file, and the local buffers of cores where its matrix engine is a group of them."""
    parts = cube.pe_template.components
    is_cores = "local_kb" in parts.pe_gemm.attrs
    local_kib = parts.pe_gemm.number_attr("cores") * parts.pe_gemm.number_attr("local_kb") if is_cores else 0.0
    return parts.pe_fetch_store.number_attr("register_file_bytes") / MIB + local_kib / 1024


def hbm_phys_gbs(graph: TopologyGraph, of: CubeOfType) -> float:
    """The peak bandwidth of a cube's HBM: PHYs are built for it, whatever is sustained. Of stacks that cubes share, a
    die of one cube has the PHYs of those attached to it, or to the cube of its type that has most.
    """
    spec, stacks, cube = graph.spec, graph.spec.sip.hbm_stacks, of.spec
    if stacks is None or spec.area.die == "sip" or spec.area.hbm_is_sram:
        return cube.hbm_pseudo_channels * cube.hbm_channel_peak_gbs
    name, attached = spec.cube_type(of.sip, of.cube), Counter(place.cube for place in stacks.places)
    most = max(attached[at] for at in range(spec.sip.n_cubes) if spec.cube_type(of.sip, at) == name)
    return most * stacks.channels * stacks.channel_bw_gbs


def has_hbm_at_edge(spec: MachineSpec) -> bool:
    """Whether PHYs of HBM take part of a die's edge: as given, else where stacks are attached to sides."""
    if spec.area.hbm_place is None:
        return spec.sip.hbm_stacks is not None
    return spec.area.hbm_place == "edge"


def cube_phys_gbs(graph: TopologyGraph, of: CubeOfType) -> float:
    """GB/s of the links from a cube to other dies: of the cube of that type that has most."""
    leaving = (EdgeKind.CUBE_TO_IO, EdgeKind.UCIE_MESH) if graph.spec.area.die == "cube" else (EdgeKind.CUBE_TO_IO,)
    name = graph.spec.cube_type(of.sip, of.cube)
    gbs: dict[tuple[int, int], float] = {}
    for edge in graph.edges:
        if edge.kind in leaving and edge.bw_gbs:
            place = graph.nodes[edge.src].place
            gbs[place.sip, place.cube] = gbs.get((place.sip, place.cube), 0.0) + edge.bw_gbs
    return max((amount for at, amount in gbs.items() if graph.spec.cube_type(*at) == name), default=0.0)


def io_phys(graph: TopologyGraph, io: str) -> dict[str, float]:
    """GB/s of an IO chiplet's PHYs: to the switch, to cubes, to neighbouring SIPs, to far memory."""
    spec, far = graph.spec, graph.spec.system.far_memory
    cubes = sum(node.kind == "io_ucie" for node in graph.nodes.values() if (node.place.sip, node.place.io) == (0, io))
    found = {"pcie": spec.system.links.io_ep_to_switch.bw_gbs, "ucie": cubes * spec.io_chiplet.phy_bw_gbs}
    if spec.system.sips.links is not None and io == spec.sip.io_chiplets[0].id:
        found["sip"] = len(port_sides(spec.system.sips)) * spec.system.sips.links.bw_gbs
    if far is not None and far.at == AT_SIP and io == far_chiplet(spec):
        found["far"] = far.bw_gbs
    return found


def phy_amounts(gbs: Mapping[str, float]) -> Iterator[Amount]:
    """The blocks of PHYs."""
    for kind, amount in gbs.items():
        yield Amount(f"{kind}_phy", f"area.mm2_per_gbs.{_PHY_KEYS.get(kind, kind)}", amount)


def edge_key(kind: str) -> str:
    """The coefficient of the edge that a kind of PHY takes."""
    return f"area.mm_per_gbs.{_PHY_KEYS.get(kind, kind)}"


def io_amounts(graph: TopologyGraph, io: str) -> Iterator[Amount]:
    """The blocks of an IO chiplet."""
    yield from phy_amounts(io_phys(graph, io))
    yield Amount("noc", "area.mm2_per_gbs.router", _router_gbs(graph, f"sip0.{io}."))


def cubes_by_type(spec: MachineSpec) -> dict[str, CubeOfType]:
    """One cube of each type that the machine has."""
    found: dict[str, CubeOfType] = {}
    for sip in range(spec.n_sips) if spec.cube_types else (0,):
        for cube in range(spec.sip.n_cubes) if spec.cube_types else (0,):
            found.setdefault(spec.cube_type(sip, cube), CubeOfType(spec.cube_of(sip, cube), sip, cube))
    return {name: found[name] for name in spec.type_counts()}


def _router_gbs(graph: TopologyGraph, die: str) -> float:
    """GB/s of the links that leave routers of a die, each direction by itself."""
    return fsum(
        edge.bw_gbs
        for edge in graph.edges
        if edge.bw_gbs and edge.src.startswith(die) and graph.nodes[edge.src].kind in _ROUTERS
    )
