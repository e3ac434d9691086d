"""The compiled machine: nodes and directed edges. The graph is frozen.

A node has a kind (what it is), an impl (which component class models it) and a position in mm. An edge is one
direction of a link: its bandwidth is bytes per ns, or None for a control-only wire; its distance gives the
propagation delay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from kernbench.common.errors import RoutingError
from kernbench.common.framing import Framing
from kernbench.common.frozen import frozen
from kernbench.common.ids import HOST, CubeId, Place, SipId
from kernbench.topology.switches import level_switches

if TYPE_CHECKING:
    from kernbench.common.address_layout import AddressLayout
    from kernbench.topology.spec import MachineSpec
    from kernbench.topology.spec_base import LinkSpec
    from kernbench.topology.spec_cube import CubeSpec


class EdgeKind(StrEnum):
    """What an edge connects. The kind decides which traffic may be routed over it."""

    PE_INTERNAL = "pe_internal"
    PE_TO_ROUTER = "pe_to_router"
    ROUTER_MESH = "router_mesh"
    ROUTER_TO_HBM = "router_to_hbm"
    ROUTER_TO_CHANNEL = "router_to_channel"
    ROUTER_TO_SRAM = "router_to_sram"
    COMMAND = "command"
    ROUTER_TO_UCIE_CONN = "router_to_ucie_conn"
    UCIE_CONN_TO_ROUTER = "ucie_conn_to_router"
    UCIE_INTERNAL = "ucie_internal"
    UCIE_MESH = "ucie_mesh"
    IO_INTERNAL = "io_internal"
    IO_TO_CUBE = "io_to_cube"
    CUBE_TO_IO = "cube_to_io"
    PCIE = "pcie"
    SIP_LINK = "sip_link"
    FAR_LINK = "far_link"


# Links on which packets may be given.
FRAMED_KINDS = frozenset({EdgeKind.SIP_LINK, EdgeKind.PCIE, EdgeKind.UCIE_MESH, EdgeKind.FAR_LINK})

UCIE_KINDS = frozenset(
    {
        EdgeKind.ROUTER_TO_UCIE_CONN,
        EdgeKind.UCIE_CONN_TO_ROUTER,
        EdgeKind.UCIE_INTERNAL,
        EdgeKind.UCIE_MESH,
        EdgeKind.IO_TO_CUBE,
        EdgeKind.CUBE_TO_IO,
    }
)


@frozen
class Node:
    """One component of the machine. `attrs` are its checked parameters, `overhead_ns` among them."""

    id: str
    kind: str
    impl: str
    attrs: Mapping[str, float | int | str | bool]
    x_mm: float  # position in the frame of its own die (cube or IO chiplet), or of the tray
    y_mm: float
    place: Place

    @property
    def overhead_ns(self) -> float:
        return float(self.attrs.get("overhead_ns", 0.0))


class Edge(NamedTuple):
    """One direction of a link."""

    src: str
    dst: str
    kind: EdgeKind
    bw_gbs: float | None
    distance_mm: float


@dataclass(frozen=True, eq=False)
class TopologyGraph:
    """A machine, compiled. `spec` is the checked description it came from."""

    spec: MachineSpec
    nodes: Mapping[str, Node]
    edges: tuple[Edge, ...]

    @cached_property
    def edge_map(self) -> Mapping[tuple[str, str], Edge]:
        return {(edge.src, edge.dst): edge for edge in self.edges}

    @cached_property
    def address_layout(self) -> AddressLayout:
        """`spec.address_layout`, computed once: every kernel of every PE asks for it."""
        return self.spec.address_layout

    def cube_at(self, node_id: str) -> CubeSpec:
        """The description of the cube that a node is in."""
        if not self.spec.cube_types:
            return self.spec.cube
        place = self.node(node_id).place
        return self.spec.cube_of(place.sip, place.cube)

    def home_node(self, sip: int, cube: int, pe: int) -> str:
        """The memory of a PE that tensors lie in by default: its HBM slice, the first of the stacks that its HBM is
        interleaved over, or without HBM its own TCM or the SRAM of its cube.
        """
        stacks = self.spec.sip.hbm_stacks
        if stacks is None:
            return self.spec.cube.home.node(CubeId(sip, cube), pe)
        return SipId(sip).hbm_stack(stacks.group_of(cube)[0])

    def access_gbs(self, edge: Edge) -> float | None:
        """The bandwidth of an edge for one access: where an access is split over channels, that of all of them."""
        if edge.kind is EdgeKind.ROUTER_TO_HBM and self.spec.sip.hbm_stacks is None:
            return self.cube_at(edge.src).hbm_link_bw_gbs
        if edge.kind is EdgeKind.ROUTER_TO_CHANNEL and edge.bw_gbs is not None:
            return edge.bw_gbs * self.cube_at(edge.src).hbm_channels_per_pe
        return edge.bw_gbs

    def framing_of(self, edge: Edge) -> Framing | None:
        """The packets of an edge, if it has any."""
        system = self.spec.system
        if edge.kind is EdgeKind.SIP_LINK:
            return system.sips.links.framing if system.sips.links is not None else None
        if edge.kind is EdgeKind.FAR_LINK:
            return system.far_memory.framing if system.far_memory is not None else None
        if edge.kind is EdgeKind.PCIE:
            return self._pcie_link(edge).framing
        return self.spec.sip.links.cube_to_cube.framing if edge.kind is EdgeKind.UCIE_MESH else None

    def _pcie_link(self, edge: Edge) -> LinkSpec:
        links, ends = self.spec.system.links, (edge.src, edge.dst)
        if HOST in ends:
            return links.host_to_switch
        level = next(
            (each.level for each in level_switches(self.spec.system) if {each.name, each.above} == {*ends}), None
        )
        return links.io_ep_to_switch if level is None else level

    def payload_gbs(self, edge: Edge) -> float | None:
        """The bandwidth of an edge that its packets, if it has any, leave for payload."""
        if edge.bw_gbs is None or edge.kind not in FRAMED_KINDS:
            return edge.bw_gbs
        framing = self.framing_of(edge)
        return edge.bw_gbs if framing is None else edge.bw_gbs * framing.efficiency

    def node(self, node_id: str) -> Node:
        """The node of that name; raises RoutingError when the machine has none."""
        try:
            return self.nodes[node_id]
        except KeyError:
            raise RoutingError(
                f"the machine has no node '{node_id:.80}'", hint="`kernbench topology --nodes` lists what there is"
            ) from None

    def edge(self, src: str, dst: str) -> Edge:
        """The edge from `src` to `dst`; raises RoutingError when there is none."""
        try:
            return self.edge_map[src, dst]
        except KeyError:
            raise RoutingError(f"no link from '{src}' to '{dst}'", hint="ask PathRouter for a path") from None
