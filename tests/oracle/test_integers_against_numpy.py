"""Bits, shifts, floor division, remainders and powers in kernels, against numpy's own integers of the same width.

numpy computes in the mixed type itself, whatever its width; KernBench in i32 or i64, wrapped at the end. Operands span
each type's whole range. Where numpy has no answer (integers to negative powers, bools without arithmetic) the judge is
written out.
"""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from tests.oracle.test_tl_against_numpy import seen

from kernbench.common.dtypes import BOOL, DTYPES, F8E4M3, F32, I32, INT_RANGE, DType, dtype_of, promote
from kernbench.common.errors import LaunchError
from kernbench.testing import run_kernel

BITS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
SHIFTS = {"shl": operator.lshift, "shr": operator.rshift}
ROUNDING = {"floordiv": operator.floordiv, "mod": operator.mod}
OPERATORS = {**BITS, **SHIFTS, **ROUNDING, "pow": operator.pow}

wholes = st.sampled_from([t for t in DTYPES if not t.is_float])
pairs = mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=3, min_side=1, max_side=4)
seeds = st.integers(0, 2**32 - 1)
light = settings(max_examples=20, deadline=None)


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
    """Half of the numbers are small, half from all of the type's range."""
    low, high = INT_RANGE[dtype]
    small = rng.integers(max(low, -5), min(high, 5), shape, endpoint=True)
    large = rng.integers(low, high, shape, endpoint=True)
    return np.where(rng.random(shape) < 0.5, small, large).astype(dtype.numpy)


def computed_in(*kinds: DType) -> DType:
    """The mixed type; arithmetic takes bools for i32."""
    mixed = kinds[0] if len(kinds) == 1 else promote(*kinds)
    return I32 if mixed is BOOL else mixed


def to_the_power(base: np.ndarray, exponent: np.ndarray, dtype: DType) -> np.ndarray:
    """By Python's integers, wrapped to the type; a negative exponent cuts the fraction off."""
    bits = 8 * dtype.itemsize

    def one(a: int, b: int) -> int:
        if b >= 0:
            return pow(int(a), int(b), 1 << bits)
        return {1: 1, -1: -1 if b % 2 else 1}.get(int(a), 0)

    exact = np.frompyfunc(one, 2, 1)(base.astype(object), exponent.astype(object))
    wrapped = np.asarray(exact, object) % (1 << bits)
    return np.asarray(wrapped, np.uint64).astype(dtype.numpy)


@light
@given(pairs, wholes, wholes, seeds)
def test_operators_on_integers_are_numpys(shapes, left, right, seed):
    rng = np.random.default_rng(seed)
    a, b = (draw(rng, s, t) for s, t in zip(shapes.input_shapes, (left, right), strict=True))
    mixed, arithmetic = promote(left, right), computed_in(left, right)
    found = seen(lambda tl, x, y: {name: fn(x, y) for name, fn in OPERATORS.items()}, a, b)
    with np.errstate(all="ignore"):
        for name, got in found.items():
            dtype = mixed if name in BITS else arithmetic
            x, y = a.astype(dtype.numpy), b.astype(dtype.numpy)
            exact = to_the_power(x, y, dtype) if name == "pow" else OPERATORS[name](x, y)
            assert got.dtype == dtype.numpy
            assert np.array_equal(got, exact), name


@light
@given(pairs, wholes, seeds)
def test_turning_every_bit_is_numpys(shapes, dtype, seed):
    x = draw(np.random.default_rng(seed), shapes.result_shape, dtype)
    got = seen(lambda tl, t: {"~": ~t}, x)["~"]
    assert got.dtype == dtype.numpy
    assert np.array_equal(got, ~x)


