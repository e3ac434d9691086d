"""Places in the tray and their names. Node names are printed and parsed here and nowhere else.

host, fabric.switch0, fabric.tray1                                  the tray; a switch of the level `tray`
fabric.far0, sip0.io0.far                                           far memory at a switch, and at an IO chiplet
sip0.io0.{pcie_ep, io_cpu, io_noc, io_ucie.P0, conn.P0.0}           an IO chiplet; P0 is a PHY
sip0.hbm_ctrl.s0                                                    an HBM stack that PEs share
sip0.io0.sip_port.E                                                 where the link to the next SIP begins
sip0.cube3.{m_cpu, sram, hbm_ctrl.pe2, noc.r0c5}                    a cube
sip0.cube3.{ucie-E, ucie-E.conn1}                                   a cube's UCIe port and its connections
sip0.cube3.pe2.{pe_cpu, pe_dma, pe_tcm, ...}                        a PE
sip0.cube3.pe2.ch_r5                                                the router of a channel of a PE's HBM slice
"""

from __future__ import annotations

import re

from kernbench.common.frozen import frozen

HOST = "host"
SWITCH = "fabric.switch0"


def level_switch(level: str, number: int) -> str:
    """A switch of a level below the top, say `tray`."""
    return f"fabric.{level}{number}"


def far_memory(number: int) -> str:
    """A node of far memory at a switch."""
    return f"fabric.far{number}"


def memory_kind(node: str) -> str:
    """What kind of memory a node is, by its name: hbm, sram, far, or tcm."""
    if ".hbm_ctrl" in node:
        return "hbm"
    if node.endswith(".sram"):
        return "sram"
    return "far" if node.endswith(".far") or node.startswith("fabric.far") else "tcm"


PeKey = tuple[int, int, int]  # sip, cube, pe: the plain form, for tables

_PLACE = re.compile(r"sip(\d{1,9})(?:\.(?:cube(\d{1,9})|(io\d+))(?:\.pe(\d{1,9}))?)?(?:\.|$)")


@frozen(order=True)
class SipId:
    sip: int

    def __str__(self) -> str:
        return f"sip{self.sip}"

    def hbm_stack(self, name: str) -> str:
        """The controller of an HBM stack that PEs share, say `s0`."""
        return f"{self}.hbm_ctrl.{name}"


@frozen(order=True)
class CubeId:
    sip: int
    cube: int

    def __str__(self) -> str:
        return f"sip{self.sip}.cube{self.cube}"

    def m_cpu(self) -> str:
        return f"{self}.m_cpu"

    def sram(self) -> str:
        return f"{self}.sram"

    def hbm_ctrl(self, pe: int) -> str:
        return f"{self}.hbm_ctrl.pe{pe}"

    def router(self, row: int, col: int) -> str:
        return f"{self}.noc.r{row}c{col}"

    def ucie(self, side: str) -> str:
        return f"{self}.ucie-{side}"

    def ucie_conn(self, side: str, n: int) -> str:
        return f"{self}.ucie-{side}.conn{n}"


@frozen(order=True)
class PeId:
    sip: int
    cube: int
    pe: int

    def __str__(self) -> str:
        return f"sip{self.sip}.cube{self.cube}.pe{self.pe}"

    def part(self, kind: str) -> str:
        """The node of one of the PE's components, say `pe_dma`."""
        return f"{self}.{kind}"

    def channel_router(self, channel: int) -> str:
        """The router of one channel of the PE's HBM slice, where channels have routers."""
        return f"{self.channel_routers()}{channel}"

    def channel_routers(self) -> str:
        """All of them, where a picture draws them as one box."""
        return f"{self}.ch_r"


@frozen(order=True)
class IoId:
    sip: int
    name: str  # "io0"

    def __str__(self) -> str:
        return f"sip{self.sip}.{self.name}"

    def pcie_ep(self) -> str:
        return f"{self}.pcie_ep"

    def io_cpu(self) -> str:
        return f"{self}.io_cpu"

    def io_noc(self) -> str:
        return f"{self}.io_noc"

    def io_ucie(self, phy: str) -> str:
        return f"{self}.io_ucie.{phy}"

    def far_memory(self) -> str:
        """The node of far memory that is linked to this chiplet."""
        return f"{self}.far"

    def sip_port(self, side: str) -> str:
        return f"{self}.sip_port.{side}"

    def conn(self, phy: str, n: int) -> str:
        return f"{self}.conn.{phy}.{n}"


@frozen
class Place:
    """Where a node is: -1 or "" for a level it does not belong to."""

    sip: int = -1
    cube: int = -1
    pe: int = -1
    io: str = ""

    @classmethod
    def of(cls, node: str) -> Place:
        """Read a node's place from its name; the tray's own nodes belong to no SIP."""
        found = _PLACE.match(node)
        if not found:
            return cls()
        sip, cube, io, pe = found.groups()
        return cls(int(sip), int(cube) if cube else -1, int(pe) if pe else -1, io or "")
