"""Collectives: an all-reduce of the cubes' tiles, an addend per cube, and a table as nccl-tests prints it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import numpy as np

from kernbench.benches._collectives import MeasuredCollective, OpName, WantedCollective, measure, sizes_between
from kernbench.benches._numbers import Seed, Size
from kernbench.benches.registry import bench
from kernbench.common.array_types import Array
from kernbench.common.dtypes import dtype_of
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext

DType = Annotated[Literal["f16", "bf16", "f32", "i8", "i32"], "element type"]
AllReduce = Annotated[
    Literal[
        "auto",
        "lrab_hierarchical_allreduce",
        "ring_allreduce",
        "recursive_doubling",
        "tree",
        "hierarchical_all_pes",
    ],
    "algorithm of all_reduce",
]
RingBufferKind = Annotated[Literal["tcm", "sram", "hbm"], "where rings lie"]


def _all_pes(_cause: str, params: Mapping[str, Any]) -> Mapping[str, object]:
    """The algorithm that lets all PEs of a cube send."""
    all_pes = "hierarchical_all_pes"
    return {"algorithm": all_pes} if params["algorithm"] != all_pes and params["per"] == "cube" else {}


@bench(
    name="ccl-allreduce",
    description="All-reduce of one tile per cube over all cubes of all SIPs, or of one tensor per SIP.",
    devices="whole",
    advice=_all_pes,
)
def ccl_allreduce(
    torch: RuntimeContext,
    *,
    n_elem: Annotated[Size, "elements per cube"] = 1024,
    dtype: DType = "f16",
    algorithm: AllReduce = "lrab_hierarchical_allreduce",
    per: Annotated[Literal["cube", "rank"], "what has an addend: every cube, or every SIP"] = "cube",
    buffer_kind: RingBufferKind = "tcm",
    backpressure: Annotated[Literal["sleep", "poll"], "how a PE waits"] = "sleep",
    n_slots: Annotated[Size, "slots per ring"] = 4,
    slot_size: Annotated[Size, "bytes per slot"] = 4096,
    chunk_bytes: Annotated[Size, "how long a chunk may be"] = 16384,
    root: Annotated[Literal["center", "corner"], "where cubes reduce to"] = "center",
    seed: Seed = 0,
) -> None:
    settings = {
        "algorithm": algorithm,
        "buffer_kind": buffer_kind,
        "backpressure": backpressure,
        "n_slots": n_slots,
        "slot_size": slot_size,
        "chunk_bytes": chunk_bytes,
        "root": root,
    }
    torch.distributed.init_process_group("ahbm", ccl={"defaults": settings})
    ranks, cubes = torch.distributed.get_world_size(), torch.spec.sip.n_cubes
    rng = np.random.default_rng(seed)
    tiles = rng.integers(-4, 5, (ranks, cubes, n_elem)).astype(dtype_of(dtype).numpy)
    total = _sum(tiles)
    right = np.broadcast_to(_sum(total), (cubes, n_elem)) if per == "cube" else total

    def worker(rank: int) -> None:
        torch.ahbm.set_device(rank)
        placed = DPPolicy(cube="row_wise", pe="replicate", num_pes=1)
        x = torch.from_numpy(tiles[rank], dtype=dtype, dp=placed, name="x")
        torch.distributed.all_reduce(x, per=per)
        torch.check(x, right, name=f"x of rank {rank}")

    torch.multiprocessing.spawn(worker, nprocs=ranks)


def _sum(tiles: Array) -> Array:
    """Over the first axis; integers wrap around as the device's do."""
    total: Array = tiles.sum(0, dtype=tiles.dtype if tiles.dtype.kind in "iu" else np.dtype(np.float64))
    return total


@bench(
    name="ccl-bench",
    description="Collectives by size, as nccl-tests prints them: time, algbw, busbw, #wrong.",
    devices="whole",
)
def ccl_bench(
    torch: RuntimeContext,
    *,
    collective: Annotated[MeasuredCollective, "which one"] = "all_reduce",
    algorithm: Annotated[str, "a name in ccl.yaml, or auto"] = "auto",
    dtype: DType = "f16",
    op: Annotated[OpName, "of those that reduce"] = "sum",
    root: Annotated[int, "of those with a root"] = 0,
    min_bytes: Annotated[Size, "first size"] = 1024,
    max_bytes: Annotated[Size, "last size"] = 65536,
    factor: Annotated[Size, "from one size to the next"] = 4,
) -> list[dict[str, object]]:
    named = {"defaults": {"algorithm": algorithm}}
    if collective != "all_reduce" and algorithm != "auto":
        named = {"collectives": {collective: algorithm}}
    torch.distributed.init_process_group("ahbm", ccl=named if algorithm != "auto" else None)
    check = torch.checks.enabled
    sizes = sizes_between(min_bytes, max_bytes, factor)
    found = [
        measure(torch, WantedCollective(collective, nbytes, dtype, op, root), check=check).as_json() for nbytes in sizes
    ]
    return [{name: value for name, value in row.items() if name != "memory"} for row in found]  # a table has no tables
