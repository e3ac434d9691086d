"""Element types: size, what they accumulate in, how they mix, how fast they compute, how closely they are checked.

    name      bytes  accumulates  rate   rtol = atol   other names
    f64         8    f64          0.25   1e-12         fp64, float64, double
    f32         4    f32          0.5    1e-5          fp32, float32, float
    f16         2    f32          1      1e-3          fp16, float16, half
    bf16        2    f32          1      1e-2          bfloat16
    f8e4m3      1    f32          2      0.125         fp8, float8_e4m3fn, float8e4nv (no infinity; largest 448)
    f8e5m2      1    f32          2      0.25          fp8e5m2, float8_e5m2, float8e5
    i64         8    i64          0.25   exact         int64
    u64         8    u64          0.25   exact         uint64
    i32         4    i32          0.5    exact         int32, int
    i16         2    i32          1      exact         int16
    i8          1    i32          2      exact         int8
    u32         4    u32          0.5    exact         uint32
    u16         2    u32          1      exact         uint16
    u8          1    u32          2      exact         uint8
    bool        1    i32          2      exact         i1, int1

Mixing: a float beats an integer; two floats give the smallest type that holds both (f16 with bf16 gives f32, the two
fp8 types give f16); two integers give the smallest type that holds both, as in numpy (u8 with i8 gives i16, u32 with
any signed type i64, u64 with any signed type u64, as in C). A Python scalar never widens a tensor of its own kind. The
rate halves as the element doubles. The fp8 tolerance is one unit in the last place of the type; the other tolerances
are those of the verification contract. A type is a string, its own name: `x.dtype == F16` and `x.dtype == "f16"` are
the same question.

Numpy is imported only when an array type is asked for, so that commands which touch no data start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kernbench.common.errors import DataError

if TYPE_CHECKING:
    import numpy as np


class DType(str):
    """One element type. There is one object per type, so `is` and `==` agree; it also equals its name."""

    __slots__ = ("atol", "compute_scale", "is_float", "itemsize", "name", "numpy_name", "rtol")

    name: str
    itemsize: int
    is_float: bool
    compute_scale: float  # multiply-accumulates per ns, against f16
    rtol: float
    atol: float
    numpy_name: str

    def __new__(
        cls, name: str, itemsize: int, is_float: bool, compute_scale: float, rtol: float, atol: float, numpy_name: str
    ) -> DType:
        self = super().__new__(cls, name)
        self.name, self.itemsize, self.is_float, self.compute_scale = name, itemsize, is_float, compute_scale
        self.rtol, self.atol, self.numpy_name = rtol, atol, numpy_name
        return self

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[object, ...]:
        return (dtype_of, (self.name,))

    @property
    def is_floating_point(self) -> bool:
        """PyTorch's name."""
        return self.is_float

    @property
    def accumulate(self) -> DType:
        """What sums and products of this type are kept in."""
        if self.is_float:
            return F64 if self is F64 else F32
        if self.itemsize == 8:
            return self
        return U32 if self in _UNSIGNED else I32

    @property
    def work(self) -> DType:
        """What elementwise ops of this type are computed in: f32, i32, or a type of 8 bytes where that is too small."""
        if self.itemsize == 8:
            return self
        return F32 if self.is_float else I64 if self is U32 else I32

    @property
    def numpy(self) -> np.dtype[np.generic]:
        """The array type; bf16 and fp8 come from `ml_dtypes`."""
        return _numpy_dtype(self)


F64 = DType("f64", 8, True, 0.25, 1e-12, 1e-12, "float64")
F32 = DType("f32", 4, True, 0.5, 1e-5, 1e-5, "float32")
F16 = DType("f16", 2, True, 1.0, 1e-3, 1e-3, "float16")
BF16 = DType("bf16", 2, True, 1.0, 1e-2, 1e-2, "bfloat16")
F8E4M3 = DType("f8e4m3", 1, True, 2.0, 0.125, 0.125, "float8_e4m3fn")
F8E5M2 = DType("f8e5m2", 1, True, 2.0, 0.25, 0.25, "float8_e5m2")
I64 = DType("i64", 8, False, 0.25, 0.0, 0.0, "int64")
I32 = DType("i32", 4, False, 0.5, 0.0, 0.0, "int32")
I16 = DType("i16", 2, False, 1.0, 0.0, 0.0, "int16")
I8 = DType("i8", 1, False, 2.0, 0.0, 0.0, "int8")
U64 = DType("u64", 8, False, 0.25, 0.0, 0.0, "uint64")
U32 = DType("u32", 4, False, 0.5, 0.0, 0.0, "uint32")
U16 = DType("u16", 2, False, 1.0, 0.0, 0.0, "uint16")
U8 = DType("u8", 1, False, 2.0, 0.0, 0.0, "uint8")
BOOL = DType("bool", 1, False, 2.0, 0.0, 0.0, "bool")

