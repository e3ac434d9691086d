"""Names that kernels know besides the ops: element types under Triton's names, `constexpr` and `cdiv`.

`tl` has them inside a kernel, and `kernbench.language` outside, where annotations are evaluated. An element type is a
string, its own name, so `x.dtype == tl.float16` and `x.dtype == "f16"` ask the same.
"""

from __future__ import annotations

from typing import Any

from kernbench.common.dtypes import BF16, BOOL, F8E4M3, F8E5M2, F16, F32, I8, I16, I32, I64, U8, U16, U32


class constexpr:  # noqa: N801  # as Triton spells it
    """Triton's annotation of a parameter that is a plain Python value: a number, text, None, a type, a tuple. Called,
    it gives back what it got.
    """

    def __new__(cls, value: Any) -> Any:
        return value


class Names:
    """The names that are no ops."""

    float32, float16, bfloat16 = F32, F16, BF16
    float8e4m3, float8e4nv = F8E4M3, F8E4M3
    float8e5m2, float8e5 = F8E5M2, F8E5M2
    int64, int32, int16, int8, int1 = I64, I32, I16, I8, BOOL
    uint32, uint16, uint8 = U32, U16, U8
    constexpr = constexpr

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        """a / b, rounded up. Engine: none."""
        return -(-a // b)
