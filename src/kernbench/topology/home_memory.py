"""The memory that tensors lie in unless the host says otherwise: the kinds that there are, one row for each.

HBM where a machine has any; else the TCM of the PEs, where `cube.memory_map.tcm_home_mb_per_pe` keeps a part of it for
tensors; else the SRAM of the cubes. Rates are those of the part that belongs to one PE.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from kernbench.common.commands import Space
from kernbench.common.frozen import frozen
from kernbench.common.ids import CubeId, PeId
from kernbench.topology.spec_base import ComponentSpec

if TYPE_CHECKING:
    from kernbench.topology.spec_cube import CubeSpec


@frozen
class HomeMemory:
    """What one kind of memory is to tensors."""

    space: Space
    name: Literal["HBM", "SRAM", "TCM"]
    unit: str  # what a node of it is called
    nodes_per_cube: Callable[[CubeSpec], int]
    node_bytes: Callable[[CubeSpec], int]  # of a node, for tensors
    read_gbs: Callable[[CubeSpec], float]
    write_gbs: Callable[[CubeSpec], float]
    gbs: Callable[[CubeSpec], float]  # reads and writes together
    passes_router: bool  # between a PE and its own part: over the port of its DMA
    component: Callable[[CubeSpec], ComponentSpec]
    node: Callable[[CubeId, int], str]


def _hbm_gbs(cube: CubeSpec) -> float:
    return cube.hbm_link_bw_gbs


def _sram_gbs(cube: CubeSpec) -> float:
    return cube.links.sram_to_router_bw_gbs / cube.n_pes


def _tcm_read_gbs(cube: CubeSpec) -> float:
    return cube.pe_template.links.tcm_read_bw_gbs


def _tcm_write_gbs(cube: CubeSpec) -> float:
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
