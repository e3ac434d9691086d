"""The blocks `sip`, `sip_types` and `io_chiplet` of a machine description, as checked, typed, frozen data."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from kernbench.topology.readers import choice, text, whole
from kernbench.topology.record import Record
from kernbench.topology.spec_base import (
    MAX_CUBES_PER_SIP,
    ComponentSpec,
    Connections,
    Gbs,
    LinkSpec,
    Mm,
    SideKey,
    SizeMm,
)
from kernbench.topology.spec_stacks import HbmStacksSpec


class CubeMesh(Record):
    """The grid of cubes, and which of its rows (x) and columns (y) are closed to rings."""

    w: Annotated[int, whole(1, MAX_CUBES_PER_SIP)]
    h: Annotated[int, whole(1, MAX_CUBES_PER_SIP)]
    wrap: Annotated[Literal["none", "x", "y", "xy"], choice("none", "x", "y", "xy")] = "none"


class WrapSpec(Record):
    """A link that closes a row or a column of cubes; it carries packets as `cube_to_cube` does."""

    bw_gbs: Gbs
    distance_mm: Mm


class SipLinks(Record):
    cube_to_cube: LinkSpec
    wrap: WrapSpec | None = None


class CubeRef(Record):
    xy: tuple[Annotated[int, whole(0, MAX_CUBES_PER_SIP - 1)], Annotated[int, whole(0, MAX_CUBES_PER_SIP - 1)]]


class CubePort(Record):
    """A PHY of an IO chiplet and the cube port that it faces. Null values are derived from the chiplet."""

    cube: CubeRef
    cube_side: SideKey | None = None
    phy: Annotated[str, text(r"[A-Za-z][A-Za-z0-9_]{0,15}", "a short name such as P0")] | None = None
    distance_mm: Mm | None = None


class IoChipletPlace(Record):
    id: Annotated[str, text(r"io[0-9]{1,2}", "a name such as io0")]
    side: SideKey
    cube_ports: tuple[CubePort, ...] | None = None


CubeNumbers = tuple[Annotated[int, whole(0, MAX_CUBES_PER_SIP - 1)], ...]


class SipTypeSpec(Record):
    """A SIP that differs from `sip` in which of its cubes are of which type."""

    cube_types: Mapping[str, CubeNumbers] = MappingProxyType({})


class SipSpec(Record):
    cube_mesh: CubeMesh
    links: SipLinks
    io_chiplets: tuple[IoChipletPlace, ...]
    cube_types: Mapping[str, CubeNumbers] = MappingProxyType({})  # type -> cubes; the others are as `cube` says
    hbm_stacks: HbmStacksSpec | None = None

    @property
    def n_cubes(self) -> int:
        return self.cube_mesh.w * self.cube_mesh.h

    def cube_at(self, x: int, y: int) -> int:
        """Cubes are numbered row by row from the north-west."""
        return y * self.cube_mesh.w + x


class IoComponents(Record):
    pcie_ep: ComponentSpec
    io_cpu: ComponentSpec
    io_noc: ComponentSpec
    io_ucie: ComponentSpec
    conn: ComponentSpec


class IoLinks(Record):
    pcie_ep_to_noc_bw_gbs: Gbs
    io_cpu_to_noc_bw_gbs: Gbs | None
    per_connection_bw_gbs: Gbs
    io_ucie_to_cube_bw_gbs: Gbs | None


class IoChipletSpec(Record):
    size_mm: SizeMm
    n_connections: Connections
    cube_distance_mm: Mm
    components: IoComponents
    links: IoLinks

    @property
    def phy_bw_gbs(self) -> float:
        """Bandwidth from a PHY to its cube: the sum over the PHY's connections, unless it is given."""
        given = self.links.io_ucie_to_cube_bw_gbs
        return self.n_connections * self.links.per_connection_bw_gbs if given is None else given
