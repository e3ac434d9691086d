"""Arithmetic of bf16 and fp8, which numpy lacks: computed in f32, and rounded to nearest, ties to even.

Triton's interpreter holds these types as integers of their bits and computes with the integers; its conversions
truncate, or carry a rounded mantissa wrongly. A float that is too large for fp8 becomes the largest one, as the
accelerators' conversions do it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from kernbench.triton.internals import Builder, TritonHandle, core, interpreter, ir, np_dtype_of

SCALED_OPERAND = "_mxfp_value_handle_to_float32"  # of the interpreter; Triton 3.7 has none
_interpreters: Any = getattr(interpreter, SCALED_OPERAND, None)

# fp8e4b15 is not among them: Triton converts it by a function of its own.
_TYPES: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16, "fp8e4nv": ml_dtypes.float8_e4m3fn, "fp8e5": ml_dtypes.float8_e5m2,
    "fp8e4b8": ml_dtypes.float8_e4m3fnuz, "fp8e5b16": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip


def is_small(dtype: Any) -> bool:
    """Whether a type is held as its bits."""
    return dtype.scalar.name in _TYPES


def widened(handle: Any) -> Any:
    """A handle with numbers that numpy computes with."""
    if not is_small(handle.dtype):
        return handle
    small = _TYPES[handle.dtype.scalar.name]
    return TritonHandle(np.ascontiguousarray(handle.data).view(small).astype(np.float32), core.float32)


def scaled_operand(handle: Any) -> Any:
    """The numbers of an operand of `tl.dot_scaled` in f32; Triton's interpreter loses the least ones of fp8 and f16."""
    return _interpreters(handle) if handle.dtype == core.uint8 else widened(handle).data.astype(np.float32)


def rounded(array: Any, dtype: Any) -> Any:
    """Numbers as the bits of a small type."""
    name = dtype.scalar.name
    small = _TYPES[name]
    wide = np.asarray(array, np.float32)
    if name != "bf16":
        largest = np.float32(ml_dtypes.finfo(small).max)  # type: ignore[no-untyped-call]  # it has none
        wide = np.clip(wide, -largest, largest)
    return wide.astype(small).view(np_dtype_of(dtype))


class FloatBuilder(Builder):  # type: ignore[misc]  # Triton has no types
    """Triton's builder with right numbers for the small floats."""

    def _computed(self, plain: Callable[..., Any], handles: tuple[Any, ...], dtype: Any) -> Any:
        found = plain(*map(widened, handles)).data
        if found.dtype == np.bool_:  # a comparison
            return TritonHandle(found, core.int1)
        return TritonHandle(rounded(found, dtype), dtype.scalar)

    def get_bf16(self, value: float) -> Any:
        return TritonHandle(rounded([value], core.bfloat16), core.bfloat16)

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        if not is_small(lhs.dtype):
            return super().binary_op(lhs, rhs, op)
        return self._computed(lambda x, y: Builder.binary_op(self, x, y, op), (lhs, rhs), lhs.dtype)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if not is_small(other.dtype):
            return super().ternary_op(lhs, rhs, other, op)
        return self._computed(lambda *each: Builder.ternary_op(self, *each, op), (lhs, rhs, other), other.dtype)

    def unary_op(self, arg: Any, op: Any) -> Any:
        if not is_small(arg.dtype):
            return super().unary_op(arg, op)
        return self._computed(lambda x: Builder.unary_op(self, x, op), (arg,), arg.dtype)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if not is_small(z.dtype):
            return Builder.create_fma(self, x, y, z)
        exact = [widened(each).data.astype(np.float64) for each in (x, y, z)]
        return TritonHandle(rounded(exact[0] * exact[1] + exact[2], z.dtype), z.dtype.scalar)

    def create_rsqrt(self, arg: Any) -> Any:
        if not is_small(arg.dtype):
            return Builder.create_rsqrt(self, arg)
        return self._computed(lambda x: Builder.create_rsqrt(self, x), (arg,), arg.dtype)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        if not is_small(src.dtype) and not is_small(dst_type):
            return super().cast_impl(src, dst_type)
        wide = widened(src).data
        if is_small(dst_type):
            return TritonHandle(rounded(wide, dst_type), dst_type.scalar)
        return TritonHandle(wide.astype(np_dtype_of(dst_type)), dst_type.scalar)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        types = (src.dtype.scalar, dst_type.scalar)
        is_known = all(is_small(each) or each in (core.float16, core.float32, core.float64) for each in types)
        if not is_known or rounding_mode == ir.ROUNDING_MODE.RTZ:
            return Builder.create_fp_to_fp(self, src, dst_type, rounding_mode)
        return self.cast_impl(src, dst_type)
