"""A second, independent definition of every op: one item, plain numpy in double precision and 64-bit integers.

It serves verification: it shares no code with the definitions that `evaluate` stacks, batches and threads, so errors in
a definition, a batch or a backend are detected. A result is expected between two bounds: the exact answer minus and
plus the tolerance of the element type, both rounded to the type. Sums are rounded in f32 as they grow, which the exact
answer does not reflect when terms cancel; so they may also be off by 2**-20 of the sum of their magnitudes, sixteen
roundings of f32. Integers, bools and ops that only move elements must be equal. Answers are doubles, except of i64,
which doubles do not hold: those stay integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Array
from kernbench.common.dtypes import BOOL, F8E4M3, F32, I64, INT_RANGE, DType
from kernbench.values.bytes_of import Patch, ViewParams
from kernbench.values.graph import Value
from kernbench.values.ops import OPS
from kernbench.values.plain_elementwise import ELEMENTWISE, REAL, Doubles

Places: TypeAlias = NDArray[np.int64]
Named: TypeAlias = dict[str, object]  # an op's parameters
SUM_SLACK = 2.0**-20


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The expected value: the answer rounded to the value's type, and its bounds."""

    answer: Array
    low: Array
    high: Array


def expected(value: Value, inputs: Sequence[Array]) -> Expected:
    """The expected result of the op of `value` on `inputs`."""
    with np.errstate(all="ignore"):
        if value.op in _MOVES:
            moved = _seen(_MOVES[value.op](inputs, value), value.dtype)
            return Expected(moved, moved, moved)
        exact, terms = _meaning(value, inputs)
        if _is_whole(exact):
            exact = _wrapped(exact, inputs)
        answer = _rounded(exact, value.dtype)
        slack = _slack(exact, terms, value.dtype)
        if slack is None:
            return Expected(answer, answer, answer)
        low, high = np.subtract(exact, slack), np.add(exact, slack)
        return Expected(answer, _rounded(low, value.dtype), _rounded(high, value.dtype))


def _slack(exact: Array, terms: Doubles | None, dtype: DType) -> Doubles | None:
    """The tolerance of a result before rounding; None if it must be equal."""
    if exact.dtype.kind != "f" or dtype is BOOL:
        return None
    tolerances = dtype if dtype.is_float else F32
    slack = tolerances.atol + tolerances.rtol * np.abs(exact) + (0.0 if terms is None else SUM_SLACK * terms)
    return np.where(np.isfinite(exact), slack, 0.0)


# ---- element types


def _doubles(array: Array) -> Doubles:
    return array.astype(np.float64)


def _seen(array: Array, dtype: DType) -> Array:
    """An array of `dtype` in the form in which answers are compared."""
    return array.astype(np.int64) if dtype is I64 else _doubles(array)


def _is_whole(array: Array) -> bool:
    return array.dtype.kind in "biu"  # bf16 and fp8 have other kinds


def _wide(array: Array, among_floats: bool) -> Array:
    """Doubles, or 64-bit integers where all are whole. An integer among floats counts as the nearest f32."""
    if not _is_whole(array):
        return _doubles(array)
    return _doubles(array.astype(np.float32)) if among_floats else array.astype(np.int64)


def _wrapped(whole: Array, inputs: Sequence[Array]) -> Array:
    """64-bit integers wrapped to 32 bits, unless an input type exceeds i32."""
    beyond = any(array.dtype in (np.int64, np.uint32) for array in inputs)
    return whole if beyond else whole.astype(np.int64).astype(np.int32)


def _rounded(exact: Array, dtype: DType) -> Array:
    """A result rounded to its type, in the form in which answers are compared."""
    if dtype is BOOL:
        return _doubles(exact != 0)
    if _is_whole(exact):
        held = exact.astype(np.float32) if dtype.is_float else exact
        return _seen(held.astype(dtype.numpy), dtype)
    if dtype.is_float:
        limit = 448.0 if dtype is F8E4M3 else math.inf  # f8e4m3 has no infinity: it saturates
        return _doubles(np.clip(exact, -limit, limit).astype(dtype.numpy))
    low, high = INT_RANGE[dtype]
    cut = np.trunc(np.where(np.isnan(exact), 0.0, exact))
    if dtype is I64:  # 2**63 is the first double beyond it
        return np.array([max(low, min(high, _python_int(x))) for x in cut.flat], np.int64).reshape(exact.shape)
    return np.clip(cut, low, high)


def _python_int(x: float) -> int:
    return int(x) if math.isfinite(x) else int(math.copysign(2**64, x))


# ---- ops that compute: the exact result, and for sums the sum of the magnitudes of their terms


def _meaning(value: Value, inputs: Sequence[Array]) -> tuple[Array, Doubles | None]:
    op = value.op
    if op == "bit_not":
        truth = inputs[0].dtype == np.bool_
        return np.asarray(inputs[0] == 0 if truth else -1 - inputs[0].astype(np.int64)), None
    if op == "where":
        return np.where(inputs[0] != 0, *_all_wide(inputs[1:])), None
    args = _all_wide(inputs, op in REAL)
    if op in _SUMS:
        return _SUMS[op](args, _named(value))
    return np.asarray(ELEMENTWISE[op](*args)), None


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


def _cumsum(args: Sequence[Array], named: Named) -> tuple[Array, Doubles | None]:
    axis = cast(int, named["axis"])
    return np.cumsum(args[0], axis=axis), _doubles(np.cumsum(np.abs(args[0]), axis=axis))


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
    "argmax": lambda args, named: (_reduced(np.argmax, args, named), None),
    "argmin": lambda args, named: (_reduced(np.argmin, args, named), None),
    "cumsum": _cumsum,
    "softmax": _softmax,
    "dot": _dot,
    "dot_acc": _dot_acc,
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
    """Bytes as bools: true unless zero."""
    return np.not_equal(np.frombuffer(raw, np.uint8).reshape(value.shape), 0)


