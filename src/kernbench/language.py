"""Names that a kernel's file may import as `tl`, for use outside kernels: in annotations and constants.

    import kernbench.language as tl

    def scale(x, BLOCK: tl.constexpr, tl): ...

Inside a kernel the parameter `tl` has the same names, and the ops.
"""

from __future__ import annotations

from kernbench.triton_emu.names import Names, constexpr

__all__ = [
    "bfloat16", "cdiv", "constexpr", "float8e4m3", "float8e4nv", "float8e5", "float8e5m2", "float16", "float32",
    "float64", "int1", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
]  # fmt: skip

float64, float32, float16, bfloat16 = Names.float64, Names.float32, Names.float16, Names.bfloat16
float8e4m3, float8e4nv = Names.float8e4m3, Names.float8e4nv
float8e5m2, float8e5 = Names.float8e5m2, Names.float8e5
int64, int32, int16, int8, int1 = Names.int64, Names.int32, Names.int16, Names.int8, Names.int1
uint64, uint32, uint16, uint8 = Names.uint64, Names.uint32, Names.uint16, Names.uint8
cdiv = Names.cdiv
