"""The two ops on bytes: `view`, strided rows of one value's bytes, and `gather`, bytes assembled from several values.

A value's bytes are its elements in C order. Strided rows are `rows` runs of equal length, `stride` bytes apart. Both
ops reinterpret bytes exactly; only a bool read from other bytes is made 0 or 1.

    view    params (offset, stride, rows); the run is nbytes / rows
    gather  params: one Patch per input, (src_offset, src_stride, dst_offset, dst_stride, rows, run);
            bytes no patch covers are 0
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array
from kernbench.common.dtypes import BOOL
from kernbench.values.op import TensorType

Patch: TypeAlias = tuple[int, int, int, int, int, int]
ViewParams: TypeAlias = tuple[int, int, int]
Bytes: TypeAlias = NDArray[np.uint8]


def _flat(array: Array) -> Bytes:
    return array.reshape(-1).view(np.uint8)  # arrays of values are contiguous, or uniform


def _strided(flat: Bytes, offset: int, stride: int, rows: int, run: int) -> Bytes:
    return np.ndarray((rows, run), np.uint8, flat, offset, (stride, 1))


def _is_uniform(array: Array) -> bool:
    return array.size > 1 and array.strides[-1] == 0 and not any(array.strides)


def _strided_of_uniform(array: Array, offset: int, stride: int, rows: int, run: int) -> Bytes:
    """The same bytes of an array that repeats one element, without expanding the array."""
    item = _flat(array[(0,) * array.ndim].reshape(1))
    at = (offset + stride * np.arange(rows))[:, np.newaxis] + np.arange(run)
    picked: Bytes = item[at % item.size]
    return picked


def strided_bytes(array: Array, offset: int, stride: int, rows: int, run: int) -> Bytes:
    """(rows, run) bytes of `array`, a view if possible."""
    if _is_uniform(array):
        return _strided_of_uniform(array, offset, stride, rows, run)
    return _strided(_flat(array), offset, stride, rows, run)


def _typed(raw: Bytes, out: TensorType, source: TensorType | None) -> Array:
    if out.dtype is BOOL and (source is None or source.dtype is not BOOL):
        truth: Array = np.not_equal(raw.reshape(out.shape), 0)
        return truth
    return raw.view(out.dtype.numpy).reshape(out.shape)


def compute_view(array: Array, source: TensorType, out: TensorType, params: ViewParams) -> Array:
    offset, stride, rows = params
    raw = strided_bytes(array, offset, stride, rows, out.nbytes // rows)
    if rows > 1 or offset % out.dtype.itemsize:
        raw = raw.copy()
    return _typed(raw.reshape(-1), out, source)


def compute_gather(arrays: Sequence[Array], out: TensorType, params: Sequence[Patch]) -> Array:
    covered = sum(patch[4] * patch[5] for patch in params)
    raw = np.empty(out.nbytes, np.uint8) if covered == out.nbytes else np.zeros(out.nbytes, np.uint8)
    for array, (src, src_stride, dst, dst_stride, rows, run) in zip(arrays, params, strict=True):
        _strided(raw, dst, dst_stride, rows, run)[...] = strided_bytes(array, src, src_stride, rows, run)
    return _typed(raw, out, None)


def windows(
    array: Array, source: TensorType, out: TensorType, stride: int, rows: int, offsets: NDArray[np.int64]
) -> Array | None:
    """Strided rows at many offsets of one array, copied into a stack; None if they do not consist of whole elements."""
    size = out.dtype.itemsize
    if source.dtype is not out.dtype or stride % size or _is_uniform(array):
        return None
    starts, rest = np.divmod(offsets, size)
    if rest.any():
        return None
    flat = np.ascontiguousarray(array).reshape(-1).view(f"u{size}")  # numpy cannot lay strides over ml_dtypes' types
    run = out.size // rows
    places = flat.size - ((rows - 1) * (stride // size) + run) + 1
    every = np.lib.stride_tricks.as_strided(flat, (places, rows, run), (size, stride, size), writeable=False)
    return every[starts].view(array.dtype).reshape(len(offsets), *out.shape)
