"""Ops along an axis and views in kernels, against numpy: every dtype, any shape, every axis."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracle import test_values_against_numpy as judge
from tests.oracle.test_tl_against_numpy import seen

from kernbench.common.dtypes import DTYPES, dtype_of, promote
from kernbench.common.errors import LaunchError
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel

dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)
light = settings(max_examples=20, deadline=None)


def same_bytes(got: np.ndarray, expected: np.ndarray) -> None:
    assert (got.dtype, got.shape, got.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def with_equals(rng: np.random.Generator, shape: tuple[int, ...], dtype) -> np.ndarray:
    """Numbers of which some are equal, so that the order of equals shows."""
    array = judge.draw(rng, shape, dtype)
    return np.where(rng.random(shape) < 0.4, np.ones((), dtype.numpy), array).astype(dtype.numpy)


@light
@given(shapes, dtypes, st.data(), seeds)
def test_orders(shape, dtype, data, seed):
    x = with_equals(np.random.default_rng(seed), shape, dtype)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(1, shape[axis]))

    def compute(tl, t):
        values, places = tl.topk(t, k, axis=axis)
        return {
            "up": tl.sort(t, axis=axis), "down": tl.sort(t, axis, descending=True), "top": values, "at": places,
            "argmax": tl.argmax(t, axis), "argmin": tl.argmin(t, axis, keep_dims=False),
            "of all": tl.argmax(t), "number": tl.argmin(t, keep_dims=False),
        }  # fmt: skip

    found = seen(compute, x)
    wide = judge.wide(x)
    up = np.sort(wide, axis=axis)
    assert np.array_equal(judge.wide(found["up"]), up)
    assert np.array_equal(judge.wide(found["down"]), np.flip(up, axis))
    places = np.argsort(-wide, axis=axis, kind="stable").take(range(k), axis)
    same_bytes(found["at"], places.astype(np.int32))
    same_bytes(found["top"], np.take_along_axis(x, places, axis))
    same_bytes(found["argmax"], np.argmax(wide, axis, keepdims=True).astype(np.int32))
    same_bytes(found["argmin"], np.asarray(np.argmin(wide, axis)).astype(np.int32))
    same_bytes(found["of all"], np.argmax(wide, keepdims=True).astype(np.int32))
    same_bytes(found["number"], np.asarray(np.argmin(wide)).astype(np.int32))


def test_nan_counts_as_the_largest():
    x = np.array([1, np.nan, 3, -np.inf, np.inf], np.float32)

    def compute(tl, t):
        values, places = tl.topk(t, 2)
        return {"up": tl.sort(t), "top": values, "at": places, "argmax": tl.argmax(t), "isnan": tl.isnan(t)}

    found = seen(compute, x)
    np.testing.assert_array_equal(found["up"], [-np.inf, 1, 3, np.inf, np.nan])
    np.testing.assert_array_equal(found["top"], [np.nan, np.inf])
    assert (found["at"].tolist(), found["argmax"].tolist()) == ([1, 4], [1])
    assert found["isnan"].tolist() == [False, True, False, False, False]


@light
@given(shapes, dtypes, st.data(), seeds)
def test_sums_so_far(shape, dtype, data, seed):
    x = judge.draw(np.random.default_rng(seed), shape, dtype)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    got = seen(lambda tl, t: {"cumsum": tl.cumsum(t, axis)}, x)["cumsum"]
    judge.agree(got, np.cumsum(judge.wide(x), axis), dtype if dtype.is_float else dtype.accumulate)


@light
@given(shapes, dtypes, dtypes, st.data(), seeds)
def test_what_moves_elements(shape, dtype, other, data, seed):
    rng = np.random.default_rng(seed)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    new = data.draw(st.integers(-len(shape) - 1, len(shape)))
    cuts = sorted(data.draw(st.lists(st.integers(0, shape[axis]), min_size=1, max_size=3)))
    sizes = tuple(hi - lo for lo, hi in zip([0, *cuts], [*cuts, shape[axis]], strict=True))
    x, y = judge.draw(rng, shape, dtype), judge.draw(rng, shape, other)

    def compute(tl, t, u):
        parts = tl.split(t, sizes, axis=axis)
        again = tl.cat(parts, axis=axis)
        named = {f"part {at}": part for at, part in enumerate(parts) if part.size}
        return {
            **named, "again": again, "cat": tl.cat([t, u], axis=axis), "flip": tl.flip(t, axis),
            "permute": tl.permute(t, order), "by numbers": tl.permute(t, *order), "expand": tl.expand_dims(t, new),
            "equal": tl.split(t, shape[axis], axis=axis)[-1],
        }  # fmt: skip

    found = seen(compute, x, y)
    for at, part in enumerate(np.split(x, cuts, axis=axis)):
        if part.size:
            same_bytes(found[f"part {at}"], part)
    same_bytes(found["again"], x)
    same_bytes(found["flip"], np.ascontiguousarray(np.flip(x, axis)))
    same_bytes(found["permute"], np.ascontiguousarray(x.transpose(order)))
    same_bytes(found["by numbers"], found["permute"])
    same_bytes(found["expand"], np.expand_dims(x, new))
    same_bytes(found["equal"], np.ascontiguousarray(np.split(x, shape[axis], axis=axis)[-1]))
    mixed = promote(dtype, other)
    exact = np.concatenate([judge.wide(x), judge.wide(y)], axis=axis)
    judge.agree(found["cat"], exact, mixed)


def charged(compute, *arrays):
    """Name and elements of what MATH did, and the time of the whole kernel."""
    log = OpLog()

    def kernel(*pointers, tl):
        compute(tl, *(tl.full(a.shape, 1, dtype_of(a.dtype)) for a in arrays))

    time_ns = run_kernel(kernel, *arrays, op_log=log).time_ns
    return [(r.op_name, r.params["elements"]) for r in log.records if r.op_kind == "math"], time_ns


X = np.ones((8, 512), np.float16)  # 4096 elements at 256 lanes per ns: 16 ns, and 1 ns to the engine


@pytest.mark.parametrize(
    ("name", "compute"),
    [
        ("sort", lambda tl, x: tl.sort(x)),
        ("topk", lambda tl, x: tl.topk(x, 4)),
        ("flip", lambda tl, x: tl.flip(x)),
        ("concat", lambda tl, x: tl.cat([x[:4], x[4:]])),
        ("max", lambda tl, x: tl.max(x)),
    ],
)
def test_what_computes_or_moves_goes_through_math_once(name, compute):
    assert charged(compute, X) == ([(name, 4096)], 17.0)


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_indices_are_as_slow_as_their_four_bytes(name):
    # the lanes work in the slowest type among input and result: i32, at half the lanes
    assert charged(lambda tl, x: getattr(tl, name)(x, 1), X) == ([(name, 4096)], 33.0)


@pytest.mark.parametrize(
    "compute",
    [
        lambda tl, x: tl.permute(x, 1, 0),
        lambda tl, x: tl.expand_dims(x, (0, 3)),
        lambda tl, x: tl.split(x, 4),
        lambda tl, x: tl.split(x, (1, 7)),
    ],
)
def test_views_cost_nothing(compute):
    assert charged(compute, X) == ([], 0.0)


@pytest.mark.parametrize(
    ("compute", "complaint"),
    [
        (lambda tl, x: tl.split(x, 3), "split: an axis of 8 in 3 parts"),
        (lambda tl, x: tl.split(x, (1, 2)), r"split: sizes \(1, 2\) of an axis of 8"),
        (lambda tl, x: tl.split(x, 2, axis=2), "split: axis 2 of a tensor of 2 dimensions"),
        (lambda tl, x: tl.topk(x, 9, axis=0), "topk: k is 9 along an axis of 8"),
        (lambda tl, x: tl.sort(x, axis=2), "sort: axis 2 of a tensor of 2 dimensions"),
        (lambda tl, x: tl.cat(x), "cat: the tensors are"),
        (lambda tl, x: tl.cat([x, x[:, :4]], axis=0), r"concat along 0: \(8, 4\) against \(8, 512\)"),
        (lambda tl, x: tl.expand_dims(x, 3), "expand_dims: axis 3 of a result of 3 dimensions"),
        (lambda tl, x: tl.expand_dims(x, (0, -4)), "names one axis twice"),
        (lambda tl, x: tl.permute(x, 0, 0), "name each of 0 to 1 once"),
        (lambda tl, x: tl.argmax(x[:0], 0), "argmax over no elements"),
    ],
)
def test_mistakes_say_what_was_expected(compute, complaint):
    def kernel(p, tl):
        compute(tl, tl.load(p))

    with pytest.raises(LaunchError, match=complaint) as caught:
        run_kernel(kernel, X)
    assert caught.value.failures[0].file == __file__
