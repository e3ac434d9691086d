"""Reduce or broadcast along a chain of ranks that begins at the root. Every rank sends and receives the bytes once,
chunk by chunk: for large messages.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.parts import CollectiveChannel, kernel_args, my_part
from kernbench.ccl.algorithms.trees import WINDOW, broadcast, chain, live, reduce
from kernbench.ccl.work import Spread
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

__all__ = ["kernel", "kernel_args"]

COLLECTIVES = ("reduce", "broadcast")


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
    collective: str = "broadcast",
    op: str = "sum",
    root: int = 0,
    spread: Spread | None = None,
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
) -> None:
    part, n = my_part(t_ptr, tl, spread)
    ranks = chain(sip_rank, n_sips, root, lambda rank: f"rank_{rank}")
    channel = CollectiveChannel(
        tl,
        t_ptr,
        op=op,
        chunk_bytes=chunk_bytes,
        work_bytes=work_bytes,
        slot_size=slot_size,
        live=live(1),
        window=WINDOW,
    )
    if collective == "reduce":
        reduce(channel, part, n, ranks, n_sips)
    else:
        broadcast(channel, part, n, ranks)
