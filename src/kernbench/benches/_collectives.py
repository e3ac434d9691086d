"""Collectives as nccl-tests measures them: a size, a collective, what every rank has afterwards, and two bandwidths.

`size` and `count` are what nccl-tests calls so: the bytes of the larger of a rank's two tensors, and the elements of
the smaller, which is what a call of the collective names. algbw is size / time; busbw is that times the share of the
size that must cross each rank's link, whatever the algorithm, so it can be held against the link. Time is the device's:
from the first PE that starts to the last that ends, of all ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from kernbench.benches._numbers import Array
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.common.units import counted
from kernbench.policy.placement.dp import DPPolicy
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.tensor import Tensor
from kernbench.runtime_api.work import LaunchedWork, Work

CollectiveName = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter"
]
OpName = Literal["sum", "prod", "min", "max", "avg"]
COLLECTIVE_NAMES: tuple[CollectiveName, ...] = get_args(CollectiveName)
OPS: tuple[OpName, ...] = get_args(OpName)
REDUCES = ("all_reduce", "reduce_scatter", "reduce")
BLOCKWISE = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")  # tensors hold a block for each rank
ROOTED = ("broadcast", "reduce", "gather", "scatter")
EVERY_PE = DPPolicy(cube="row_wise", pe="row_wise")


class Wanted(NamedTuple):
    """What is measured: a collective of so many bytes."""

    collective: CollectiveName
    nbytes: int
    dtype: str
    op: OpName = "sum"
    root: int = 0

    def total(self, ranks: int) -> int:
        """Elements of the larger tensor: whole blocks for all ranks where it consists of those, at least one each."""
        elements = max(self.nbytes // dtype_of(self.dtype).itemsize, 1)
        return max(elements // ranks, 1) * ranks if self.collective in BLOCKWISE else elements

    def count(self, ranks: int) -> int:
        """Elements per rank: of a block, or of the whole tensor where all ranks have that."""
        return self.total(ranks) // ranks if self.collective in BLOCKWISE else self.total(ranks)


@dataclass(frozen=True, slots=True)
class Measured:
    """One row of the table. `wrong` is None where numbers were not looked at."""

    collective: str
    algorithm: str
    nbytes: int
    count: int
    dtype: str
    op: str | None
    root: int | None
    time_ns: float
    algbw_gbs: float
    busbw_gbs: float
    wrong: int | None

    def as_json(self) -> dict[str, object]:
        return {
            "collective": self.collective,
            "algorithm": self.algorithm,
            "size_bytes": self.nbytes,
            "count": self.count,
            "dtype": self.dtype,
            "op": self.op,
            "root": self.root,
            "time_us": self.time_ns / 1000,
            "algbw_gbs": self.algbw_gbs,
            "busbw_gbs": self.busbw_gbs,
            "wrong": self.wrong,
        }


def bus_factor(collective: str, ranks: int) -> float:
    """What must cross a rank's link, as a share of the size."""
    if collective in ("broadcast", "reduce"):
        return 1.0
    return (2.0 if collective == "all_reduce" else 1.0) * (ranks - 1) / ranks


# ---------------------------------------------------------------------------------------------------------- the numbers


def inputs_of(wanted: Wanted, ranks: int, rank: int) -> Array:
    """What a rank puts in: small whole numbers, so that every type of element adds them exactly."""
    n = wanted.count(ranks) if wanted.collective in ("all_gather", "gather") else wanted.total(ranks)
    at = np.arange(n)
    values = (at * 5 + rank * 3) % 4 + 1 if wanted.op != "prod" else ((at + rank) % 3 == 0) + 1
    return values.astype(dtype_of(wanted.dtype).numpy)


def expected(wanted: Wanted, ranks: int, rank: int) -> NDArray[np.float64] | None:
    """What a rank must have afterwards; None where it has nothing."""
    ins = [inputs_of(wanted, ranks, each).astype(np.float64) for each in range(ranks)]
    name, root = wanted.collective, wanted.root
    block = len(ins[0]) // ranks
    if name == "broadcast":
        return ins[root]
    if name in ("all_gather", "gather"):
        return np.concatenate(ins) if name == "all_gather" or rank == root else None
    if name == "scatter":
        return ins[root][rank * block : (rank + 1) * block]
    if name == "all_to_all":
        return np.concatenate([each[rank * block : (rank + 1) * block] for each in ins])
    stacked = np.stack(ins)
    reduce: dict[str, Callable[[], NDArray[np.float64]]] = {
        "sum": lambda: stacked.sum(0),
        "prod": lambda: stacked.prod(0),
        "min": lambda: stacked.min(0),
        "max": lambda: stacked.max(0),
        "avg": lambda: stacked.mean(0),
    }
    result = reduce[wanted.op]()
    if name == "reduce_scatter":
        return result[rank * block : (rank + 1) * block]
    return result if name == "all_reduce" or rank == root else None


def count_wrong(found: Array, right: NDArray[np.float64], dtype: str) -> int:
    """Elements that differ by more than the type's last place; of integers, at all."""
    element = dtype_of(dtype)
    if not element.is_float:
        return int(np.count_nonzero(found.astype(np.float64) != right))
    slack = 2.0**-7 if element.itemsize < 4 else 1e-6
    return int(np.count_nonzero(~np.isclose(found.astype(np.float64), right, rtol=slack, atol=0.0)))


# ------------------------------------------------------------------------------------------------------------ one rank


class _Call(NamedTuple):
    start: Callable[[], Work | None]
    result: Tensor | None
    parts: tuple[Tensor, ...] = ()


