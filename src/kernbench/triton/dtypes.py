"""Triton's element types as the machine names them."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

_NAMES = {
    "int1": "bool", "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16", "int32": "i32", "uint32": "u32",
    "int64": "i64", "uint64": "u64", "fp16": "f16", "bf16": "bf16", "fp32": "f32", "fp64": "f64",
    "fp8e4nv": "f8e4m3", "fp8e4b8": "f8e4m3", "fp8e4b15": "f8e4m3", "fp8e5": "f8e5m2", "fp8e5b16": "f8e5m2",
}  # fmt: skip


@lru_cache(maxsize=256)
def _named(name: str) -> str:
    return _NAMES[name]


def kb_dtype(dtype: Any) -> str:
    """The machine's type of a Triton type; pointers are numbers of 8 bytes."""
    scalar = dtype.scalar
    return "u64" if scalar.is_ptr() else _named(scalar.name)
