"""Orders, picks, reductions and scans with functions of the user's, and products of integers, against numpy."""

from __future__ import annotations

from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle import test_values_against_numpy as judge
from tests.oracle.test_axis_ops_against_numpy import same_bytes, with_equals
from tests.oracle.test_tl_against_numpy import seen

from kernbench.common.dtypes import DTYPES, I8, I16, I32, I64, U8, U32, dtype_of
from kernbench.common.errors import DataError, LaunchError
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel

dtypes = st.sampled_from(DTYPES)
wholes = st.sampled_from([I8, I16, I32, I64, U8, U32])
shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)
light = settings(max_examples=20, deadline=None)


def first_then_last(a, b):
    """Associative and not commutative: the digits of a, then those of b, as (value, weight)."""
    return a[0] * b[1] + b[0], a[1] * b[1]


@light
@given(shapes, dtypes, st.booleans(), st.data(), seeds)
def test_places_in_order_and_what_lies_there(shape, dtype, descending, data, seed):
    x = with_equals(np.random.default_rng(seed), shape, dtype)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))

    def compute(tl, t):
        places = tl.argsort(t, axis, descending)
        return {"at": places, "there": tl.gather(t, places, axis), "sorted": tl.sort(t, axis, descending)}

    found = seen(compute, x)
    wide = judge.wide(x)
    places = np.argsort(-wide if descending else wide, axis=axis, kind="stable")
    same_bytes(found["at"], places.astype(np.int32))
    same_bytes(found["there"], found["sorted"])


@light
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.sampled_from(["i8", "i32", "i64", "u8"]), seeds)
def test_gathers_take_any_number_of_elements_along_the_axis(rows, cols, count, dtype, seed):
    rng = np.random.default_rng(seed)
    x, places = rng.standard_normal((rows, cols)).astype(np.float32), rng.integers(0, cols, (rows, count))
    found = seen(lambda tl, t, at: {"out": tl.gather(t, at, axis=1)}, x, places.astype(dtype_of(dtype).numpy))
    same_bytes(found["out"], np.take_along_axis(x, places, 1))


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_place_outside_the_axis_is_an_error(wrong):
    with pytest.raises((LaunchError, DataError), match=f"gather: index {wrong} along an axis of 4"):
        seen(lambda tl, t, at: {"out": tl.gather(t, at)}, np.zeros(4, np.float32), np.array([0, wrong], np.int32))


@light
@given(shapes, wholes, st.data(), seeds)
def test_a_reduction_with_a_function_of_the_users_own(shape, dtype, data, seed):
    x = judge.draw(np.random.default_rng(seed), shape, dtype)
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    keep = data.draw(st.booleans())

    def compute(tl, t):
        return {
            "product": tl.reduce(t, axis, lambda a, b: a * b, keep_dims=keep),
            "larger": tl.reduce(t, axis, tl.maximum, keep_dims=keep),
            "xor": tl.xor_sum(t, axis, keep_dims=keep),
        }

    found = seen(compute, x)
    same_bytes(found["product"], np.asarray(np.multiply.reduce(x, axis, dtype=x.dtype, keepdims=keep)))  # wraps
    same_bytes(found["larger"], np.asarray(np.maximum.reduce(x, axis, keepdims=keep)))
    same_bytes(found["xor"], np.asarray(np.bitwise_xor.reduce(x, axis, keepdims=keep)))


