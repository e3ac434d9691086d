"""Reduce-scatter around a ring: the piece of every rank circulates once and is reduced on its way, chunk by chunk."""

from __future__ import annotations

from kernbench.ccl.algorithms import rings
from kernbench.ccl.algorithms.parts import CollectiveChannel, kernel_args, my_part
from kernbench.ccl.work import Spread
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

__all__ = ["kernel", "kernel_args"]

COLLECTIVES = ("reduce_scatter",)


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
    out: TensorPtr,
    op: str = "sum",
    spread: Spread | None = None,
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
    **parts: TensorPtr,
) -> None:
    """Addends are `t_ptr`, the pieces one after the other, or `part_0`, `part_1` and so on."""
    part, n = my_part(out, tl, spread)
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
    ring = rings.rank_ring(sip_rank, n_sips)

    def place(rank: int) -> int:
        if parts:
            return my_part(parts[f"part_{rank}"], tl, spread)[0]
        return t_ptr.storage + rank * n_elem * channel.itemsize + (part - out)

    for cells in rings.columns(channel, [(0, n)] * n_sips):
        for span, x in zip(cells[sip_rank], rings.reduce_scatter(channel, ring, cells, place, n_sips), strict=True):
            channel.store(part, span, channel.finish(x, n_sips))
