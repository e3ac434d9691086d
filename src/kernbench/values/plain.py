"""What every op means, said a second time: one item, plain numpy in double precision and 64-bit integers.

For finding faults: nothing here is shared with the definitions that `evaluate` stacks, batches and threads, so a wrong
definition, a wrong batch and a wrong backend all show. A result is expected between two bounds: the exact answer less
and plus what the element type tolerates, both rounded to the type. Sums are rounded in f32 as they grow, which the
exact answer does not show when terms cancel; so they may also be off by 2**-20 of the sum of their magnitudes, sixteen
roundings of f32. Integers, bools and whatever only moves elements must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from kernbench.common.dtypes import BOOL, F8E4M3, F32, INT_RANGE, DType
from kernbench.values.bytes_of import Patch, ViewParams
from kernbench.values.graph import Value
from kernbench.values.op import Array
from kernbench.values.ops import OPS

Doubles: TypeAlias = NDArray[np.float64]
Named: TypeAlias = dict[str, object]  # an op's parameters
SUM_SLACK = 2.0**-20


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """What a value should be, as doubles: the answer rounded to the value's type, and how far it may lie."""

    answer: Doubles
    low: Doubles
    high: Doubles


def expected(value: Value, inputs: Sequence[Array]) -> Expected:
    """What the op of `value` gives for `inputs`."""
    with np.errstate(all="ignore"):
        if value.op in _MOVES:
            moved = _doubles(_MOVES[value.op](inputs, value))
            return Expected(moved, moved, moved)
        exact, terms = _meaning(value, inputs)
        answer = _rounded(exact, value.dtype)
        slack = _slack(exact, terms, value.dtype)
        if slack is None:
            return Expected(answer, answer, answer)
        low, high = np.subtract(exact, slack), np.add(exact, slack)
        return Expected(answer, _rounded(low, value.dtype), _rounded(high, value.dtype))


def _slack(exact: Array, terms: Doubles | None, dtype: DType) -> Doubles | None:
    """How far a result may be off before it is rounded; None for one that must be equal."""
    if exact.dtype.kind != "f" or dtype is BOOL:
        return None
    tolerances = dtype if dtype.is_float else F32
    slack = tolerances.atol + tolerances.rtol * np.abs(exact) + (0.0 if terms is None else SUM_SLACK * terms)
    return np.where(np.isfinite(exact), slack, 0.0)


# ---- element types


def _doubles(array: Array) -> Doubles:
    return array.astype(np.float64)


def _is_whole(array: Array) -> bool:
    return array.dtype.kind in "bi"  # bf16 and fp8 have kinds of their own


def _wide(array: Array, among_floats: bool) -> Array:
    """Doubles, or 64-bit integers where all are whole. An integer beside floats counts as the nearest f32."""
    if not _is_whole(array):
        return _doubles(array)
    return _doubles(array.astype(np.float32)) if among_floats else array.astype(np.int64)


def _wrapped(whole: Array) -> Array:
    """64-bit integers as 32 bits hold them."""
    return whole.astype(np.int64).astype(np.int32)


def _rounded(exact: Array, dtype: DType) -> Doubles:
    """A result as its type holds it, seen as doubles."""
    kind = exact.dtype.kind
    if dtype is BOOL:
        return _doubles(exact != 0)
    if kind in "bi":
        whole = _wrapped(exact)
        return _doubles(whole.astype(np.float32).astype(dtype.numpy) if dtype.is_float else whole.astype(dtype.numpy))
    if dtype.is_float:
        limit = 448.0 if dtype is F8E4M3 else math.inf  # f8e4m3 has no infinity: it saturates
        return _doubles(np.clip(exact, -limit, limit).astype(dtype.numpy))
    low, high = INT_RANGE[dtype]
    return np.clip(np.trunc(np.where(np.isnan(exact), 0.0, exact)), low, high)


# ---- ops that compute: the exact result, and for sums the sum of the magnitudes of their terms


def _meaning(value: Value, inputs: Sequence[Array]) -> tuple[Array, Doubles | None]:
    op = value.op
    if op == "where":
        return np.where(inputs[0] != 0, *_all_wide(inputs[1:])), None
    args = _all_wide(inputs, op in _REAL)
    if op in _SUMS:
        return _SUMS[op](args, _named(value))
    return np.asarray(_ELEMENTWISE[op](*args)), None


def _all_wide(inputs: Sequence[Array], real: bool = False) -> list[Array]:
    among_floats = real or not all(map(_is_whole, inputs))
    return [_wide(array, among_floats) for array in inputs]


def _softmax(args: Sequence[Array], named: Named) -> tuple[Array, Doubles | None]:
    axis = cast(int, named["axis"])
    grown = np.exp(args[0] - args[0].max(axis=axis, keepdims=True))
    return grown / grown.sum(axis=axis, keepdims=True), None


def _reduced(fn: Callable[..., Array], args: Sequence[Array], named: Named) -> Array:
    axis = cast("int | None", named["axis"])
    return np.asarray(fn(args[0], axis=axis, keepdims=bool(named["keep_dims"])))


def _sum(args: Sequence[Array], named: Named) -> tuple[Array, Doubles | None]:
    return _reduced(np.sum, args, named), _doubles(_reduced(np.sum, [np.abs(args[0])], named))


