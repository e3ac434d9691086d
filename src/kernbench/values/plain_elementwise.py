"""The second definition of every elementwise op (see plain.py): in doubles, 64-bit integers or Python integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array

Doubles: TypeAlias = NDArray[np.float64]


def _mod(a: Array, b: Array) -> Array:
    """The remainder of the division rounded down; for integers by 0 it is 0, as in numpy."""
    if a.dtype.kind != "f":
        return np.remainder(a, b)
    left = np.fmod(a, b)
    return np.where((left != 0) & (np.signbit(left) != np.signbit(b)), left + b, left)


def _floordiv(a: Array, b: Array) -> Array:
    if a.dtype.kind != "f":
        return np.floor_divide(a, b)
    tiny = np.where((a != 0) & (np.signbit(a) != np.signbit(b)), -1.0, 0.0)  # finite over infinite, rounded down
    whole = np.where(np.isinf(b) & ~np.isnan(a), tiny, np.floor(np.divide(a, b)))
    return np.where(np.isinf(a) & (b != 0), np.nan, whole)  # as the remainder of infinity is NaN


def _pow(a: Array, b: Array) -> Array:
    """Integers in Python, which has unbounded integers."""
    if a.dtype.kind == "f":
        return np.power(a, b)
    return np.asarray(np.frompyfunc(_power, 2, 1)(a, b), np.int64)


def _power(a: int, b: int) -> int:
    whole = pow(int(a), int(b), 1 << 64) if b >= 0 else {1: 1, -1: 1 - 2 * (b % 2)}.get(int(a), 0)
    return whole - (1 << 64) if whole >= 1 << 63 else whole


def _shift(left: bool) -> Callable[..., Array]:
    """Shifts in Python; a negative count, or one beyond the width, shifts all bits out."""

    def one(a: int, b: int) -> int:
        count = int(b) if 0 <= b < 64 else 64
        moved = (int(a) << count) & ((1 << 64) - 1) if left else int(a) >> count
        return moved - (1 << 64) if moved >= 1 << 63 else moved

    return lambda a, b: np.asarray(np.frompyfunc(one, 2, 1)(a, b), np.int64)


def _erf(x: Doubles) -> Doubles:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def _normal(x: Doubles) -> Doubles:
    """The normal distribution function."""
    return 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))


def _logistic(x: Doubles) -> Doubles:
    return 1.0 / (1.0 + np.exp(-x))


REAL = frozenset((  # computed as real numbers, for any input type
    "div", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "gelu", "sigmoid", "silu", "tanh",
    "scale", "bias_add", "dequant", "mean", "softmax",
))  # fmt: skip
ELEMENTWISE: dict[str, Callable[..., Array]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a: -a,
    "abs": lambda a: np.where(a < 0, -a, a),
    "fma": lambda a, b, c: a * b + c,
    "div": lambda a, b: a / b,
    "exp": np.exp,
    "exp2": lambda a: np.power(2.0, a),
    "log": np.log,
    "log2": lambda a: np.log(a) / math.log(2.0),
    "sqrt": np.sqrt,
    "rsqrt": lambda a: 1.0 / np.sqrt(a),
    "sin": np.sin,
    "cos": np.cos,
    "erf": _erf,
    "relu": lambda a: np.where(a < 0, 0, a),
    "gelu": lambda a: a * _normal(a),
    "sigmoid": _logistic,
    "silu": lambda a: a * _logistic(a),
    "tanh": np.tanh,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "clamp": lambda a, low, high: np.minimum(np.maximum(a, low), high),
    "scale": lambda a, b: a * b,
    "bias_add": lambda a, b: a + b,
    "dequant": lambda a, b: a * b,
    "floor": lambda a: np.where(np.trunc(a) > a, np.trunc(a) - 1, np.trunc(a)) if a.dtype.kind == "f" else a,
    "ceil": lambda a: np.where(np.trunc(a) < a, np.trunc(a) + 1, np.trunc(a)) if a.dtype.kind == "f" else a,
    "floordiv": _floordiv,
    "mod": _mod,
    "pow": _pow,
    "shl": _shift(left=True),
    "shr": _shift(left=False),
    "bit_and": lambda a, b: a & b,
    "bit_or": lambda a, b: a | b,
    "bit_xor": lambda a, b: (a | b) - (a & b),
    "isnan": lambda a: a != a,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "logical_and": lambda a, b: (a != 0) & (b != 0),
    "logical_or": lambda a, b: (a != 0) | (b != 0),
    "logical_not": lambda a: a == 0,
}
