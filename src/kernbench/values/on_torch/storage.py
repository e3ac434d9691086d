"""How the torch backend stores values, and its conversions between element types (rules: values/casts.py).

PyTorch computes little with fp8 and wide unsigned types, but moves any bits. So fp8 is kept as u8, u16 as i16 and u32
as i32, bit for bit, and widened for arithmetic; all others are kept as what they are.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kernbench.common.array_types import Array
from kernbench.common.dtypes import (
    BF16,
    BOOL,
    F8E4M3,
    F8E5M2,
    F16,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    INT_RANGE,
    U8,
    U16,
    U32,
    DType,
)  # fmt: skip
from kernbench.common.errors import DataError
from kernbench.values.casts import E4M3_MAX

STORAGE: dict[DType, torch.dtype] = {
    F64: torch.float64, F32: torch.float32, F16: torch.float16, BF16: torch.bfloat16,
    F8E4M3: torch.uint8, F8E5M2: torch.uint8,
    I64: torch.int64, I32: torch.int32, I16: torch.int16, I8: torch.int8,
    U32: torch.int32, U16: torch.int16, U8: torch.uint8, BOOL: torch.bool,
}  # fmt: skip
_FP8 = {F8E4M3: torch.float8_e4m3fn, F8E5M2: torch.float8_e5m2}
_MASKED = {U16: 0xFFFF, U32: 0xFFFFFFFF}
_COMPUTED = {torch.float64: F64, torch.float32: F32, torch.int32: I32, torch.int64: I64, torch.bool: BOOL}
_BITS = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


@dataclass(frozen=True, slots=True, eq=False)
class Resident:
    """A value's tensor on the device, contiguous unless it is one element seen many times."""

    tensor: Tensor
    dtype: DType

    def host(self) -> Array:
        """The same elements as a read-only numpy array."""
        stored = self.tensor.detach().cpu().contiguous()
        if stored.dtype is torch.bfloat16:
            stored = stored.view(torch.int16)
        array: Array = stored.numpy().view(self.dtype.numpy)
        array.setflags(write=False)
        return array


def to_device(array: Array, dtype: DType, device: torch.device) -> Tensor:
    """A numpy array's elements as they are kept on the device."""
    if dtype not in STORAGE:
        raise DataError(f"the torch backend has no {dtype}", hint="use backend numpy, or tensors of i64")
    stored = np.ascontiguousarray(array).reshape(array.shape)  # of a single number too
    if dtype is not BOOL:
        stored = stored.view(_BITS[dtype.itemsize])
    with warnings.catch_warnings():  # tensors of values are never written, so they may share a read-only array
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch.from_numpy(stored)
    tensor = tensor if dtype is BOOL else tensor.view(STORAGE[dtype])
    return tensor.to(device)


def to_f32(x: Tensor, dtype: DType) -> Tensor:
    if dtype in _FP8:
        return x.contiguous().view(_FP8[dtype]).to(torch.float32)
    return whole(x, dtype).to(torch.float32)


def whole(x: Tensor, dtype: DType) -> Tensor:
    """An unsigned type's tensor with its numbers in i64; every other one as it is."""
    mask = _MASKED.get(dtype)
    return x if mask is None else x.to(torch.int64) & mask


def to_work(x: Tensor, dtype: DType, work: DType) -> Tensor:
    """In the type that `values.casts.work_type` gave."""
    if dtype in _FP8 and work is F64:
        return to_f32(x, dtype).to(torch.float64)
    return to_f32(x, dtype) if work is F32 else whole(x, dtype).to(STORAGE[work])


def cast(x: Tensor, source: DType, target: DType) -> Tensor:
    if source is target:
        return x
    if target is BOOL:
        return (to_f32(x, source) if source.is_float and source is not F64 else x) != 0
    if target is F64:
        return to_work(x, source, F64)
    if source is F64 and (target is F16 or not target.is_float):
        return x.to(torch.float16) if target is F16 else _whole(x, target)
    if target.is_float:
        return _narrow(to_f32(x, source), target)
    if source.is_float:
        return _whole(to_f32(x, source), target)
    return whole(x, source).to(STORAGE[target])


def _narrow(wide: Tensor, target: DType) -> Tensor:
    if target is F8E4M3:
        wide = wide.clamp(-E4M3_MAX, E4M3_MAX)
    if target in _FP8:
        return wide.to(_FP8[target]).contiguous().view(torch.uint8)
    return wide.to(STORAGE[target])


def _whole(wide: Tensor, target: DType) -> Tensor:
    low, high = INT_RANGE[target]
    double = torch.nan_to_num(wide.to(torch.float64), nan=0.0, posinf=2.0**64, neginf=-(2.0**64))
    if target is I64:
        inside = double.clamp(low, float(np.nextafter(2.0**63, 0))).to(torch.int64)
        return torch.where(double >= 2.0**63, high, inside)
    return double.clamp(low, high).to(torch.int64).to(STORAGE[target])


def from_work(x: Tensor, target: DType) -> Tensor:
    """A computed result rounded to `target`."""
    return cast(x, _COMPUTED[x.dtype], target)


def is_uniform(x: Tensor) -> bool:
    return x.numel() > 1 and not any(x.stride())


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """A leading axis of items; one tensor many times takes no room."""
    first = tensors[0]
    if all(tensor is first for tensor in tensors):
        return first.expand(len(tensors), *first.shape)
    return torch.stack(list(tensors))