@light
@given(wholes, st.integers(0, 7), seeds)
def test_a_number_stands_on_either_side(dtype, number, seed):
    """Triton's ways to write masks: x & 3, 1 << x, x % 4, 7 // x."""
    x = draw(np.random.default_rng(seed), (9,), dtype)
    small = (x & 7).astype(dtype.numpy) if dtype is not BOOL else x

    def compute(tl, t, s):
        right = {name: fn(t, number) for name, fn in OPERATORS.items()}
        return {**right, **{f"r{name}": fn(number, s) for name, fn in OPERATORS.items()}}

    kept = computed_in(dtype)
    wide, narrow, plain = x.astype(kept.numpy), small.astype(kept.numpy), np.full(9, number, kept.numpy)
    with np.errstate(all="ignore"):
        for name, got in seen(compute, x, small).items():
            operands = (plain, narrow) if name[0] == "r" else (wide, plain)
            op = name.removeprefix("r")
            exact = to_the_power(*operands, kept) if op == "pow" else OPERATORS[op](*operands)
            assert got.dtype == kept.numpy
            assert np.array_equal(got, exact), name


FLOATS = st.sampled_from([t for t in DTYPES if t.is_float])


@light
@given(pairs, FLOATS, FLOATS, seeds)
def test_floats_are_divided_down_and_raised_as_in_numpy(shapes, left, right, seed):
    rng = np.random.default_rng(seed)
    a, b = (
        (rng.uniform(0.5, 4, s) * sign).astype(np.float32).astype(t.numpy)
        for s, t, sign in zip(shapes.input_shapes, (left, right), rng.choice([-1, 1], 2), strict=True)
    )
    found = seen(lambda tl, x, y: {"floordiv": x // y, "mod": x % y, "pow": abs(x) ** y}, a, b)
    dtype = promote(left, right)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact = {"floordiv": wide_a // wide_b, "mod": wide_a % wide_b, "pow": np.abs(wide_a) ** wide_b}
    for name, got in found.items():
        assert dtype_of(got.dtype) is dtype
        expected = np.clip(exact[name], -448, 448) if dtype is F8E4M3 else exact[name]
        expected = expected.astype(np.float32).astype(dtype.numpy).astype(np.float64)
        np.testing.assert_allclose(got.astype(np.float64), expected, rtol=dtype.rtol, atol=dtype.atol)


def test_rounding_is_down_and_not_towards_zero():
    x, y = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    found = seen(lambda tl, a, b: {"//": a // b, "%": a % b}, x, y)
    assert found["//"].tolist() == [3, -4, -4, 3]  # Triton, as C: 3, -3, -3, 3
    assert found["%"].tolist() == [1, 1, -1, -1]  # Triton, as C: 1, -1, 1, -1


def test_integers_to_negative_powers_are_cut():
    x, y = np.array([1, -1, -1, 2, 0], np.int32), np.array([-2, -2, -3, -1, -1], np.int32)
    assert seen(lambda tl, a, b: {"**": a**b}, x, y)["**"].tolist() == [1, 1, -1, 0, 0]


def test_bools_are_distinguished_by_truth():
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    found = seen(lambda tl, x, y: {"&": x & y, "|": x | y, "^": x ^ y, "~": ~x}, a, b)
    assert all(got.dtype == np.bool_ for got in found.values())
    assert [got.tolist() for got in found.values()] == [
        (a & b).tolist(),
        (a | b).tolist(),
        (a ^ b).tolist(),
        [0, 0, 1, 1],
    ]


@pytest.mark.parametrize("dtype", [t for t in DTYPES if t.is_float])
@pytest.mark.parametrize("compute", [
    lambda x: x & x, lambda x: x | 1, lambda x: x ^ x, lambda x: ~x, lambda x: x << 1, lambda x: 1 >> x,
])  # fmt: skip
def test_floats_have_no_bits(dtype, compute):
    def kernel(x, tl):
        compute(tl.load(x))

    with pytest.raises(LaunchError, match="only integers and bools have bits") as caught:
        run_kernel(kernel, np.ones(4, dtype.numpy))
    assert "cast to an integer type first" in str(caught.value.hint)


def test_an_integer_beside_a_fraction_is_a_float():
    found = seen(lambda tl, x: {"pow": x**0.5, "mod": x % 2.5}, np.array([4, 9], np.int32))
    assert {name: (dtype_of(got.dtype), got.tolist()) for name, got in found.items()} == {
        "pow": (F32, [2, 3]),
        "mod": (F32, [1.5, 1.5]),
    }
