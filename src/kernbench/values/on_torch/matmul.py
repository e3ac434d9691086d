"""Matrix products on tensors (rules: values/matmul.py): f32 products with f32 sums, never in TF32; integers exact."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kernbench.common.dtypes import BOOL, F32, I8, U8
from kernbench.values.matmul import sum_type
from kernbench.values.on_torch.elementwise import Compute, aligned
from kernbench.values.on_torch.storage import STORAGE, cast, to_f32, whole
from kernbench.values.op import Params, TensorType

_BYTES = (I8, U8, BOOL)


def product(a: Tensor, b: Tensor, a_type: TensorType, b_type: TensorType) -> Tensor:
    """The stacked products, as the accumulating type is kept."""
    rank = max(len(a_type.shape), len(b_type.shape))
    total = sum_type(a_type, b_type)
    left, right = aligned(a, rank), aligned(b, rank)
    if total is F32:
        return torch.matmul(to_f32(left, a_type.dtype), to_f32(right, b_type.dtype))
    left, right = whole(left, a_type.dtype), whole(right, b_type.dtype)
    if a_type.dtype in _BYTES and b_type.dtype in _BYTES:  # f64 adds products of at most 2**16 exactly
        return torch.matmul(left.to(torch.float64), right.to(torch.float64)).to(torch.int64).to(STORAGE[total])
    return _whole_product(left.to(torch.int64), right.to(torch.int64)).to(STORAGE[total])


def _whole_product(left: Tensor, right: Tensor) -> Tensor:
    """Integers, wrapping, column by row: GPUs have no product of wide integers."""
    batch = torch.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    result = torch.zeros(*batch, left.shape[-2], right.shape[-1], dtype=torch.int64, device=left.device)
    for k in range(left.shape[-1]):
        result += left[..., :, k : k + 1] * right[..., k : k + 1, :]
    return result


def _dot(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    return cast(product(args[0], args[1], types[0], types[1]), sum_type(types[0], types[1]), out.dtype)


def _dot_acc(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    total = sum_type(types[1], types[2])
    added = cast(args[0], types[0].dtype, total) + product(args[1], args[2], types[1], types[2])
    return cast(added, total, out.dtype)


MATMULS: dict[str, Compute] = {"dot": _dot, "dot_acc": _dot_acc}
