"""Ops that order or run along one axis: sort, topk and cumsum. Charged to the MATH engine.

sort(axis=, descending=)   x's shape and dtype; equal elements keep their order, NaN counts as the largest
topk(k=, axis=)            the k largest, largest first: size k along the axis; x's dtype
topk_index(k=, axis=)      where along the axis they are, i32; of equals the first comes first
cumsum(axis=)              x's shape; float kept, integers as in sum. Floats are added in f32, one after the other, and
                           each sum is rounded once
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernbench.common.dtypes import I32, DType
from kernbench.common.errors import DataError
from kernbench.values.casts import from_work, to_work, work_type
from kernbench.values.op import REQUIRED, Array, Op, Params, Shape, TensorType, as_axis, as_dtype, as_int


def _last(args: Sequence[Array], types: Sequence[TensorType], axis: int) -> Array:
    """The stack with `axis` last, in a type whose numbers can be compared and added."""
    dtype = types[0].dtype
    return np.ascontiguousarray(np.moveaxis(to_work(args[0], dtype, work_type([dtype])), axis + 1, -1))


def _order(rows: Array, descending: bool) -> NDArray[np.intp]:
    """The places of the elements of each row in order, equals by place."""
    if not descending:
        return np.argsort(rows, axis=-1, kind="stable")
    turned: NDArray[np.intp] = np.argsort(rows[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    places: NDArray[np.intp] = np.subtract(rows.shape[-1] - 1, turned)
    return places


def _taken(args: Sequence[Array], order: NDArray[np.intp], axis: int) -> Array:
    """The elements themselves, bit for bit, from places along the axis, which is last in `order`."""
    rows = np.moveaxis(args[0], axis + 1, -1)
    return np.moveaxis(np.take_along_axis(rows, order, axis=-1), -1, axis + 1)


def _infer_sort(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    as_axis("sort", params[0], len(types[0].shape))
    return types[0].shape, types[0].dtype


def _compute_sort(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    axis = as_axis("sort", params[0], len(out.shape))
    return _taken(args, _order(_last(args, types, axis), bool(params[1])), axis)


def _top(types: Sequence[TensorType], params: Params) -> tuple[int, int, Shape]:
    """k, the axis and the shape that is left."""
    shape = types[0].shape
    k, axis = as_int("topk", "k", params[0]), as_axis("topk", params[1], len(shape))
    if not 0 <= k <= shape[axis]:
        raise DataError(f"topk: k is {k} along an axis of {shape[axis]}", hint=f"use 0 to {shape[axis]}")
    return k, axis, (*shape[:axis], k, *shape[axis + 1 :])


def _places(args: Sequence[Array], types: Sequence[TensorType], params: Params) -> tuple[NDArray[np.intp], int]:
    k, axis, _ = _top(types, params)
    return _order(_last(args, types, axis), True)[..., :k], axis


def _infer_topk(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    return _top(types, params)[2], types[0].dtype


def _compute_topk(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    return _taken(args, *_places(args, types, params))


def _infer_topk_index(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    return _top(types, params)[2], I32


def _compute_topk_index(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    places, axis = _places(args, types, params)
    return np.moveaxis(places, -1, axis + 1).astype(np.int32)


def _infer_cumsum(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    as_axis("cumsum", params[0], len(types[0].shape))
    dtype = types[0].dtype
    return types[0].shape, as_dtype(params[1], dtype if dtype.is_float else dtype.accumulate)


def _compute_cumsum(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    axis = as_axis("cumsum", params[0], len(out.shape))
    rows = _last(args, types, axis)
    with np.errstate(all="ignore"):
        sums = np.add.accumulate(rows, axis=-1, dtype=rows.dtype)
        return from_work(np.moveaxis(sums, -1, axis + 1), out.dtype)


ALONG = [
    Op("sort", 1, _infer_sort, _compute_sort, {"axis": -1, "descending": False}),
    Op("topk", 1, _infer_topk, _compute_topk, {"k": REQUIRED, "axis": -1}),
    Op("topk_index", 1, _infer_topk_index, _compute_topk_index, {"k": REQUIRED, "axis": -1}),
    Op("cumsum", 1, _infer_cumsum, _compute_cumsum, {"axis": 0, "dtype": None}),
]
