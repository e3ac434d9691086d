"""Conversion of the host's numbers to the elements of a tensor.

A float type takes any real number, rounded; too large a number becomes infinity, or 448 in f8e4m3, which has no
infinity. An integer type takes integers in its range only, and bool 0 and 1: a number that would change is a mistake in
the host program, and is neither wrapped nor truncated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from kernbench.common.array_types import Array
from kernbench.common.dtypes import F8E4M3, INT_RANGE, DType, dtype_of
from kernbench.common.errors import DataError
from kernbench.values.casts import E4M3_MAX, to_f32


def real_numbers(source: ArrayLike, title: str) -> Array:
    """An array of real numbers; raises DataError for text, objects, complex numbers, and rows of different lengths."""
    try:
        array = np.asarray(source)
    except ValueError as error:
        raise DataError(f"{title}: {error}", hint="give rows of one length") from None
    if array.dtype.kind not in "biuf" and not _is_ours(array):
        raise DataError(f"{title} cannot take {array.dtype} contents", hint="give real numbers")
    return array


def as_elements(source: ArrayLike, element: DType, title: str) -> Array:
    """Real numbers as an array of `element`; raises DataError for what an integer type cannot hold."""
    array = real_numbers(source, title)
    if array.dtype == element.numpy:
        return array
    wide = to_f32(array, dtype_of(array.dtype)) if array.dtype.kind == "V" else array
    if not element.is_float:
        _check_fits(wide, element, title)
    elif element is F8E4M3:
        wide = np.clip(wide, -E4M3_MAX, E4M3_MAX)
    with np.errstate(over="ignore", invalid="ignore"):  # to infinity; a NaN is only a NaN here
        return wide.astype(element.numpy)


def _is_ours(array: Array) -> bool:
    """bf16 and fp8 are no kind of number to numpy."""
    try:
        return array.dtype.kind == "V" and dtype_of(array.dtype).is_float
    except DataError:
        return False


def _check_fits(array: Array, element: DType, title: str) -> None:
    low, high = INT_RANGE[element]
    if array.dtype.kind == "f":  # doubles hold every bound but 2**63 - 1, and the one above each
        wide = array.astype(np.float64)
        fits = np.greater_equal(wide, low) & np.less(wide, float(high) + 1.0) & np.equal(wide, np.trunc(wide))
    else:
        fits = np.greater_equal(array, low) & np.less_equal(array, high)
    if not np.all(fits):
        wrong = array[~fits].reshape(-1)[0]
        raise DataError(f"{title}: {wrong} does not fit {element}", hint=f"use whole numbers, {low} to {high}")
