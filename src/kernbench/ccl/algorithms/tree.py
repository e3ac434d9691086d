"""A binomial tree of ranks: reduce to its root, broadcast from there, and all-reduce as both at once, chunk by chunk.

The depth is log2(n), and a rank receives from up to log2(n) others: for small and medium messages. With addends per
cube, the cubes of a SIP are a tree too, whose root is a node of the tree of ranks.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.parts import CollectiveChannel, kernel_args, my_part
from kernbench.ccl.algorithms.trees import (
    WINDOW,
    Neighbours,
    all_reduce,
    binomial,
    broadcast,
    live,
    most_in_binomial,
    reduce,
)
from kernbench.ccl.work import Spread
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorPtr, TLContext

__all__ = ["kernel", "kernel_args"]

COLLECTIVES = ("all_reduce", "reduce", "broadcast")


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
    collective: str = "all_reduce",
    op: str = "sum",
    root: int = 0,
    per: str = "rank",
    cubes: tuple[int, ...] = (0,),
    spread: Spread | None = None,
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
) -> None:
    part, n = my_part(t_ptr, tl, spread, n_elem if per == "cube" else None)
    tree = binomial(sip_rank, n_sips, root, lambda rank: f"rank_{rank}")
    addends, most = n_sips, most_in_binomial(n_sips)
    if per == "cube":
        addends, most = addends * len(cubes), most + most_in_binomial(len(cubes))
        inner = binomial(tl.program_id(1), len(cubes), 0, lambda at: f"cube_{cubes[at]}")
        tree = Neighbours(tree.parent, inner.children + tree.children) if inner.parent is None else inner
    channel = CollectiveChannel(
        tl,
        t_ptr,
        op=op,
        chunk_bytes=chunk_bytes,
        work_bytes=work_bytes,
        slot_size=slot_size,
        live=live(most),
        window=WINDOW,
    )
    if collective == "all_reduce":
        all_reduce(channel, part, n, tree, addends)
    elif collective == "reduce":
        reduce(channel, part, n, tree, addends)
    else:
        broadcast(channel, part, n, tree)
