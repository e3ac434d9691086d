"""All-reduce over the cube mesh of every SIP, and then between the SIPs: for addends per cube.

Rows reduce to the root's column and that column to the root, from both sides; the roots of all SIPs exchange their
sums; and the result is broadcast back along the same tree. The root is the center of the mesh, which halves the longest
path, or its corner. SIPs exchange around a ring (every chunk circulates), around the rings of a torus (rows, then
columns), or along the lines of a mesh (towards the first SIP and back; rows, then columns). One PE of a cube transfers
all of the cube's part: for small messages.

With one cube per addend (`per="rank"`, or a mesh of one cube) there is only the exchange between SIPs.
"""

from __future__ import annotations

from kernbench.ccl.algorithms.exchanges import line_values, ring_values
from kernbench.ccl.algorithms.parts import (
    SIP_TOPO_MESH,
    SIP_TOPO_RING,
    SIP_TOPO_TORUS,
    TOPO_NAME_TO_KIND,
    CollectiveChannel,
    Rounds,
    kernel_args,
    my_part,
)
from kernbench.ccl.algorithms.trees import WINDOW, all_reduce, cube_mesh, live, live_in_mesh
from kernbench.ccl.work import Assignment
from kernbench.triton_emu.repeatable import repeatable
from kernbench.triton_emu.tl_context import TensorHandle, TensorPtr, TLContext

__all__ = ["SIP_TOPO_MESH", "SIP_TOPO_RING", "SIP_TOPO_TORUS", "TOPO_NAME_TO_KIND", "kernel", "kernel_args", "refuse"]

COLLECTIVES = ("all_reduce",)


def refuse(work: Assignment) -> str | None:
    """The reason why the assignment is not supported, or None."""
    return None if work.is_rectangle else f"cubes {work.cubes} are no rectangle of the cube mesh"


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
    mesh_root: str = "center",
    chunk_bytes: int = 16384,
    work_bytes: int = 262144,
    slot_size: int = 4096,
    tl: TLContext,
) -> None:
    part, n = my_part(t_ptr, tl, None)
    cube = tl.program_id(1) if cube_w * cube_h > 1 else 0
    tree = cube_mesh(cube % cube_w, cube // cube_w, cube_w, cube_h, mesh_root)
    if sip_topo_kind == SIP_TOPO_RING:
        lines = [(sip_rank, n_sips, "global_E", "global_W")]
    elif sip_topo_kind in (SIP_TOPO_TORUS, SIP_TOPO_MESH):
        x, y = sip_rank % sip_topo_w, sip_rank // sip_topo_w
        lines = [(x, sip_topo_w, "global_E", "global_W"), (y, sip_topo_h, "global_S", "global_N")]
    else:
        raise ValueError(f"unsupported topology kind {sip_topo_kind}")
    if sip_topo_kind == SIP_TOPO_MESH:
        along, rounds = line_values, sum(2 * (size - 1) for _, size, _, _ in lines)
        held = 3 * rounds  # chunks, over all rounds together
    else:
        along, rounds = ring_values, sum(size - 1 for _, size, _, _ in lines)
        held = sum(size * (size + 1) // 2 for _, size, _, _ in lines)
    room = live_in_mesh(held) if cube_w * cube_h > 1 else live(0) + held
    channel = CollectiveChannel(
        tl,
        t_ptr,
        op=op,
        chunk_bytes=chunk_bytes,
        work_bytes=work_bytes,
        slot_size=slot_size,
        live=room,
        window=WINDOW,
        is_sparse=sip_topo_kind == SIP_TOPO_MESH,  # a line sends a chunk once each way, a ring in every round
    )

    def exchange(x: TensorHandle) -> Rounds:
        for position, size, to, back in lines:
            x = yield from along(channel, x, position, size, to, back)
        return x

    all_reduce(channel, part, n, tree, n_sips * cube_w * cube_h, exchange, rounds)
