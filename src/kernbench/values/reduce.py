"""Reductions and softmax. Charged to the MATH engine.

Shape rule: the reduced axis becomes 1 with keep_dims, else it is removed; axis None reduces all. dtype rule: max and
min keep the type; sum keeps a float type and gives i32 for integers (u32 for unsigned ones, i64 for i64), wrapping;
mean and softmax keep a float type and give f32 for integers; argmax and argmin give i32: the first of equals, and the
first NaN where there is one, as in numpy. Floats are summed in f32 (numpy's pairwise order over a contiguous row) and
rounded once; softmax is x - max, exp, sum, divide, all in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kernbench.common.array_types import Array, Shape
from kernbench.common.dtypes import F32, I32, DType
from kernbench.common.errors import DataError
from kernbench.values.casts import from_work, to_work, work_type
from kernbench.values.op import Op, Params, TensorType, as_axis, as_dtype


def _rows(args: Sequence[Array], types: Sequence[TensorType], axis: int | None, real: bool) -> Array:
    """A contiguous stack with the reduced axis last: one row per result, so that sums do not depend on their number."""
    dtype = types[0].dtype
    stack = to_work(args[0], dtype, work_type([dtype], real))
    if axis is None:
        return np.ascontiguousarray(stack.reshape(stack.shape[0], -1))
    return np.ascontiguousarray(np.moveaxis(stack, axis + 1, -1))


def _axis(op: str, params: Params, shape: Shape) -> int | None:
    return None if params[0] is None else as_axis(op, params[0], len(shape))


def _reduction(name: str, fn: Callable[[Array], Array], rule: Callable[[DType], DType], needs_items: bool) -> Op:
    def infer(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
        shape, (_, keep_dims, dtype) = types[0].shape, params
        axis = _axis(name, params, shape)
        reduced = range(len(shape)) if axis is None else (axis,)
        if needs_items and any(shape[at] == 0 for at in reduced):
            raise DataError(
                f"{name} over no elements: shape {shape}, axis {axis}", hint="reduce an axis of one or more"
            )
        if keep_dims:
            result = tuple(1 if at in reduced else size for at, size in enumerate(shape))
        else:
            result = tuple(size for at, size in enumerate(shape) if at not in reduced)
        return result, as_dtype(dtype, rule(types[0].dtype))

    def compute(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
        rows = _rows(args, types, _axis(name, params, types[0].shape), name == "mean")
        with np.errstate(all="ignore"):
            return from_work(fn(rows), out.dtype).reshape(rows.shape[0], *out.shape)

    return Op(name, 1, infer, compute, {"axis": None, "keep_dims": False, "dtype": None})


def _sum(rows: Array) -> Array:
    total: Array = np.add.reduce(rows, axis=-1, dtype=rows.dtype)
    return total


def _mean(rows: Array) -> Array:
    mean: Array = np.divide(_sum(rows), np.float32(rows.shape[-1]))
    return mean


def _index(dtype: DType) -> DType:
    return I32


def _keep(dtype: DType) -> DType:
    return dtype


def _summed(dtype: DType) -> DType:
    return dtype if dtype.is_float else dtype.accumulate


def _real(dtype: DType) -> DType:
    return dtype if dtype.is_float else F32


def _infer_softmax(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    axis = as_axis("softmax", params[0], len(types[0].shape))
    if types[0].shape[axis] == 0:
        raise DataError(
            f"softmax over no elements: shape {types[0].shape}, axis {axis}", hint="use an axis of one or more"
        )
    return types[0].shape, as_dtype(params[1], _real(types[0].dtype))


def _compute_softmax(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    axis = as_axis("softmax", params[0], len(types[0].shape))
    rows = _rows(args, types, axis, True)
    with np.errstate(all="ignore"):
        grown = np.exp(rows - np.maximum.reduce(rows, axis=-1, keepdims=True))
        shares = grown / np.add.reduce(grown, axis=-1, keepdims=True)
    return from_work(np.ascontiguousarray(np.moveaxis(shares, -1, axis + 1)), out.dtype)


REDUCTIONS = [
    _reduction("sum", _sum, _summed, False),
    _reduction("mean", _mean, _real, True),
    _reduction("max", lambda rows: np.maximum.reduce(rows, axis=-1), _keep, True),
    _reduction("min", lambda rows: np.minimum.reduce(rows, axis=-1), _keep, True),
    _reduction("argmax", lambda rows: np.argmax(rows, axis=-1), _index, True),
    _reduction("argmin", lambda rows: np.argmin(rows, axis=-1), _index, True),
    Op("softmax", 1, _infer_softmax, _compute_softmax, {"axis": -1, "dtype": None}),
]
