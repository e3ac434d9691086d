"""The part of a tensor that computes: operators and methods with PyTorch's names. Each is a launch, or a few, on the
device (`device_ops.py`); what they compute is in `op_table.py`. A name that ends with `_` writes into the tensor
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.runtime_api.device import is_device
from kernbench.runtime_api.random_state import Generator
from kernbench.runtime_api.tensor_base import T, TensorBase
from kernbench.runtime_api.tensor_views import SizeArguments, TensorViews, sizes_of

Other = Any  # a tensor or a number


def _unary(name: str) -> Callable[[T], T]:
    def method(self: Any) -> Any:
        return self._ops.pointwise(name, self)

    return named(method, name, f"{name} of every element.")


def _unary_(name: str) -> Callable[[T], T]:
    def method(self: Any) -> Any:
        return self._ops.pointwise(name, self, out=self)

    return named(method, f"{name}_", f"{name} of every element, in place.")


def _binary(name: str) -> Callable[[T, Other], T]:
    def method(self: Any, other: Other) -> Any:
        return self._ops.pointwise(name, self, other)

    return named(method, name, f"{name} with a tensor or a number, element by element; shapes broadcast.")


def _binary_(name: str) -> Callable[[T, Other], T]:
    def method(self: Any, other: Other) -> Any:
        return self._ops.pointwise(name, self, other, out=self)

    return named(method, f"{name}_", f"{name} with a tensor or a number, in place.")


def _operator(name: str, *, swapped: bool = False, in_place: bool = False) -> Callable[[T, Other], T]:
    """A Python operator; an array as the other operand is numpy's to handle, with the contents of the tensor."""

    def method(self: Any, other: Other) -> Any:
        if not _is_operand(other):
            return NotImplemented
        pair = (other, self) if swapped else (self, other)
        return self._ops.pointwise(name, *pair, out=self if in_place else None)

    return method


def named(method: Callable[..., Any], name: str, text: str) -> Callable[..., Any]:
    method.__name__, method.__doc__ = name, text
    return method


def _is_operand(value: object) -> bool:
    return isinstance(value, TensorBase | bool | int | float | np.number | np.bool_)


