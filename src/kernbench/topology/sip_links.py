"""Direct links between SIPs: which SIPs are neighbours, the links themselves, and the way from SIP to SIP.

SIPs lie on a grid, row by row; a ring is one row that wraps. A way goes along x first, then along y, the shorter way
round where rows and columns wrap, and in the direction of rising numbers where both are equally long.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernbench.common.ids import IoId
from kernbench.topology.graph import Edge, EdgeKind
from kernbench.topology.mesh import snap_mm
from kernbench.topology.spec import MachineSpec, SipsSpec
from kernbench.topology.spec_base import Side

_STEP: dict[Side, tuple[int, int]] = {"E": (1, 0), "W": (-1, 0), "S": (0, 1), "N": (0, -1)}
_OPPOSITE: dict[Side, Side] = {"E": "W", "W": "E", "S": "N", "N": "S"}


def port_sides(sips: SipsSpec) -> tuple[Side, ...]:
    """The ports of every SIP. All SIPs have the same: at the edge of a mesh, some lead nowhere."""
    w, h = sips.linked_grid
    along_x: tuple[Side, ...] = ("E", "W") if w > 1 else ()
    return (*along_x, "S", "N") if h > 1 else along_x


def direct_links(spec: MachineSpec) -> Iterator[Edge]:
    """Both directions of every link between neighbours, SIP by SIP. A ring of two has two links."""
    link = spec.system.sips.links
    if link is None:
        return
    io, mm = spec.sip.io_chiplets[0].id, snap_mm(link.distance_mm)
    for sip in range(spec.n_sips):
        for side in port_sides(spec.system.sips):
            to = neighbour(spec.system.sips, sip, side)
            if to is not None:
                src, dst = IoId(sip, io).sip_port(side), IoId(to, io).sip_port(_OPPOSITE[side])
                yield Edge(src, dst, EdgeKind.SIP_LINK, link.bw_gbs, mm)


def neighbour(sips: SipsSpec, sip: int, side: Side) -> int | None:
    """The SIP on one side of another; None at the edge of a mesh."""
    w, h = sips.linked_grid
    dx, dy = _STEP[side]
    x, y = sip % w + dx, sip // w + dy
    if sips.wraps:
        x, y = x % w, y % h
    return y * w + x if 0 <= x < w and 0 <= y < h else None


def neighbours(sips: SipsSpec) -> Iterator[tuple[int, int, int]]:
    """Every pair of SIPs that are joined, the lower number first, and by how many links."""
    counts: dict[tuple[int, int], int] = {}
    for sip in range(sips.count):
        for side in port_sides(sips):
            to = neighbour(sips, sip, side)
            if to is not None and to > sip:
                counts[sip, to] = counts.get((sip, to), 0) + 1
    for (sip, to), count in counts.items():
        yield sip, to, count


def sides_between(sips: SipsSpec, src: int, dst: int) -> list[tuple[int, Side, int]]:
    """The links from one SIP to another: from which SIP, on which side, to which SIP."""
    w, h = sips.linked_grid
    found: list[tuple[int, Side, int]] = []
    here = src
    for size, divisor, ahead, back in ((w, 1, "E", "W"), (h, w, "S", "N")):
        steps = dst // divisor % size - src // divisor % size
        if sips.wraps:
            steps %= size
            steps = steps if 2 * steps <= size else steps - size
        side: Side = ahead if steps > 0 else back  # type: ignore[assignment]
        for _ in range(abs(steps)):
            there = neighbour(sips, here, side)
            assert there is not None
            found.append((here, side, there))
            here = there
    return found


def ports_between(spec: MachineSpec, src: int, dst: int) -> list[tuple[str, str]]:
    """The two ports of every link from one SIP to another."""
    io = spec.sip.io_chiplets[0].id
    return [
        (IoId(here, io).sip_port(side), IoId(there, io).sip_port(_OPPOSITE[side]))
        for here, side, there in sides_between(spec.system.sips, src, dst)
    ]
