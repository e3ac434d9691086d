"""Ops that sort, pick or scan along one axis: sort, argsort, topk, gather and cumsum. Charged to the MATH engine.

sort(axis=, descending=)   x's shape and dtype; equal elements keep their order, NaN counts as the largest
argsort(axis=, descending=)   the indices of the sorted elements along the axis, i32; x's shape
gather_along(axis=)        of x and integer indices of equal rank: the elements of x at the indices along the axis, as
                           numpy's take_along_axis; shape of the indices, x's dtype
topk(k=, axis=)            the k largest, largest first: size k along the axis; x's dtype
topk_index(k=, axis=)      their indices along the axis, i32; of equals the first comes first
cumsum(axis=)              x's shape; float kept, integers as in sum. Floats are added in f32 in sequence, and each
                           sum is rounded once
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array, Shape
from kernbench.common.dtypes import BOOL, I32, DType
from kernbench.common.errors import DataError
from kernbench.values.casts import from_work, to_work, work_type
from kernbench.values.op import REQUIRED, Op, Params, TensorType, as_axis, as_dtype, as_int


def _last(args: Sequence[Array], types: Sequence[TensorType], axis: int) -> Array:
    """The stack with `axis` last, in a type whose numbers can be compared and added."""
    dtype = types[0].dtype
    return np.ascontiguousarray(np.moveaxis(to_work(args[0], dtype, work_type([dtype])), axis + 1, -1))


def _order(rows: Array, descending: bool) -> NDArray[np.intp]:
    """The indices that sort each row; equal elements keep their order."""
    if not descending:
        return np.argsort(rows, axis=-1, kind="stable")
    reversed_order: NDArray[np.intp] = np.argsort(rows[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    places: NDArray[np.intp] = np.subtract(rows.shape[-1] - 1, reversed_order)
    return places


def _taken(args: Sequence[Array], order: NDArray[np.intp], axis: int) -> Array:
    """The elements, bit for bit, at the indices `order`, in which the axis is last."""
    rows = np.moveaxis(args[0], axis + 1, -1)
    return np.moveaxis(np.take_along_axis(rows, order, axis=-1), -1, axis + 1)


def _infer_sort(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    as_axis("sort", params[0], len(types[0].shape))
    return types[0].shape, types[0].dtype


def _compute_sort(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    axis = as_axis("sort", params[0], len(out.shape))
    return _taken(args, _order(_last(args, types, axis), bool(params[1])), axis)


def _infer_argsort(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    as_axis("argsort", params[0], len(types[0].shape))
    return types[0].shape, I32


def _compute_argsort(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    axis = as_axis("argsort", params[0], len(out.shape))
    return np.moveaxis(_order(_last(args, types, axis), bool(params[1])), -1, axis + 1).astype(np.int32)


def _infer_gather(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    source, places = types
    axis = as_axis("gather", params[0], len(source.shape))
    if places.dtype.is_float or places.dtype is BOOL:
        raise DataError(f"gather: the index is {places.dtype}", hint="give whole numbers, say i32")
    apart = [at for at, sizes in enumerate(zip(source.shape, places.shape, strict=False)) if len(set(sizes)) > 1]
    if len(source.shape) != len(places.shape) or any(at != axis for at in apart):
        raise DataError(
            f"gather: an index of shape {places.shape} along axis {axis} of {source.shape}",
            hint="sizes must be equal along all other axes: tl.broadcast_to the index first",
        )
    return places.shape, source.dtype


def check_places(lowest: int, highest: int, size: int) -> None:
    """Raise DataError for indices of a gather outside an axis of `size`."""
    if lowest < 0 or highest >= size:
        wrong = lowest if lowest < 0 else highest
        raise DataError(f"gather: index {wrong} along an axis of {size}", hint=f"use 0 to {size - 1}, or mask it first")


def _compute_gather(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    axis = as_axis("gather", params[0], len(out.shape))
    source, places = args[0], args[1].astype(np.int64)
    if not places.size:
        return np.zeros(places.shape, source.dtype)
    check_places(int(places.min()), int(places.max()), types[0].shape[axis])
    return np.take_along_axis(source, places, axis + 1)


def _top(types: Sequence[TensorType], params: Params) -> tuple[int, int, Shape]:
    """k, the axis and the shape of the result."""
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
    Op("argsort", 1, _infer_argsort, _compute_argsort, {"axis": -1, "descending": False}),
    Op("gather_along", 2, _infer_gather, _compute_gather, {"axis": 0}),
    Op("topk", 1, _infer_topk, _compute_topk, {"k": REQUIRED, "axis": -1}),
    Op("topk_index", 1, _infer_topk_index, _compute_topk_index, {"k": REQUIRED, "axis": -1}),
    Op("cumsum", 1, _infer_cumsum, _compute_cumsum, {"axis": 0, "dtype": None}),
]
