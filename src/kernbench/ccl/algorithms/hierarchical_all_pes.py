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

from functools import partial

from kernbench.ccl.algorithms import rings, trees
from kernbench.ccl.algorithms.exchanges import (
    DIRECT_ROUNDS,
    IN_ROWS_ROUNDS,
    direct,
    direct_in_rows,
    direct_whole,
    ring_pieces,
    rows_of,
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
    n_rings: int = 16,
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
    most = trees.MOST_IN_MESH if is_mesh else 0
    is_direct = n_sips - 1 + most <= n_rings
    width = rows_of(n_sips)
    in_rows = width > 1 and width - 1 + n_sips // width - 1 + most <= n_rings
    rounds = DIRECT_ROUNDS if is_direct else IN_ROWS_ROUNDS if in_rows else 2 * (n_sips - 1)
    held = 3 * rounds  # chunks, in all rounds together
    window = trees.WINDOW if is_mesh and not any(replicas) else rings.WINDOW
    live = trees.live_in_mesh(held, window) if is_mesh else max(trees.live(0) + held, rings.LIVE)
    make = partial(Lane, tl, t_ptr, op=op, chunk_bytes=chunk_bytes, work_bytes=work_bytes, slot_size=slot_size)
    lane = make(live=live, window=window)

    def exchange(x: TensorHandle) -> Rounds:
        if is_direct:
            way = direct_whole if own_count * lane.itemsize <= FEW_BYTES else direct
        else:
            way = direct_in_rows if in_rows else ring_pieces
        return way(lane, x, sip_rank, n_sips, lambda rank: f"rank_{rank}")

    start = part + own_first * lane.itemsize
    if is_mesh:
        trees.all_reduce(lane, start, own_count, tree, n_sips * len(cubes), exchange, rounds)
    elif own_count >= n_sips * lane.chunk:
        depth = rings.DEPTH
        if own_count * lane.itemsize >= n_sips * LONG_PIECE_BYTES and len(cubes) * len(pes) >= MANY_PES:
            depth = 1
            lane = make(live=rings.live_of(depth), window=rings.window_of(depth))
        rings.all_reduce(lane, rings.rank_ring(sip_rank, n_sips), start, own_count, n_sips, depth=depth)
    else:
        in_rounds(lane, start, own_count, exchange, n_sips)
    if among_cubes is not None:
        rings.all_gather_in_place(lane, among_cubes, part, pieces)
    if among_pes is not None:
        rings.all_gather_in_place(lane, among_pes, part, shares)
