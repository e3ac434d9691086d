"""Elementwise ops on tensors: the work of each, in the types that values/elementwise.py says."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kernbench.common.dtypes import BOOL
from kernbench.values.casts import work_type
from kernbench.values.elementwise import REAL_OPS
from kernbench.values.on_torch.storage import from_work, to_work
from kernbench.values.op import Params, TensorType

Compute = Callable[[Sequence[Tensor], Sequence[TensorType], TensorType, Params], Tensor]
_ROOT_HALF = 0.5**0.5


def _fma(a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """Rounded once: f64 holds the product of two f32 exactly."""
    if not a.is_floating_point():
        return a * b + c
    return (a.to(torch.float64) * b.to(torch.float64) + c.to(torch.float64)).to(a.dtype)


def _whole_division(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Quotient and remainder of integers, both 0 over 0; the smallest number over -1 wraps."""
    a, b = torch.broadcast_tensors(a, b)
    unsafe = (b == 0) | (b == -1)
    by = torch.where(unsafe, 1, b)
    quotient = torch.where(b == -1, -a, torch.div(a, by, rounding_mode="floor"))
    zero = torch.zeros_like(a)
    return torch.where(b == 0, zero, quotient), torch.where(unsafe, zero, torch.remainder(a, by))


def _floordiv(a: Tensor, b: Tensor) -> Tensor:
    return torch.floor_divide(a, b) if a.is_floating_point() else _whole_division(a, b)[0]


def _mod(a: Tensor, b: Tensor) -> Tensor:
    return torch.remainder(a, b) if a.is_floating_point() else _whole_division(a, b)[1]


def _power(a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point():
        return torch.pow(a, b)
    a, b = torch.broadcast_tensors(a, b)
    power = torch.pow(a, b.clamp(min=0))
    unit = torch.where((b & 1) != 0, a, a * a)  # what 1 and -1 are to any power
    return torch.where(b >= 0, power, torch.where(a.abs() == 1, unit, torch.zeros_like(a)))


def _shift(a: Tensor, b: Tensor, left: bool) -> Tensor:
    a, b = torch.broadcast_tensors(a, b)
    bits = 8 * a.itemsize
    inside = (b >= 0) & (b < bits)
    by = torch.where(inside, b, 0)
    if left:
        return torch.where(inside, torch.bitwise_left_shift(a, by), 0)
    shifted = torch.bitwise_right_shift(a, by)
    return torch.where(inside, shifted, torch.where(a < 0, torch.full_like(a, -1), torch.zeros_like(a)))


def _gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.erf(x * _ROOT_HALF))


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "neg": torch.neg, "abs": torch.abs, "fma": _fma,
    "floor": lambda x: torch.floor(x) if x.is_floating_point() else x,
    "ceil": lambda x: torch.ceil(x) if x.is_floating_point() else x,
    "floordiv": _floordiv, "mod": _mod, "pow": _power,
    "shl": lambda a, b: _shift(a, b, True), "shr": lambda a, b: _shift(a, b, False),
    "bit_and": torch.bitwise_and, "bit_or": torch.bitwise_or, "bit_xor": torch.bitwise_xor,
    "div": torch.div, "exp": torch.exp, "exp2": torch.exp2, "log": torch.log, "log2": torch.log2, "sqrt": torch.sqrt,
    "rsqrt": lambda x: 1.0 / torch.sqrt(x), "sin": torch.sin, "cos": torch.cos, "erf": torch.erf,
    "relu": lambda x: torch.maximum(x, torch.zeros((), dtype=x.dtype, device=x.device)),
    "gelu": _gelu, "sigmoid": torch.sigmoid, "silu": lambda x: x * torch.sigmoid(x), "tanh": torch.tanh,
    "maximum": torch.maximum, "minimum": torch.minimum,
    "clamp": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    "scale": torch.mul, "bias_add": torch.add, "dequant": torch.mul,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "isnan": torch.isnan,
    "logical_and": torch.logical_and, "logical_or": torch.logical_or, "logical_not": torch.logical_not,
}  # fmt: skip


def aligned(x: Tensor, rank: int) -> Tensor:
    """A stack whose items have `rank` dimensions, the missing ones of size 1 put in front."""
    missing = rank + 1 - x.dim()
    return x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:]) if missing > 0 else x


def _work(args: Sequence[Tensor], types: Sequence[TensorType], rank: int, real: bool) -> list[Tensor]:
    work = work_type([t.dtype for t in types], real)
    return [aligned(to_work(arg, t.dtype, work), rank) for arg, t in zip(args, types, strict=True)]


def _elementwise(fn: Callable[..., Tensor], real: bool) -> Compute:
    def compute(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
        return from_work(fn(*_work(args, types, len(out.shape), real)), out.dtype)

    return compute


def _where(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    rank = len(out.shape)
    condition = from_work(_work(args[:1], types[:1], rank, False)[0], BOOL)
    return from_work(torch.where(condition, *_work(args[1:], types[1:], rank, False)), out.dtype)


def _bit_not(args: Sequence[Tensor], types: Sequence[TensorType], out: TensorType, params: Params) -> Tensor:
    if types[0].dtype is BOOL:
        return from_work(torch.logical_not(args[0]), out.dtype)
    return from_work(torch.bitwise_not(_work(args, types, len(out.shape), False)[0]), out.dtype)


ELEMENTWISE: dict[str, Compute] = {
    **{name: _elementwise(fn, name in REAL_OPS) for name, fn in _FUNCTIONS.items()},
    "where": _where,
    "bit_not": _bit_not,
}
