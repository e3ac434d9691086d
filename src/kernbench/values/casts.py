"""Conversions between element types, exact on widening and rounded once on narrowing.

float -> float   nearest, ties to even; f16, bf16 and f8e5m2 overflow to infinity, f8e4m3 (which has none) saturates at
                 448; NaN stays NaN
float -> int     towards zero, saturating; NaN gives 0
int -> int       wraps
any -> bool      is it not zero
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kernbench.common.dtypes import BF16, BOOL, F8E4M3, F8E5M2, F32, I32, INT_RANGE, DType
from kernbench.values.op import Array

E4M3_MAX = 448.0
_WIDE: dict[DType, NDArray[np.float32]] = {}  # fp8 byte -> f32; 256 entries per type, made on first use


def to_f32(array: Array, dtype: DType) -> NDArray[np.float32]:
    """`array` of `dtype` as f32: exact for every float type and i8, nearest for i32."""
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


def to_i32(array: Array) -> NDArray[np.int32]:
    return array.astype(np.int32, copy=False)


def cast(array: Array, source: DType, target: DType) -> Array:
    """`array` of `source` as `target`, by the rules above. The same array when nothing changes."""
    if source is target:
        return array
    if target is BOOL:
        truth: Array = np.not_equal(to_f32(array, source) if source.is_float else array, 0)
        return truth
    with np.errstate(over="ignore", invalid="ignore"):
        if not source.is_float:
            return _narrow(to_f32(array, source), target) if target.is_float else array.astype(target.numpy)
        wide = to_f32(array, source)
        if target.is_float:
            return _narrow(wide, target)
        low, high = INT_RANGE[target]
        # f32 cannot hold 2**31 - 1, so the clip is done in f64, which holds every i32.
        return np.clip(np.nan_to_num(wide.astype(np.float64), nan=0.0), low, high).astype(target.numpy)


def _narrow(wide: NDArray[np.float32], target: DType) -> Array:
    if target is F32:
        return wide
    if target is F8E4M3:
        wide = np.clip(wide, -E4M3_MAX, E4M3_MAX)
    return wide.astype(target.numpy)


def from_work(array: Array, target: DType) -> Array:
    """A result computed in f32, i32 or bool, rounded to `target`."""
    kind = array.dtype.kind
    return cast(array, F32 if kind == "f" else BOOL if kind == "b" else I32, target)
