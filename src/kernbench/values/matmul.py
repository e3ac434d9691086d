"""dot and dot_acc. Charged to the GEMM engine.

Shape rule: (..., M, K) with (..., K, N) gives (..., M, N); leading sizes broadcast. dtype rule: floats, mixed or
not, multiply exactly and add in f32 (`dtype=` rounds the sum once, default f32); i8 and bool give i32, exactly; i32
wraps.

What a sum of tiles is: dot_acc(acc, a, b) is acc + dot(a, b), both in the accumulating type, and dot(a, b) is one
matrix product of contiguous operands. So a K-loop adds whole tile products in the order of the loop, in f32, and a
chain may be evaluated link by link or many links and chains at once with the same bits. Within one product the order
of additions is that of the BLAS.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernbench.common.dtypes import BOOL, F32, I8, I32, DType
from kernbench.common.errors import DataError
from kernbench.values.casts import from_work, to_f32, to_i32
from kernbench.values.op import Array, Op, Params, Shape, TensorType, aligned, as_dtype, broadcast_shape


def _product_type(op: str, a: TensorType, b: TensorType) -> tuple[Shape, DType]:
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise DataError(f"{op}: operands {a} and {b}", hint="give two matrices, (..., M, K) and (..., K, N)")
    if a.shape[-1] != b.shape[-2]:
        raise DataError(
            f"{op}: the inner sizes differ: {a.shape} has K = {a.shape[-1]}, {b.shape} has K = {b.shape[-2]}",
            hint="expected (..., M, K) and (..., K, N)",
        )
    outer = broadcast_shape(op, [a.shape[:-2], b.shape[:-2]]) if len(a.shape) > 2 or len(b.shape) > 2 else ()
    floats = a.dtype.is_float or b.dtype.is_float
    return (*outer, a.shape[-2], b.shape[-1]), F32 if floats else I32


def product(a: Array, b: Array, a_type: TensorType, b_type: TensorType) -> Array:
    """The stacked products in the accumulating type. The operands are contiguous, whatever they were before."""
    rank = max(len(a_type.shape), len(b_type.shape))
    exact = a_type.dtype in (I8, BOOL) and b_type.dtype in (I8, BOOL)
    left: Array
    right: Array
    if a_type.dtype.is_float or b_type.dtype.is_float:
        left, right = to_f32(a, a_type.dtype), to_f32(b, b_type.dtype)
    elif exact:  # products are at most 2**14, so f64 adds them exactly, and far faster than numpy's integer loop
        left, right = a.astype(np.float64), b.astype(np.float64)
    else:
        left, right = to_i32(a), to_i32(b)
    result: Array = np.matmul(aligned(np.ascontiguousarray(left), rank), aligned(np.ascontiguousarray(right), rank))
    return result.astype(np.int64).astype(np.int32) if exact else result


def _infer_dot(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    shape, dtype = _product_type("dot", types[0], types[1])
    return shape, as_dtype(params[0], dtype)


def _compute_dot(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    with np.errstate(all="ignore"):
        return from_work(product(args[0], args[1], types[0], types[1]), out.dtype)


def _infer_dot_acc(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    acc = types[0]
    shape, dtype = _product_type("dot_acc", types[1], types[2])
    if acc.shape != shape or acc.dtype is not dtype:
        raise DataError(
            f"dot_acc: the accumulator is {acc}, expected {TensorType(shape, dtype)}", hint="start from dot"
        )
    return shape, dtype


def _compute_dot_acc(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    with np.errstate(all="ignore"):
        return np.add(args[0], product(args[1], args[2], types[1], types[2]))


MATMULS = [
    Op("dot", 2, _infer_dot, _compute_dot, {"dtype": None}),
    Op("dot_acc", 3, _infer_dot_acc, _compute_dot_acc),
]
