"""A machine description as checked, typed, frozen data: one class for each block of the YAML, keys as in default.yaml.

A record checks each value on its own (`record.py`, `readers.py`); `check.py` checks values against each other. The
blocks of cubes and SIPs are in `spec_cube.py` and `spec_sip.py`, coefficients of energy and area in `spec_energy.py`.
Keys that may be null are derived: read them through the properties (`sips.grid`, `cube.hbm_slices`).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, Literal, Self

from kernbench.common.address_layout import LEAST_CUBE_BITS, UAL_BASE, AddressLayout, FieldWidths, bits_for, layout_of
from kernbench.topology.readers import choice, number, power_of_two, whole
from kernbench.topology.record import Loc, Problem, Record
from kernbench.topology.spec_base import (
    MAX_SIPS,
    AddressMapSpec,
    ComponentSpec,
    Gbs,
    LinkSpec,
    Name,
)
from kernbench.topology.spec_cube import PE_PARTS_KEY, CubeSpec
from kernbench.topology.spec_energy import AreaSpec, CostSpec, EnergySpec, LimitsSpec, PowerSpec
from kernbench.topology.spec_fabric import FabricSpec
from kernbench.topology.spec_far import AT_TOP, FarMemorySpec
from kernbench.topology.spec_hbm import HbmSpec
from kernbench.topology.spec_sip import CubeMesh, IoChipletSpec, SipSpec, SipTypeSpec
from kernbench.topology.spec_stacks import share_of

_RECORD = FieldWidths()

# ---------------------------------------------------------------------------------------------------------- the tray


class SipLinksSpec(LinkSpec):
    """A link between neighbouring SIPs, in each direction; the block at each of its ends, which stores and forwards;
    and the link from there to the IO chiplet's network, as wide as that of a PCIe endpoint unless it is given.
    """

    port: ComponentSpec = ComponentSpec(kind="sip_port", impl="builtin.sip_port", attrs={"overhead_ns": 0.0})
    port_to_noc_bw_gbs: Gbs | None = None


class SipsSpec(Record):
    """The number of SIPs and their neighbour relation. Without `links` it is logical: all SIPs are on one switch. With
    them, bytes from SIP to SIP take direct links between neighbours, and the switch is left to the host.
    """

    count: Annotated[int, whole(1, MAX_SIPS)]
    topology: Annotated[
        Literal["ring_1d", "torus_2d", "mesh_2d_no_wrap"], choice("ring_1d", "torus_2d", "mesh_2d_no_wrap")
    ]
    w: Annotated[int, whole(1, MAX_SIPS)] | None = None
    h: Annotated[int, whole(1, MAX_SIPS)] | None = None
    links: SipLinksSpec | None = None
    types: Mapping[str, tuple[Annotated[int, whole(0, MAX_SIPS - 1)], ...]] = MappingProxyType({})

    @property
    def wraps(self) -> bool:
        """Whether the last SIP of a row or column is a neighbour of the first."""
        return self.topology != "mesh_2d_no_wrap"

    @property
    def linked_grid(self) -> tuple[int, int]:
        """Width and height of the grid along which direct links run: a ring is one row, in the order of numbers."""
        return (self.count, 1) if self.topology == "ring_1d" else self.grid

    @property
    def grid(self) -> tuple[int, int]:
        """Width and height of the SIP grid: a ring is one row; a grid that names neither is a square.

        When no grid holds exactly `count` SIPs, the product differs from it, which is a fault.
        """
        if self.topology == "ring_1d" and self.w is None and self.h is None:
            return self.count, 1
        if self.w is None and self.h is None:
            side = math.isqrt(self.count)
            return side, side
        w = self.w or self.count // (self.h or 1)
        return w, self.h or self.count // w


class SystemLinks(Record):
    host_to_switch: LinkSpec
    io_ep_to_switch: LinkSpec


class SwitchLevelSpec(LinkSpec):
    """A level of switches between `system.switch` and the SIPs: how many, the link of each to the level above, and the
    switch itself, like the one at the top unless it is given.
    """

    count: Annotated[int, whole(1, MAX_SIPS)]
    switch: ComponentSpec | None = None


class SystemSpec(Record):
    name: Name
    ns_per_mm: Annotated[float, number(0.0, 1e3)]
    flit_bytes: Annotated[int, power_of_two(16, 65536)]
    address_model: Annotated[Literal["va", "pa", "la"], choice("va", "pa", "la")]
    address_map: AddressMapSpec = AddressMapSpec()
    sips: SipsSpec
    host: ComponentSpec
    switch: ComponentSpec
    switch_levels: Mapping[str, SwitchLevelSpec] = MappingProxyType({})
    links: SystemLinks
    far_memory: FarMemorySpec | None = None

    @property
    def n_far_memories(self) -> int:
        """How many nodes of far memory the machine has: one at each SIP, or at each switch of a level."""
        if self.far_memory is None or self.far_memory.at == AT_TOP:
            return 0 if self.far_memory is None else 1
        level = self.switch_levels.get(self.far_memory.at)
        return self.sips.count if level is None else level.count

    @property
    def far_gb(self) -> int:
        """Far memory of the whole machine."""
        return 0 if self.far_memory is None else self.far_memory.gb * self.n_far_memories

    @property
    def far_bytes_per_sip(self) -> int:
        far = self.far_memory
        return 0 if far is None else far.bytes_per_sip(self.n_far_memories, self.sips.count)

    @property
    def has_mmu(self) -> bool:
        """Whether PEs have an MMU: with logical addresses the segment table of pe_dma takes its place."""
        return self.address_model != "la"

    @property
    def has_tensor_ranges(self) -> bool:
        """Whether a tensor has one range of addresses, virtual or logical, wherever its parts lie."""
        return self.address_model != "pa"


# ------------------------------------------------------------------------------------------------------- the machine


class MachineSpec(Record):
    """The whole description."""

    system: SystemSpec
    sip: SipSpec
    io_chiplet: IoChipletSpec
    cube: CubeSpec
    energy: EnergySpec
    area: AreaSpec
    power: PowerSpec
    cost: CostSpec
    limits: LimitsSpec
    fabric: FabricSpec = FabricSpec()
    hbm: HbmSpec = HbmSpec()
    cube_types: Mapping[str, CubeSpec] = MappingProxyType({})  # by name; what a type leaves out is filled in on loading
    sip_types: Mapping[str, SipTypeSpec] = MappingProxyType({})

    @classmethod
    def _read(cls, given: object, loc: Loc, problems: list[Problem]) -> Self | None:
        """The cube knows how its HBM is modelled and which part of shared stacks it has, since its bandwidths follow
        from that.
        """
        found = super()._read(given, loc, problems)
        values = {} if found is None else found.__dict__
        cube, hbm, sip = values.get("cube"), values.get("hbm"), values.get("sip")
        if not (isinstance(cube, CubeSpec) and isinstance(hbm, HbmSpec) and isinstance(sip, SipSpec)):
            return found
        known: dict[str, object] = {} if hbm == cube.hbm else {"_hbm": hbm}
        if sip.hbm_stacks is not None and isinstance(sip.cube_mesh, CubeMesh):
            known["_stacks"] = share_of(sip.hbm_stacks, sip.n_cubes)
        if known:
            values["cube"] = cube.model_copy(update=known)
            types = values.get("cube_types")
            if isinstance(types, Mapping):
                values["cube_types"] = {
                    name: each.model_copy(update=known) if isinstance(each, CubeSpec) else each
                    for name, each in types.items()
                }
        return found

    # ---- types of cubes

    def cube_type(self, sip: int, cube: int) -> str:
        """The name of the type of a cube; empty where it is as `cube` says."""
        if not self.cube_types:
            return ""
        return next((name for name, cubes in self.types_of_sip(sip).items() if cube in cubes), "")

    def types_of_sip(self, sip: int) -> Mapping[str, tuple[int, ...]]:
        """The cubes of each type in a SIP."""
        for name, sips in self.system.sips.types.items():
            if sip in sips:
                return self.sip_types[name].cube_types
        return self.sip.cube_types

    def cube_of(self, sip: int, cube: int) -> CubeSpec:
        """The description of one cube."""
        name = self.cube_type(sip, cube)
        return self.cube_types[name] if name else self.cube

    def type_counts(self, sip: int | None = None) -> dict[str, int]:
        """How many cubes of each type a SIP, or the machine, has; those without a type, under "", first."""
        sips = range(self.n_sips) if sip is None else (sip,)
        if not self.cube_types:
            return {"": len(sips) * self.sip.n_cubes}
        counts = {name: sum(len(self.types_of_sip(each).get(name, ())) for each in sips) for name in self.cube_types}
        plain = len(sips) * self.sip.n_cubes - sum(counts.values())
        return {name: count for name, count in {"": plain, **counts}.items() if count}

    def cubes_of(self, sip: int | None = None) -> list[tuple[CubeSpec, int]]:
        """The kinds of cube of a SIP, or of the machine, each with its count."""
        counts = self.type_counts(sip)
        return [(self.cube_types[name] if name else self.cube, count) for name, count in counts.items()]

    def sum_over_cubes(self, amount: Callable[[CubeSpec], float], sip: int | None = None) -> float:
        """The sum of a figure over all cubes of a SIP, or of the machine."""
        return sum(count * amount(cube) for cube, count in self.cubes_of(sip))

    def sum_at(self, cubes: Iterable[tuple[int, int]], amount: Callable[[CubeSpec], float]) -> float:
        """The sum of a figure over some cubes, by SIP and number; a cube that is named twice counts twice."""
        counts = Counter(self.cube_type(sip, cube) for sip, cube in cubes)
        return sum(count * amount(self.cube_types[name] if name else self.cube) for name, count in counts.items())

    def least_of_cubes(self, amount: Callable[[CubeSpec], int]) -> int:
        """The least of a figure over all cubes of the machine."""
        return min(amount(cube) for cube, _ in self.cubes_of())

    @property
    def n_sips(self) -> int:
        return self.system.sips.count

    @property
    def n_cubes(self) -> int:
        return self.n_sips * self.sip.n_cubes

    @property
    def n_pes(self) -> int:
        return self.n_cubes * self.cube.n_pes

    @property
    def address_widths(self) -> FieldWidths:
        """The widths of the fields of an address: as given, else the record's, or more where the machine needs more."""
        given = self.system.address_map
        return FieldWidths(
            **{
                name: max(needed, getattr(_RECORD, name)) if getattr(given, name) is None else getattr(given, name)
                for name, needed in self.needed_bits.items()
            }
        )

    def wrap_link(self, axis: Literal["x", "y"]) -> tuple[float, float]:
        """Bandwidth and length of a link that closes a row or a column: as given, else as wide as one between cubes,
        and as long as in a folded torus, where it passes one die.
        """
        given, seam, die = self.sip.links.wrap, self.sip.links.cube_to_cube, self.cube.geometry.cube_mm
        if given is not None:
            return given.bw_gbs, given.distance_mm
        return seam.bw_gbs, 2 * seam.distance_mm + (die.w if axis == "x" else die.h)

    @property
    def needed_bits(self) -> dict[str, int]:
        """The widths that this machine needs at least, by key of `system.address_map`."""
        cubes = (self.cube, *self.cube_types.values())
        return {
            "sip_bits": bits_for(self.n_sips),
            "cube_bits": max(bits_for(self.sip.n_cubes), LEAST_CUBE_BITS),
            "pe_bits": bits_for(self.cube.n_pes),
            "hbm_bits": bits_for(max(cube.hbm_bytes for cube in cubes)),
            "sram_bits": bits_for(max(cube.sram_bytes for cube in cubes)),
            "tcm_bits": bits_for(max(cube.tcm_bytes for cube in cubes)),
            "chiplet_bits": bits_for(UAL_BASE + self.system.far_bytes_per_sip),
        }

    @property
    def address_layout(self) -> AddressLayout:
        """The positions of the fields of an address."""
        return layout_of(self.address_widths)

    def components(self) -> Iterator[tuple[str, str, ComponentSpec]]:
        """Every component entry: its key path, the kind it must have, the entry."""
        yield "system.host", "host", self.system.host
        yield "system.switch", "switch", self.system.switch
        for name, level in self.system.switch_levels.items():
            if level.switch is not None:
                yield f"system.switch_levels.{name}.switch", "switch", level.switch
        if self.system.sips.links is not None:
            yield "system.sips.links.port", "sip_port", self.system.sips.links.port
        blocks: tuple[tuple[str, Record], ...] = (
            ("io_chiplet.components", self.io_chiplet.components),
            ("cube.components", self.cube.components),
        )
        renamed = {"io_chiplet.components.conn": "io_ucie_conn", "cube.components.router": "noc_router"}
        for path, block in blocks:
            for slot in type(block).model_fields:
                key = f"{path}.{slot}"
                yield key, renamed.get(key, slot), getattr(block, slot)
        for name, part in self.cube.pe_template.components.parts.items():
            yield f"{PE_PARTS_KEY}.{name}", name, part
