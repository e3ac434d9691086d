"""Tensors without elements: what a PE has of a split tensor that it holds no part of. They behave as numpy's, and
nothing is moved or computed for them.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.errors import LaunchError
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel


def outcome(compute, *arrays):
    """What `compute(tl, *pointers)` gives, how long it took, and the records of the engines."""
    seen, log = [], OpLog()

    def kernel(*pointers, tl):
        seen.append(compute(tl, *pointers).numpy())

    time_ns = run_kernel(kernel, *arrays, op_log=log).time_ns
    return seen[0], time_ns, log.records


@st.composite
def shapes(draw):
    """A shape with a 0 in it, and one that broadcasts with it."""
    shape = draw(st.lists(st.integers(0, 3), min_size=1, max_size=3).filter(lambda sizes: 0 in sizes))
    other = [size if draw(st.booleans()) else 1 for size in shape]
    return tuple(shape), tuple(other[draw(st.integers(0, len(shape) - 1)) :])


@settings(max_examples=15, deadline=None)
@given(shapes(), st.sampled_from(["add", "mul", "maximum"]), st.sampled_from(["f16", "f32", "i32"]))
def test_elementwise_ops_give_numpys_shape_in_no_time(pair, op, dtype):
    a, b = pair
    expected = np.add(np.zeros(a), np.zeros(b))
    found, time_ns, records = outcome(lambda tl: getattr(tl, op)(tl.zeros(a, dtype), tl.zeros(b, dtype)))
    assert found.shape == expected.shape
    assert (time_ns, records) == (0, [])
    assert found.dtype == {"f16": np.float16, "f32": np.float32, "i32": np.int32}[dtype]


@settings(max_examples=15, deadline=None)
@given(shapes(), st.booleans(), st.data())
def test_sums_are_numpys(pair, keep_dims, data):
    shape, _ = pair
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    expected = np.zeros(shape, np.float32).sum(axis=axis, keepdims=keep_dims)
    found, time_ns, _ = outcome(lambda tl: tl.sum(tl.zeros(shape, "f32"), axis=axis, keep_dims=keep_dims))
    assert found.shape == expected.shape
    assert (found == expected).all()
    assert time_ns == (2 if expected.size else 0)  # 1 ns to the engine and 1 ns for a few zeros


@pytest.mark.parametrize(
    "reduce",
    [
        lambda tl, x: tl.max(x, axis=0),
        lambda tl, x: tl.min(x),
        lambda tl, x: tl.mean(x, axis=0),
        lambda tl, x: tl.softmax(x, axis=0),
    ],
)
def test_what_has_no_answer_over_nothing_fails_at_the_line(reduce):
    def kernel(tl):
        reduce(tl, tl.zeros((0, 4)))

    with pytest.raises(LaunchError, match=r"over no elements: shape \(0, 4\)"):
        run_kernel(kernel)


def test_a_row_of_nothing_may_be_reduced_along_the_other_axis():
    for op in ("max", "mean", "softmax"):
        found, time_ns, _ = outcome(lambda tl, op=op: getattr(tl, op)(tl.zeros((0, 4)), axis=1))
        assert (found.size, time_ns) == (0, 0)


def test_views_are_numpys():
    def kernel(tl):
        x = tl.zeros((3, 0, 2))
        assert x.T.shape == (3, 2, 0)
        assert tl.reshape(x, 0, 6).shape == (0, 6)
        assert tl.broadcast_to(x, (5, 3, 0, 2)).shape == (5, 3, 0, 2)
        assert x[1, :, :1].shape == (0, 1)
        assert tl.zeros((4, 2))[2:2].numpy().shape == (0, 2)
        assert tl.arange(3, 3).numpy().shape == (0,)
        assert tl.cast(x, "i8").dtype == "i8"

    assert run_kernel(kernel).time_ns == 0


def test_an_axis_without_elements_has_no_index():
    def kernel(tl):
        tl.zeros((0, 4))[0]

    with pytest.raises(LaunchError, match=r"index 0 of an axis of 0(.|\n)*there is nothing to index: use a slice"):
        run_kernel(kernel)


def test_products_over_nothing_are_nothing_or_zeros():
    for m, k, n in ((0, 3, 2), (2, 3, 0), (2, 0, 3), (0, 0, 0)):
        found, time_ns, _ = outcome(lambda tl, m=m, k=k, n=n: tl.zeros((m, k)) @ tl.zeros((k, n)))
        assert found.shape == (m, n)
        assert (found == 0).all()
        assert time_ns == 0


class TestMemory:
    def test_nothing_is_loaded_and_nothing_stored(self):
        def kernel(x, tl):
            nothing = tl.load(x, (0, 5))
            assert (nothing.shape, nothing.dtype) == ((0, 5), "f32")
            tl.store(x, nothing)

        x = np.arange(4, dtype=np.float32)
        (left,), time_ns = run_kernel(kernel, x)
        assert (left == x).all()
        assert time_ns == 0

    @pytest.mark.parametrize("local", [True, False])
    def test_nothing_may_be_at_the_very_end_of_a_tensor(self, local):
        """Also where another tensor, of another type, begins there: x is one page of virtual addresses."""

        def kernel(x, y, tl):
            assert int(y) == x + 4096
            end = x.local + 4096 if local else x + 4096
            nothing = tl.load(end, (0, 8))
            assert (nothing.shape, nothing.dtype) == ((0, 8), "f32")
            assert tl.ref(end, (0, 8)).dtype == "f32"
            tl.store(end, nothing)
            tl.composite("math", nothing, math_op="relu", out_ptr=end)
            assert tl.load(y, (0, 8)).dtype == "i8"

        assert run_kernel(kernel, np.zeros((128, 8), np.float32), np.zeros(4, np.int8)).time_ns == 0

    def test_something_at_the_end_of_a_tensor_is_past_it_even_where_another_one_begins(self):
        def kernel(x, y, tl):
            tl.load(x + 4096, (4,))

        with pytest.raises(LaunchError, match="16 bytes at offset 4096 run past 'x', which has 4096 bytes"):
            run_kernel(kernel, np.zeros(1024, np.float32), np.zeros(4, np.int8))

    def test_a_plain_number_is_in_the_tensor_that_begins_there(self):
        def kernel(x, y, tl):
            assert tl.load(int(x) + 4096, (4,)).dtype == "i8"

        run_kernel(kernel, np.zeros(1024, np.float32), np.zeros(4, np.int8))

    def test_mistakes_are_still_mistakes(self):
        def dtype(x, tl):
            tl.store(x, tl.zeros((0,), "f16"))

        def address(x, tl):
            tl.load(x + 1000, (0,))

        for kernel, says in ((dtype, "holds f32, got f16"), (address, "0 bytes at offset 1000 run past 'x'")):
            with pytest.raises(LaunchError, match=says):
                run_kernel(kernel, np.zeros(4, np.float32))


class TestComposites:
    @pytest.mark.parametrize(("m", "k", "n"), [(0, 8, 4), (4, 8, 0)])
    def test_one_without_a_result_is_done_at_once(self, m, k, n):
        def kernel(x, out, tl):
            bias = tl.zeros((n,))
            h = tl.composite("gemm", tl.ref(x, (m, k)), tl.ref(x, (k, n)), out, epilogue=[{"op": "bias", "bias": bias}])
            assert tl.wait(h) is None
            result = tl.wait(tl.composite("math", tl.ref(x, (m, n)), math_op="exp"))
            assert result.shape == (m, n)
            tl.store(out, tl.cast(result, "f16"))

        (_, out), time_ns = run_kernel(kernel, np.ones((8, 8), np.float16), np.full(3, 7, np.float16))
        assert (out == 7).all()
        assert time_ns == 0

    @pytest.mark.parametrize("tile", [None, (16, 16, 16)])
    def test_a_product_over_no_k_is_zeros_and_its_epilogue(self, tile):
        def kernel(x, out, tl):
            step = {"op": "add", "other": 3.0}
            a, b = tl.ref(x, (40, 0)), tl.ref(x, (0, 50))
            tl.composite("gemm", a, b, out, epilogue=[step], tile_shape=tile)

        (_, out), time_ns = run_kernel(kernel, np.ones(8, np.float16), np.zeros((40, 50), np.float16))
        assert (out == 3).all()
        assert time_ns > 40 * 50 * 2 / 256  # they have to be written all the same
