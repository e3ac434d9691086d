"""All-gather around a ring: every rank's tensor circulates once, chunk by chunk."""

from __future__ import annotations

from kernbench.ccl.algorithms import rings
from kernbench.ccl.algorithms.parts import CollectiveChannel, kernel_args, my_part
from kernbench.ccl.work import Spread
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

__all__ = ["kernel", "kernel_args"]

COLLECTIVES = ("all_gather",)


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
    out: TensorPtr | None = None,
    spread: Spread | None = None,
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
    **parts: TensorPtr,
) -> None:
    """The results are `out`, one after the other, or `part_0`, `part_1` and so on."""
    part, n = my_part(t_ptr, tl, spread)
    if not n:
        return
    channel = CollectiveChannel(
        tl,
        t_ptr,
        chunk_bytes=chunk_bytes,
        work_bytes=work_bytes,
        slot_size=slot_size,
        live=rings.LIVE,
        window=rings.WINDOW,
    )
    ring = rings.rank_ring(sip_rank, n_sips)

    def place(rank: int) -> int:
        if out is None:
            return my_part(parts[f"part_{rank}"], tl, spread)[0]
        return out.storage + rank * n_elem * channel.itemsize + (part - t_ptr)

    for cells in rings.columns(channel, [(0, n)] * n_sips):
        own = []
        for span, x in zip(cells[sip_rank], channel.loads((part, span) for span in cells[sip_rank]), strict=True):
            channel.store(place(sip_rank), span, x)
            own.append(x)
        rings.all_gather(channel, ring, cells, own, place)
