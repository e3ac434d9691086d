"""Element types: names, sizes, mixing, scalars; and that asking for one does not import numpy."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import (
    BF16,
    BOOL,
    DTYPES,
    F8E4M3,
    F8E5M2,
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    INT_RANGE,
    U8,
    U16,
    U32,
    WIDE_DTYPES,
    dtype_of,
    promote,
    promote_scalar,
)
from kernbench.common.errors import DataError, KernBenchError

any_dtype = st.sampled_from((*DTYPES, *WIDE_DTYPES))


@pytest.mark.parametrize(
    ("names", "dtype"),
    [
        (("f16", "fp16", "float16", "half", "torch.float16"), F16),
        (("bf16", "bfloat16", "torch.bfloat16"), BF16),
        (("f32", "fp32", "float32", "torch.float32"), F32),
        (("f8e4m3", "fp8", "float8_e4m3fn", "float8e4m3", "float8e4nv"), F8E4M3),
        (("f8e5m2", "fp8e5m2", "float8_e5m2", "float8e5m2", "float8e5"), F8E5M2),
        (("i8", "int8"), I8),
        (("i16", "int16"), I16),
        (("i32", "int32", "int"), I32),
        (("i64", "int64", "torch.int64"), I64),
        (("u8", "uint8"), U8),
        (("u16", "uint16"), U16),
        (("u32", "uint32"), U32),
        (("bool", "i1", "int1"), BOOL),
    ],
)
def test_every_usual_name_finds_its_type(names, dtype):
    assert [dtype_of(name) for name in names] == [dtype] * len(names)


@given(any_dtype)
def test_a_type_is_found_from_itself_its_arrays_and_its_numpy_type(dtype):
    assert dtype_of(dtype) is dtype
    assert dtype_of(dtype.numpy) is dtype
    assert dtype_of(dtype.numpy.type) is dtype
    assert dtype_of(np.zeros(2, dtype.numpy)) is dtype
    assert dtype.numpy.itemsize == dtype.itemsize
    assert pickle.loads(pickle.dumps(dtype)) is dtype


def test_python_types_name_the_types_of_their_scalars():
    assert [dtype_of(t) for t in (float, int, bool)] == [F32, I32, BOOL]


@pytest.mark.parametrize("wrong", ["f128", np.complex64, np.zeros(1, complex), 3, None])
def test_an_unknown_type_is_an_error_that_lists_the_known_ones(wrong):
    with pytest.raises(KernBenchError) as caught:
        dtype_of(wrong)
    assert "f32, f16, bf16, f8e4m3, f8e5m2, i64, i32, i16, i8, u32, u16, u8, bool, f64, u64" in str(caught.value)


def test_mixing_takes_the_smallest_type_that_holds_both():
    assert promote(F16, BF16) is F32
    assert promote(F8E4M3, F8E5M2) is F16
    assert promote(F8E4M3, BF16) is BF16
    assert promote(I32, F8E5M2) is F8E5M2
    assert promote(I8, I32) is I32
    assert promote(BOOL, I8) is I8
    assert promote(U8, I8) is I16
    assert promote(U16, I8) is I32
    assert promote(U32, I8) is I64
    assert promote(U32, F16) is F16


integers = st.sampled_from(sorted(INT_RANGE))


@given(integers, integers)
def test_integers_mix_as_in_numpy_but_for_u64_with_signed_ones_which_stays_u64(a, b):
    expected = np.promote_types(a.numpy, b.numpy)
    assert promote(a, b).numpy == (np.uint64 if expected == np.float64 else expected)


@given(any_dtype)
def test_a_type_is_its_name(dtype):
    assert dtype == dtype.name == str(dtype) == f"{dtype}" == repr(dtype)
    assert {dtype.name: 1}[dtype] == 1
    assert all((other == dtype) is (other is dtype) for other in DTYPES)


@given(any_dtype, any_dtype, any_dtype)
def test_mixing_does_not_depend_on_order(a, b, c):
    assert promote(a, b) is promote(b, a)
    assert promote(a, a) is a
    if {a, b, c} != {F8E4M3, F8E5M2, BF16}:  # f16 on the way loses the short cut to bf16
        assert promote(promote(a, b), c) is promote(a, promote(b, c))


def test_a_scalar_does_not_widen_a_tensor_of_its_kind():
    assert promote_scalar(F16, 0.1) is F16
    assert promote_scalar(F8E4M3, 3) is F8E4M3
    assert promote_scalar(I8, 3) is I8
    assert promote_scalar(I8, 0.5) is F32
    assert promote_scalar(BOOL, 3) is I32
    assert promote_scalar(BOOL, True) is BOOL
    with pytest.raises(DataError, match="200 does not fit i8"):
        promote_scalar(I8, 200)
    with pytest.raises(DataError, match="-1 does not fit u32"):
        promote_scalar(U32, -1)
    assert promote_scalar(I64, 2**40) is I64


def test_rates_and_tolerances():
    assert [t.compute_scale for t in (F32, F16, BF16, F8E4M3, F8E5M2, I8, I32, BOOL)] == [0.5, 1, 1, 2, 2, 2, 0.5, 2]
    assert [t.compute_scale for t in (I64, I16, U32, U16, U8)] == [0.25, 1, 0.5, 1, 2]
    assert [(t.rtol, t.atol) for t in (F32, F16, BF16, I8)] == [(1e-5, 1e-5), (1e-3, 1e-3), (1e-2, 1e-2), (0, 0)]
    assert [t.accumulate for t in (F16, F8E4M3, I8, I16, BOOL)] == [F32, F32, I32, I32, I32]
    assert [t.accumulate for t in (I64, U8, U16, U32)] == [I64, U32, U32, U32]


def test_naming_a_type_imports_no_array_library():
    script = "import sys, kernbench.common.dtypes as d; d.dtype_of('bf16'); print('numpy' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"
