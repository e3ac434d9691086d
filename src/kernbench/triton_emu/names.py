"""Names that kernels know besides the ops: element types under Triton's names, `constexpr` and `cdiv`.

`tl` has them inside a kernel, and `kernbench.language` outside, where annotations are evaluated. An element type is a
string, its own name, so `x.dtype == tl.float16` and `x.dtype == "f16"` ask the same.
"""

from __future__ import annotations

from typing import Any

from kernbench.common.dtypes import BF16, BOOL, F8E4M3, F8E5M2, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64

# What to use instead of names that kernels elsewhere know: of Triton, numpy and PyTorch.
INSTEAD = {
    "prod": "tl.reduce(x, axis, lambda a, b: a * b)",
    "any": "tl.max(x != 0, axis)",
    "all": "tl.min(x != 0, axis)",
    "stack": "tl.join(a, b), or tl.cat of tl.expand_dims",
    "squeeze": "tl.reshape(x, shape), or an index: x[0]",
    "unsqueeze": "tl.expand_dims(x, axis)",
    "transpose": "tl.trans(x), or tl.permute(x, axes)",
    "matmul": "tl.dot(a, b)",
    "dot_scaled": "tl.dot(a, b), with operands that are scaled already",
    "debug_barrier": "tl.barrier() waits for the PEs of the launch; within a PE, ops wait for each other by themselves",
    "make_block_ptr": "tl.load(x + offset, shape, strides=...)",
    "make_tensor_descriptor": "tl.load(x + offset, shape, strides=...)",
    "rand": "random numbers come from the host: torch.randn(...)",
    "randn": "random numbers come from the host: torch.randn(...)",
    "randint": "random numbers come from the host: torch.from_numpy(...)",
}


class constexpr:  # noqa: N801  # as Triton spells it
    """Triton's annotation of a parameter that is a plain Python value: a number, text, None, a type, a tuple. Called,
    it gives back what it got.
    """

    def __new__(cls, value: Any) -> Any:
        return value


class Names:
    """The names that are no ops."""

    float64, float32, float16, bfloat16 = F64, F32, F16, BF16
    float8e4m3, float8e4nv = F8E4M3, F8E4M3
    float8e5m2, float8e5 = F8E5M2, F8E5M2
    int64, int32, int16, int8, int1 = I64, I32, I16, I8, BOOL
    uint64, uint32, uint16, uint8 = U64, U32, U16, U8
    constexpr = constexpr

    @staticmethod
    def cdiv(a: int, b: int) -> int:
        """a / b, rounded up. Engine: none."""
        return -(-a // b)
