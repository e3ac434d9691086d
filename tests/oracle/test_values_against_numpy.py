"""Every op against numpy in f64: over dtypes, shapes and broadcasting.

The reference knows nothing of stacks, casts or tiles: it widens the inputs to f64, applies numpy, and rounds once at
the end. Results must agree within the tolerance of the result's dtype (integers exactly).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from kernbench.common.dtypes import BOOL, DTYPES, F8E4M3, F32, DType
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import ValueGraph
from kernbench.values.ops import OPS

seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
_erf = np.vectorize(math.erf, otypes=[float])

UNARY = {
    "neg": np.negative,
    "abs": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "erf": _erf,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "logical_not": lambda x: x == 0,
    "floor": np.floor,
    "ceil": np.ceil,
    "isnan": np.isnan,
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "scale": np.multiply,
    "bias_add": np.add,
    "dequant": np.multiply,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
}
TERNARY = {
    "fma": lambda a, b, c: a * b + c,
    "clamp": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "where": lambda c, a, b: np.where(c != 0, a, b),
}
REDUCE = {"sum": np.sum, "mean": np.mean, "max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}
ELSEWHERE = {"softmax", "dot", "dot_acc", "reshape", "trans", "permute", "broadcast_to", "slice", "concat", "cast",
             "arange", "full", "random"}  # fmt: skip
IN_KERNELS = {"floordiv", "mod", "pow", "shl", "shr", "bit_and", "bit_or", "bit_xor", "bit_not", "sort", "topk",
              "topk_index", "cumsum", "flip", "argsort",
              "gather_along"}  # fmt: skip  # by test_integers_ and test_axis_ops_against_numpy


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    if dtype is BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_float:
        return rng.integers(0 if dtype.name[0] == "u" else -11, 12, shape).astype(dtype.numpy)
    return (rng.standard_normal(shape) * 2).astype(np.float32).astype(dtype.numpy)


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32).astype(np.float64)


def rounded(exact: np.ndarray, dtype: DType) -> np.ndarray:
    if dtype.is_float:
        exact = np.clip(exact, -448, 448) if dtype is F8E4M3 else exact
        return exact.astype(np.float32).astype(dtype.numpy).astype(np.float64)
    if dtype is BOOL:
        return (exact != 0).astype(np.float64)
    return exact.astype(np.int64).astype(dtype.numpy).astype(np.float64)


def agree(got: np.ndarray, exact: np.ndarray, dtype: DType, slack: float = 1.0) -> None:
    assert got.dtype == dtype.numpy
    assert got.shape == np.shape(exact)
    # Two roundings that fall on either side of a tie differ by one unit of the type, which is its tolerance or less.
    rtol, atol = dtype.rtol * slack, dtype.atol * slack
    seen = wide(got) if dtype.is_float else got.astype(np.float64)
    np.testing.assert_allclose(seen, rounded(np.asarray(exact), dtype), rtol=rtol, atol=atol)


def run(op: str, arrays: list[np.ndarray], **params: object) -> tuple[np.ndarray, DType]:
    graph = ValueGraph()
    value = graph.apply(op, [graph.constant(x) for x in arrays], **params)
    return evaluate([value])[0], value.dtype


def test_every_op_is_judged_somewhere():
    assert set(OPS) == {*UNARY, *BINARY, *TERNARY, *REDUCE, *ELSEWHERE, *IN_KERNELS}


@pytest.mark.parametrize("op", UNARY)
@settings(max_examples=15, deadline=None)
@given(shapes, dtypes, seeds)
def test_unary_ops(op, shape, dtype, seed):
    array = draw(np.random.default_rng(seed), shape, dtype)
    if op in ("log", "log2", "sqrt", "rsqrt"):
        array = np.abs(array.astype(np.float32)).astype(dtype.numpy)
    got, result = run(op, [array])
    with np.errstate(all="ignore"):
        agree(got, UNARY[op](wide(array)), result)


@pytest.mark.parametrize("op", [*BINARY, *TERNARY])
@settings(max_examples=15, deadline=None)
@given(st.data(), seeds)
def test_ops_of_several_inputs_broadcast(op, data, seed):
    count = 2 if op in BINARY else 3
    found = data.draw(mutually_broadcastable_shapes(num_shapes=count, max_dims=3, max_side=5))
    rng = np.random.default_rng(seed)
    arrays = [draw(rng, shape, data.draw(dtypes)) for shape in found.input_shapes]
    got, result = run(op, arrays)
    with np.errstate(all="ignore"):
        agree(got, {**BINARY, **TERNARY}[op](*map(wide, arrays)), result)


@pytest.mark.parametrize("op", ["add", "mul", "div", "maximum", "lt"])
@given(shapes, dtypes, st.one_of(st.integers(-9, 9), st.floats(-4, 4, width=32)), seeds, st.booleans())
def test_scalars_stand_on_either_side(op, shape, dtype, scalar, seed, left):
    assume(dtype.name[0] != "u" or isinstance(scalar, float) or scalar >= 0)
    array = draw(np.random.default_rng(seed), shape, dtype)
    graph = ValueGraph()
    value = graph.constant(array)
    result = graph.apply(op, (scalar, value) if left else (value, scalar))
    with np.errstate(all="ignore"):
        exact = BINARY[op](scalar, wide(array)) if left else BINARY[op](wide(array), scalar)
        agree(evaluate([result])[0], exact, result.dtype)


@pytest.mark.parametrize("op", REDUCE)
@settings(max_examples=15, deadline=None)
@given(shapes, dtypes, st.data(), st.booleans(), seeds)
def test_reductions(op, shape, dtype, data, keep_dims, seed):
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    array = draw(np.random.default_rng(seed), shape, dtype)
    got, result = run(op, [array], axis=axis, keep_dims=keep_dims)
    agree(got, REDUCE[op](wide(array), axis=axis, keepdims=keep_dims), result)


@settings(max_examples=20, deadline=None)
@given(shapes, dtypes, st.data(), seeds)
def test_softmax(shape, dtype, data, seed):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    array = draw(np.random.default_rng(seed), shape, dtype)
    got, result = run("softmax", [array], axis=axis)
    grown = np.exp(wide(array) - wide(array).max(axis=axis, keepdims=True))
    agree(got, grown / grown.sum(axis=axis, keepdims=True), result)


sizes = st.integers(1, 33)
OUTER = [((), ()), ((2,), (2,)), ((3, 1), (2,))]


@settings(max_examples=40, deadline=None)
@given(
    sizes, st.integers(1, 70), sizes, dtypes, dtypes, st.sampled_from([((), ()), ((2,), (2,)), ((3, 1), (2,))]), seeds
)
def test_dot_and_dot_acc(m, k, n, left, right, outer, seed):
    rng = np.random.default_rng(seed)
    a, b = draw(rng, (*outer[0], m, k), left), draw(rng, (*outer[1], k, n), right)
    got, result = run("dot", [a, b])
    agree(got, np.matmul(wide(a), wide(b)), result, slack=10)  # up to 70 additions in f32
    more, _ = run("dot_acc", [got, a, b])
    agree(more, 2 * np.matmul(wide(a), wide(b)), result, slack=20)


@given(st.sampled_from([-128, -127, 127]), st.sampled_from([-128, 127]), st.integers(1, 5000))
@settings(max_examples=20, deadline=None)
def test_int8_products_are_exact_at_the_edges(a, b, k):
    got, _ = run("dot", [np.full((1, k), a, np.int8), np.full((k, 1), b, np.int8)])
    assert got.tolist() == [[a * b * k]]


@given(shapes, dtypes, st.data(), seeds)
def test_rearrangements_move_bytes_and_change_none(shape, dtype, data, seed):
    array = draw(np.random.default_rng(seed), shape, dtype)
    axes = data.draw(st.permutations(range(len(shape))))
    assert run("permute", [array], axes=axes)[0].tobytes() == array.transpose(axes).tobytes()
    assert run("reshape", [array], shape=(-1,))[0].tobytes() == array.tobytes()
    if len(shape) > 1:
        assert run("trans", [array])[0].tobytes() == np.swapaxes(array, -1, -2).tobytes()
    starts = [data.draw(st.integers(0, n)) for n in shape]
    stops = [data.draw(st.integers(lo, n)) for lo, n in zip(starts, shape, strict=True)]
    steps = [data.draw(st.integers(1, 3)) for _ in shape]
    cut = array[tuple(slice(*bounds) for bounds in zip(starts, stops, steps, strict=True))]
    got = run("slice", [array], starts=starts, stops=stops, steps=steps)[0]
    assert (got.shape, got.tobytes()) == (cut.shape, cut.tobytes())
    wider = (2, *shape)
    assert run("broadcast_to", [array], shape=wider)[0].tobytes() == np.broadcast_to(array, wider).tobytes()
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    joined = run("concat", [array, array, array], axis=axis)[0]
    assert joined.tobytes() == np.concatenate([array] * 3, axis=axis).tobytes()


@given(shapes, dtypes, dtypes, seeds)
def test_cast_of_moderate_numbers(shape, source, target, seed):
    array = draw(np.random.default_rng(seed), shape, source)
    got, result = run("cast", [array], dtype=target)
    assert result is target
    exact = wide(array)
    if source.is_float and target.name[0] == "u":
        exact = np.maximum(exact, 0)  # floats saturate, integers wrap
    agree(got, exact, target)


@given(st.integers(-5, 5), st.integers(0, 9), dtypes)
def test_makers(start, count, dtype):
    stop = start + count
    if dtype is not BOOL and (dtype.name[0] != "u" or start >= 0):
        agree(run("arange", [], start=start, stop=stop, dtype=dtype)[0], np.arange(start, stop).astype(float), dtype)
    agree(run("full", [], shape=(2, count), value=1, dtype=dtype)[0], np.ones((2, count)), dtype)


@pytest.mark.parametrize("dtype", [F32])
def test_erf_is_good_to_a_few_units_in_the_last_place(dtype):
    x = np.linspace(-6, 6, 20001, dtype=np.float32)
    got, _ = run("erf", [x])
    assert np.abs(got - _erf(x.astype(np.float64))).max() < 5e-7