def _named(value: Value) -> Named:
    return dict(zip(OPS[value.op].params, value.params, strict=True))


def _axis(value: Value) -> int:
    return cast(int, _named(value)["axis"])


def _slice(inputs: Sequence[Array], value: Value) -> Array:
    starts, stops, steps = cast("tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...] | None]", value.params)
    ranges = [range(*cut) for cut in zip(starts, stops, steps or (1,) * len(starts), strict=True)]
    return inputs[0][np.ix_(*ranges)] if ranges else inputs[0]


def _cast(inputs: Sequence[Array], value: Value) -> Array:
    return _rounded(_wide(inputs[0], value.dtype.is_float), value.dtype)


def _concat(inputs: Sequence[Array], value: Value) -> Array:
    parts = [_rounded(_wide(array, value.dtype.is_float), value.dtype) for array in inputs]
    return np.concatenate(parts, axis=cast(int, _named(value)["axis"]))


def _sorted_down(array: Array, axis: int) -> Places:
    """The indices of the elements in descending order, NaN first; equal elements keep their order."""
    return _ordered(array, axis, _rank)


def _ordered(array: Array, axis: int, rank: Callable[[float], tuple[bool, float]]) -> Places:
    """The indices of the elements by rank; equal elements keep their order."""
    plain = array.astype(np.int64) if _is_whole(array) else _doubles(array)
    places = [
        [at for _, at in sorted((rank(number), at) for at, number in enumerate(row))] for row in _rows(plain, axis)
    ]
    shape = np.moveaxis(array, axis, -1).shape
    return np.moveaxis(np.array(places, np.int64).reshape(shape), -1, axis)


def _rows(array: Array, axis: int) -> list[list[float]]:
    moved = np.moveaxis(array, axis, -1)
    rows: list[list[float]] = moved.reshape(-1, moved.shape[-1]).tolist()
    return rows


def _rank(number: float) -> tuple[bool, float]:
    return number == number, 0.0 if number != number else -number


def _rank_up(number: float) -> tuple[bool, float]:
    return number != number, 0.0 if number != number else number


def _argsort(inputs: Sequence[Array], value: Value) -> Places:
    return _ordered(inputs[0], _axis(value), _rank if _named(value)["descending"] else _rank_up)


def _gather_along(inputs: Sequence[Array], value: Value) -> Array:
    (source, places), axis = inputs, _axis(value) % inputs[0].ndim
    found = np.empty(places.shape, source.dtype)
    for at in np.ndindex(places.shape):
        found[at] = source[(*at[:axis], int(places[at]), *at[axis + 1 :])]
    return found


def _sort(inputs: Sequence[Array], value: Value) -> Array:
    named = _named(value)
    axis = _axis(value)
    down = np.take_along_axis(inputs[0], _sorted_down(inputs[0], axis), axis)
    return down if named["descending"] else np.flip(down, axis)


def _topk(inputs: Sequence[Array], value: Value) -> Array:
    axis = _axis(value)
    return np.take_along_axis(inputs[0], _topk_index(inputs, value), axis)


def _topk_index(inputs: Sequence[Array], value: Value) -> Places:
    named, axis = _named(value), _axis(value)
    return np.take(_sorted_down(inputs[0], axis), range(cast(int, named["k"])), axis)


def _arange(inputs: Sequence[Array], value: Value) -> Array:
    start = cast(int, _named(value)["start"])
    return _rounded(np.array(range(start, start + value.type.size), np.int64), value.dtype)


def _full(inputs: Sequence[Array], value: Value) -> Array:
    one = np.array(cast(float, _named(value)["value"]), np.float32 if value.dtype.is_float else np.int64)
    return np.broadcast_to(_rounded(_wide(one, False), value.dtype), value.shape)


def _random(inputs: Sequence[Array], value: Value) -> Array:
    """In Python integers, which do not wrap."""
    named, word = _named(value), 1 << 32
    scale = np.float32(cast(float, named["scale"]) * math.sqrt(3.0))
    found = np.empty(value.type.size, np.float32)
    for at in range(value.type.size):
        x = (at + cast(int, named["seed"]) * 0x9E3779B1) % word
        x = (x ^ x // 2**16) * 0x85EBCA6B % word
        x = (x ^ x // 2**13) * 0xC2B2AE35 % word
        found[at] = np.float32((x ^ x // 2**16) // 2**8 / 2**23 - 1) * scale
    return _rounded(_wide(found, True), value.dtype).reshape(value.shape)


_MOVES: dict[str, Callable[[Sequence[Array], Value], Array]] = {
    "view": _view,
    "gather": _gather,
    "reshape": lambda inputs, value: inputs[0].reshape(value.shape),
    "trans": lambda inputs, value: np.moveaxis(inputs[0], -1, -2),
    "permute": lambda inputs, value: np.transpose(inputs[0], cast("tuple[int, ...]", _named(value)["axes"])),
    "broadcast_to": lambda inputs, value: np.broadcast_to(inputs[0], value.shape),
    "slice": _slice,
    "flip": lambda inputs, value: np.take(inputs[0], range(inputs[0].shape[_axis(value)])[::-1], axis=_axis(value)),
    "sort": _sort,
    "argsort": _argsort,
    "gather_along": _gather_along,
    "topk": _topk,
    "topk_index": _topk_index,
    "concat": _concat,
    "cast": _cast,
    "arange": _arange,
    "full": _full,
    "random": _random,
}
KNOWN = frozenset((*_MOVES, *_SUMS, *ELEMENTWISE, "where", "bit_not"))