def _prepared(torch: RuntimeContext, wanted: Wanted, ranks: int, rank: int, dp: DPPolicy) -> _Call:
    """A rank's tensors, and its call of the collective."""
    dist, given = torch.distributed, inputs_of(wanted, ranks, rank)
    op = {"prod": "product"}.get(wanted.op, wanted.op)
    root, total = wanted.root, wanted.total(ranks)
    x = torch.from_numpy(given, dtype=wanted.dtype, dp=dp, name="x")

    def empty(n: int, name: str = "y") -> Tensor:
        return torch.zeros(n, dtype=wanted.dtype, dp=dp, name=name)

    def parts_of_all(n: int) -> tuple[Tensor, ...]:
        return tuple(empty(n, f"y{each}") for each in range(ranks))

    if wanted.collective == "all_reduce":
        return _Call(lambda: dist.all_reduce(x, op, async_op=True, per="sip"), x)
    if wanted.collective == "broadcast":
        return _Call(lambda: dist.broadcast(x, root, async_op=True), x)
    if wanted.collective == "reduce":
        return _Call(lambda: dist.reduce(x, root, op, async_op=True), x if rank == root else None)
    if wanted.collective == "all_gather":
        y = empty(total)
        return _Call(lambda: dist.all_gather_into_tensor(y, x, async_op=True), y)
    if wanted.collective == "reduce_scatter":
        y = empty(total // ranks)
        return _Call(lambda: dist.reduce_scatter_tensor(y, x, op, async_op=True), y)
    if wanted.collective == "all_to_all":
        y = empty(total)
        return _Call(lambda: dist.all_to_all_single(y, x, async_op=True), y)
    if wanted.collective == "gather":
        parts = parts_of_all(total // ranks) if rank == root else ()
        return _Call(lambda: dist.gather(x, parts or None, root, async_op=True), None, parts)
    y = empty(total // ranks)
    lists = None
    if rank == root:
        block = total // ranks
        lists = [
            torch.from_numpy(given[at * block : (at + 1) * block], dtype=wanted.dtype, dp=dp, name=f"x{at}")
            for at in range(ranks)
        ]
    return _Call(lambda: dist.scatter(y, lists, root, async_op=True), y)


def span_of(work: Work | None) -> tuple[float, float]:
    """Waits for a collective; from when to when this rank's PEs were at it."""
    assert isinstance(work, LaunchedWork)
    work.wait()
    pes = work.launch.pes
    return min(pe.start_ns for pe in pes), max(pe.end_ns for pe in pes)


def duration_ns(spans: list[tuple[float, float]]) -> float:
    """From the first PE that starts to the last that ends, of all ranks."""
    return max(end for _, end in spans) - min(start for start, _ in spans)


def check_root(collective: str, root: int, ranks: int) -> None:
    """Raises UsageError for a root that is not among the ranks, where the collective has one."""
    if collective in ROOTED and not 0 <= root < ranks:
        raise UsageError(f"root {root} of {counted(ranks, 'rank')}", hint=f"give 0 to {ranks - 1}")


def measure(torch: RuntimeContext, wanted: Wanted, *, dp: DPPolicy = EVERY_PE, check: bool = True) -> Measured:
    """One collective by all ranks of a process group that is there; raises UsageError for a root that is not."""
    ranks = torch.distributed.get_world_size()
    check_root(wanted.collective, wanted.root, ranks)
    spans: list[tuple[float, float]] = []
    names: list[str] = []
    wrong: list[int] = []

    def worker(rank: int) -> None:
        call = _prepared(torch, wanted, ranks, rank, dp)
        torch.distributed.barrier()
        work = call.start()
        spans.append(span_of(work))
        assert isinstance(work, LaunchedWork)
        names.append(work.launch.name.rpartition(".")[2])
        right = expected(wanted, ranks, rank)
        results = [tensor for tensor in (call.parts or (call.result,)) if tensor is not None]
        if right is None:
            return
        for at, tensor in enumerate(results):
            part = right.reshape(len(results), -1)[at]
            torch.check(
                tensor, part, name=f"{wanted.collective} of {wanted.nbytes} bytes, {tensor.name} of rank {rank}"
            )
        if check:
            found = np.concatenate([tensor.numpy().ravel() for tensor in results])
            wrong.append(count_wrong(found, right, wanted.dtype))

    torch.multiprocessing.spawn(worker, nprocs=ranks)
    time_ns = duration_ns(spans)
    nbytes = wanted.total(ranks) * dtype_of(wanted.dtype).itemsize
    algbw = nbytes / time_ns if time_ns else 0.0
    return Measured(
        wanted.collective,
        names[0],
        nbytes,
        wanted.count(ranks),
        wanted.dtype,
        wanted.op if wanted.collective in REDUCES else None,
        wanted.root if wanted.collective in ROOTED else None,
        time_ns,
        algbw,
        algbw * bus_factor(wanted.collective, ranks),
        sum(wrong) if check else None,
    )


def sizes_between(first: int, last: int, factor: int = 2, step: int = 0) -> list[int]:
    """From the first size to the last, each `factor` times the one before, or `step` more."""
    if first < 1 or last < first:
        raise UsageError(
            f"sizes from {first} to {last}", hint="give a first size of 1 or more, and a last one not below"
        )
    if not step and factor < 2:
        raise UsageError(f"a factor of {factor}", hint="give 2 or more, or a step")
    found = []
    while first <= last:
        found.append(first)
        first = first + step if step else first * factor
    return found
