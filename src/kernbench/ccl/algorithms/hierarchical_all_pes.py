"""All-reduce in which all PEs carry their share, so that all connections between cubes and the whole of PCIe are used:
for large messages.

Addends per cube: the part of a cube is split over its PEs. The PEs of one number reduce their shares over the cube mesh
to its root, the roots of all SIPs exchange, and the result goes back the same way. Addends per rank: the tensor is
split over the PEs, which exchange their shares with their peers on the other SIPs. Of a tensor that is replicated,
every replica exchanges a share, and they then give each other what they have got.

SIPs exchange directly, all with all: a few bytes in one round, more in two. Where that would take more rings than there
are, they do so in rows and columns, or around a ring where their number is prime. Shares of which every SIP has a whole
chunk go around a ring too. Where there are many, and many PEs, each has one on its way at a time, which may be longer
then: they share PCIe, which has enough to do all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from kernbench.ccl.algorithms import rings, trees
from kernbench.ccl.algorithms.exchanges import (
    DIRECT_ROUNDS,
    IN_ROWS_ROUNDS,
    Direction,
    direct,
    direct_in_rows,
    direct_whole,
    ring_pieces,
    row_width,
)
from kernbench.ccl.algorithms.parts import Lane, Rounds, in_rounds, kernel_args, my_part, parts_of
from kernbench.ccl.work import Assignment, Spread
from kernbench.triton_emu.tl_context import TensorHandle, TensorPtr, TLContext

__all__ = ["kernel", "kernel_args", "refuse"]

COLLECTIVES = ("all_reduce",)
FEW_BYTES = 1024
LONG_PIECE_BYTES, MANY_PES = 96 * 1024, 32  # from which on PEs have one chunk on its way at a time


def refuse(work: Assignment) -> str | None:
    """Why it cannot be done, if it cannot."""
    return None if work.is_rectangle else f"cubes {work.cubes} are no rectangle of the cube mesh"


class ExchangePlan(NamedTuple):
    """How SIPs exchange a chunk, and in how many rounds."""

    way: Callable[[Lane, TensorHandle, int, int, Direction], Rounds]
    rounds: int

    @property
    def held(self) -> int:
        """Chunks in TCM, of those in all rounds together."""
        return 3 * self.rounds


def exchange_plan(n_sips: int, n_rings: int) -> ExchangePlan:
    """The way with the fewest rounds for which so many rings are enough."""
    width = row_width(n_sips)
    if n_sips - 1 <= n_rings:
        return ExchangePlan(direct, DIRECT_ROUNDS)
    if width > 1 and width - 1 + n_sips // width - 1 <= n_rings:
        return ExchangePlan(direct_in_rows, IN_ROWS_ROUNDS)
    return ExchangePlan(ring_pieces, 2 * (n_sips - 1))


def kernel(
    t_ptr: TensorPtr,
    n_elem: int,
    cube_w: int,
    cube_h: int,
    n_sips: int,
    sip_rank: int,
    sip_topo_kind: int,
    sip_topo_w: int,
    sip_topo_h: int,
    *,
    op: str = "sum",
    per: str = "rank",
    spread: Spread | None = None,
    replicas: Spread = (False, False),
    cubes: tuple[int, ...] = (0,),
    pes: tuple[int, ...] = (0,),
    n_rings: int = 11,
    mesh_root: str = "center",
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
) -> None:
    """`replicas` says whether PEs of a cube, and whether cubes, hold the same part."""
    part, n = my_part(t_ptr, tl, spread, n_elem if per == "cube" else None)
    over_pes, over_cubes = replicas
    among_pes = rings.number_ring(pes, tl.physical_id(0), "intra") if over_pes else None
    among_cubes = rings.number_ring(cubes, tl.physical_id(1), "cube") if over_cubes else None
    shares = parts_of(n, among_pes.size if among_pes else 1, t_ptr.itemsize)
    first, count = shares[among_pes.position if among_pes else 0]
    pieces = [
        (first + at, size) for at, size in parts_of(count, among_cubes.size if among_cubes else 1, t_ptr.itemsize)
    ]
    own_first, own_count = pieces[among_cubes.position if among_cubes else 0]

    is_mesh = per == "cube" and cube_w * cube_h > 1
    cube = tl.program_id(1) if is_mesh else 0
    tree = trees.cube_mesh(cube % cube_w, cube // cube_w, cube_w, cube_h, mesh_root) if is_mesh else trees.ALONE
    plan = exchange_plan(n_sips, n_rings - (trees.MOST_IN_MESH if is_mesh else 0))
    window = trees.WINDOW if is_mesh and not any(replicas) else rings.WINDOW
    live = trees.live_in_mesh(plan.held, window) if is_mesh else max(trees.live(0) + plan.held, rings.LIVE)
    make = partial(Lane, tl, t_ptr, op=op, chunk_bytes=chunk_bytes, work_bytes=work_bytes, slot_size=slot_size)
    lane = make(live=live, window=window)

    def exchange(x: TensorHandle) -> Rounds:
        is_small = plan.way is direct and own_count * lane.itemsize <= FEW_BYTES
        way = direct_whole if is_small else plan.way
        return way(lane, x, sip_rank, n_sips, lambda rank: f"rank_{rank}")

    start = part + own_first * lane.itemsize
    if is_mesh:
        trees.all_reduce(lane, start, own_count, tree, n_sips * len(cubes), exchange, plan.rounds)
    elif own_count >= n_sips * lane.chunk:
        is_long = own_count * lane.itemsize >= n_sips * LONG_PIECE_BYTES and len(cubes) * len(pes) >= MANY_PES
        depth = 1 if is_long else rings.DEPTH
        around = lane  # those that exchange nothing need no room for it
        if is_long or plan.way is ring_pieces:
            around = make(live=rings.live_of(depth), window=rings.window_of(depth))
        rings.all_reduce(around, rings.rank_ring(sip_rank, n_sips), start, own_count, n_sips, depth=depth)
        if around is not lane and any(replicas):
            del around
            tl.wait()  # chunks of two lengths have no room beside each other
    else:
        in_rounds(lane, start, own_count, exchange, n_sips)
    if among_cubes is not None:
        rings.all_gather_in_place(lane, among_cubes, part, pieces)
    if among_pes is not None:
        rings.all_gather_in_place(lane, among_pes, part, shares)
