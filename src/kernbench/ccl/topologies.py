"""Neighbours of PEs: the directions of a PE and the PE in each of them, by physical position. Pure functions.

    N S E W                      the same PE number in the next cube of its SIP's mesh; no wrap
    intra_E intra_W              the next and the previous PE number of its cube, as a ring
    intra_N intra_S              the PE half the cube's PEs away
    intra_<k>, cube_<k>          PE k of its cube; the same PE number in cube k of its SIP
    global_N/S/E/W               the same cube and PE on the next SIP of the group's grid
    rank_<k>                     the same cube and PE on the SIP of rank k in the group
    cube_<c>_pe_<p>              PE p of cube c of its SIP
    rank_<k>_cube_<c>_pe_<p>     another cube or PE on the SIP of rank k. As there are many, these and those above are
                                 not listed, and a receive from any direction does not look at them

A message sent in one direction is received from the opposite one: E from W, N from S, intra_2 of PE 5 from intra_5 of
PE 2. So where two directions lead to the same neighbour, as in a ring of two, they have separate rings of slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from kernbench.common.errors import UsageError
from kernbench.common.frozen import frozen
from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Peer
from kernbench.topology.spec import MachineSpec

GridKind = Literal["ring_1d", "torus_2d", "mesh_2d_no_wrap"]
Neighbors = dict[str, int]

SIDES = ("N", "S", "E", "W")
OPPOSITE = {"N": "S", "S": "N", "E": "W", "W": "E"}
_STEP = {"N": (0, -1), "S": (0, 1), "E": (1, 0), "W": (-1, 0)}


def ring_1d(rank: int, world_size: int) -> Neighbors:
    """E is the next rank, W the one before; a ring of one has no neighbours."""
    return torus_2d(rank, world_size, 1)


def torus_2d(rank: int, w: int, h: int) -> Neighbors:
    """Ranks row by row on a grid whose edges are joined; along an axis of size 1 there are no neighbours."""
    return {side: peer for side in SIDES if (peer := _step(rank, w, h, side, wraps=True)) is not None}


def mesh_2d_no_wrap(rank: int, w: int, h: int) -> Neighbors:
    """Ranks row by row on a grid with edges."""
    return {side: peer for side in SIDES if (peer := _step(rank, w, h, side, wraps=False)) is not None}


def _step(rank: int, w: int, h: int, side: str, *, wraps: bool) -> int | None:
    x, y = rank % w, rank // w
    dx, dy = _STEP[side]
    if (w if dx else h) == 1:
        return None
    to_x, to_y = x + dx, y + dy
    if wraps:
        to_x, to_y = to_x % w, to_y % h
    return to_y * w + to_x if 0 <= to_x < w and 0 <= to_y < h else None


@frozen
class SipGroup:
    """SIPs in the order of their ranks, on a grid; and the cubes and PEs of a SIP."""

    sips: tuple[int, ...]
    kind: GridKind
    w: int
    h: int
    cube_w: int
    cube_h: int
    n_pes: int

    @property
    def n_cubes(self) -> int:
        return self.cube_w * self.cube_h

    def rank_of(self, sip: int) -> int | None:
        return self.sips.index(sip) if sip in self.sips else None


def group_of(spec: MachineSpec, sips: Sequence[int] | None = None) -> SipGroup:
    """All SIPs of a machine on the grid that it describes, or some of them, in that order, as a ring.

    If `sips` are all SIPs in order, they are on the machine's grid. Raises UsageError for a grid of another size.
    """
    everyone = tuple(range(spec.n_sips))
    chosen = everyone if sips is None else tuple(sips)
    mesh, n_pes = spec.sip.cube_mesh, spec.cube.n_pes
    if chosen != everyone:
        return SipGroup(chosen, "ring_1d", len(chosen), 1, mesh.w, mesh.h, n_pes)
    w, h = spec.system.sips.grid
    kind = spec.system.sips.topology
    if w * h != len(chosen):
        raise UsageError(
            f"a grid of {w} x {h} SIPs does not hold {len(chosen)}",
            where="system.sips",
            hint="give w and h whose product is count, or topology: ring_1d",
        )
    if kind == "ring_1d":  # in the order of ranks, regardless of the grid
        w, h = len(chosen), 1
    return SipGroup(chosen, kind, w, h, mesh.w, mesh.h, n_pes)


def peer_of(group: SipGroup, pe: PeKey, direction: str) -> Peer | None:
    """The neighbour of a PE in a direction, with the direction that leads back; None if there is none."""
    sip, cube, number = pe
    rank = group.rank_of(sip)
    if rank is None:
        return None
    if direction in SIDES:
        to = _step(cube, group.cube_w, group.cube_h, direction, wraps=False)
        return None if to is None else Peer((sip, to, number), OPPOSITE[direction])
    prefix, _, rest = direction.partition("_")
    if prefix == "intra":
        return _in_cube(group, pe, rest)
    if prefix == "cube" and _is_other(rest, cube, group.n_cubes):
        return Peer((sip, int(rest), number), f"cube_{cube}")
    if prefix == "cube" and "_pe_" in rest:
        other = _named_pe(group, pe, direction)
        return None if other is None else Peer((sip, *other), f"cube_{cube}_pe_{number}")
    if prefix == "rank":
        return _on_rank(group, pe, rank, rest)
    if prefix == "global" and rest in SIDES:
        to = _step(rank, group.w, group.h, rest, wraps=group.kind != "mesh_2d_no_wrap")
        return None if to is None else Peer((group.sips[to], cube, number), f"global_{OPPOSITE[rest]}")
    return None


def _on_rank(group: SipGroup, pe: PeKey, rank: int, rest: str) -> Peer | None:
    _, cube, number = pe
    if _is_other(rest, rank, len(group.sips)):
        return Peer((group.sips[int(rest)], cube, number), f"rank_{rank}")
    to, _, name = rest.partition("_")
    other = _named_pe(group, pe, name)
    if other is None or not _is_other(to, rank, len(group.sips)):
        return None
    return Peer((group.sips[int(to)], *other), f"rank_{rank}_cube_{cube}_pe_{number}")


def _named_pe(group: SipGroup, pe: PeKey, name: str) -> tuple[int, int] | None:
    """The cube and the PE of cube_<c>_pe_<p>, unless they are those of `pe`."""
    prefix, _, rest = name.partition("_")
    cube, _, number = rest.partition("_pe_")
    if prefix != "cube" or not _is_other(cube, -1, group.n_cubes) or not _is_other(number, -1, group.n_pes):
        return None
    found = int(cube), int(number)
    return None if found == pe[1:] else found


def _in_cube(group: SipGroup, pe: PeKey, rest: str) -> Peer | None:
    sip, cube, number = pe
    n = group.n_pes
    if _is_other(rest, number, n):
        return Peer((sip, cube, int(rest)), f"intra_{number}")
    by = {"E": 1, "W": n - 1, "N": n - n // 2, "S": n // 2}.get(rest)
    if by is None or n == 1:
        return None
    return Peer((sip, cube, (number + by) % n), f"intra_{OPPOSITE[rest]}")


def _is_other(text: str, own: int, count: int) -> bool:
    """Whether text is a number below `count` other than `own`."""
    return text.isascii() and text.isdecimal() and str(int(text)) == text and int(text) < count and int(text) != own


def direction_names(group: SipGroup) -> tuple[str, ...]:
    """Every direction that some PE may have, the short ones first."""
    sides = [*SIDES, *(f"intra_{side}" for side in SIDES), *(f"global_{side}" for side in SIDES)]
    ranks = [f"rank_{k}" for k in range(len(group.sips))]
    cubes = [f"cube_{k}" for k in range(group.n_cubes)]
    return (*sides, *ranks, *(f"intra_{k}" for k in range(group.n_pes)), *cubes)


def directions_of(group: SipGroup, pe: PeKey) -> tuple[str, ...]:
    """The directions in which a PE has a neighbour."""
    return tuple(name for name in direction_names(group) if peer_of(group, pe, name) is not None)
