"""Numbers that the host hands over: what fits a dtype goes in, rounded where it is a float; the rest is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernbench.common.dtypes import DTYPES, dtype_of
from kernbench.common.errors import DataError
from kernbench.runtime_api.context import RuntimeContext
from kernbench.runtime_api.host_numbers import as_elements
from kernbench.runtime_api.tensor import Tensor
from kernbench.sim_engine.engine import GraphEngine
from kernbench.testing import tiny_machine

Put = Callable[[RuntimeContext, object, str], Tensor]


@pytest.fixture
def torch() -> Iterator[RuntimeContext]:
    with warnings.catch_warnings(), RuntimeContext(GraphEngine(tiny_machine())) as made:
        warnings.simplefilter("error")
        yield made


def by_full(torch: RuntimeContext, number: Any, dtype: str) -> Tensor:
    return torch.full((1,), number, dtype=dtype)


def by_from_numpy(torch: RuntimeContext, number: Any, dtype: str) -> Tensor:
    return torch.from_numpy([number], dtype=dtype)


def by_copy(torch: RuntimeContext, number: Any, dtype: str) -> Tensor:
    return torch.zeros(1, dtype=dtype).copy_([number])


def by_fill(torch: RuntimeContext, number: Any, dtype: str) -> Tensor:
    return torch.zeros(1, dtype=dtype).fill_(number)


def by_index(torch: RuntimeContext, number: Any, dtype: str) -> Tensor:
    tensor = torch.zeros(1, dtype=dtype)
    tensor[0] = number
    return tensor


WAYS = [by_full, by_from_numpy, by_copy, by_fill, by_index]


@pytest.mark.parametrize("put", WAYS)
@pytest.mark.parametrize(
    ("number", "dtype"),
    [
        (300, "i8"),
        (-129, "i8"),
        (2.5, "i8"),
        (2**31, "i32"),
        (2**40, "i32"),
        (float("nan"), "i32"),
        (float("inf"), "i8"),
        (float("-inf"), "bool"),
        (2, "bool"),
        (-1, "u8"),
        (256, "u8"),
        (2**16, "u16"),
        (2**32, "u32"),
        (-1.0, "u32"),
        (2.0**63, "i64"),
        (2**63, "i64"),
        (2**15, "i16"),
    ],
)
def test_what_an_integer_type_cannot_hold_is_refused_on_every_way_in(
    torch: RuntimeContext, put: Put, number: float, dtype: str
) -> None:
    with pytest.raises(DataError, match=f"does not fit {dtype}") as refused:
        put(torch, number, dtype)
    assert "whole number" in str(refused.value.hint)


@pytest.mark.parametrize("put", WAYS)
@pytest.mark.parametrize(
    ("number", "dtype", "held"),
    [
        (127, "i8", 127),
        (-128.0, "i8", -128),
        (2**31 - 1, "i32", 2**31 - 1),
        (True, "i32", 1),
        (255.0, "u8", 255),
        (2**16 - 1, "u16", 2**16 - 1),
        (2**32 - 1, "u32", 2**32 - 1),
        (-(2.0**63), "i64", -(2**63)),
        (-(2**15), "i16", -(2**15)),
        (1, "bool", True),
        (70000, "f16", np.inf),  # the largest is 65504
        (1e300, "f32", np.inf),
        (449, "f8e4m3", 448),  # it has no infinity
        (float("-inf"), "f8e4m3", -448),
        (1e9, "f8e5m2", np.inf),
    ],
)
def test_what_fits_goes_in_alike_on_every_way(
    torch: RuntimeContext, put: Put, number: float, dtype: str, held: float
) -> None:
    assert put(torch, number, dtype).numpy().astype(np.float64).tolist() == [held]


@pytest.mark.parametrize("put", [by_from_numpy, by_copy, by_index])
@pytest.mark.parametrize("number", [1j, "1", None])
def test_what_is_no_real_number_is_refused(torch: RuntimeContext, put: Put, number: object) -> None:
    with pytest.raises(DataError, match="cannot take"):
        put(torch, number, "f16")


@pytest.mark.parametrize("value", [np.ones(2), [1.0, 2.0], np.ones((1, 1)), "1", None])
def test_full_takes_one_number(torch: RuntimeContext, value: object) -> None:
    with pytest.raises(DataError, match="full: the value is") as refused:
        torch.full((4,), value)  # type: ignore[arg-type]  # the mistake
    assert refused.value.hint == "give a Python number"


def test_full_takes_numpys_numbers(torch: RuntimeContext) -> None:
    for value in (np.float32(2), np.array(2.0), np.int64(2)):
        assert torch.full((2,), value).numpy().tolist() == [2, 2]  # type: ignore[arg-type]  # anything that counts as a number


@pytest.mark.parametrize("put", WAYS)
@pytest.mark.parametrize("dtype", ["f32", "i32"])
def test_a_whole_number_that_is_no_float_is_refused(torch: RuntimeContext, put: Put, dtype: str) -> None:
    with pytest.raises(DataError):
        put(torch, 2**1024, dtype)


def test_the_largest_whole_number_that_full_takes_is_infinity(torch: RuntimeContext) -> None:
    assert torch.full((1,), 2**1023 - 1, dtype="f32").numpy().tolist() == [np.inf]
    with pytest.raises(DataError, match="a whole number of 1024 bits"):
        torch.full((1,), 2**1023, dtype="f32")


def test_arrays_of_types_that_numpy_does_not_know_go_in(torch: RuntimeContext) -> None:
    brain = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    assert torch.zeros(2, dtype="f32").copy_(brain).numpy().tolist() == [1.5, -2.0]
    assert torch.from_numpy(brain, dtype="f8e4m3").numpy().astype(np.float32).tolist() == [1.5, -2.0]
    assert torch.from_numpy(np.array([200], np.uint8), dtype="i32").numpy().tolist() == [200]


def test_an_array_of_64_bit_integers_keeps_its_type_and_its_bits(torch: RuntimeContext) -> None:
    numbers = np.array([2**62 + 1, -(2**63)])
    tensor = torch.from_numpy(numbers)
    assert (tensor.dtype, tensor.numpy().tolist()) == ("i64", numbers.tolist())


def test_arrays_of_doubles_and_of_64_bit_unsigned_integers_keep_their_types_and_bits(torch: RuntimeContext) -> None:
    for numbers, dtype in ((np.array([0.1, -1e300]), "f64"), (np.array([2**64 - 1, 3], np.uint64), "u64")):
        tensor = torch.from_numpy(numbers)
        assert (tensor.dtype, tensor.numpy().tolist()) == (dtype, numbers.tolist())


def test_an_array_that_no_type_holds_says_so(torch: RuntimeContext) -> None:
    with pytest.raises(DataError, match="cannot take complex64"):
        torch.from_numpy(np.ones(2, np.complex64))


def test_a_double_is_rounded_once() -> None:
    # 1 + 2**-11 + 2**-40 is above the middle of 1 and 1 + 2**-10, but on it once it is an f32.
    assert as_elements([1 + 2**-11 + 2**-40], dtype_of("f16"), "x").tolist() == [1 + 2**-10]


@given(
    st.lists(st.one_of(st.integers(-(2**33), 2**33), st.floats(width=32)), min_size=1, max_size=4),
    st.sampled_from([dtype for dtype in DTYPES if not dtype.is_float]),
)
def test_an_integer_type_holds_exactly_what_was_given_or_refuses_it(numbers: list[float], dtype: object) -> None:
    element = dtype_of(dtype)
    try:
        held = as_elements(np.array(numbers, np.float64), element, "x")
    except DataError:
        info = (0, 1) if element.name == "bool" else (np.iinfo(element.numpy).min, np.iinfo(element.numpy).max)
        assert not all(float(n).is_integer() and info[0] <= n <= info[1] for n in numbers)
    else:
        assert held.astype(np.float64).tolist() == numbers
