"""Ops that move elements and compute nothing. No engine is charged unless the caller charges one.

reshape(shape=)        same number of elements; one size may be -1
trans()                swaps the last two dimensions
permute(axes=)         dimension i of the result is dimension axes[i]
broadcast_to(shape=)   numpy's rule
flip(axis=)            the axis backwards
slice(starts=, stops=, steps=)   one entry per dimension, counted from 0, stops past the end are errors
concat(axis=)          equal shapes but for `axis`; dtypes mixed by `promote`
cast(dtype=)           rules in values.casts
arange(start=, stop=, dtype=)    start, start + 1, ... below stop
full(shape=, value=, dtype=)     takes no storage
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

import numpy as np

from kernbench.common.array_types import Array, Shape
from kernbench.common.dtypes import INT_RANGE, DType, dtype_of, promote
from kernbench.common.errors import DataError
from kernbench.values.casts import cast, from_work
from kernbench.values.op import (
    REQUIRED,
    Op,
    Params,
    TensorType,
    as_axis,
    as_dtype,
    as_int,
    as_shape,
    broadcast_shape,
)  # fmt: skip


def _infer_reshape(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    source, wanted = types[0], params[0] if isinstance(params[0], tuple) else (params[0],)
    dims = tuple(as_int("reshape", "shape", dim) for dim in wanted)
    known = prod(dim for dim in dims if dim != -1)
    if dims.count(-1) == 1 and known and source.size % known == 0:
        dims = tuple(source.size // known if dim == -1 else dim for dim in dims)
    if any(dim < 0 for dim in dims) or prod(dims) != source.size:
        raise DataError(
            f"reshape: {source.shape} has {source.size} elements and does not fit {dims}",
            hint="keep the number of elements; one size may be -1",
        )
    return dims, source.dtype


def _compute_reshape(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    return args[0].reshape(args[0].shape[0], *out.shape)


def _infer_trans(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    shape = types[0].shape
    if len(shape) < 2:
        raise DataError(f"trans: shape {shape} has fewer than two dimensions", hint="reshape it to a matrix first")
    return (*shape[:-2], shape[-1], shape[-2]), types[0].dtype


def _compute_trans(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    return np.swapaxes(args[0], -1, -2)


def permutation(params: Params, rank: int) -> tuple[int, ...]:
    """The axes of a permute, counted from 0; raises DataError unless each is named once."""
    axes = params[0] if isinstance(params[0], tuple) else (params[0],)
    found = tuple(as_axis("permute", axis, rank) for axis in axes)
    if sorted(found) != list(range(rank)):
        raise DataError(f"permute: axes {axes} of {rank} dimensions", hint=f"name each of 0 to {rank - 1} once")
    return found


def _infer_permute(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    shape = types[0].shape
    return tuple(shape[axis] for axis in permutation(params, len(shape))), types[0].dtype


def _compute_permute(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    return np.transpose(args[0], (0, *(axis + 1 for axis in permutation(params, len(out.shape)))))


def _infer_broadcast(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    shape = as_shape("broadcast_to", "shape", params[0])
    if broadcast_shape("broadcast_to", [types[0].shape, shape]) != shape:
        raise DataError(f"broadcast_to: {types[0].shape} does not become {shape}", hint="sizes must be equal or 1")
    return shape, types[0].dtype


def _compute_broadcast(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    stack, missing = args[0], len(out.shape) + 1 - args[0].ndim
    stack = stack.reshape(stack.shape[0], *(1,) * missing, *stack.shape[1:])
    return np.broadcast_to(stack, (stack.shape[0], *out.shape))


def _infer_flip(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    as_axis("flip", params[0], len(types[0].shape))
    return types[0].shape, types[0].dtype


def _compute_flip(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    return np.flip(args[0], as_axis("flip", params[0], len(out.shape)) + 1)


def slices(shape: Shape, params: Params) -> tuple[slice, ...]:
    """The slices of a slice op; raises DataError if they are out of bounds."""
    starts, stops = as_shape("slice", "starts", params[0]), as_shape("slice", "stops", params[1])
    steps = (1,) * len(shape) if params[2] is None else as_shape("slice", "steps", params[2])
    fits = len(starts) == len(stops) == len(steps) == len(shape)
    if not fits or any(not lo <= hi <= n or not by for lo, hi, by, n in zip(starts, stops, steps, shape, strict=True)):
        raise DataError(
            f"slice: {starts} to {stops} by {steps} of shape {shape}",
            hint="one entry per dimension, 0 <= start <= stop <= size, step 1 or more",
        )
    return tuple(slice(lo, hi, by) for lo, hi, by in zip(starts, stops, steps, strict=True))


def _infer_slice(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    cuts = slices(types[0].shape, params)
    return tuple(len(range(cut.start, cut.stop, cut.step)) for cut in cuts), types[0].dtype


def _compute_slice(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    return args[0][(slice(None), *slices(types[0].shape, params))]


def _infer_concat(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    first = types[0].shape
    axis = as_axis("concat", params[0], len(first))
    for t in types[1:]:
        if len(t.shape) != len(first) or any(
            a != b for i, (a, b) in enumerate(zip(t.shape, first, strict=True)) if i != axis
        ):
            raise DataError(f"concat along {axis}: {t.shape} against {first}", hint="all other sizes must be equal")
    length = sum(t.shape[axis] for t in types)
    return (*first[:axis], length, *first[axis + 1 :]), reduce(promote, (t.dtype for t in types))


def _compute_concat(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    axis = as_axis("concat", params[0], len(out.shape)) + 1
    return np.concatenate([cast(arg, t.dtype, out.dtype) for arg, t in zip(args, types, strict=True)], axis=axis)


def _infer_cast(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    return types[0].shape, dtype_of(params[0])


def _compute_cast(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    return cast(args[0], types[0].dtype, out.dtype)


def _infer_arange(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    start, stop = as_int("arange", "start", params[0]), as_int("arange", "stop", params[1])
    dtype = as_dtype(params[2], dtype_of("i32"))
    low, high = INT_RANGE[dtype_of("i32") if dtype.is_float else dtype]
    if start < stop and not (low <= start and stop - 1 <= high):
        raise DataError(f"arange: {start} to {stop - 1} do not fit {dtype}", hint=f"use whole numbers, {low} to {high}")
    return (max(stop - start, 0),), dtype


def _compute_arange(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    start = as_int("arange", "start", params[0])
    return from_work(np.arange(start, start + out.size, dtype=np.int64), out.dtype)[np.newaxis]


_MOST_BITS = 1023  # a longer whole number is no Python float, from which every element type is made


def _infer_full(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    value, dtype = params[1], dtype_of(params[2])
    if not isinstance(value, bool | int | float):
        raise DataError(f"full: the value is {value!r}", hint="give a Python number")
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        raise DataError(f"full: a whole number of {value.bit_length()} bits", hint="give less than 2**1023, or a float")
    if not dtype.is_float:
        low, high = INT_RANGE[dtype]
        if value != value or not low <= value <= high or value != int(value):
            raise DataError(f"full: {value} does not fit {dtype}", hint=f"use a whole number, {low} to {high}")
    return as_shape("full", "shape", params[0]), dtype


def _compute_full(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    value = params[1]
    assert isinstance(value, bool | int | float)  # narrows the type: checked when the value was made
    return np.broadcast_to(one_element(value, out.dtype), (1, *out.shape))


def one_element(value: float, dtype: DType) -> Array:
    """A Python number as an array of no dimensions."""
    with np.errstate(over="ignore"):
        one = np.array(value, np.float32) if dtype.is_float else np.array(int(value), np.int64)
    return from_work(one, dtype)


REARRANGEMENTS = [
    Op("reshape", 1, _infer_reshape, _compute_reshape, {"shape": REQUIRED}),
    Op("trans", 1, _infer_trans, _compute_trans),
    Op("permute", 1, _infer_permute, _compute_permute, {"axes": REQUIRED}),
    Op("broadcast_to", 1, _infer_broadcast, _compute_broadcast, {"shape": REQUIRED}),
    Op("flip", 1, _infer_flip, _compute_flip, {"axis": -1}),
    Op("slice", 1, _infer_slice, _compute_slice, {"starts": REQUIRED, "stops": REQUIRED, "steps": None}),
    Op("concat", -1, _infer_concat, _compute_concat, {"axis": 0}),
    Op("cast", 1, _infer_cast, _compute_cast, {"dtype": REQUIRED}),
    Op("arange", 0, _infer_arange, _compute_arange, {"start": REQUIRED, "stop": REQUIRED, "dtype": None}),
    Op("full", 0, _infer_full, _compute_full, {"shape": REQUIRED, "value": REQUIRED, "dtype": REQUIRED}),
]
