"""All-reduce around a ring: reduce-scatter, then all-gather. Every rank sends 2 (n - 1) / n of the bytes, the least
that is possible, in 2 (n - 1) steps: for large messages.

With addends per cube, the cubes of a SIP do a reduce-scatter first; each cube's piece then circulates the SIPs.
"""

from __future__ import annotations

from kernbench.ccl.algorithms import rings
from kernbench.ccl.algorithms.parts import CollectiveChannel, kernel_args, my_part, parts_of
from kernbench.ccl.work import Spread
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

__all__ = ["kernel", "kernel_args"]

COLLECTIVES = ("all_reduce",)


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
    cubes: tuple[int, ...] = (0,),
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
) -> None:
    part, n = my_part(t_ptr, tl, spread, n_elem if per == "cube" else None)
    if not n:
        return
    channel = CollectiveChannel(
        tl,
        t_ptr,
        op=op,
        chunk_bytes=chunk_bytes,
        work_bytes=work_bytes,
        slot_size=slot_size,
        live=rings.LIVE,
        window=rings.WINDOW,
    )
    ranks = rings.rank_ring(sip_rank, n_sips)
    if per == "rank":
        rings.all_reduce(channel, ranks, part, n, n_sips)
        return
    order = [cubes[at] for at in rings.mesh_cycle(cube_w, cube_h)]
    around = rings.number_ring(order, tl.physical_id(1), "cube")
    pieces = parts_of(n, len(cubes), channel.itemsize)
    addends = n_sips * len(cubes)
    rings.reduce_scatter_in_place(channel, around, part, pieces, addends)
    first, count = pieces[around.position]
    if count:
        rings.all_reduce(channel, ranks, part + first * channel.itemsize, count, addends, begun=True)
    rings.all_gather_in_place(channel, around, part, pieces)