@light
@given(st.integers(1, 33), seeds)
def test_functions_that_do_not_commute_get_neighbours_in_their_order(size, seed):
    digits = np.random.default_rng(seed).integers(1, 4, size)

    def combine(a, wa, b, wb):
        return a * wb + b, wa * wb

    def compute(tl, t, w):
        value, weight = tl.reduce((t, w), 0, combine)
        scanned = tl.associative_scan((t, w), 0, combine)
        return {"value": value, "weight": weight, "so far": scanned[0], "back": tl.associative_scan(
            (t, w), 0, combine, reverse=True)[0]}  # fmt: skip

    pairs = [(int(d), 3) for d in digits]
    found = seen(compute, digits.astype(np.int64), np.full(size, 3, np.int64))
    wrapped = [[n & (2**64 - 1) for n in reduce(first_then_last, pairs[: at + 1])] for at in range(size)]
    as_i64 = [np.array(row, np.uint64).astype(np.int64).tolist() for row in wrapped]
    assert [found["value"].tolist(), found["weight"].tolist()] == [[as_i64[-1][0]], [as_i64[-1][1]]]
    assert found["so far"].tolist() == [row[0] for row in as_i64]
    turned = [reduce(first_then_last, pairs[::-1][: size - at])[0] & (2**64 - 1) for at in range(size)]
    assert found["back"].tolist() == np.array(turned, np.uint64).astype(np.int64).tolist()


@light
@given(shapes, wholes, st.booleans(), st.data(), seeds)
def test_scans_along_any_axis(shape, dtype, reverse, data, seed):
    x = judge.draw(np.random.default_rng(seed), shape, dtype)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))

    def compute(tl, t):
        largest = tl.associative_scan(t, axis, tl.maximum, reverse=reverse)
        return {"products": tl.cumprod(t, axis, reverse=reverse), "largest": largest}

    found = seen(compute, x)
    turned = np.flip(x, axis) if reverse else x
    for name, ufunc in (("products", np.multiply), ("largest", np.maximum)):
        expected = ufunc.accumulate(turned, axis, dtype=x.dtype)
        same_bytes(found[name], np.ascontiguousarray(np.flip(expected, axis) if reverse else expected))


@light
@given(wholes, seeds)
def test_products_of_integers_keep_their_type_and_wrap(dtype, seed):
    """As in numpy and Triton: i8 * i8 is i8. Sums along an axis and tl.dot are kept in i32."""
    rng = np.random.default_rng(seed)
    low, high = np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max
    x, y = (rng.integers(low, high, 16, dtype=dtype.numpy, endpoint=True) for _ in range(2))
    found = seen(lambda tl, a, b: {"product": a * b, "sum": a + b, "fma": tl.fma(a, b, a)}, x, y)
    same_bytes(found["product"], x * y)
    same_bytes(found["sum"], x + y)
    same_bytes(found["fma"], x * y + x)


def test_two_tensors_in_turn():
    a, b = np.arange(6, dtype=np.float16).reshape(2, 3), -np.arange(6, dtype=np.float16).reshape(2, 3)
    found = seen(lambda tl, x, y: {"joined": tl.join(x, y), "in turn": tl.interleave(x, y), "flat": tl.ravel(x)}, a, b)
    same_bytes(found["joined"], np.stack([a, b], axis=-1))
    same_bytes(found["in turn"], np.stack([a, b], axis=-1).reshape(2, 6))
    same_bytes(found["flat"], a.reshape(-1))


def test_a_tree_is_charged_for_the_ops_of_its_rounds():
    """1000 f16 at 256 a cycle: pairs of 500, 250, 125, 62 (one waits), 31, 15 (one waits), 7 (one waits), 3 (one
    waits), 1 (one waits), and 5 that waited.
    """
    log = OpLog()
    run_kernel(lambda x, tl: tl.reduce(tl.load(x), 0, tl.maximum), np.zeros(1000, np.float16), op_log=log)
    took = [record.t_end - record.t_start for record in log.records if record.component_id.endswith("pe_math")]
    assert took == [2, *[1] * 13]
    assert sum(record.params["elements"] for record in log.records if record.op_name == "maximum") == 999


def test_a_function_that_gives_something_else_is_refused():
    for fn, what in (
        (lambda a, b: (a + b).to("f32"), r"the function gives f32\[2\], expected f16\[2\]"),
        (lambda a, b: 3, "the function gives int, expected"),
    ):
        with pytest.raises(LaunchError, match=what):
            run_kernel(lambda x, tl, fn=fn: tl.reduce(tl.load(x), 0, fn), np.zeros(4, np.float16))
