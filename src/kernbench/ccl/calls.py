"""A collective as one rank calls it: the name, the group, the rank's place in it, and where its tensors lie.

This is all an algorithm learns about a call. Its arguments have been checked: tensors are on the rank's SIP, and have
one dtype and the sizes that follow from the collective.

    name            inputs                        outputs
    all_reduce      the tensor                    the same tensor
    reduce          the tensor                    the same tensor on `root`, nothing elsewhere
    broadcast       the tensor on `root`          the same tensor there; the tensor elsewhere
    all_gather      the tensor                    a tensor per rank, or one that holds all of them one after the other
    reduce_scatter  a tensor per rank, or one     the tensor
    all_to_all      one tensor, cut along axis 0  one tensor, cut along axis 0
    gather          the tensor                    a tensor per rank on `root`, nothing elsewhere
    scatter         a tensor per rank on `root`   the tensor
    send            the tensor, for `peer`        nothing
    recv            nothing                       the tensor, from `peer`
    barrier         nothing                       nothing

Ranks in a call (`rank`, `root`, `peer`) are ranks within the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import EnumType, StrEnum
from math import prod
from typing import TYPE_CHECKING, Literal, NoReturn

from kernbench.common.errors import NotModelledError
from kernbench.common.launch import TensorArg

CollectiveName = Literal[
    "all_reduce",
    "reduce",
    "broadcast",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
    "send",
    "recv",
    "barrier",
]
Per = Literal["rank", "cube"]


_NOT_MODELLED = {
    "BAND": "MIN of bool tensors is `and`; for bits of integers write a kernel",
    "BOR": "MAX of bool tensors is `or`; for bits of integers write a kernel",
    "BXOR": "SUM of 0 and 1 in an integer dtype, and keep the lowest bit",
    "PREMUL_SUM": "multiply with a kernel, then SUM",
}


class _Ops(EnumType):
    """Names the replacement of PyTorch's ops that are not modelled."""

    if not TYPE_CHECKING:  # a checker finds unknown names by itself

        def __getattr__(cls, name: str) -> NoReturn:
            if name.startswith("_"):
                raise AttributeError(name)
            there = ", ".join(op.name for op in ReduceOp)
            instead = _NOT_MODELLED.get(name)
            what = f"ReduceOp.{name} is not modelled" if instead else f"there is no ReduceOp.{name}"
            raise NotModelledError(what, hint=f"{instead}; there are {there}" if instead else f"use one of {there}")


class ReduceOp(StrEnum, metaclass=_Ops):
    """How the elements of several ranks are combined. Each op equals its name in lower case as a string."""

    SUM = "sum"
    PRODUCT = "product"
    MIN = "min"
    MAX = "max"
    AVG = "avg"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class CallGroup:
    """The members: the SIP of each rank, in the order of ranks. `name` is unique among the open groups."""

    name: str
    sips: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.sips)


@dataclass(frozen=True, slots=True)
class CollectiveCall:
    """One rank's call. See the table above for what its tensors are."""

    name: CollectiveName
    group: CallGroup
    rank: int
    inputs: tuple[TensorArg, ...] = ()
    outputs: tuple[TensorArg, ...] = ()
    op: ReduceOp | None = None  # of all_reduce, reduce and reduce_scatter
    root: int | None = None  # of reduce, broadcast, gather and scatter
    peer: int | None = None  # of send and recv
    per: Per = "rank"  # of all_reduce: with "cube", each cube's part is a separate addend
    input_splits: tuple[int, ...] = ()  # of all_to_all: how many rows of the input go to each rank
    output_splits: tuple[int, ...] = ()  # and how many of the output come from each
    has_equal_splits: bool = False  # whether they follow from the sizes, and so are equal on all ranks

    @property
    def sip(self) -> int:
        """The SIP of this rank."""
        return self.group.sips[self.rank]

    @property
    def is_uneven(self) -> bool:
        """Whether blocks may differ in size, so that a rank does not know those between other ranks."""
        return bool(self.input_splits or self.output_splits) and not self.has_equal_splits

    @property
    def tensors(self) -> tuple[TensorArg, ...]:
        """The inputs, then the outputs."""
        return self.inputs + self.outputs

    @property
    def dtype(self) -> str | None:
        """The dtype of all tensors; None for a barrier."""
        return self.tensors[0].dtype if self.tensors else None

    @property
    def numel(self) -> int:
        """The number of elements of the inputs, or of the outputs where there is no input."""
        return sum(prod(tensor.shape) for tensor in self.inputs or self.outputs)
