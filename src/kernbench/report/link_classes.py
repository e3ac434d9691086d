"""Names of links: by what they join (`link_class`), and by their technology (`link_family`).

Links of a UCIe port within its die are `ucie` and of the family UCIe: they are part of the port. Links that leave a die
are `DIE_TO_DIE`.
"""

from __future__ import annotations

from typing import Literal

from kernbench.topology.graph import UCIE_KINDS, EdgeKind

LinkFamily = Literal["NoC", "UCIe", "PCIe", "SIP link", "far link"]

DIE_TO_DIE = frozenset({EdgeKind.UCIE_MESH, EdgeKind.IO_TO_CUBE, EdgeKind.CUBE_TO_IO})
OFF_PACKAGE = frozenset({EdgeKind.PCIE, EdgeKind.SIP_LINK, EdgeKind.FAR_LINK})
_CLASSES = {
    EdgeKind.PE_INTERNAL: "pe internal",
    EdgeKind.PE_TO_ROUTER: "pe port",
    EdgeKind.ROUTER_MESH: "router",
    EdgeKind.ROUTER_TO_HBM: "hbm port",
    EdgeKind.ROUTER_TO_CHANNEL: "channel router",
    EdgeKind.ROUTER_TO_SRAM: "sram port",
    EdgeKind.COMMAND: "command",
    EdgeKind.IO_INTERNAL: "io",
    EdgeKind.PCIE: "pcie",
    EdgeKind.SIP_LINK: "sip link",
    EdgeKind.FAR_LINK: "far link",
}


def link_class(kind: EdgeKind) -> str:
    """`router`, `ucie`, `hbm port`: what a link joins."""
    return "ucie" if kind in UCIE_KINDS else _CLASSES[kind]


def link_family(kind: EdgeKind) -> LinkFamily:
    """NoC, UCIe, a link from SIP to SIP or to far memory, or PCIe, with the links to its endpoint in the IO chiplet."""
    if kind is EdgeKind.SIP_LINK:
        return "SIP link"
    if kind is EdgeKind.FAR_LINK:
        return "far link"
    if kind in (EdgeKind.PCIE, EdgeKind.IO_INTERNAL):
        return "PCIe"
    return "UCIe" if kind in UCIE_KINDS else "NoC"
