"""Conversions between element types, against ml_dtypes and hand-worked values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import BF16, BOOL, DTYPES, F8E4M3, F8E5M2, F16, F32, I8, I32, I64, U8, U32
from kernbench.values.casts import cast, to_f32

floats32 = st.lists(st.floats(width=32), min_size=1, max_size=20)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize("dtype", [BF16, F8E4M3, F8E5M2, F16])
def test_widening_is_exact_for_every_bit_pattern(dtype):
    bits = np.arange(1 << (8 * dtype.itemsize)).astype(f"u{dtype.itemsize}").view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        expected = bits.astype(np.float32)
    np.testing.assert_array_equal(to_f32(bits, dtype), expected)


@given(floats32, st.sampled_from([F16, BF16, F8E5M2]))
def test_narrowing_rounds_to_nearest_as_ml_dtypes_does(values, dtype):
    with np.errstate(all="ignore"):
        expected = f32(*values).astype(dtype.numpy)
    got = cast(f32(*values), F32, dtype)
    np.testing.assert_array_equal(got.astype(np.float32), expected.astype(np.float32))


def test_e4m3_saturates_at_448_and_keeps_nan():
    got = cast(f32(447, 464, 1e9, -np.inf, np.inf, np.nan, 0.1), F32, F8E4M3).astype(np.float32)
    np.testing.assert_array_equal(got, f32(448, 448, 448, -448, 448, np.nan, 0.1015625))


def test_the_other_floats_overflow_to_infinity():
    assert cast(f32(1e6), F32, F16)[0] == np.inf
    assert cast(f32(1e6), F32, F8E5M2)[0] == np.inf


def test_floats_become_integers_towards_zero_and_saturate():
    values = f32(2.9, -2.9, 1e20, -np.inf, np.nan, 300)
    assert cast(values, F32, I32).tolist() == [2, -2, 2**31 - 1, -(2**31), 0, 300]
    assert cast(values, F32, I8).tolist() == [2, -2, 127, -128, 0, 127]
    assert cast(values, F32, I64).tolist() == [2, -2, 2**63 - 1, -(2**63), 0, 300]
    assert cast(values, F32, U32).tolist() == [2, 0, 2**32 - 1, 0, 0, 300]
    assert cast(values, F32, U8).tolist() == [2, 0, 255, 0, 0, 255]


def test_integers_wrap_and_anything_but_zero_is_true():
    assert cast(np.array([300, -129], np.int32), I32, I8).tolist() == [44, 127]
    assert cast(np.array([2**40 + 7, -1]), I64, U32).tolist() == [7, 2**32 - 1]
    assert cast(f32(0.0, -0.0, 0.5, np.nan), F32, BOOL).tolist() == [False, False, True, True]
    assert cast(np.array([True, False]), BOOL, BF16).astype(float).tolist() == [1, 0]


@given(st.sampled_from(DTYPES), st.sampled_from(DTYPES), st.integers(0, 1))
def test_zero_and_one_survive_every_cast(source, target, value):
    array = np.array([value]).astype(source.numpy)
    assert cast(cast(array, source, target), target, source).tobytes() == array.tobytes()