class TensorMath(TensorViews):
    """Arithmetic."""

    __hash__ = object.__hash__

    # ---- operators

    __add__, __radd__, __iadd__ = _operator("add"), _operator("add", swapped=True), _operator("add", in_place=True)
    __sub__, __rsub__, __isub__ = _operator("sub"), _operator("sub", swapped=True), _operator("sub", in_place=True)
    __mul__, __rmul__, __imul__ = _operator("mul"), _operator("mul", swapped=True), _operator("mul", in_place=True)
    __truediv__, __rtruediv__ = _operator("div"), _operator("div", swapped=True)
    __itruediv__ = _operator("div", in_place=True)
    __floordiv__, __rfloordiv__ = _operator("floor_divide"), _operator("floor_divide", swapped=True)
    __mod__, __rmod__ = _operator("remainder"), _operator("remainder", swapped=True)
    __pow__, __rpow__ = _operator("pow"), _operator("pow", swapped=True)
    __lt__, __le__, __gt__, __ge__ = _operator("lt"), _operator("le"), _operator("gt"), _operator("ge")
    __eq__ = _operator("eq")  # type: ignore[assignment]  # elementwise, as in PyTorch
    __ne__ = _operator("ne")  # type: ignore[assignment]  # elementwise, as in PyTorch
    __and__, __or__, __xor__ = _operator("bitwise_and"), _operator("bitwise_or"), _operator("bitwise_xor")
    __rand__, __ror__ = _operator("bitwise_and", swapped=True), _operator("bitwise_or", swapped=True)
    __rxor__ = _operator("bitwise_xor", swapped=True)
    __ifloordiv__, __imod__ = _operator("floor_divide", in_place=True), _operator("remainder", in_place=True)
    __ipow__, __iand__ = _operator("pow", in_place=True), _operator("bitwise_and", in_place=True)
    __ior__, __ixor__ = _operator("bitwise_or", in_place=True), _operator("bitwise_xor", in_place=True)
    __neg__, __abs__, __invert__ = _unary("neg"), _unary("abs"), _unary("bitwise_not")

    def __pos__(self) -> Self:
        return self

    def __matmul__(self, other: Other) -> Any:
        if not isinstance(other, TensorViews):
            return NotImplemented
        return self._ops.matmul(self, other)

    # ---- elementwise

    neg, abs, sign, square, reciprocal = map(_unary, ("neg", "abs", "sign", "square", "reciprocal"))
    sqrt, rsqrt, exp, exp2, log, log2 = map(_unary, ("sqrt", "rsqrt", "exp", "exp2", "log", "log2"))
    sin, cos, tanh, erf, sigmoid = map(_unary, ("sin", "cos", "tanh", "erf", "sigmoid"))
    relu, silu, floor, ceil, round = map(_unary, ("relu", "silu", "floor", "ceil", "round"))
    isnan, isinf, isfinite = map(_unary, ("isnan", "isinf", "isfinite"))
    logical_not, bitwise_not = map(_unary, ("logical_not", "bitwise_not"))
    neg_, abs_, square_, reciprocal_ = map(_unary_, ("neg", "abs", "square", "reciprocal"))
    sqrt_, rsqrt_, exp_, log_, relu_ = map(_unary_, ("sqrt", "rsqrt", "exp", "log", "relu"))
    tanh_, sigmoid_, floor_, ceil_ = map(_unary_, ("tanh", "sigmoid", "floor", "ceil"))
    mul, div, pow, remainder = map(_binary, ("mul", "div", "pow", "remainder"))
    true_divide, floor_divide = _binary("div"), _binary("floor_divide")
    maximum, minimum, logaddexp = map(_binary, ("maximum", "minimum", "logaddexp"))
    eq, ne, lt, le, gt, ge = map(_binary, ("eq", "ne", "lt", "le", "gt", "ge"))
    logical_and, logical_or = _binary("logical_and"), _binary("logical_or")
    bitwise_and, bitwise_or, bitwise_xor = map(_binary, ("bitwise_and", "bitwise_or", "bitwise_xor"))
    multiply, divide, negative = mul, div, neg
    mul_, div_, pow_, remainder_ = map(_binary_, ("mul", "div", "pow", "remainder"))

    def add(self, other: Other, *, alpha: float = 1) -> Self:
        """The sum with a tensor or a number, times alpha."""
        return self._ops.pointwise("add", self, other, **_scaled(alpha))

    def add_(self, other: Other, *, alpha: float = 1) -> Self:
        return self._ops.pointwise("add", self, other, out=self, **_scaled(alpha))

    def sub(self, other: Other, *, alpha: float = 1) -> Self:
        """The difference with a tensor or a number, times alpha."""
        return self._ops.pointwise("sub", self, other, **_scaled(alpha))

    subtract = sub

    def sub_(self, other: Other, *, alpha: float = 1) -> Self:
        return self._ops.pointwise("sub", self, other, out=self, **_scaled(alpha))

    def gelu(self, approximate: str = "none") -> Self:
        """x times the normal distribution function; with approximate="tanh", by its usual approximation."""
        if approximate not in ("none", "tanh"):
            raise UsageError(f"gelu: approximate is {approximate!r}", hint="use 'none' or 'tanh'")
        return self._ops.pointwise("gelu", self, approximate=approximate)

    def clamp(self, min: Other = None, max: Other = None) -> Self:
        """Held between min and max, of which one may be left out."""
        return self._ops.pointwise("clamp", self, min, max)

    def clamp_(self, min: Other = None, max: Other = None) -> Self:
        return self._ops.pointwise("clamp", self, min, max, out=self)

    clip, clip_ = clamp, clamp_

    def clamp_min(self, min: Other) -> Self:
        return self.clamp(min)

    def clamp_max(self, max: Other) -> Self:
        return self.clamp(None, max)

    def lerp(self, end: Other, weight: Other) -> Self:
        return self._ops.pointwise("lerp", self, end, weight)

    def addcmul(self, tensor1: Other, tensor2: Other, *, value: float = 1) -> Self:
        return self._ops.pointwise("addcmul", self, tensor1, tensor2, value=value)

    def addcmul_(self, tensor1: Other, tensor2: Other, *, value: float = 1) -> Self:
        return self._ops.pointwise("addcmul", self, tensor1, tensor2, out=self, value=value)

    def addcdiv_(self, tensor1: Other, tensor2: Other, *, value: float = 1) -> Self:
        return self._ops.pointwise("addcdiv", self, tensor1, tensor2, out=self, value=value)

    def where(self, condition: Other, other: Other) -> Self:
        """This tensor where the condition holds, else the other."""
        chosen: Self = self._ops.pointwise("where", condition, self, other)
        return chosen

    def masked_fill(self, mask: Other, value: Other) -> Self:
        """A copy with one number where the mask holds."""
        return self._ops.pointwise("masked_fill", self, mask, value)

    def masked_fill_(self, mask: Other, value: Other) -> Self:
        return self._ops.pointwise("masked_fill", self, mask, value, out=self)

    # ---- contents

    def clone(self) -> Self:
        """A copy in memory of its own, placed as this one is."""
        return self._ops.dense_copy(self, name="clone")

    def copy_(self, source: TensorViews | ArrayLike, non_blocking: bool = False) -> Self:
        """Take the contents of a tensor, by a kernel, or of an array, by a host write; sizes of 1 are broadcast."""
        if isinstance(source, TensorViews):
            self._ops.copy_into(self, source)
        else:
            self.write_elements(..., source)
        return self

    def write_elements(self, index: Any, source: ArrayLike) -> None:
        """A host write to every shard that an index touches."""
        raise NotImplementedError

    def fill_(self, value: float) -> Self:
        """Every element becomes one number."""
        self._ops.fill(self, value)
        return self

    def zero_(self) -> Self:
        self._ops.fill(self, 0, "zero")
        return self

    def ones_(self) -> Self:
        self._ops.fill(self, 1, "ones")
        return self

    def normal_(self, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Self:
        """Normally distributed numbers of the generator, or of the caller's default one."""
        self._ops.randoms(self, "normal", self._ops.next_seed(generator), mean, std)
        return self

    def uniform_(self, a: float = 0.0, b: float = 1.0, *, generator: Generator | None = None) -> Self:
        """Numbers uniformly distributed over [a, b)."""
        self._ops.randoms(self, "uniform", self._ops.next_seed(generator), a, b)
        return self

    def new_zeros(self, *size: SizeArguments, dtype: object = None) -> Self:
        return self._ops.new(self, sizes_of(size), 0, dtype)

    def new_ones(self, *size: SizeArguments, dtype: object = None) -> Self:
        return self._ops.new(self, sizes_of(size), 1, dtype)

    def new_full(self, size: Sequence[int], fill_value: float, dtype: object = None) -> Self:
        return self._ops.new(self, tuple(size), fill_value, dtype)

    def new_empty(self, *size: SizeArguments, dtype: object = None) -> Self:
        return self._ops.new(self, sizes_of(size), None, dtype)

    def to(
        self, *what: object, dtype: object = None, device: object = None, non_blocking: bool = False, copy: bool = False
    ) -> Self:
        """In another dtype, or on another device; the tensor itself if it is so already."""
        for each in what:
            if isinstance(each, TensorBase):
                dtype, device = each.element, each.device
            elif is_device(each):
                device = each
            else:
                dtype = each
        element = self.element if dtype is None else dtype_of(dtype)
        moved: Self = self._ops.moved(self, element, self.device if device is None else device)
        return moved._ops.dense_copy(moved, "clone") if copy and moved is self else moved

    type_as = to

    def cuda(self, device: object = None, non_blocking: bool = False) -> Self:
        """On the device, which it is; on another one, a copy."""
        return self if device is None else self.to(device=device)


def _scaled(alpha: Any) -> dict[str, Any]:
    return {} if alpha == 1 else {"alpha": alpha}