DTYPES = (F32, F16, BF16, F8E4M3, F8E5M2, I64, I32, I16, I8, U32, U16, U8, BOOL)
WIDE_DTYPES = (F64, U64)  # of host programs and front ends; accelerators compute in the others
_ALIASES: dict[DType, tuple[str, ...]] = {
    F64: ("fp64", "double"),
    F32: ("fp32", "float"),
    F16: ("fp16", "half"),
    F8E4M3: ("fp8", "fp8e4m3", "fp8e4m3fn", "fp8_e4m3", "f8e4m3fn", "float8_e4m3", "float8e4m3", "float8e4nv"),
    F8E5M2: ("fp8e5m2", "fp8_e5m2", "float8e5m2", "float8e5"),
    I32: ("int",),
    BOOL: ("i1", "int1", "bool_"),
}
_BY_NAME = {name: t for t in (*DTYPES, *WIDE_DTYPES) for name in (t.name, t.numpy_name, *_ALIASES.get(t, ()))}
_NUMPY: dict[DType, np.dtype[np.generic]] = {}  # filled on first use: an import, remembered

_SIGNED = (I8, I16, I32, I64)
_UNSIGNED = (U8, U16, U32, U64)
_FP8 = (F8E4M3, F8E5M2)
INT_RANGE = {
    **{t: (-(1 << (8 * t.itemsize - 1)), (1 << (8 * t.itemsize - 1)) - 1) for t in _SIGNED},
    **{t: (0, (1 << (8 * t.itemsize)) - 1) for t in _UNSIGNED},
    BOOL: (0, 1),
}


def _numpy_dtype(dtype: DType) -> np.dtype[np.generic]:
    found = _NUMPY.get(dtype)
    if found is None:
        import numpy as np

        if dtype.numpy_name.startswith(("bfloat", "float8")):
            import ml_dtypes

            found = np.dtype(getattr(ml_dtypes, dtype.numpy_name))
        else:
            found = np.dtype(dtype.numpy_name)
        _NUMPY[dtype] = found
    return found


def dtype_of(what: object) -> DType:
    """The element type that `what` names or has: a name, a DType, a numpy or torch dtype, a Python type, or an array.

    Raises DataError, listing the known types, when there is none.
    """
    if isinstance(what, str):
        known = _BY_NAME.get(what)  # by its name, or by itself, which is its name
        if known is not None:
            return known
        name = what
    elif isinstance(what, type):
        name = what.__name__
    elif hasattr(what, "dtype"):
        return dtype_of(what.dtype)
    else:
        name = str(getattr(what, "name", what))
    found = _BY_NAME.get(name.removeprefix("torch."))
    if found is None:
        listed = ", ".join(t.name for t in (*DTYPES, *WIDE_DTYPES))
        raise DataError(f"no element type {name!r}", hint=f"use one of {listed}")
    return found


def promote(a: DType, b: DType) -> DType:
    """The type of an elementwise result of `a` and `b`."""
    if a is b:
        return a
    if a.is_float and b.is_float:
        if a in _FP8 and b in _FP8:
            return F16
        if a in _FP8 or b in _FP8:
            return b if a in _FP8 else a
        return F64 if F64 in (a, b) else F32
    if a.is_float or b.is_float:
        return a if a.is_float else b
    return _mixed_integers(a, b)


def _mixed_integers(a: DType, b: DType) -> DType:
    """The smallest integer type that holds both; u64 where none does."""
    low, high = min(INT_RANGE[a][0], INT_RANGE[b][0]), max(INT_RANGE[a][1], INT_RANGE[b][1])
    holds = (t for t in (BOOL, *_UNSIGNED, *_SIGNED) if INT_RANGE[t][0] <= low and high <= INT_RANGE[t][1])
    return next(holds, U64)


def promote_scalar(dtype: DType, scalar: bool | int | float) -> DType:
    """The type of an elementwise result of a tensor of `dtype` and a Python scalar.

    Raises DataError when a whole number does not fit an integer type.
    """
    if isinstance(scalar, float):
        return dtype if dtype.is_float else F32
    if dtype.is_float or isinstance(scalar, bool):
        return dtype
    result = I32 if dtype is BOOL else dtype
    low, high = INT_RANGE[result]
    if not low <= scalar <= high:
        raise DataError(
            f"the scalar {scalar} does not fit {result}", hint=f"use {low} to {high}, or cast the tensor first"
        )
    return result
