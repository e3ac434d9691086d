"""Names, numbers and messages of the kernel language that are no op of their own."""

from __future__ import annotations

import numpy as np
import pytest

import kernbench.language as kl
from kernbench.common.dtypes import DTYPES, WIDE_DTYPES, dtype_of
from kernbench.common.errors import KernelError, LaunchError, UnknownNameError
from kernbench.testing import run_kernel
from kernbench.triton_emu.handle import TensorHandle
from kernbench.triton_emu.names import Names


def failure(kernel, *args):
    with pytest.raises(LaunchError) as caught:
        run_kernel(kernel, *args)
    return caught.value.failures[0]


X = np.arange(12, dtype=np.float16).reshape(3, 4)


class TestTypes:
    def test_every_type_has_a_name_and_tl_has_those_of_the_module(self):
        named = {name: getattr(kl, name) for name in kl.__all__}
        assert {*named} == {name for name in vars(Names) if not name.startswith("_")}
        assert all(getattr(Names, name) is what for name, what in named.items())
        assert {what for what in named.values() if isinstance(what, str)} == {*DTYPES, *WIDE_DTYPES}

    @pytest.mark.parametrize("name", [name for name in kl.__all__ if isinstance(getattr(kl, name), str)])
    def test_a_type_stands_wherever_its_name_may(self, name):
        def kernel(tl):
            dtype = getattr(tl, name)
            made = [tl.zeros((2,), dtype), tl.full((2,), 1, dtype), tl.arange(0, 2, dtype)]
            made += [made[0].to(dtype), tl.cast(made[0], dtype)]
            made.append(tl.dot(tl.zeros((2, 2)), tl.zeros((2, 2)), out_dtype=dtype))
            assert all(x.dtype == dtype and x.dtype == dtype.name for x in made)
            assert dtype_of(name) is dtype

        run_kernel(kernel)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_arrays_of_every_type_go_to_memory_and_back(self, dtype):
        def kernel(x, y, tl):
            assert x.dtype == dtype
            tl.store(y, tl.load(x))

        x = np.arange(2).astype(dtype.numpy)
        _, y = run_kernel(kernel, x, np.zeros_like(x)).arrays
        assert (y.dtype, y.tobytes()) == (x.dtype, x.tobytes())

    def test_wide_integers_keep_all_their_bits(self):
        def kernel(x, tl):
            tl.store(x, tl.load(x) * 3 + 2**40)

        x = np.array([2**60 + 1, -(2**61) - 1])
        assert run_kernel(kernel, x).arrays[0].tolist() == [3 * (2**60 + 1) + 2**40, 3 * (-(2**61) - 1) + 2**40]

    def test_time_goes_by_the_size_of_an_element(self):
        def kernel(x, tl):
            t = tl.load(x)
            t + t

        # 4096 elements at 256 lanes per ns, times 2, 1, 1/2 and 1/4 for 1, 2, 4 and 8 bytes
        def add_ns(dtype):
            def loads(x, tl):
                tl.load(x)

            x = np.ones(4096, dtype)
            return run_kernel(kernel, x).time_ns - run_kernel(loads, x).time_ns

        assert [add_ns(t) for t in (np.uint8, np.int16, np.uint16, np.uint32, np.int64)] == [9, 17, 17, 33, 65]


class TestReductions:
    @pytest.mark.parametrize("op", ["sum", "max", "min", "mean", "argmax", "argmin"])
    def test_the_reduced_axis_stays_at_size_1_by_default(self, op):
        def kernel(x, tl):
            t, reduce = tl.load(x), getattr(tl, op)
            assert [reduce(t, 0).shape, reduce(t, 1).shape, reduce(t, -1).shape] == [(1, 4), (3, 1), (3, 1)]
            assert reduce(t).shape == (1, 1)
            assert [reduce(t, 0, keep_dims=False).shape, reduce(t, keep_dims=False).shape] == [(4,), ()]

        run_kernel(kernel, X)

    def test_rows_of_a_square_are_centred_along_the_axis_that_was_reduced(self):
        def kernel(x, tl):
            t = tl.load(x)
            tl.store(x, t - tl.max(t, 1))

        square = np.array([[1, 2], [30, 50]], np.float32)
        assert run_kernel(kernel, square).arrays[0].tolist() == [[-1, 0], [-20, 0]]

    def test_control_flow_takes_tensors_of_one_element(self):
        def kernel(x, tl):
            t = tl.load(x)
            assert float(tl.max(t)) == 11.0
            assert int(tl.argmax(t)) == 11
            if tl.max(t) > 10:
                tl.store(x, t * 2)

        assert np.array_equal(run_kernel(kernel, X).arrays[0], X * 2)


