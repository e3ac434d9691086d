"""Point-to-point: one rank sends a tensor, another receives it, chunk by chunk. Both place it in the same way."""

from __future__ import annotations

from kernbench.ccl.algorithms.parts import AHEAD, CollectiveChannel, kernel_args, my_part
from kernbench.ccl.work import Spread
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

__all__ = ["kernel", "kernel_args"]

COLLECTIVES = ("send", "recv")


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
    collective: str,
    peer: int,
    spread: Spread | None = None,
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
) -> None:
    part, n = my_part(t_ptr, tl, spread)
    channel = CollectiveChannel(
        tl, t_ptr, chunk_bytes=chunk_bytes, work_bytes=work_bytes, slot_size=slot_size, live=AHEAD + 4
    )
    spans = channel.spans(n)
    if collective == "send":
        for x in channel.loads((part, span) for span in spans):
            channel.send(f"rank_{peer}", x)
        return
    for span, x in zip(spans, channel.receives(f"rank_{peer}", [count for _, count in spans]), strict=True):
        channel.store(part, span, x)
