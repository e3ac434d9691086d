"""All-reduce by recursive doubling: in each of log2(n) rounds every PE exchanges its whole chunk with a PE twice as far
away. The fewest possible rounds, and log2(n) times the bytes: for small messages.

With addends per cube, the cubes of a SIP do so first, and then every cube with its peers on the other SIPs.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.exchanges import doubling, doubling_rounds
from kernbench.ccl.algorithms.parts import CollectiveChannel, Rounds, in_rounds, kernel_args, my_part
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorHandle, TensorPtr, TLContext

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
    cubes: tuple[int, ...] = (0,),
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
) -> None:
    part, n = my_part(t_ptr, tl, None)
    here = tl.program_id(1) if per == "cube" else 0
    n_cubes = len(cubes) if per == "cube" else 1
    rounds = doubling_rounds(n_cubes) + doubling_rounds(n_sips)
    channel = CollectiveChannel(
        tl, t_ptr, op=op, chunk_bytes=chunk_bytes, work_bytes=work_bytes, slot_size=slot_size, live=4 * (rounds + 2)
    )

    def exchange(x: TensorHandle) -> Rounds:
        x = yield from doubling(channel, x, here, n_cubes, lambda at: f"cube_{cubes[at]}")
        return (yield from doubling(channel, x, sip_rank, n_sips, lambda at: f"rank_{at}"))

    in_rounds(channel, part, n, exchange, n_sips * n_cubes)
