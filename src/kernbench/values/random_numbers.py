"""random(shape=, seed=, scale=, dtype=): pseudo-random numbers that are a function of seed and position.

Element i, in C order, is a hash of i and the seed, as a number uniformly distributed over [-r, r) with r = scale *
sqrt(3), so that the standard deviation is `scale`; computed in f32 and rounded once. Every backend gives the same bits,
at any size and in any order, and a value of billions of numbers costs nothing until it is evaluated. Not for
cryptography, nor for statistics beyond 24 bits. No engine is charged: it stands for data that a host would have
written.

The hash is that of MurmurHash3's last step, a bijection of 32 bits, over i + seed * 0x9E3779B1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast as cast_to

import numpy as np

from kernbench.common.array_types import Array, Shape
from kernbench.common.dtypes import F32, DType, dtype_of
from kernbench.common.errors import DataError
from kernbench.values.casts import cast
from kernbench.values.op import REQUIRED, Op, Params, TensorType, as_int, as_shape

SEED_STEP, FIRST, SECOND = 0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35
MASK = 0xFFFFFFFF
SPAN = 2.0**-23  # of the upper 24 bits, less 1: f32 holds all of -1 to 1 in such steps
_AT_ONCE = 1 << 16  # elements per step, so that they stay in the cache


def first_counter(params: Params) -> int:
    """The hash input of element 0."""
    return as_int("random", "seed", params[1]) * SEED_STEP & MASK


def factor(params: Params) -> np.float32:
    """The factor for numbers between -1 and 1."""
    return np.float32(cast_to(float, params[2]) * 3**0.5)


def _infer(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
    shape, dtype = as_shape("random", "shape", params[0]), dtype_of(params[3])
    as_int("random", "seed", params[1])
    if not dtype.is_float or isinstance(params[2], bool) or not isinstance(params[2], int | float):
        raise DataError(f"random: {dtype} times {params[2]!r}", hint="give a float type, and a number as scale")
    if TensorType(shape, dtype).size > MASK:
        raise DataError(f"random: shape {shape} has more than {MASK} elements", hint="make several with other seeds")
    return shape, dtype


def _compute(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    result = np.empty(out.size, out.dtype.numpy)
    start, times = first_counter(params), factor(params)
    for at in range(0, out.size, _AT_ONCE):
        end = min(at + _AT_ONCE, out.size)
        x = (np.arange(at, end, dtype=np.uint64) + np.uint64(start)).astype(np.uint32)
        x ^= x >> np.uint32(16)
        x *= np.uint32(FIRST)
        x ^= x >> np.uint32(13)
        x *= np.uint32(SECOND)
        x ^= x >> np.uint32(16)
        even = (x >> np.uint32(8)).astype(np.float32) * np.float32(SPAN) - np.float32(1)
        result[at:end] = cast(even * times, F32, out.dtype)
    return result.reshape(1, *out.shape)


RANDOM = [Op("random", 0, _infer, _compute, {"shape": REQUIRED, "seed": REQUIRED, "scale": 1.0, "dtype": "f32"})]
