"""Elementwise ops. Charged to the MATH engine.

Shape rule: numpy's broadcasting. dtype rule, by family:

    arithmetic   add sub mul neg abs fma relu floor ceil floordiv mod pow shl shr
                                                    the inputs mixed by `promote`; bool counts as i32
    real         div exp exp2 log log2 sqrt rsqrt sin cos erf gelu sigmoid silu tanh
                                                    the inputs mixed; integers give f32
    choice       maximum minimum clamp where        the inputs mixed (`where`: not the condition)
    bits         bit_and bit_or bit_xor bit_not     the inputs mixed; integers bit by bit, bools as truth values
    comparison   eq ne lt le gt ge isnan            bool
    logic        logical_and logical_or logical_not bool; any input type, zero is false
    epilogue     scale bias_add                     the type of the first input; `dequant` gives f32

`dtype=` overrides the result type. Floats are computed in f32 and rounded once; integers in i32, or i64 where one of
them is i64 or u32, wrapping. NaN propagates through maximum, minimum, clamp and relu as in numpy and PyTorch. gelu is
the erf form (PyTorch's default); erf is a rational approximation good to a few units in the last place of f32.

Bits and shifts (shl, shr) take integers and bools only. floordiv and mod round down, as in Python and numpy, so the
remainder has the sign of the divisor (C and Triton truncate towards zero); an integer divided by 0 gives 0. A shift by
more bits than there are, or by a negative count, gives 0, or -1 to the right of a negative number. An integer to a
negative power is truncated to 0, unless it is 1 or -1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array, Shape
from kernbench.common.dtypes import BOOL, F32, I32, DType, promote
from kernbench.common.errors import DataError
from kernbench.values.casts import from_work, to_work, work_type
from kernbench.values.op import Compute, Op, Params, TensorType, aligned, as_dtype, broadcast_shape

F: TypeAlias = NDArray[np.float32]
DTypeRule: TypeAlias = Callable[[Sequence[DType]], DType]

# erf(x) = x P(x^2) / Q(x^2) for |x| <= 4, beyond which f32 rounds it to 1.
_ERF_P = (-2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
          -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02)  # fmt: skip
_ERF_Q = (-1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
          -1.42647390514189e-02)  # fmt: skip
_ONE, _HALF, _ROOT_HALF = np.float32(1), np.float32(0.5), np.float32(0.5**0.5)


def _poly(x: F, coefficients: Sequence[float]) -> F:
    return reduce(lambda acc, c: acc * x + np.float32(c), coefficients[1:], np.full_like(x, coefficients[0]))


def erf(x: F) -> F:
    x = np.clip(x, np.float32(-4), np.float32(4))
    square = x * x
    return x * _poly(square, _ERF_P) / _poly(square, _ERF_Q)


def gelu(x: F) -> F:
    return _HALF * x * (_ONE + erf(x * _ROOT_HALF))


def sigmoid(x: F) -> F:
    return _ONE / (_ONE + np.exp(-x))


def fma(a: Array, b: Array, c: Array) -> Array:
    """Rounded once: f64 holds the product of two f32 exactly."""
    wide = np.float64 if a.dtype.kind == "f" else a.dtype.type
    return np.add(np.multiply(a, b, dtype=wide), c).astype(a.dtype)


def floordiv(a: Array, b: Array) -> Array:
    result: Array = np.floor_divide(a, b)  # 0 for an integer over 0
    return result


def power(a: Array, b: Array) -> Array:
    """Handles integers to negative powers, which numpy rejects: 0, except for 1 and -1."""
    if a.dtype.kind == "f":
        result: Array = np.power(a, b)
        return result
    zero, one = a.dtype.type(0), a.dtype.type(1)
    whole = np.power(a, np.maximum(b, zero))
    unit = np.where(np.bitwise_and(b, one), a, np.multiply(a, a))  # the power of 1 or -1
    return np.where(np.greater_equal(b, zero), whole, np.where(np.equal(np.abs(a), one), unit, zero))


def _mixed(types: Sequence[DType]) -> DType:
    return reduce(promote, types)


def _arithmetic(types: Sequence[DType]) -> DType:
    mixed = _mixed(types)
    return I32 if mixed is BOOL else mixed


def _whole(name: str) -> DTypeRule:
    """Integers only: mixed, bools counting as i32 where they are shifted."""

    def rule(types: Sequence[DType]) -> DType:
        if any(dtype.is_float for dtype in types):
            listed = " and ".join(dtype.name for dtype in types)
            raise DataError(
                f"{name} of {listed}: only integers and bools have bits",
                hint="cast to an integer type first, or compare first: (x > 0) & (y > 0)",
            )
        return _arithmetic(types) if name in ("shl", "shr") else _mixed(types)

    return rule


def _real(types: Sequence[DType]) -> DType:
    mixed = _mixed(types)
    return mixed if mixed.is_float else F32


def _to_bool(types: Sequence[DType]) -> DType:
    return BOOL


def _first(types: Sequence[DType]) -> DType:
    return types[0] if types[0].is_float else F32


def _f32(types: Sequence[DType]) -> DType:
    return F32


def _chosen(types: Sequence[DType]) -> DType:
    return _mixed(types[1:])


def _work(args: Sequence[Array], types: Sequence[TensorType], rank: int, real: bool) -> list[Array]:
    """The arguments converted to the work type, ready to broadcast."""
    work = work_type([t.dtype for t in types], real)
    return [aligned(to_work(arg, t.dtype, work), rank) for arg, t in zip(args, types, strict=True)]


_REAL_RULES = (_real, _first, _f32)


def _elementwise(name: str, arity: int, fn: Callable[..., Array], rule: DTypeRule) -> Op:
    real = rule in _REAL_RULES

    def infer(types: Sequence[TensorType], params: Params) -> tuple[Shape, DType]:
        shape = broadcast_shape(name, [t.shape for t in types])
        return shape, as_dtype(params[0], rule([t.dtype for t in types]))

    def compute(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
        work = _work(args, types, len(out.shape), real)
        with np.errstate(all="ignore"):
            return from_work(fn(*work), out.dtype)

    return Op(name, arity, infer, compute, {"dtype": None})


def _compute_where(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
    rank = len(out.shape)
    cond = aligned(args[0], rank)
    cond = cond if types[0].dtype is BOOL else from_work(_work(args[:1], types[:1], rank, False)[0], BOOL)
    return from_work(np.where(cond, *_work(args[1:], types[1:], rank, False)), out.dtype)


def _compute_bit_not(plain: Op) -> Compute:
    """Logical not of a bool, bitwise not of an integer."""

    def compute(args: Sequence[Array], types: Sequence[TensorType], out: TensorType, params: Params) -> Array:
        if types[0].dtype is BOOL:
            return from_work(np.logical_not(args[0]), out.dtype)
        return plain.compute(args, types, out, params)

    return compute


_NAMED: list[tuple[str, int, Callable[..., Array], DTypeRule]] = [
    ("add", 2, np.add, _arithmetic),
    ("sub", 2, np.subtract, _arithmetic),
    ("mul", 2, np.multiply, _arithmetic),
    ("neg", 1, np.negative, _arithmetic),
    ("abs", 1, np.abs, _arithmetic),
    ("fma", 3, fma, _arithmetic),
    ("floor", 1, lambda x: np.floor(x) if x.dtype.kind == "f" else x, _arithmetic),
    ("ceil", 1, lambda x: np.ceil(x) if x.dtype.kind == "f" else x, _arithmetic),
    ("floordiv", 2, floordiv, _arithmetic),
    ("mod", 2, np.remainder, _arithmetic),
    ("pow", 2, power, _arithmetic),
    ("shl", 2, np.left_shift, _whole("shl")),
    ("shr", 2, np.right_shift, _whole("shr")),
    ("bit_and", 2, np.bitwise_and, _whole("bit_and")),
    ("bit_or", 2, np.bitwise_or, _whole("bit_or")),
    ("bit_xor", 2, np.bitwise_xor, _whole("bit_xor")),
    ("div", 2, np.divide, _real),
    ("exp", 1, np.exp, _real),
    ("exp2", 1, np.exp2, _real),
    ("log", 1, np.log, _real),
    ("log2", 1, np.log2, _real),
    ("sqrt", 1, np.sqrt, _real),
    ("rsqrt", 1, lambda x: _ONE / np.sqrt(x), _real),
    ("sin", 1, np.sin, _real),
    ("cos", 1, np.cos, _real),
    ("erf", 1, erf, _real),
    ("relu", 1, lambda x: np.maximum(x, x.dtype.type(0)), _arithmetic),
    ("gelu", 1, gelu, _real),
    ("sigmoid", 1, sigmoid, _real),
    ("silu", 1, lambda x: x * sigmoid(x), _real),
    ("tanh", 1, np.tanh, _real),
    ("maximum", 2, np.maximum, _mixed),
    ("minimum", 2, np.minimum, _mixed),
    ("clamp", 3, lambda x, low, high: np.minimum(np.maximum(x, low), high), _mixed),
    ("scale", 2, np.multiply, _first),
    ("bias_add", 2, np.add, _first),
    ("dequant", 2, np.multiply, _f32),
    ("eq", 2, np.equal, _to_bool),
    ("ne", 2, np.not_equal, _to_bool),
    ("lt", 2, np.less, _to_bool),
    ("le", 2, np.less_equal, _to_bool),
    ("gt", 2, np.greater, _to_bool),
    ("ge", 2, np.greater_equal, _to_bool),
    ("isnan", 1, np.isnan, _to_bool),
    ("logical_and", 2, np.logical_and, _to_bool),
    ("logical_or", 2, np.logical_or, _to_bool),
    ("logical_not", 1, np.logical_not, _to_bool),
]


def _table() -> list[Op]:
    where = _elementwise(
        "where", 3, np.where, _chosen
    )  # computed separately: its condition is not promoted with the others
    bit_not = _elementwise("bit_not", 1, np.bitwise_not, _whole("bit_not"))
    return [
        *(_elementwise(*row) for row in _NAMED),
        Op("where", 3, where.infer, _compute_where, where.params),
        Op("bit_not", 1, bit_not.infer, _compute_bit_not(bit_not), bit_not.params),
    ]


REAL_OPS = tuple(name for name, _, _, rule in _NAMED if rule in _REAL_RULES)  # computed in f32, for integers too
ELEMENTWISE = _table()