class TestWholeNumbers:
    @pytest.mark.parametrize("dtype", [t for t in DTYPES if not t.is_float and t != "bool"])
    def test_an_integer_of_one_element_counts_loops(self, dtype):
        def kernel(n, tl):
            count = tl.load(n)
            assert list(range(count)) == [0, 1, 2]
            assert [10, 20, 30, 40][count] == 40

        run_kernel(kernel, np.array([3], dtype.numpy))

    @pytest.mark.parametrize(
        ("array", "complaint"),
        [
            (np.ones(1, np.float16), "a tensor of f16 where a whole number is needed"),
            (np.ones(1, bool), "a tensor of bool where a whole number is needed"),
            (np.ones(2, np.int32), "a whole number of a tensor of shape (2,)"),
        ],
    )
    def test_what_is_no_integer_fails_at_the_line(self, array, complaint):
        def kernel(n, tl):
            for _ in range(tl.load(n)):
                pass

        found = failure(kernel, array)
        assert complaint in found.message
        assert found.source_line == "for _ in range(tl.load(n)):"

    def test_data_is_what_numpy_gives(self):
        def kernel(x, tl):
            t = tl.load(x)
            assert isinstance(t, TensorHandle)
            assert np.array_equal(t.data, t.numpy())
            assert np.array_equal((t + 1).data, X + 1)

        run_kernel(kernel, X)


class TestUnknownNames:
    @pytest.mark.parametrize(
        ("wrong", "near"),
        [
            ("looad", "load"),
            ("softmx", "softmax"),
            ("arg_max", "argmax"),
            ("flaot16", "float16"),
            ("broadcast_ot", "broadcast_to"),
        ],
    )
    def test_the_nearest_name_is_suggested_at_the_line(self, wrong, near):
        def kernel(tl):
            getattr(tl, wrong)

        found = failure(kernel)
        assert (found.message, found.hint) == (f"tl has no '{wrong}'", f"did you mean tl.{near}?")
        assert found.source_line == "getattr(tl, wrong)"

    def test_what_is_like_nothing_gets_no_suggestion(self):
        def kernel(tl):
            tl.zzzzqq  # noqa: B018

        assert failure(kernel).hint == "dir(tl) lists what there is"

    def test_hasattr_and_getattr_work(self):
        def kernel(tl):
            assert hasattr(tl, "load")
            assert not hasattr(tl, "make_block_ptr")
            assert getattr(tl, "make_block_ptr", None) is None
            with pytest.raises(AttributeError):
                tl.make_block_ptr()
            with pytest.raises(KernelError) as caught:
                tl.make_block_ptr()
            assert isinstance(caught.value, UnknownNameError)

        run_kernel(kernel)


class TestPointersAndTensors:
    @pytest.mark.parametrize(
        "compute",
        [
            lambda tl, x: x + tl.arange(0, 4),
            lambda tl, x: tl.arange(0, 4) + x,
            lambda tl, x: x.local + tl.arange(0, 4),
            lambda tl, x: tl.arange(0, 4) * 2 + x,
            lambda tl, x: x - tl.arange(0, 4),
            lambda tl, x: tl.arange(0, 4) < x,
        ],
    )
    def test_a_pointer_is_no_operand(self, compute):
        def kernel(x, tl):
            compute(tl, x)

        found = failure(kernel, X)
        assert "an operand is a pointer to 't0'" in found.message
        assert "whole numbers of bytes" in found.hint
        assert all(form in found.hint for form in ("tl.load(x, shape, ...)", "rows=", "strides=", "mask="))
        assert found.file == __file__


def annotated(x, n: kl.constexpr, tl):  # the module's own annotations are text, as many users' are
    assert type(n) is int
    assert [*range(n)] == [0, 1, 2]


class TestConstexpr:
    def test_a_parameter_gets_the_plain_number(self):
        for number in (3, np.int64(3)):
            run_kernel(annotated, X, number)

    def test_an_annotation_that_is_no_text_is_found_too(self):
        def kernel(n, tl):
            assert type(n) is int

        kernel.__annotations__ = {"n": kl.constexpr}
        run_kernel(kernel, np.int32(3))

    def test_without_it_the_number_is_as_it_was_passed(self):
        def kernel(n, tl):
            assert type(n) is np.int64

        run_kernel(kernel, np.int64(3))

    def test_a_tensor_is_refused(self):
        found = failure(annotated, X, X)
        assert found.message == "kernel annotated: 'n' is a constexpr, got the tensor 't1'"
        assert found.hint == "pass a plain value there, or take the annotation away"

    def test_called_it_gives_back_what_it_got(self):
        assert kl.constexpr(16) == 16
        assert kl.cdiv(17, 16) == 2
