"""What things look like: a colour for each role of a box, colour and dashes for each kind of link.

The colour-blind can distinguish the colours (after Okabe and Ito, darkened for thin lines on white). Dashes separate
kinds in grey: control is always dashed. The width of a line grows with the logarithm of its bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kernbench.report.diagrams.view import ViewEdge, ViewNode
from kernbench.topology.graph import EdgeKind

INK, FAINT_INK, RULE = "#1a1a1a", "#555555", "#777777"
PAPER = "#ffffff"

_CONTROL_DASH = "6 4"
_CONTROL_PX = 1.3


@dataclass(frozen=True, slots=True)
class BoxRole:
    """The role of a box as named in the legend, and its colours."""

    name: str
    fill: str
    stroke: str


COMPUTE = BoxRole("compute", "#bcd6ef", "#235380")
MEMORY = BoxRole("memory", "#fde0c9", "#9c4a10")
NETWORK = BoxRole("router, switch", "#d9d9d9", "#444444")
PORT = BoxRole("die-to-die port", "#fcf4c8", "#7a6200")
CONTROL = BoxRole("control processor, host", "#e2c8e2", "#6f2a6b")
MOVER = BoxRole("data mover", "#c4e6d5", "#115c40")
DIE = BoxRole("cube, SIP", "#f1f4f7", "#39424e")
IO = BoxRole("IO chiplet", "#d9eff2", "#1b6676")
OUTLINE = BoxRole("outline", "#fbfbfb", "#8a8a8a")
ZONE = BoxRole("HBM area", "#fef3ea", "#c58b5f")

_ROLES: Mapping[str, BoxRole] = MappingProxyType(
    {
        "pe": COMPUTE,
        "pe_gemm": COMPUTE,
        "pe_math": COMPUTE,
        "hbm_ctrl": MEMORY,
        "sram": MEMORY,
        "far_memory": MEMORY,
        "pe_tcm": MEMORY,
        "noc_router": NETWORK,
        "channel_router": NETWORK,
        "switch": NETWORK,
        "ucie": PORT,
        "ucie_conn": PORT,
        "io_ucie": PORT,
        "host": CONTROL,
        "m_cpu": CONTROL,
        "pe_cpu": CONTROL,
        "pe_scheduler": CONTROL,
        "pe_mmu": CONTROL,
        "pe_ipcq": CONTROL,
        "pe_dma": MOVER,
        "pe_fetch_store": MOVER,
        "cube": DIE,
        "io_chiplet": IO,
        "sip": DIE,
        "sip_outline": OUTLINE,
        "cube_outline": OUTLINE,
        "pe_outline": OUTLINE,
        "hbm_zone": ZONE,
    }
)


_DECLARED: Mapping[str, BoxRole] = MappingProxyType(
    {"compute": COMPUTE, "data mover": MOVER, "memory": MEMORY, "control": CONTROL}
)


def role_of(node: ViewNode) -> BoxRole:
    """The role of a box, by its kind or as declared; a box with neither is drawn as a die."""
    return _ROLES.get(node.kind) or _DECLARED.get(node.role, DIE)


@dataclass(frozen=True, slots=True)
class LinkStyle:
    name: str
    colour: str
    dash: str = ""


_LINKS: Mapping[EdgeKind, LinkStyle] = MappingProxyType(
    {
        EdgeKind.PE_INTERNAL: LinkStyle("inside a PE", "#1f7fc4"),
        EdgeKind.PE_TO_ROUTER: LinkStyle("PE to router", "#004f8a"),
        EdgeKind.ROUTER_MESH: LinkStyle("router to router", "#8c8c8c"),
        EdgeKind.ROUTER_TO_HBM: LinkStyle("router to HBM", "#d55e00", "14 3"),
        EdgeKind.ROUTER_TO_CHANNEL: LinkStyle("router to channel router", "#b04a00"),
        EdgeKind.ROUTER_TO_SRAM: LinkStyle("router to SRAM", "#008a64", "9 3 2 3"),
        EdgeKind.COMMAND: LinkStyle("command", "#a0307a", _CONTROL_DASH),
        EdgeKind.ROUTER_TO_UCIE_CONN: LinkStyle("router to UCIe connection", "#8a6d00"),
        EdgeKind.UCIE_CONN_TO_ROUTER: LinkStyle("UCIe connection to router", "#8a6d00"),
        EdgeKind.UCIE_INTERNAL: LinkStyle("UCIe connection to port", "#c98a00", "2 2"),
        EdgeKind.UCIE_MESH: LinkStyle("cube to cube (UCIe)", "#b07800"),
        EdgeKind.IO_INTERNAL: LinkStyle("IO chiplet to its PHY", "#2b86b8", "9 2"),
        EdgeKind.IO_TO_CUBE: LinkStyle("IO chiplet to cube (UCIe)", "#117733"),
        EdgeKind.CUBE_TO_IO: LinkStyle("cube to IO chiplet (UCIe)", "#117733"),
        EdgeKind.PCIE: LinkStyle("PCIe", "#3b2e8c"),
        EdgeKind.SIP_LINK: LinkStyle("SIP to SIP", "#882255"),
        EdgeKind.FAR_LINK: LinkStyle("link to far memory", "#7a4a2b", "6 2"),
    }
)
_INNER_CONTROL = LinkStyle("control", "#5d4b9c", "3 3")


def link_style(edge: ViewEdge) -> LinkStyle:
    """Name, colour and dashes of a link; one without bandwidth carries control only, whatever its kind."""
    style = _LINKS[edge.kind]
    if edge.bw_gbs is None and edge.kind is not EdgeKind.COMMAND:
        return LinkStyle(f"{style.name}, control", _INNER_CONTROL.colour, _INNER_CONTROL.dash)
    return style


def link_px(bw_gbs: float | None, zoom: float = 1.0) -> float:
    """How wide a line is: 1 TB/s is about twice as wide as 128 GB/s. A picture that is enlarged has finer lines."""
    px = _CONTROL_PX if bw_gbs is None else min(1.0 + 0.65 * math.log2(1 + bw_gbs / 64), 7.0)
    return float(px / zoom**0.6)


def bandwidth_range(links: list[ViewEdge]) -> str:
    """The bandwidths of some links: `128 GB/s`, `64 to 512 GB/s`, or `no payload`."""
    bandwidths = [edge.bw_gbs for edge in links if edge.bw_gbs is not None]
    if not bandwidths:
        return "no payload"
    low, high = min(bandwidths), max(bandwidths)
    return f"{low:g} GB/s" if low == high else f"{low:g} to {high:g} GB/s"
