"""All-reduce in which all PEs transfer a share, so that all connections between cubes and the full PCIe bandwidth are
used: for large messages.

Addends per cube: the part of a cube is split over its PEs. The PEs of one number reduce their shares over the cube mesh
to its root, the roots of all SIPs exchange, and the result returns along the same path. Addends per rank: the tensor is
split over the PEs, which exchange their shares with the same PEs of the other SIPs. Of a replicated tensor, every
replica exchanges a share, followed by an all-gather among the replicas.

SIPs exchange directly, all with all: small chunks in one round, others in two. If that takes more rings than there are,
they exchange in rows and columns, or around a ring if their number is prime. Shares with a whole chunk for every SIP
circulate a ring too. With many chunks and many PEs, each PE has one chunk in flight at a time, which may be longer:
the PEs share the PCIe link, which stays busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from kernbench.ccl.algorithms import rings, trees
from kernbench.ccl.algorithms.exchanges import (
    DIRECT_ROUNDS,
    IN_ROWS_ROUNDS,
    DirectionOfPosition,
    direct,
    direct_in_rows,
    direct_whole,
    ring_pieces,
    row_width,
)
from kernbench.ccl.algorithms.parts import CollectiveChannel, Rounds, in_rounds, kernel_args, my_part, parts_of
from kernbench.ccl.work import Assignment, Spread
from kernbench.common.array_types import Span
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorHandle, TensorPtr, TLContext

__all__ = ["kernel", "kernel_args", "refuse"]

COLLECTIVES = ("all_reduce",)
FEW_BYTES = 1024  # per PE
ROUND_BYTES = 24 * 1024  # what a SIP's link carries in about the time of one round
LONG_PIECE_BYTES, MANY_PES = 96 * 1024, 32  # from these on, a PE has one chunk in flight at a time


def refuse(work: Assignment) -> str | None:
    """The reason why the assignment is not supported, or None."""
    return None if work.is_rectangle else f"cubes {work.cubes} are no rectangle of the cube mesh"


class ExchangePlan(NamedTuple):
    """How SIPs exchange a chunk, and in how many rounds."""

    exchange: Callable[[CollectiveChannel, TensorHandle, int, int, DirectionOfPosition], Rounds]
    rounds: int

    @property
    def held(self) -> int:
        """Chunks in TCM, over all rounds together."""
        return 3 * self.rounds


def exchange_plan(n_sips: int, n_rings: int) -> ExchangePlan:
    """The exchange with the fewest rounds that needs at most `n_rings` rings."""
    width = row_width(n_sips)
    if n_sips - 1 <= n_rings:
        return ExchangePlan(direct, DIRECT_ROUNDS)
    if width > 1 and width - 1 + n_sips // width - 1 <= n_rings:
        return ExchangePlan(direct_in_rows, IN_ROWS_ROUNDS)
    return ExchangePlan(ring_pieces, 2 * (n_sips - 1))


def is_sent_whole(nbytes: int, piece_bytes: int, n_sips: int, n_pes: int) -> bool:
    """Whether chunks are small enough to be sent whole to all SIPs, in one round instead of two.

    A SIP sends n - 1 chunks whole. In two rounds the one that reduces the largest piece sends n - 1 pieces, and all of
    the chunk but that: n - 2 times what the piece is less than the chunk is the difference, which must take no longer
    than a round for all PEs. Chunks of up to a burst are one piece.
    """
    return nbytes <= FEW_BYTES and (nbytes - piece_bytes) * n_pes * (n_sips - 2) <= ROUND_BYTES


def exchange(
    channel: CollectiveChannel, plan: ExchangePlan, sent_whole: bool, n_sips: int, sip_rank: int, x: TensorHandle
) -> Rounds:
    """Exchange a chunk of this PE as planned; in a direct exchange it may be sent whole."""
    chosen = direct_whole if sent_whole and plan.exchange is direct else plan.exchange
    return chosen(channel, x, sip_rank, n_sips, lambda rank: f"rank_{rank}")


class Replicas(NamedTuple):
    """PEs, or cubes, that hold the same part: each exchanges one piece of it, then they all-gather the results."""

    ring: rings.RingPosition
    pieces: list[Span]


def split_over_replicas(
    n: int, itemsize: int, replicas: Spread, pes: Sequence[int], cubes: Sequence[int], tl: TLContext
) -> tuple[Span, list[Replicas]]:
    """Of a part of n elements, those that this PE exchanges, and the replicas that exchange the others, in the order of
    the all-gathers: first those of the last split, whose pieces together are one piece of the split before.
    """
    own = (0, n)
    found: list[Replicas] = []
    for is_replicated, numbers, axis, prefix in zip(replicas, (pes, cubes), (0, 1), ("intra", "cube"), strict=True):
        if is_replicated:
            ring = rings.number_ring(numbers, tl.physical_id(axis), prefix)
            pieces = [(own[0] + at, count) for at, count in parts_of(own[1], ring.size, itemsize)]
            own, found = pieces[ring.position], [Replicas(ring, pieces), *found]
    return own, found


def ring_depth(nbytes: int, n_sips: int, n_pes: int) -> int:
    """Chunks that a PE with `nbytes` bytes has in flight around the ring of SIPs."""
    return 1 if nbytes >= n_sips * LONG_PIECE_BYTES and n_pes >= MANY_PES else rings.DEPTH


@repeatable
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
    """`replicas`: whether PEs of a cube, and whether cubes, hold the same part."""
    part, n = my_part(t_ptr, tl, spread, n_elem if per == "cube" else None)
    (first, count), shared_with = split_over_replicas(n, t_ptr.itemsize, replicas, pes, cubes, tl)
    start = part + first * t_ptr.itemsize

    is_mesh = per == "cube" and cube_w * cube_h > 1
    plan = exchange_plan(n_sips, n_rings - (trees.MOST_IN_MESH if is_mesh else 0))
    window = trees.WINDOW if is_mesh and not shared_with else rings.WINDOW
    live = trees.live_in_mesh(plan.held, window) if is_mesh else max(trees.live(0) + plan.held, rings.LIVE)
    make_channel = partial(
        CollectiveChannel, tl, t_ptr, op=op, chunk_bytes=chunk_bytes, work_bytes=work_bytes, slot_size=slot_size
    )
    channel = make_channel(live=live, window=window)
    n_pes = len(pes) if is_mesh else len(cubes) * len(pes)  # that exchange a share
    piece = max(size for _, size in parts_of(count, n_sips, t_ptr.itemsize))
    sent_whole = is_sent_whole(count * t_ptr.itemsize, piece * t_ptr.itemsize, n_sips, n_pes)
    rounds = partial(exchange, channel, plan, sent_whole, n_sips, sip_rank)

    if is_mesh:
        cube = tl.program_id(1)
        tree = trees.cube_mesh(cube % cube_w, cube // cube_w, cube_w, cube_h, mesh_root)
        trees.all_reduce(channel, start, count, tree, n_sips * len(cubes), rounds, plan.rounds)
    elif count < n_sips * channel.chunk:
        in_rounds(channel, start, count, rounds, n_sips)
    else:
        around = partial(rings.all_reduce, ring=rings.rank_ring(sip_rank, n_sips), ptr=start, n=count, addends=n_sips)
        depth = ring_depth(count * t_ptr.itemsize, n_sips, n_pes)
        if depth == rings.DEPTH and plan.exchange is not ring_pieces:
            around(channel)
        else:  # no other exchange follows, so the ring's chunks may use its TCM
            around(make_channel(live=rings.live_of(depth), window=rings.window_of(depth)), depth=depth)
            if shared_with:
                tl.wait()  # chunks of two lengths do not fit TCM together
    for ring, pieces in shared_with:
        rings.all_gather_in_place(channel, ring, part, pieces)
