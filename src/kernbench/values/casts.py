"""Conversions between element types, exact on widening and rounded once on narrowing.

float -> float   nearest, ties to even; f16, bf16 and f8e5m2 overflow to infinity, f8e4m3 (which has none) saturates at
                 448; NaN stays NaN
float -> int     towards zero, saturating; NaN gives 0
int -> float     by way of f32, to nearest; f64 directly
f64 -> float     f32 and f16 directly, the others by way of f32
int -> int       wraps
any -> bool      true unless zero
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array
from kernbench.common.dtypes import BF16, BOOL, F8E4M3, F8E5M2, F16, F32, F64, I32, I64, INT_RANGE, U64, DType, dtype_of

E4M3_MAX = 448.0
_WIDE: dict[DType, NDArray[np.float32]] = {}  # fp8 byte -> f32; 256 entries per type, made on first use


def to_f32(array: Array, dtype: DType) -> NDArray[np.float32]:
    """`array` of `dtype` as f32: exact for every float type and integers up to 16 bits, nearest for wider."""
    if dtype is F32:
        return array.astype(np.float32, copy=False)
    if dtype is BF16:  # bf16 is the upper half of an f32
        wide = np.ascontiguousarray(array).view(np.uint16).astype(np.uint32)
        wide <<= np.uint32(16)
        return wide.view(np.float32).reshape(array.shape)
    if dtype is F8E4M3 or dtype is F8E5M2:
        return _wide_table(dtype)[np.ascontiguousarray(array).view(np.uint8)].reshape(array.shape)
    with np.errstate(invalid="ignore"):  # a signalling NaN is only a NaN here
        return array.astype(np.float32)


def _wide_table(dtype: DType) -> NDArray[np.float32]:
    table = _WIDE.get(dtype)
    if table is None:
        table = np.arange(256, dtype=np.uint8).view(dtype.numpy).astype(np.float32)
        _WIDE[dtype] = table
    return table


def work_type(dtypes: Sequence[DType], real: bool = False) -> DType:
    """The type in which an op on these types is computed: f64 with an input of f64, f32 with another float input and
    for functions of real numbers, i64 or u64 if an integer may exceed i32, else i32.
    """
    return _work_type(tuple(dtypes), real)


@cache
def _work_type(dtypes: tuple[DType, ...], real: bool) -> DType:
    if F64 in dtypes:
        return F64
    if real or any(dtype.is_float for dtype in dtypes):
        return F32
    if U64 in dtypes:
        return U64
    return I64 if any(dtype.work is I64 for dtype in dtypes) else I32


def to_work(array: Array, dtype: DType, work: DType) -> Array:
    """`array` of `dtype` converted to a result of `work_type`."""
    if work is F64 and dtype not in (F64, F32, F16) and dtype.is_float:
        return to_f32(array, dtype).astype(np.float64)
    return to_f32(array, dtype) if work is F32 else array.astype(work.numpy, copy=False)


def cast(array: Array, source: DType, target: DType) -> Array:
    """`array` of `source` as `target`, by the rules above. The same array when nothing changes."""
    if source is target:
        return array
    if target is BOOL:
        truth: Array = np.not_equal(to_f32(array, source) if source.is_float and source is not F64 else array, 0)
        return truth
    with np.errstate(over="ignore", invalid="ignore"):
        if target is F64:
            return to_work(array, source, F64)
        if source is F64 and not target.is_float:
            return _whole(array.astype(np.float64, copy=False), target)
        if source is F64 and target is F16:
            return array.astype(np.float16)
        if not source.is_float:
            return _narrow(to_f32(array, source), target) if target.is_float else array.astype(target.numpy)
        wide = to_f32(array, source)
        if target.is_float:
            return _narrow(wide, target)
        return _whole(wide, target)


def _whole(wide: NDArray[np.floating], target: DType) -> Array:
    low, high = INT_RANGE[target]
    # f32 cannot hold 2**31 - 1, so the clip is done in f64, which holds every i32 and u32. It cannot hold 2**63 - 1.
    double = np.nan_to_num(wide.astype(np.float64), nan=0.0, posinf=np.inf, neginf=-np.inf)
    if target is I64 or target is U64:
        beyond = float(high)  # rounds up to the first whole number that does not fit
        within = np.clip(double, low, np.nextafter(beyond, 0)).astype(target.numpy)
        return np.where(double >= beyond, target.numpy.type(high), within)
    return np.clip(double, low, high).astype(target.numpy)


def _narrow(wide: NDArray[np.float32], target: DType) -> Array:
    if target is F32:
        return wide
    if target is F8E4M3:
        wide = np.clip(wide, -E4M3_MAX, E4M3_MAX)
    return wide.astype(target.numpy)


def from_work(array: Array, target: DType) -> Array:
    """A computed result rounded to `target`."""
    return cast(array, _type_of_array(array.dtype), target)


_type_of_array = cache(dtype_of)