def _mean(args: Sequence[Array], named: Named) -> tuple[Array, Doubles | None]:
    total, terms = _sum(args, named)
    count = args[0].size // total.size
    assert terms is not None
    return _doubles(total.astype(np.float32)) / count, terms / count  # a sum beyond f32 is infinite


def _dot(args: Sequence[Array], named: Named) -> tuple[Array, Doubles | None]:
    a, b = args
    return np.matmul(a, b), _doubles(np.matmul(np.abs(a), np.abs(b)))


def _dot_acc(args: Sequence[Array], named: Named) -> tuple[Array, Doubles | None]:
    product, terms = _dot(args[1:], named)
    return np.add(args[0], product), None if terms is None else terms + np.abs(args[0])


_SUMS: dict[str, Callable[[Sequence[Array], Named], tuple[Array, Doubles | None]]] = {
    "sum": _sum,
    "mean": _mean,
    "max": lambda args, named: (_reduced(np.max, args, named), None),
    "min": lambda args, named: (_reduced(np.min, args, named), None),
    "softmax": _softmax,
    "dot": _dot,
    "dot_acc": _dot_acc,
}


def _erf(x: Doubles) -> Doubles:
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x), np.float64)


def _normal(x: Doubles) -> Doubles:
    """The normal distribution function."""
    return 0.5 * (1.0 + _erf(x / math.sqrt(2.0)))


def _logistic(x: Doubles) -> Doubles:
    return 1.0 / (1.0 + np.exp(-x))


_REAL = frozenset((  # functions of real numbers, whatever they are given
    "div", "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "gelu", "sigmoid", "silu", "tanh",
    "scale", "bias_add", "dequant", "mean", "softmax",
))  # fmt: skip
_ELEMENTWISE: dict[str, Callable[..., Array]] = {
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


# ---- ops that move elements


def _view(inputs: Sequence[Array], value: Value) -> Array:
    offset, stride, rows = cast(ViewParams, value.params)
    raw, run = inputs[0].tobytes(), value.nbytes // rows
    starts = range(offset, offset + rows * stride, stride) if rows > 1 else (offset,)
    joined = b"".join([raw[at : at + run] for at in starts])
    if value.dtype is BOOL and value.inputs[0].dtype is not BOOL:
        return _truth(joined, value)
    return np.frombuffer(joined, value.dtype.numpy).reshape(value.shape)


def _gather(inputs: Sequence[Array], value: Value) -> Array:
    joined = bytearray(value.nbytes)
    for array, patch in zip(inputs, cast(tuple[Patch, ...], value.params), strict=True):
        src, src_stride, dst, dst_stride, rows, run = patch
        raw = array.tobytes()
        for row in range(rows):
            at, to = src + row * src_stride, dst + row * dst_stride
            joined[to : to + run] = raw[at : at + run]
    if value.dtype is BOOL:
        return _truth(bytes(joined), value)
    return np.frombuffer(bytes(joined), value.dtype.numpy).reshape(value.shape)


def _truth(raw: bytes, value: Value) -> Array:
    """Bytes of anything as bools: whether they are not zero."""
    return np.not_equal(np.frombuffer(raw, np.uint8).reshape(value.shape), 0)


def _named(value: Value) -> Named:
    return dict(zip(OPS[value.op].params, value.params, strict=True))


def _slice(inputs: Sequence[Array], value: Value) -> Array:
    starts, stops, steps = cast("tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]", value.params)
    ranges = [range(*cut) for cut in zip(starts, stops, steps or (1,) * len(starts), strict=True)]
    return inputs[0][np.ix_(*ranges)] if ranges else inputs[0]


def _cast(inputs: Sequence[Array], value: Value) -> Array:
    return _rounded(_wide(inputs[0], value.dtype.is_float), value.dtype)


def _concat(inputs: Sequence[Array], value: Value) -> Array:
    parts = [_rounded(_wide(array, value.dtype.is_float), value.dtype) for array in inputs]
    return np.concatenate(parts, axis=cast(int, _named(value)["axis"]))


def _arange(inputs: Sequence[Array], value: Value) -> Array:
    start = cast(int, _named(value)["start"])
    return _rounded(np.array(range(start, start + value.type.size), np.int64), value.dtype)


def _full(inputs: Sequence[Array], value: Value) -> Array:
    one = np.array(cast(float, _named(value)["value"]), np.float32 if value.dtype.is_float else np.int64)
    return np.broadcast_to(_rounded(_wide(one, False), value.dtype), value.shape)


_MOVES: dict[str, Callable[[Sequence[Array], Value], Array]] = {
    "view": _view,
    "gather": _gather,
    "reshape": lambda inputs, value: inputs[0].reshape(value.shape),
    "trans": lambda inputs, value: np.moveaxis(inputs[0], -1, -2),
    "permute": lambda inputs, value: np.transpose(inputs[0], cast("tuple[int, ...]", _named(value)["axes"])),
    "broadcast_to": lambda inputs, value: np.broadcast_to(inputs[0], value.shape),
    "slice": _slice,
    "concat": _concat,
    "cast": _cast,
    "arange": _arange,
    "full": _full,
}
KNOWN = frozenset((*_MOVES, *_SUMS, *_ELEMENTWISE, "where"))
