"""The value that a MemoryWrite of a pattern leaves in memory: `nbytes` of a repeated number, little-endian."""

from __future__ import annotations

import numpy as np

from kernbench.common.dtypes import F16, F32, I8
from kernbench.common.messages import Pattern
from kernbench.values.graph import Value, ValueGraph

_NUMPY = {"fill_u8": "<u1", "fill_u16": "<u2", "fill_u32": "<u4", "fill_fp16": "<f2", "fill_fp32": "<f4"}


def pattern_value(values: ValueGraph, pattern: Pattern, nbytes: int) -> Value:
    """`nbytes` filled with a pattern. Zeros and whole floats take no storage."""
    kind, number = pattern.pattern_kind, pattern.value or 0
    if kind == "zero":
        return values.full((nbytes,), 0, I8)
    dtype = {"fill_fp16": F16, "fill_fp32": F32}.get(kind)
    if dtype is not None and nbytes % dtype.itemsize == 0:
        return values.full((nbytes // dtype.itemsize,), float(number), dtype)
    item = np.array([number], _NUMPY[kind]).view(np.int8)
    return values.constant(np.resize(item, nbytes), I8)
