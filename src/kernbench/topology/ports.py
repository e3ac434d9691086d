"""Which IO chiplet is connected to which cube: the resolved ports of every chiplet.

A chiplet that names no `cube_ports` gets a PHY for every cube on its side of the package; several such chiplets on one
side share that side's cubes evenly, and ports that another chiplet names stay with it. Positions are not decided here.
"""

from __future__ import annotations

from typing import Literal

from kernbench.common.frozen import frozen
from kernbench.topology.spec_base import Side
from kernbench.topology.spec_sip import CubePort, IoChipletPlace, SipSpec


@frozen
class PhyPort:
    """One PHY and the cube port that it is connected to."""

    phy: str
    x: int
    y: int
    cube_side: Side
    distance_mm: float


@frozen
class Chiplet:
    """An IO chiplet with its resolved ports."""

    id: str
    side: Side
    ports: tuple[PhyPort, ...]


def shoreline(sip: SipSpec, side: Side) -> list[tuple[int, int]]:
    """The cubes on one side of the package, west to east or north to south."""
    w, h = sip.cube_mesh.w, sip.cube_mesh.h
    if side in ("N", "S"):
        return [(x, 0 if side == "N" else h - 1) for x in range(w)]
    return [(0 if side == "W" else w - 1, y) for y in range(h)]


@frozen
class WrapLink:
    """A link that closes a row or a column of cubes: from the east port of its last cube to the west port of the first,
    or from south to north.
    """

    axis: Literal["x", "y"]
    last: tuple[int, int]
    first: tuple[int, int]

    @property
    def sides(self) -> tuple[Side, Side]:
        return ("E", "W") if self.axis == "x" else ("S", "N")


def wrap_links(sip: SipSpec, chiplets: tuple[Chiplet, ...]) -> list[WrapLink]:
    """The rows and columns that are closed: all of a wrapped axis with more than one cube whose end ports are free."""
    w, h, wrap = sip.cube_mesh.w, sip.cube_mesh.h, sip.cube_mesh.wrap
    rows = [WrapLink("x", (w - 1, y), (0, y)) for y in range(h)] if "x" in wrap and w > 1 else []
    columns = [WrapLink("y", (x, h - 1), (x, 0)) for x in range(w)] if wrap != "none" and "y" in wrap and h > 1 else []
    taken = {(port.x, port.y, port.cube_side) for chiplet in chiplets for port in chiplet.ports}
    return [
        link
        for link in (*rows, *columns)
        if (*link.last, link.sides[0]) not in taken and (*link.first, link.sides[1]) not in taken
    ]


def resolve_chiplets(sip: SipSpec, distance_mm: float) -> tuple[Chiplet, ...]:
    """Every chiplet with its ports; `distance_mm` applies to ports that set none. The description may be invalid."""
    named = {
        (*port.cube.xy, port.cube_side or place.side) for place in sip.io_chiplets for port in place.cube_ports or ()
    }
    free: dict[Side, list[tuple[int, int]]] = {}
    sharing: dict[Side, list[int]] = {}
    for index, place in enumerate(sip.io_chiplets):
        if place.cube_ports is None:
            side = place.side
            sharing.setdefault(side, []).append(index)
            free[side] = [(x, y) for x, y in shoreline(sip, side) if (x, y, side) not in named]
    chiplets = []
    for index, place in enumerate(sip.io_chiplets):
        if place.cube_ports is not None:
            ports = tuple(_named_port(n, port, place, distance_mm) for n, port in enumerate(place.cube_ports))
        else:
            rank, of = sharing[place.side].index(index), len(sharing[place.side])
            cubes = free[place.side]
            mine = cubes[rank * len(cubes) // of : (rank + 1) * len(cubes) // of]
            ports = tuple(PhyPort(f"P{n}", x, y, place.side, distance_mm) for n, (x, y) in enumerate(mine))
        chiplets.append(Chiplet(place.id, place.side, ports))
    return tuple(chiplets)


def _named_port(n: int, port: CubePort, place: IoChipletPlace, distance_mm: float) -> PhyPort:
    x, y = port.cube.xy
    distance = distance_mm if port.distance_mm is None else port.distance_mm
    return PhyPort(port.phy or f"P{n}", x, y, port.cube_side or place.side, distance)
