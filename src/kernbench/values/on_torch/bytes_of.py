"""`view` and `gather` on tensors (rules: values/bytes_of.py). Bytes are moved in the widest units that fit all of
offsets, strides and runs."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod

import torch
from torch import Tensor

from kernbench.common.dtypes import BOOL
from kernbench.values.bytes_of import Patch, ViewParams
from kernbench.values.on_torch.storage import STORAGE, is_uniform
from kernbench.values.op import TensorType

_UNITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _flat(x: Tensor) -> Tensor:
    flat = x.reshape(-1)
    return flat.view(torch.uint8) if flat.dtype is torch.bool else flat


def _rows(flat: Tensor, unit: int, offset: int, stride: int, rows: int, run: int) -> Tensor:
    """(rows, run / unit) units of a flat tensor; everything is in bytes and a multiple of `unit`."""
    units = flat.view(_UNITS[unit])
    return units.as_strided((rows, run // unit), (stride // unit, 1), units.storage_offset() + offset // unit)


def _unit(*sizes: int) -> int:
    return gcd(8, *sizes)


def _start(flat: Tensor) -> int:
    return int(flat.storage_offset() * flat.itemsize)


def _length(flat: Tensor) -> int:
    return int(flat.numel() * flat.itemsize)


def _of_uniform(x: Tensor, offset: int, stride: int, rows: int, run: int) -> Tensor:
    """The bytes of one element seen many times."""
    item = x.as_strided((1,), (1,), x.storage_offset()).clone().view(torch.uint8)
    at = (offset + stride * torch.arange(rows, device=x.device))[:, None] + torch.arange(run, device=x.device)
    return item[at % item.numel()].reshape(-1)


def _typed(raw: Tensor, out: TensorType, source: TensorType | None) -> Tensor:
    if out.dtype is BOOL and (source is None or source.dtype is not BOOL):
        return (raw.view(torch.uint8) != 0).reshape(out.shape)
    stored = STORAGE[out.dtype]
    return (raw.view(torch.uint8).view(torch.bool) if stored is torch.bool else raw.view(stored)).reshape(out.shape)


def view(x: Tensor, source: TensorType, out: TensorType, params: ViewParams) -> Tensor:
    offset, stride, rows = params
    run = out.nbytes // rows
    if is_uniform(x):
        return _typed(_of_uniform(x, offset, stride, rows, run), out, source)
    flat = _flat(x)
    if rows == 1:
        stride = run
    unit = _unit(offset, stride, run, _start(flat), _length(flat))
    raw = _rows(flat, unit, offset, stride, rows, run)
    if unit < out.dtype.itemsize:
        raw = raw.clone(memory_format=torch.contiguous_format)
    return _typed(raw.contiguous().reshape(-1), out, source)


def gather(tensors: Sequence[Tensor], out: TensorType, patches: Sequence[Patch]) -> Tensor:
    covered = sum(patch[4] * patch[5] for patch in patches)
    make = torch.empty if covered == out.nbytes else torch.zeros
    room = make(-(-out.nbytes // 8), dtype=torch.int64, device=tensors[0].device)
    for x, (src, src_stride, dst, dst_stride, rows, run) in zip(tensors, patches, strict=True):
        if rows == 1:
            src_stride = dst_stride = run
        if is_uniform(x):
            flat = _of_uniform(x, src, src_stride, rows, run)
            src, src_stride = 0, run
        else:
            flat = _flat(x)
        unit = _unit(src, src_stride, dst, dst_stride, run, _start(flat), _length(flat))
        _rows(room, unit, dst, dst_stride, rows, run).copy_(_rows(flat, unit, src, src_stride, rows, run))
    return _typed(room.view(torch.uint8)[: out.nbytes], out, None)


def windows(
    x: Tensor, source: TensorType, out: TensorType, stride: int, rows: int, offsets: Sequence[int]
) -> Tensor | None:
    """Strided rows at many offsets of one tensor as a stack; None if they are not made of its elements."""
    size = out.dtype.itemsize
    if source.dtype is not out.dtype or stride % size or is_uniform(x) or any(offset % size for offset in offsets):
        return None
    flat = x.reshape(-1)
    run, step = prod(out.shape) // rows, stride // size
    places = flat.numel() - ((rows - 1) * step + run) + 1
    every = flat.as_strided((places, rows, run), (1, step, 1), flat.storage_offset())
    starts = torch.tensor([offset // size for offset in offsets], device=x.device)
    return every[starts].reshape(len(offsets), *out.shape)
