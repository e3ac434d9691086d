"""What is measured of collectives: which, of how many bytes, in place or not, and the numbers that go in and come out.

`size` and `count` are what nccl-tests calls so: the bytes of the larger of a rank's two tensors, and the elements of
the smaller, which is what a call of the collective names. sendrecv sends every rank's tensor to the next rank; a
barrier has no elements.

In place means what it means in nccl-tests: an all_gather's input is the rank's block of its output, a reduce_scatter's
output the rank's block of its input, and so for gather and scatter. `torch.distributed` has all_reduce, broadcast and
reduce in place only, and all_to_all and messages never.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from kernbench.ccl.calls import CollectiveName
from kernbench.common.array_types import Array
from kernbench.common.dtypes import dtype_of

MeasuredCollective = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce", "all_to_all", "gather", "scatter", "sendrecv",
    "barrier",
]  # fmt: skip
OpName = Literal["sum", "prod", "min", "max", "avg"]
COLLECTIVE_NAMES: tuple[MeasuredCollective, ...] = get_args(MeasuredCollective)
OPS: tuple[OpName, ...] = get_args(OpName)
REDUCES = ("all_reduce", "reduce_scatter", "reduce")
BLOCKWISE = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")  # tensors hold a block for each rank
ROOTED = ("broadcast", "reduce", "gather", "scatter")
ONLY_IN_PLACE = ("all_reduce", "broadcast", "reduce")
NEVER_IN_PLACE = ("all_to_all", "sendrecv", "barrier")


class WantedCollective(NamedTuple):
    """What is measured: a collective of so many bytes. `in_place` counts where both forms exist."""

    collective: MeasuredCollective
    nbytes: int
    dtype: str
    op: OpName = "sum"
    root: int = 0
    in_place: bool = False

    def total(self, ranks: int) -> int:
        """Elements of the larger tensor: whole blocks for all ranks where it consists of those, at least one each."""
        if self.collective == "barrier":
            return 0
        elements = max(self.nbytes // dtype_of(self.dtype).itemsize, 1)
        return max(elements // ranks, 1) * ranks if self.collective in BLOCKWISE else elements

    def count(self, ranks: int) -> int:
        """Elements per rank: of a block, or of the whole tensor where all ranks have that."""
        return self.total(ranks) // ranks if self.collective in BLOCKWISE else self.total(ranks)

    def configured_as(self) -> tuple[CollectiveName, ...]:
        """The names under which a configuration of collectives has it."""
        return ("send", "recv") if self.collective == "sendrecv" else (self.collective,)


def forms(collective: MeasuredCollective) -> tuple[bool, ...]:
    """Whether a collective is measured out of place (False), in place (True), or both."""
    if collective in ONLY_IN_PLACE:
        return (True,)
    return (False,) if collective in NEVER_IN_PLACE else (False, True)


def bus_factor(collective: str, ranks: int) -> float:
    """What must cross a rank's link, as a share of the size."""
    if collective in ("broadcast", "reduce", "sendrecv"):
        return 1.0
    return (2.0 if collective == "all_reduce" else 1.0) * (ranks - 1) / ranks


def inputs_of(wanted: WantedCollective, ranks: int, rank: int) -> Array:
    """What a rank puts in: small whole numbers, so that every type of element adds them exactly. Of fp8, whose sums are
    soon inexact, one rank has a number at each place, and the others 0.
    """
    element = dtype_of(wanted.dtype)
    n = wanted.count(ranks) if wanted.collective in ("all_gather", "gather") else wanted.total(ranks)
    at = np.arange(n)
    values = (at * 5 + rank * 3) % 4 + 1
    if wanted.op == "prod":
        values = ((at + rank) % 3 == 0) + 1
    elif element.is_float and element.itemsize == 1 and wanted.collective in REDUCES:
        values = np.where(at % ranks == rank, values, 0)
    if element == "bool":
        values = (at + rank) % 3 == 0
    return values.astype(element.numpy)


def expected(wanted: WantedCollective, ranks: int, rank: int) -> NDArray[np.float64]:
    """What a rank must have afterwards that has a result."""
    name, root = wanted.collective, wanted.root
    if name in REDUCES:
        result = _reduced(wanted, ranks)
        block = len(result) // ranks
        return result[rank * block : (rank + 1) * block] if name == "reduce_scatter" else result
    ins = [inputs_of(wanted, ranks, each).astype(np.float64) for each in range(ranks)]
    block = len(ins[0]) // ranks
    if name == "broadcast":
        return ins[root]
    if name == "sendrecv":
        return ins[rank - 1]
    if name in ("all_gather", "gather"):
        return np.concatenate(ins)
    if name == "scatter":
        return ins[root][rank * block : (rank + 1) * block]
    assert name == "all_to_all", f"{name} leaves nothing to compare"
    return np.concatenate([each[rank * block : (rank + 1) * block] for each in ins])


@lru_cache(maxsize=1)  # all ranks ask for the same
def _reduced(wanted: WantedCollective, ranks: int) -> NDArray[np.float64]:
    """The inputs of all ranks, reduced."""
    stacked = np.stack([inputs_of(wanted, ranks, each).astype(np.float64) for each in range(ranks)])
    op = str(wanted.op)
    if wanted.dtype == "bool":  # sums and products are `or` and `and`
        op = {"sum": "max", "prod": "min"}.get(op, op)
    reduce: dict[str, Callable[[], NDArray[np.float64]]] = {
        "sum": lambda: stacked.sum(0),
        "prod": lambda: stacked.prod(0),
        "min": lambda: stacked.min(0),
        "max": lambda: stacked.max(0),
        "avg": lambda: stacked.mean(0),
    }
    result = reduce[op]()
    result.flags.writeable = False
    return result


def count_wrong(found: Array, right: NDArray[np.float64], dtype: str) -> int:
    """Elements that differ by more than the type's last place; of integers, at all."""
    element = dtype_of(dtype)
    if not element.is_float:
        return int(np.count_nonzero(found.astype(np.float64) != right))
    slack = element.rtol if element.itemsize == 1 else 2.0**-7 if element.itemsize == 2 else 1e-6
    return int(np.count_nonzero(~np.isclose(found.astype(np.float64), right, rtol=slack, atol=0.0)))
