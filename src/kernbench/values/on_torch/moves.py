"""Ops that move elements, and constants, on tensors (rules: values/rearrange.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast as cast_to

import torch
from torch import Tensor

from kernbench.common.dtypes import F32
from kernbench.values.on_torch.elementwise import Compute, aligned
from kernbench.values.on_torch.storage import STORAGE, cast, from_work, to_device
from kernbench.values.op import Params, TensorType, as_axis, as_int
from kernbench.values.random_numbers import FIRST, MASK, SECOND, SPAN, factor, first_counter
from kernbench.values.rearrange import one_element, permutation, slices

_AT_ONCE = 1 << 24  # numbers drawn together


def _reshape(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    return args[0].reshape(args[0].shape[0], *out.shape)


def _trans(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    return args[0].transpose(-1, -2)


def _permute(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    return args[0].permute(0, *(axis + 1 for axis in permutation(params, len(out.shape))))


def _broadcast(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    return aligned(args[0], len(out.shape)).expand(args[0].shape[0], *out.shape)


def _flip(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    return args[0].flip(as_axis("flip", params[0], len(out.shape)) + 1)


def _slice(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    return args[0][(slice(None), *slices(types[0].shape, params))]


def _concat(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    axis = as_axis("concat", params[0], len(out.shape)) + 1
    return torch.cat([cast(arg, t.dtype, out.dtype) for arg, t in zip(args, types, strict=True)], dim=axis)


def _cast(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    return cast(args[0], types[0].dtype, out.dtype)


MOVES: dict[str, Compute] = {
    "reshape": _reshape,
    "trans": _trans,
    "permute": _permute,
    "broadcast_to": _broadcast,
    "flip": _flip,
    "slice": _slice,
    "concat": _concat,
    "cast": _cast,
}


def full(out: TensorType, params: Params, device: torch.device) -> Tensor:
    """One element seen many times."""
    one = to_device(one_element(cast_to(float, params[1]), out.dtype), out.dtype, device)
    return one.expand(1, *out.shape)


def random(out: TensorType, params: Params, device: torch.device) -> Tensor:
    """In i64, whose products wrap at 64 bits: the lower 32 are those of u32."""
    result = torch.empty(out.size, dtype=STORAGE[out.dtype], device=device)
    start, times = first_counter(params), float(factor(params))
    for at in range(0, out.size, _AT_ONCE):
        end = min(at + _AT_ONCE, out.size)
        x = torch.arange(at + start, end + start, dtype=torch.int64, device=device) & MASK
        x = ((x ^ (x >> 16)) * FIRST) & MASK
        x = ((x ^ (x >> 13)) * SECOND) & MASK
        even = ((x ^ (x >> 16)) >> 8).to(torch.float32) * SPAN - 1.0
        result[at:end] = cast(even * times, F32, out.dtype)
    return result.reshape(1, *out.shape)


def arange(out: TensorType, params: Params, device: torch.device) -> Tensor:
    start = as_int("arange", "start", params[0])
    return from_work(torch.arange(start, start + out.size, dtype=torch.int64, device=device), out.dtype)[None]
