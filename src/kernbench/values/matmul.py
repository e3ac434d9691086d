"""dot and dot_acc. Charged to the GEMM engine.

Shape rule: (..., M, K) with (..., K, N) gives (..., M, N); leading sizes broadcast; an accumulator has that shape.
dtype rule: floats, mixed or not, multiply exactly and add in f32; integers add in what their mix accumulates in (i32;
u32 for unsigned ones; i64 for i64, and for u32 with a signed type), wrapping. `dtype=` rounds the sum once; the default
is the type it was added in. An accumulator of floats may have any float type, one of integers has the type they are
added in.

Sums of tiles: dot_acc(acc, a, b) is acc + dot(a, b), both in the accumulating type, and dot(a, b) is one
matrix product of contiguous operands. So a K-loop adds whole tile products in the order of the loop, in f32, and a
chain may be evaluated link by link or many links and chains at once with the same bits. Within one product the order
of additions is that of the BLAS.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kernbench.common.array_types import Array, Shape
from kernbench.common.dtypes import BOOL, F32, I8, U8, DType, promote
from kernbench.common.errors import DataError
from kernbench.values.casts import cast, from_work, to_f32
from kernbench.values.op import Op, Params, TensorType, aligned, as_dtype, broadcast_shape

_BYTES = (I8, U8, BOOL)


def _product_type(op: str, a: TensorType, b: TensorType) -> tuple[Shape, DType]:
    if len(a.shape) < 2 or len(b.shape) < 2:
        raise DataError(f"{op}: operands {a} and {b}", hint="give two matrices, (..., M, K) and (..., K, N)")
    if a.shape[-1] != b.shape[-2]:
        raise DataError(
            f"{op}: the inner sizes differ: {a.shape} has K = {a.shape[-1]}, {b.shape} has K = {b.shape[-2]}",
            hint="expected (..., M, K) and (..., K, N)",
        )
    outer = broadcast_shape(op, [a.shape[:-2], b.shape[:-2]]) if len(a.shape) > 2 or len(b.shape) > 2 else ()
    return (*outer, a.shape[-2], b.shape[-1]), sum_type(a, b)


def sum_type(a: TensorType, b: TensorType) -> DType:
    """The type in which products of these operands are added."""
    return promote(a.dtype, b.dtype).accumulate


def product(a: Array, b: Array, a_type: TensorType, b_type: TensorType) -> Array:
    """The stacked products in the accumulating type. The operands are made contiguous."""
    rank = max(len(a_type.shape), len(b_type.shape))
    exact = a_type.dtype in _BYTES and b_type.dtype in _BYTES
    total = sum_type(a_type, b_type)
    left: Array
    right: Array
    if total is F32:
        left, right = to_f32(a, a_type.dtype), to_f32(b, b_type.dtype)
    elif exact:  # products are at most 2**16, so f64 adds them exactly, and far faster than numpy's integer loop
        left, right = a.astype(np.float64), b.astype(np.float64)
    else:
        left, right = a.astype(total.numpy), b.astype(total.numpy)
    result: Array = np.matmul(aligned(np.ascontiguousarray(left), rank), aligned(np.ascontiguousarray(right), rank))
    return result.astype(np.int64).astype(total.numpy) if exact else result


def _infer_dot(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    shape, dtype = _product_type("dot", types[0], types[1])
    return shape, as_dtype(params[0], dtype)


def _compute_dot(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    with np.errstate(all="ignore"):
        return from_work(product(args[0], args[1], types[0], types[1]), out.dtype)


def _infer_dot_acc(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    acc = types[0]
    shape, dtype = _product_type("dot_acc", types[1], types[2])
    fits = acc.dtype is dtype or (acc.dtype.is_float and dtype.is_float)
    if acc.shape != shape or not fits:
        raise DataError(
            f"dot_acc: the accumulator is {acc}, expected {TensorType(shape, dtype)}",
            hint=f"start from dot, or from zeros({shape}, '{dtype}')",
        )
    return shape, as_dtype(params[0], dtype)


def _compute_dot_acc(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    with np.errstate(all="ignore"):
        tile = product(args[1], args[2], types[1], types[2])
        return from_work(np.add(cast(args[0], types[0].dtype, sum_type(types[1], types[2])), tile), out.dtype)


MATMULS = [
    Op("dot", 2, _infer_dot, _compute_dot, {"dtype": None}),
    Op("dot_acc", 3, _infer_dot_acc, _compute_dot_acc, {"dtype": None}),
]
