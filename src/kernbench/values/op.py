"""The definition of an op: a name, its parameters, a shape and dtype rule, and its computation in numpy.

The computation is defined on a stack: every argument has a leading axis of n independent items, and one item is a stack
of one. So a result cannot depend on how many items are computed together.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Literal, Protocol, TypeAlias

import numpy as np

from kernbench.common.array_types import Array, Shape
from kernbench.common.dtypes import DType, dtype_of
from kernbench.common.errors import DataError

Params: TypeAlias = tuple[object, ...]
BackendName: TypeAlias = Literal["numpy", "torch"]
REQUIRED = object()


class DeviceArray(Protocol):
    """An array that a backend stores outside numpy's memory."""

    def host(self) -> Array:
        """The same elements as a read-only numpy array."""


class TensorType:
    """Shape and dtype. A graph keeps one object per type, so that types compare by identity."""

    __slots__ = ("dtype", "nbytes", "shape", "size")

    def __init__(self, shape: Shape, dtype: DType) -> None:
        self.shape = shape
        self.dtype = dtype
        self.size = prod(shape)
        self.nbytes = self.size * dtype.itemsize

    def __repr__(self) -> str:
        return f"{self.dtype.name}{list(self.shape)}"


Infer: TypeAlias = Callable[[Sequence[TensorType], Params], tuple[Shape, DType]]
Compute: TypeAlias = Callable[[Sequence[Array], Sequence[TensorType], TensorType, Params], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """`arity` is the number of inputs, -1 for one or more; `params` maps each parameter to its default."""

    name: str
    arity: int
    infer: Infer
    compute: Compute
    params: Mapping[str, object] = field(default_factory=dict)

    def bind(self, given: Mapping[str, object]) -> Params:
        """The parameters in declared order, hashable; raises DataError for an unknown or a missing one."""
        bound = tuple([frozen(given[name]) if name in given else default for name, default in self.params.items()])
        if not given.keys() <= self.params.keys():
            unknown = next(name for name in given if name not in self.params)
            takes = ", ".join(self.params) or "none"
            raise DataError(f"{self.name} has no parameter {unknown!r}", hint=f"its parameters: {takes}")
        if REQUIRED in bound:
            missing = list(self.params)[bound.index(REQUIRED)]
            raise DataError(f"{self.name} needs {missing!r}", hint=f"call it with {missing}=...")
        return bound


_SEQUENCES = (list, tuple)
_PLAIN = (int, str)  # the types of most parameters; numpy's numbers are neither


def frozen(param: object) -> object:
    """Lists and arrays, at any depth, as tuples; numpy's numbers as Python numbers."""
    if param is None or isinstance(param, _PLAIN):
        return param
    if isinstance(param, np.ndarray):
        param = param.tolist()
    if isinstance(param, _SEQUENCES):
        return tuple([frozen(item) for item in param])
    return param.item() if isinstance(param, np.generic) else param


def as_int(op: str, name: str, param: object) -> int:
    try:
        if isinstance(param, bool):
            raise TypeError
        return operator.index(param)  # type: ignore[arg-type]  # the TypeError is the check
    except TypeError:
        raise DataError(f"{op}: {name} is {param!r}", hint=f"give {name} as a whole number") from None


def as_shape(op: str, name: str, param: object) -> Shape:
    dims = tuple(as_int(op, name, dim) for dim in (param if isinstance(param, tuple) else (param,)))
    if any(dim < 0 for dim in dims):
        raise DataError(f"{op}: {name} is {dims}", hint="sizes are zero or more")
    return dims


def as_dtype(param: object, default: DType) -> DType:
    return default if param is None else dtype_of(param)


def as_axis(op: str, param: object, rank: int) -> int:
    """An axis counted from 0; a negative one counts from the end."""
    axis = as_int(op, "axis", param)
    if not -rank <= axis < rank:
        raise DataError(f"{op}: axis {axis} of a tensor of {rank} dimensions", hint=f"use {-rank} to {rank - 1}")
    return axis % rank


def broadcast_shape(op: str, shapes: Sequence[Shape]) -> Shape:
    """The broadcast shape by numpy's rule: aligned at the end, sizes equal or 1."""
    rank = max(map(len, shapes))
    result = [1] * rank
    for shape in shapes:
        for at, size in enumerate(shape, rank - len(shape)):
            if size != 1:
                if result[at] not in (1, size):
                    listed = " and ".join(map(str, shapes))
                    raise DataError(
                        f"{op}: shapes {listed} do not broadcast: {result[at]} against {size} in dimension {at - rank}",
                        hint="sizes, aligned at the end, must be equal or 1",
                    )
                result[at] = size
    return tuple(result)


def aligned(stack: Array, rank: int) -> Array:
    """A stack whose items have `rank` dimensions, with leading dimensions of size 1 added."""
    missing = rank + 1 - stack.ndim
    return stack.reshape(stack.shape[0], *(1,) * missing, *stack.shape[1:]) if missing > 0 else stack
