"""What the host's tensor operations compute: one table, from a name to an expression of `tl`, and the result's dtype.

    pointwise   of operands that broadcast: `expression(tl, *operands)`; operands are blocks in TCM, or numbers
    reductions  along axes: how a block of rows is reduced, how two results are combined, and what is done at the end
    rows        along the last axis of a block: softmax, norms, orders; they see whole rows

Results have PyTorch's dtypes: `promoted` mixes the operands (a number or a tensor without axes widens only another
kind), `real` gives a float, `truth` a bool. Expressions marked `in_f32` whose result is a float are computed in f32
whatever its dtype and rounded once, as PyTorch's are; integers stay integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log
from typing import Any, Literal

from kernbench.common.dtypes import BOOL, F32, F64, I64, DType, dtype_of
from kernbench.common.frozen import frozen
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.tl_context import TLContext

Result = Literal["promoted", "real", "truth", "first"]
Expression = Callable[..., TensorHandle]  # of tl, then of operands, blocks or numbers


@frozen
class Pointwise:
    expression: Expression
    result: Result = "promoted"
    in_f32: bool = False


@frozen
class Reduction:
    """`block` reduces axis 1 of a block (kept at size 1), `join` combines two results, `end` makes the final one of the
    result and the number of elements. Sums of floats are kept in f32 meanwhile.
    """

    block: Callable[[TLContext, TensorHandle], TensorHandle]
    join: Callable[[TLContext, TensorHandle, TensorHandle], TensorHandle]
    result: Literal["same", "sum", "real", "truth"] = "same"
    end: Callable[[TLContext, TensorHandle, int], TensorHandle] | None = None
    start: Callable[[TLContext, TensorHandle], TensorHandle] | None = None  # what is reduced, of the elements
    of_nothing: float | None = None  # the result over no elements; None: there is none


@frozen
class RowOp:
    """An expression of `tl` and blocks of whole rows; it returns one or several blocks. `sizes` and `dtypes` are those
    of the results' last axis, from that of the input.
    """

    expression: Callable[..., Any]
    sizes: Callable[[int, Sequence[Any]], tuple[int, ...]] = lambda n, _: (n,)
    dtypes: Callable[[DType], tuple[DType, ...]] = lambda dtype: (dtype,)
    in_f32: bool = False
    copies: int = 6  # blocks of the input's size in f32 that it needs at a time


def _gelu(tl: TLContext, x: TensorHandle, approximate: str = "none") -> TensorHandle:
    if approximate == "tanh":
        inner = tl.mul(tl.add(x, tl.mul(tl.mul(tl.mul(x, x), x), 0.044715)), (2 / 3.141592653589793) ** 0.5)
        return tl.mul(tl.mul(x, 0.5), tl.add(tl.tanh(inner), 1.0))
    return tl.gelu(x)


def _bounded(tl: TLContext, x: TensorHandle, low: Any, high: Any) -> TensorHandle:
    if low is not None:
        x = tl.maximum(x, low)
    return x if high is None else tl.minimum(x, high)


def _sign(tl: TLContext, x: TensorHandle) -> TensorHandle:
    return tl.sub(tl.cast(tl.compare("gt", x, 0), x.dtype), tl.cast(tl.compare("lt", x, 0), x.dtype))


def _compare(name: str) -> Pointwise:
    return Pointwise(lambda tl, a, b: tl.compare(name, a, b), "truth")


def _bits(name: str) -> Pointwise:
    return Pointwise(lambda tl, a, b: tl.bitwise(f"bit_{name}", a, b))


def _truth(tl: TLContext, x: Any) -> TensorHandle:
    return tl.compare("ne", x, 0)


def _scaled(tl: TLContext, x: Any, alpha: Any) -> Any:
    return x if alpha == 1 else tl.mul(x, alpha) if isinstance(x, TensorHandle) else x * alpha


def _round(tl: TLContext, x: TensorHandle) -> TensorHandle:
    """To the nearest whole number, halves to the even one."""
    low = tl.floor(x)
    if not dtype_of(low.dtype).is_float:
        return low
    rest = tl.sub(x, low)
    odd = tl.compare("ne", tl.mod(low, 2.0), 0.0)
    up = tl.compare(
        "logical_or", tl.compare("gt", rest, 0.5), tl.compare("logical_and", tl.compare("eq", rest, 0.5), odd)
    )
    return tl.add(low, tl.cast(up, low.dtype))


def _log_add_exp(tl: TLContext, a: TensorHandle, b: TensorHandle) -> TensorHandle:
    """log(exp(a) + exp(b)); equal operands apart, since the difference of two infinities is no number."""
    more = tl.log(tl.add(tl.exp(tl.neg(tl.abs(tl.sub(a, b)))), 1.0))
    return tl.where(tl.compare("eq", a, b), tl.add(a, log(2)), tl.add(tl.maximum(a, b), more))


def _widened(tl: TLContext, x: TensorHandle) -> TensorHandle:
    dtype = dtype_of(x.dtype)
    wide = F64 if dtype is F64 else F32 if dtype.is_float else I64
    return x if dtype is wide else tl.cast(x, wide)


def _is_close(tl: TLContext, a: TensorHandle, b: TensorHandle, rtol: float, atol: float) -> TensorHandle:
    """Equal, which infinities may be, or finite and near. Integers are subtracted as such."""
    a, b = _widened(tl, a), _widened(tl, b)
    far, size = (tl.abs(tl.cast(x, F32) if x.dtype == I64 else x) for x in (tl.sub(a, b), b))
    near = tl.compare("le", far, tl.add(tl.mul(size, rtol), atol))
    near = tl.compare("logical_and", near, tl.compare("lt", far, inf))
    return tl.compare("logical_or", near, tl.compare("eq", a, b))


POINTWISE: dict[str, Pointwise] = {
    "copy": Pointwise(lambda tl, x: x, "first"),
    "add": Pointwise(lambda tl, a, b, alpha=1: tl.add(a, _scaled(tl, b, alpha))),
    "sub": Pointwise(lambda tl, a, b, alpha=1: tl.sub(a, _scaled(tl, b, alpha))),
    "mul": Pointwise(lambda tl, a, b: tl.mul(a, b)),
    "div": Pointwise(lambda tl, a, b: tl.div(a, b), "real"),
    "floor_divide": Pointwise(lambda tl, a, b: tl.floordiv(a, b)),
    "remainder": Pointwise(lambda tl, a, b: tl.mod(a, b)),
    "pow": Pointwise(lambda tl, a, b: tl.pow(a, b)),
    "neg": Pointwise(lambda tl, x: tl.neg(x)),
    "abs": Pointwise(lambda tl, x: tl.abs(x)),
    "sign": Pointwise(_sign),
    "square": Pointwise(lambda tl, x: tl.mul(x, x)),
    "reciprocal": Pointwise(lambda tl, x: tl.div(1.0, x), "real"),
    "sqrt": Pointwise(lambda tl, x: tl.sqrt(x), "real"),
    "rsqrt": Pointwise(lambda tl, x: tl.rsqrt(x), "real"),
    "exp": Pointwise(lambda tl, x: tl.exp(x), "real"),
    "exp2": Pointwise(lambda tl, x: tl.exp2(x), "real"),
    "log": Pointwise(lambda tl, x: tl.log(x), "real"),
    "log2": Pointwise(lambda tl, x: tl.log2(x), "real"),
    "sin": Pointwise(lambda tl, x: tl.sin(x), "real"),
    "cos": Pointwise(lambda tl, x: tl.cos(x), "real"),
    "tanh": Pointwise(lambda tl, x: tl.tanh(x), "real"),
    "erf": Pointwise(lambda tl, x: tl.erf(x), "real"),
    "sigmoid": Pointwise(lambda tl, x: tl.sigmoid(x), "real"),
    "silu": Pointwise(lambda tl, x: tl.silu(x), "real"),
    "relu": Pointwise(lambda tl, x: tl.relu(x)),
    "gelu": Pointwise(_gelu, "real", in_f32=True),
    "floor": Pointwise(lambda tl, x: tl.floor(x)),
    "ceil": Pointwise(lambda tl, x: tl.ceil(x)),
    "round": Pointwise(_round, in_f32=True),
    "maximum": Pointwise(lambda tl, a, b: tl.maximum(a, b)),
    "minimum": Pointwise(lambda tl, a, b: tl.minimum(a, b)),
    "logaddexp": Pointwise(_log_add_exp, "real", in_f32=True),
    "clamp": Pointwise(_bounded),
    "lerp": Pointwise(lambda tl, a, b, w: tl.add(a, tl.mul(tl.sub(b, a), w)), in_f32=True),
    "addcmul": Pointwise(lambda tl, x, a, b, value=1: tl.add(x, _scaled(tl, tl.mul(a, b), value)), in_f32=True),
    "addcdiv": Pointwise(lambda tl, x, a, b, value=1: tl.add(x, _scaled(tl, tl.div(a, b), value)), "real", in_f32=True),
    "where": Pointwise(lambda tl, c, a, b: tl.where(c, a, b)),
    "masked_fill": Pointwise(lambda tl, x, mask, value: tl.where(mask, value, x), "first"),
    "eq": _compare("eq"),
    "ne": _compare("ne"),
    "lt": _compare("lt"),
    "le": _compare("le"),
    "gt": _compare("gt"),
    "ge": _compare("ge"),
    "isnan": Pointwise(lambda tl, x: tl.isnan(x), "truth"),
    "isinf": Pointwise(lambda tl, x: tl.compare("eq", tl.abs(x), inf), "truth"),
    "isfinite": Pointwise(lambda tl, x: tl.compare("lt", tl.abs(x), inf), "truth"),
    "logical_not": Pointwise(lambda tl, x: tl.logical_not(x), "truth"),
    "logical_and": _compare("logical_and"),
    "logical_or": _compare("logical_or"),
    "bitwise_not": Pointwise(lambda tl, x: tl.bit_not(x)),
    "bitwise_and": _bits("and"),
    "bitwise_or": _bits("or"),
    "bitwise_xor": _bits("xor"),
    "isclose": Pointwise(_is_close, "truth"),
}

REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(lambda tl, x: tl.sum(x, 1), lambda tl, a, b: tl.add(a, b), "sum", of_nothing=0),
    "mean": Reduction(
        lambda tl, x: tl.sum(x, 1), lambda tl, a, b: tl.add(a, b), "real", end=lambda tl, x, n: tl.div(x, float(n))
    ),
    "amax": Reduction(lambda tl, x: tl.max(x, 1), lambda tl, a, b: tl.maximum(a, b)),
    "amin": Reduction(lambda tl, x: tl.min(x, 1), lambda tl, a, b: tl.minimum(a, b)),
    "any": Reduction(
        lambda tl, x: tl.max(x, 1), lambda tl, a, b: tl.maximum(a, b), "truth", start=_truth, of_nothing=0
    ),
    "all": Reduction(
        lambda tl, x: tl.min(x, 1), lambda tl, a, b: tl.minimum(a, b), "truth", start=_truth, of_nothing=1
    ),
    "norm": Reduction(
        lambda tl, x: tl.sum(x, 1),
        lambda tl, a, b: tl.add(a, b),
        "real",
        end=lambda tl, x, n: tl.sqrt(x),
        start=lambda tl, x: tl.mul(x, x),
        of_nothing=0,
    ),
}


def _normed(tl: TLContext, x: TensorHandle, mean: bool, eps: float) -> TensorHandle:
    if mean:
        x = tl.sub(x, tl.mean(x, -1))
    return tl.mul(x, tl.rsqrt(tl.add(tl.mean(tl.mul(x, x), -1), eps)))


def _layer_norm(tl: TLContext, x: TensorHandle, *weights: TensorHandle, eps: float) -> TensorHandle:
    y = _normed(tl, x, True, eps)
    for at, weight in enumerate(weights):
        y = tl.add(y, weight) if at else tl.mul(y, weight)
    return y


def _rms_norm(tl: TLContext, x: TensorHandle, *weights: TensorHandle, eps: float) -> TensorHandle:
    y = _normed(tl, x, False, eps)
    return tl.mul(y, weights[0]) if weights else y


def _variance(tl: TLContext, x: TensorHandle, correction: int) -> TensorHandle:
    centred = tl.sub(x, tl.mean(x, -1))
    return tl.div(tl.sum(tl.mul(centred, centred), -1), float(max(x.shape[-1] - correction, 0)))


def _log_softmax(tl: TLContext, x: TensorHandle) -> TensorHandle:
    shifted = tl.sub(x, tl.max(x, -1))
    return tl.sub(shifted, tl.log(tl.sum(tl.exp(shifted), -1)))


def _best(which: str) -> Callable[..., tuple[TensorHandle, TensorHandle]]:
    def found(tl: TLContext, x: TensorHandle) -> tuple[TensorHandle, TensorHandle]:
        return getattr(tl, which)(x, -1), getattr(tl, f"arg{which}")(x, -1)

    return found


def _ordered(tl: TLContext, x: TensorHandle, descending: bool) -> tuple[TensorHandle, TensorHandle]:
    return tl.sort(x, -1, descending), tl.argsort(x, -1, descending)


def _topk(tl: TLContext, x: TensorHandle, k: int, largest: bool) -> tuple[TensorHandle, TensorHandle]:
    if largest:
        return tl.topk(x, k, -1)
    values, places = _ordered(tl, x, False)
    return values[..., :k], places[..., :k]


def _with_place(dtype: DType) -> tuple[DType, ...]:
    return dtype, I64


ROW_OPS: dict[str, RowOp] = {
    "softmax": RowOp(lambda tl, x: tl.softmax(x, -1), in_f32=True),
    "log_softmax": RowOp(_log_softmax, in_f32=True),
    "logsumexp": RowOp(
        lambda tl, x: tl.add(tl.log(tl.sum(tl.exp(tl.sub(x, tl.max(x, -1))), -1)), tl.max(x, -1)),
        sizes=lambda n, _: (1,),
        in_f32=True,
    ),
    "layer_norm": RowOp(_layer_norm, in_f32=True, copies=8),
    "rms_norm": RowOp(_rms_norm, in_f32=True, copies=8),
    "var": RowOp(_variance, sizes=lambda n, _: (1,), in_f32=True),
    "std": RowOp(lambda tl, x, correction: tl.sqrt(_variance(tl, x, correction)), sizes=lambda n, _: (1,), in_f32=True),
    "cumsum": RowOp(lambda tl, x: tl.cumsum(x, -1), dtypes=lambda dtype: (sum_type(dtype),)),
    "flip": RowOp(lambda tl, x: tl.flip(x, -1)),
    "argmax": RowOp(lambda tl, x: tl.argmax(x, -1), sizes=lambda n, _: (1,), dtypes=lambda dtype: (I64,)),
    "argmin": RowOp(lambda tl, x: tl.argmin(x, -1), sizes=lambda n, _: (1,), dtypes=lambda dtype: (I64,)),
    "max": RowOp(_best("max"), sizes=lambda n, _: (1, 1), dtypes=_with_place),
    "min": RowOp(_best("min"), sizes=lambda n, _: (1, 1), dtypes=_with_place),
    "sort": RowOp(_ordered, sizes=lambda n, _: (n, n), dtypes=_with_place),
    "topk": RowOp(_topk, sizes=lambda n, params: (params[0], params[0]), dtypes=_with_place),
    "gather": RowOp(lambda tl, x, index: tl.gather(x, index, -1)),
}


def sum_type(dtype: DType) -> DType:
    """The dtype of a sum: integers are summed in i64, as in PyTorch."""
    return dtype if dtype.is_float else I64


def accumulator_of(name: str, dtype: DType) -> DType:
    """What a reduction is kept in while it runs."""
    result = REDUCTIONS[name].result
    if result == "truth":
        return BOOL
    if result == "same":
        return dtype
    return dtype.accumulate if dtype.is_float else F32 if result == "real" else I64
