"""A dissemination barrier: in round i every rank sends to the rank 2^i after it and receives from the rank 2^i before
it. After log2(n) rounds every rank has, directly or indirectly, a message from all others.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.parts import kernel_args
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TLContext

__all__ = ["kernel", "kernel_args"]

COLLECTIVES = ("barrier",)


@repeatable
def kernel(
    t_ptr: int,
    n_elem: int,
    cube_w: int,
    cube_h: int,
    n_sips: int,
    sip_rank: int,
    sip_topo_kind: int,
    sip_topo_w: int,
    sip_topo_h: int,
    *,
    tl: TLContext,
) -> None:
    here = tl.zeros((1,), "i32")
    distance = 1
    while distance < n_sips:
        sent = tl.send_async(f"rank_{(sip_rank + distance) % n_sips}", here)
        tl.recv(f"rank_{(sip_rank - distance) % n_sips}", (1,), "i32")
        tl.wait(sent)
        distance *= 2
