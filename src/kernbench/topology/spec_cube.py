"""The cube block of a machine description: geometry, PEs, memories, UCIe, PE template, and derived values.

Keys that may be null are derived from others: read them through the properties, which also hold sizes in bytes and the
derived bandwidths. The properties assume a spec that passed `check.py`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from kernbench.common.commands import Space
from kernbench.common.frozen import frozen
from kernbench.common.ids import CubeId, PeId
from kernbench.common.units import GIB, MIB
from kernbench.topology.readers import choice, further_part, number, power_of_two, whole
from kernbench.topology.record import Record
from kernbench.topology.spec_base import (
    MAX_HBM_GB,
    MAX_PES_PER_CUBE,
    MAX_SRAM_MB,
    MAX_TCM_MB,
    ComponentSpec,
    Connections,
    CornerKey,
    Gbs,
    Mm,
    PositiveMm,
    SizeMm,
)
from kernbench.topology.spec_hbm import HbmSpec
from kernbench.topology.spec_stacks import StackShare

PE_PARTS_KEY = "cube.pe_template.components"


class GeometrySpec(Record):
    cube_mm: SizeMm
    hbm_mm: SizeMm
    pe_mm: SizeMm
    pe_pitch_mm: PositiveMm
    margin_mm: PositiveMm
    max_spacing_mm: Annotated[float, number(0.1, 1e3)]
    hbm_gap_mm: PositiveMm


class PeLayout(Record):
    corners: tuple[CornerKey, ...]
    pe_per_corner: Annotated[int, whole(1, MAX_PES_PER_CUBE)]
    rows_per_corner: Annotated[int, whole(1, 16)] = 1

    @property
    def columns_per_corner(self) -> int:
        return -(-self.pe_per_corner // self.rows_per_corner)

    @property
    def n_pes(self) -> int:
        return len(self.corners) * self.pe_per_corner


class PlaceMm(Record):
    pos_mm: tuple[Mm, Mm]


class PlacementSpec(Record):
    m_cpu: PlaceMm
    sram: PlaceMm


class MemoryMapSpec(Record):
    hbm_mapping_mode: Annotated[Literal["n_to_one", "one_to_one"], choice("n_to_one", "one_to_one")]
    hbm_total_gb_per_cube: Annotated[int, whole(0, MAX_HBM_GB)]
    hbm_slices_per_cube: Annotated[int, whole(1, MAX_PES_PER_CUBE)] | None = None
    hbm_pseudo_channels: Annotated[int, whole(1, 16384)] | None = None
    hbm_channels_per_pe: Annotated[int, power_of_two(1, 1024)] | None = None
    hbm_channel_bw_gbs: Gbs
    sram_mb_per_cube: Annotated[float, number(1 / 1024, MAX_SRAM_MB)]
    tcm_mb_per_pe: Annotated[float, number(1 / 1024, MAX_TCM_MB)]
    tcm_scheduler_reserved_mb: Annotated[float, number(0.0, MAX_TCM_MB)]
    tcm_home_mb_per_pe: Annotated[float, number(0.0, MAX_TCM_MB)] = 0.0


class UcieSpec(Record):
    n_connections: Connections
    per_connection_bw_gbs: Gbs


class CubeComponents(Record):
    router: ComponentSpec
    channel_router: ComponentSpec
    ucie: ComponentSpec
    ucie_conn: ComponentSpec
    m_cpu: ComponentSpec
    sram: ComponentSpec
    hbm_ctrl: ComponentSpec


class CubeLinks(Record):
    router_bw_gbs: Gbs
    pe_dma_to_router_bw_gbs: Gbs
    sram_to_router_bw_gbs: Gbs
    m_cpu_to_router_bw_gbs: Gbs


class PeComponents(Record):
    """The nine standard parts of a PE, and additional parts that a description adds under other names."""

    _further: ClassVar[object] = Annotated[ComponentSpec, further_part()]

    pe_cpu: ComponentSpec
    pe_scheduler: ComponentSpec
    pe_dma: ComponentSpec
    pe_fetch_store: ComponentSpec
    pe_gemm: ComponentSpec
    pe_math: ComponentSpec
    pe_tcm: ComponentSpec
    pe_mmu: ComponentSpec
    pe_ipcq: ComponentSpec

    @classmethod
    def prepared(cls, given: Mapping[Any, object]) -> Mapping[Any, object]:
        """The kind of an additional part defaults to its name. Whether the name is valid is checked later."""
        return {
            name: {"kind": re.sub(r"\W", "_", str(name))[:60], **part}
            if name not in cls.model_fields and isinstance(part, Mapping)
            else part
            for name, part in given.items()
        }

    @property
    def further(self) -> dict[str, ComponentSpec]:
        """The additional parts, by name."""
        return dict(self.further_values())

    @property
    def parts(self) -> dict[str, ComponentSpec]:
        """All parts by name, the standard parts first."""
        return {name: getattr(self, name) for name in type(self).model_fields} | self.further


class PeLinks(Record):
    tcm_read_bw_gbs: Gbs
    tcm_write_bw_gbs: Gbs


class PeTemplate(Record):
    components: PeComponents
    links: PeLinks


@frozen
class HomeMemory:
    """A kind of memory that tensors lie in unless the host says otherwise. Rates are those of the part that belongs to
    one PE.
    """

    space: Space
    name: Literal["HBM", "SRAM", "TCM"]
    unit: str  # what a node of it is called
    nodes_per_cube: Callable[["CubeSpec"], int]
    node_bytes: Callable[["CubeSpec"], int]  # of a node, for tensors
    read_gbs: Callable[["CubeSpec"], float]
    write_gbs: Callable[["CubeSpec"], float]
    gbs: Callable[["CubeSpec"], float]  # reads and writes together
    passes_router: bool  # between a PE and its own part: over the port of its DMA
    component: Callable[["CubeSpec"], ComponentSpec]
    node: Callable[[CubeId, int], str]


def _hbm_gbs(cube: "CubeSpec") -> float:
    return cube.hbm_link_bw_gbs


def _sram_gbs(cube: "CubeSpec") -> float:
    return cube.links.sram_to_router_bw_gbs / cube.n_pes


def _tcm_read_gbs(cube: "CubeSpec") -> float:
    return cube.pe_template.links.tcm_read_bw_gbs


def _tcm_write_gbs(cube: "CubeSpec") -> float:
    return cube.pe_template.links.tcm_write_bw_gbs


HBM = HomeMemory(
    "hbm",
    "HBM",
    "slice",
    nodes_per_cube=lambda cube: cube.n_pes,
    node_bytes=lambda cube: cube.hbm_slice_bytes,
    read_gbs=_hbm_gbs,
    write_gbs=_hbm_gbs,
    gbs=_hbm_gbs,
    passes_router=True,
    component=lambda cube: cube.components.hbm_ctrl,
    node=lambda cube, pe: cube.hbm_ctrl(pe),
)
SRAM = HomeMemory(  # the PEs of a cube share its port, which carries each way
    "sram",
    "SRAM",
    "SRAM",
    nodes_per_cube=lambda cube: 1,
    node_bytes=lambda cube: cube.sram_bytes,
    read_gbs=_sram_gbs,
    write_gbs=_sram_gbs,
    gbs=lambda cube: 2 * _sram_gbs(cube),
    passes_router=True,
    component=lambda cube: cube.components.sram,
    node=lambda cube, pe: cube.sram(),
)
TCM = HomeMemory(  # a port for each way
    "tcm",
    "TCM",
    "TCM",
    nodes_per_cube=lambda cube: cube.n_pes,
    node_bytes=lambda cube: cube.tcm_home_bytes,
    read_gbs=_tcm_read_gbs,
    write_gbs=_tcm_write_gbs,
    gbs=lambda cube: _tcm_read_gbs(cube) + _tcm_write_gbs(cube),
    passes_router=False,
    component=lambda cube: cube.pe_template.components.pe_tcm,
    node=lambda cube, pe: PeId(cube.sip, cube.cube, pe).part("pe_tcm"),
)


class CubeSpec(Record):
    geometry: GeometrySpec
    pe_layout: PeLayout
    placement: PlacementSpec
    memory_map: MemoryMapSpec
    ucie: UcieSpec
    components: CubeComponents
    links: CubeLinks
    pe_template: PeTemplate
    _hbm: ClassVar[HbmSpec] = HbmSpec()  # the machine's; set in its cube where it is another (`MachineSpec`)
    _stacks: ClassVar[StackShare | None] = None  # its part of shared stacks; set by `MachineSpec` where there are some

    @property
    def hbm(self) -> HbmSpec:
        """How HBM is modelled: the key `hbm` of the machine."""
        return self._hbm

    @property
    def has_stacks(self) -> bool:
        """Whether its HBM lies in stacks that PEs share, instead of one slice per PE."""
        return self._stacks is not None

    @property
    def has_slices(self) -> bool:
        """Whether each PE has an HBM slice at its router."""
        return self._stacks is None and self.memory_map.hbm_total_gb_per_cube > 0

    @property
    def has_hbm(self) -> bool:
        """Whether there is HBM, of one kind or the other."""
        return self.has_stacks or self.has_slices

    @property
    def n_pes(self) -> int:
        return self.pe_layout.n_pes

    @property
    def hbm_slices(self) -> int:
        return self.memory_map.hbm_slices_per_cube or self.n_pes

    @property
    def hbm_channels_per_pe(self) -> int:
        memory = self.memory_map
        if self._stacks is not None:
            return self._stacks.channels  # of the stack that an access is in
        return memory.hbm_channels_per_pe or (memory.hbm_pseudo_channels or 0) // self.hbm_slices

    @property
    def has_channel_routers(self) -> bool:
        """Whether an access is split into one request for each channel, over a router and a link of its own."""
        return self.has_hbm and self.memory_map.hbm_mapping_mode == "one_to_one"

    @property
    def hbm_pseudo_channels(self) -> int:
        if self._stacks is not None:
            return round(self._stacks.stacks * self._stacks.channels)
        if not self.has_slices:
            return 0
        return self.memory_map.hbm_pseudo_channels or self.hbm_slices * self.hbm_channels_per_pe

    @property
    def hbm_bytes(self) -> int:
        if self._stacks is not None:
            return self._stacks.nbytes
        return self.memory_map.hbm_total_gb_per_cube * GIB

    @property
    def hbm_gb(self) -> float:
        return self.hbm_bytes / GIB

    @property
    def hbm_slice_bytes(self) -> int:
        """The HBM of one PE, its slice or its range of shared stacks, in whole MiB so that it starts on a page; the
        remainder at the top is unused.
        """
        return self.hbm_bytes // self.hbm_slices // MIB * MIB

    @property
    def hbm_efficiency(self) -> float:
        """What a channel sustains of its peak: by the controller, and by the model of its memory."""
        return self.components.hbm_ctrl.number_attr("efficiency") * self._hbm.share

    @property
    def hbm_burst_bytes(self) -> int:
        return int(self.components.hbm_ctrl.number_attr("burst_bytes"))

    @property
    def hbm_granule_bytes(self) -> int:
        """What a burst that is not full is counted in: the burst itself, unless there is a smaller one."""
        return self._hbm.timing.granule_bytes or self.hbm_burst_bytes

    @property
    def hbm_channel_bw_gbs(self) -> float:
        """The sustained bandwidth of one pseudo channel: peak times efficiency."""
        return self.hbm_channel_peak_gbs * self.hbm_efficiency

    @property
    def hbm_channel_peak_gbs(self) -> float:
        return self.memory_map.hbm_channel_bw_gbs if self._stacks is None else self._stacks.channel_bw_gbs

    @property
    def hbm_link_bw_gbs(self) -> float:
        """All channels of one PE together: the link from router to hbm_ctrl, or those of its channels; of shared
        stacks, its part of them.
        """
        if self._stacks is not None:
            return self._stacks.stacks * self._stacks.channels * self.hbm_channel_bw_gbs / self.n_pes
        if not self.has_slices:
            return 0.0
        return self.hbm_channels_per_pe * self.hbm_channel_bw_gbs

    @property
    def home(self) -> HomeMemory:
        """The memory that tensors lie in by default: HBM where there is any, else TCM if a part of it is kept for them,
        else SRAM.
        """
        if self.has_hbm:
            return HBM
        return TCM if self.memory_map.tcm_home_mb_per_pe else SRAM

    @property
    def home_bytes(self) -> int:
        """What a cube has of it."""
        return self.hbm_bytes if self.has_hbm else self.home.nodes_per_cube(self) * self.home.node_bytes(self)

    @property
    def home_gbs(self) -> float:
        """What one PE has of it, reads and writes together."""
        return self.home.gbs(self)

    @property
    def home_read_gbs(self) -> float:
        """What one PE's DMA reads of it."""
        return self._through_port(self.home.read_gbs(self))

    @property
    def home_write_gbs(self) -> float:
        """What one PE's DMA writes of it."""
        return self._through_port(self.home.write_gbs(self))

    def _through_port(self, gbs: float) -> float:
        return min(gbs, self.links.pe_dma_to_router_bw_gbs) if self.home.passes_router else gbs

    @property
    def sram_bytes(self) -> int:
        return int(self.memory_map.sram_mb_per_cube * MIB)

    @property
    def tcm_bytes(self) -> int:
        return int(self.memory_map.tcm_mb_per_pe * MIB)

    @property
    def tcm_reserved_bytes(self) -> int:
        return int(self.memory_map.tcm_scheduler_reserved_mb * MIB)

    @property
    def tcm_allocatable_bytes(self) -> int:
        """What kernels have: without the scheduler's part and that of tensors."""
        return self.tcm_bytes - self.tcm_reserved_bytes - self.tcm_home_bytes

    @property
    def tcm_home_bytes(self) -> int:
        """The part at the start of a TCM that is the home of tensors."""
        return int(self.memory_map.tcm_home_mb_per_pe * MIB)

    @property
    def page_bytes(self) -> int:
        return int(self.pe_template.components.pe_mmu.number_attr("page_size"))
