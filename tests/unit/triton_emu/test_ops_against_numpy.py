"""Every `tl` op judged by numpy: numbers, shapes and types, in a kernel that loads, computes and stores."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.testing import run_kernel

TOLERANCE = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}
FLOATS = [np.float16, np.float32, ml_dtypes.bfloat16]
erf = np.vectorize(math.erf, otypes=[np.float32])


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


UNARY = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "erf": erf,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + erf(x / np.sqrt(2).astype(np.float32))),
    "relu": lambda x: np.maximum(x, 0),
    "abs": np.abs,
    "neg": np.negative,
}
BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
}
COMPARISONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


def numbers(shape, dtype=np.float16, seed=0, low=-3.0, high=3.0):
    return np.random.default_rng(seed).uniform(low, high, shape).astype(dtype)


def outcome(compute, *arrays):
    """What a kernel that loads the arrays and applies `compute(tl, *tensors)` sees."""
    seen = []

    def kernel(*pointers, tl):
        seen.append(compute(tl, *(tl.load(pointer) for pointer in pointers)).numpy())

    run_kernel(kernel, *arrays)
    return seen[0]


def assert_close(found, expected, dtype=None):
    assert found.shape == expected.shape
    if dtype is not None:
        assert found.dtype == np.dtype(dtype)
    limit = TOLERANCE.get(found.dtype.name, 0)
    np.testing.assert_allclose(found.astype(np.float64), expected.astype(np.float64), rtol=limit, atol=limit)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("op", UNARY)
def test_functions_of_one_tensor(op, dtype):
    x = numbers((5, 7), dtype, low=0.1)
    found = outcome(lambda tl, t: getattr(tl, op)(t), x)
    assert_close(found, np.asarray(UNARY[op](x.astype(np.float32))), dtype)


@pytest.mark.parametrize("op", ["exp", "sqrt", "sigmoid"])
def test_functions_of_integers_give_f32(op):
    x = np.arange(1, 9, dtype=np.int32)
    assert_close(outcome(lambda tl, t: getattr(tl, op)(t), x), UNARY[op](x.astype(np.float32)), np.float32)


@st.composite
def broadcastable(draw):
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    other = [size if draw(st.booleans()) else 1 for size in shape]
    return tuple(shape), tuple(other[draw(st.integers(0, len(shape) - 1)) :])


@settings(max_examples=15, deadline=None)
@given(broadcastable(), st.sampled_from(sorted(BINARY)), st.sampled_from(FLOATS), st.booleans())
def test_two_tensors_broadcast_as_in_numpy(shapes, op, dtype, turned):
    a, b = (numbers(shape, dtype, seed, low=0.5) for seed, shape in enumerate(shapes))
    if turned:
        a, b = b, a
    expected = BINARY[op](a.astype(np.float32), b.astype(np.float32))
    assert_close(outcome(lambda tl, x, y: getattr(tl, op)(x, y), a, b), expected, dtype)


def test_operators_are_those_functions():
    a, b = numbers((4, 6)), numbers((6,), seed=1)

    def compute(tl, x, y):
        return -((x + y) * 2 - 1 / (y * y + 1)) / (3 - x)

    wide_a, wide_b = a.astype(np.float32), b.astype(np.float32)
    expected = -((wide_a + wide_b) * 2 - 1 / (wide_b * wide_b + 1)) / (3 - wide_a)
    found = outcome(compute, a, b)
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=0.02, atol=0.02)
    assert found.dtype == np.float16


@pytest.mark.parametrize("op", COMPARISONS)
@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_comparisons_give_bools(op, dtype):
    a, b = (numbers((30,), np.float32, seed).astype(np.int32).astype(dtype) for seed in (0, 1))
    found = outcome(lambda tl, x, y: tl.compare(op, x, y), a, b)
    assert found.dtype == np.bool_
    assert (found == COMPARISONS[op](a, b)).all()


def test_comparison_operators_and_logic():
    a = numbers((20,))

    def compute(tl, x):
        return ((x > 0) & (x <= 2)) | ~(x != x) & (x < -2)

    assert (outcome(compute, a) == ((a > 0) & (a <= 2) | (a < -2))).all()


@pytest.mark.parametrize(
    ("a", "b", "result"),
    [
        (np.float16, np.float32, np.float32),
        (np.float16, ml_dtypes.bfloat16, np.float32),
        (np.int8, np.int32, np.int32),
        (np.int32, np.float16, np.float16),
        (ml_dtypes.float8_e4m3fn, np.float16, np.float16),
    ],
)
def test_mixed_types_give_the_smallest_that_holds_both(a, b, result):
    found = outcome(lambda tl, x, y: x + y, np.ones(4, a), np.ones(4, b))
    assert found.dtype == np.dtype(result)
    assert (found.astype(np.float32) == 2).all()


def test_a_python_number_takes_the_tensors_type():
    assert outcome(lambda tl, x: x * 0.1, np.ones(3, np.float16)).dtype == np.float16
    assert outcome(lambda tl, x: x + 1, np.ones(3, np.int8)).dtype == np.int8
    assert outcome(lambda tl, x: x / 2, np.ones(3, np.int32)).dtype == np.float32


def test_fma_clamp_and_where():
    a, b, c = (numbers((3, 5), np.float32, seed) for seed in range(3))
    assert_close(outcome(lambda tl, x, y, z: tl.fma(x, y, z), a, b, c), a * b + c)
    assert_close(outcome(lambda tl, x: tl.clamp(x, -1.0, 1.0), a), np.clip(a, -1, 1))
    assert_close(outcome(lambda tl, x, y: tl.where(x > 0, x, y), a, b), np.where(a > 0, a, b))
    assert_close(outcome(lambda tl, x: tl.where(x > 0, x, 0.0), a), np.where(a > 0, a, 0))


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=3),
    st.sampled_from(["sum", "max", "min", "mean"]),
    st.booleans(),
    st.data(),
)
def test_reductions_along_an_axis(shape, op, keep_dims, data):
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    x = numbers(tuple(shape), np.float32)
    found = outcome(lambda tl, t: getattr(tl, op)(t, axis=axis, keep_dims=keep_dims), x)
    assert_close(found, np.asarray(getattr(np, op)(x, axis=axis, keepdims=keep_dims)), np.float32)


def test_sums_of_integers_are_wide():
    found = outcome(lambda tl, t: tl.sum(t, axis=0), np.full((300,), 100, np.int8))
    assert found.dtype == np.int32
    assert found == 30000


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis):
    x = numbers((4, 9), np.float32)
    grown = np.exp(x - x.max(axis, keepdims=True))
    assert_close(outcome(lambda tl, t: tl.softmax(t, axis=axis), x), grown / grown.sum(axis, keepdims=True))


class TestProducts:
    @settings(max_examples=20, deadline=None)
    @given(st.tuples(*[st.integers(1, 20)] * 3), st.sampled_from(FLOATS))
    def test_floats_sum_in_f32_and_round_once(self, size, dtype):
        m, k, n = size
        a, b = numbers((m, k), dtype), numbers((k, n), dtype, 1)
        expected = a.astype(np.float32) @ b.astype(np.float32)
        assert_close(outcome(lambda tl, x, y: x @ y, a, b), expected, dtype)
        assert_close(outcome(lambda tl, x, y: tl.dot(x, y, out_dtype="f32"), a, b), expected, np.float32)

    def test_integers_are_exact(self):
        a, b = np.full((2, 100), 127, np.int8), np.full((100, 3), -128, np.int8)
        found = outcome(lambda tl, x, y: x @ y, a, b)
        assert found.dtype == np.int32
        assert (found == 127 * -128 * 100).all()

    def test_fp8_gives_f32(self):
        a = numbers((4, 8), ml_dtypes.float8_e4m3fn)
        found = outcome(lambda tl, x: x @ x.T, a)
        assert_close(found, a.astype(np.float32) @ a.astype(np.float32).T, np.float32)

    def test_leading_axes_are_a_batch(self):
        a, b = numbers((2, 3, 4, 5), np.float32), numbers((3, 5, 6), np.float32, 1)
        assert_close(outcome(lambda tl, x, y: tl.dot(x, y), a, b), a @ b)


class TestViews:
    @settings(max_examples=15, deadline=None)
    @given(st.data())
    def test_parts_are_numpys_parts(self, data):
        x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
        one = st.one_of(
            st.integers(-3, 2),
            st.builds(slice, st.integers(-3, 1), st.none(), st.sampled_from([None, 1, 2])),
            st.just(slice(None)),
            st.none(),
        )
        index = tuple(data.draw(st.lists(one, max_size=2)))
        if data.draw(st.booleans()):
            index = (*index, Ellipsis)
        expected = x[index]
        if expected.size:
            assert_close(outcome(lambda tl, t: t[index], x), expected)

    def test_trans_reshape_broadcast(self):
        x = numbers((2, 3, 4), np.float32)
        assert_close(outcome(lambda tl, t: tl.trans(t), x), x.swapaxes(1, 2))
        assert_close(outcome(lambda tl, t: tl.reshape(t, (4, -1)), x), x.reshape(4, 6))
        assert_close(outcome(lambda tl, t: tl.reshape(t, 6, 4), x), x.reshape(6, 4))
        wide = outcome(lambda tl, t: tl.broadcast_to(t[:, :1], (5, 2, 3, 4)), x)
        assert_close(wide, np.broadcast_to(x[:, :1], (5, 2, 3, 4)))

    def test_rows_can_be_walked(self):
        x = numbers((3, 4), np.float32)
        assert_close(outcome(lambda tl, t: sum((row for row in t), tl.zeros((4,), "f32")), x), x.sum(0))


class TestConstants:
    def test_arange_full_zeros_cast(self):
        assert (outcome(lambda tl: tl.arange(3, 9)) == np.arange(3, 9)).all()
        assert outcome(lambda tl: tl.arange(0, 4)).dtype == np.int32
        assert (outcome(lambda tl: tl.full((2, 3), 1.5)) == 1.5).all()
        assert outcome(lambda tl: tl.zeros((2, 3))).dtype == np.float16
        x = numbers((9,), np.float32, high=100)
        assert (outcome(lambda tl, t: tl.cast(t, "bf16"), x) == x.astype(ml_dtypes.bfloat16)).all()
        assert (outcome(lambda tl, t: tl.cast(t, "i8"), np.array([1.9, -1.9], np.float32)) == [1, -1]).all()

    def test_cdiv_rounds_up(self):
        def kernel(tl):
            assert [tl.cdiv(7, 2), tl.cdiv(8, 2), tl.cdiv(1, 32)] == [4, 4, 1]

        run_kernel(kernel)
