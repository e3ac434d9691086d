"""A kernel's TCM: loops that double-buffer fit, and results are freed with their last reference."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.errors import LaunchError
from kernbench.testing import run_kernel, tiny_machine

KIB = 1 << 10
TCM_BYTES = tiny_machine().spec.cube.tcm_allocatable_bytes


def half_words(kib: int) -> np.ndarray:
    return np.zeros(kib * KIB // 2, np.float16)


def test_a_double_buffered_loop_fits_when_its_buffers_do():
    # 256 + 128 + 128 KiB, each held twice at most: 1 MiB, which is what a kernel has.
    assert TCM_BYTES == 2 * (256 + 128 + 128) * KIB

    def kernel(x, w, tl):
        a = b = y = None
        for _ in range(12):
            following = tl.load(x)
            y = None
            other = tl.load(w)
            a = following
            del following
            y = tl.load(w)
            b = other
            del other
        assert (a.size, b.size, y.size) == (128 * KIB, 64 * KIB, 64 * KIB)

    run_kernel(kernel, half_words(256), half_words(128))


def composite(tl, x):
    """A composite whose result of 384 KiB stays in TCM: two of them fit, three do not."""
    return tl.composite("math", tl.ref(x), math_op="exp")


X = np.zeros((192, 1024), np.float16)


def test_a_result_that_was_waited_for_is_the_kernels_alone():
    def kernel(x, tl):
        handles = []
        for _ in range(6):
            h = composite(tl, x)
            handles.append(h)  # keeps no result
            y = tl.wait(h)
            assert y.size == X.size

    run_kernel(kernel, X)


def test_a_result_that_is_not_asked_for_goes_with_its_handle():
    def kernel(x, tl):
        for _ in range(6):
            composite(tl, x)
            tl.wait()

    run_kernel(kernel, X)


def test_a_handle_keeps_the_result_until_it_is_waited_for():
    def kernel(x, tl):
        h = composite(tl, x)
        tl.wait()  # for all: returns nothing, so the result is still the handle's
        assert h.out is h.out
        y = tl.wait(h)
        assert y is h.out
        assert tl.wait(h) is y

    run_kernel(kernel, X)

    def hoard(x, tl):
        handles = [composite(tl, x) for _ in range(3)]
        tl.wait(handles[0])

    with pytest.raises(LaunchError, match="TCM overflow"):
        run_kernel(hoard, X)


def test_a_result_under_way_is_kept_wherever_it_is_dropped():
    def kernel(x, tl):
        composite(tl, x)  # no one will ever look at it
        composite(tl, x)
        composite(tl, x)

    with pytest.raises(LaunchError, match="TCM overflow"):  # the engines still write the first two
        run_kernel(kernel, X)


def test_waiting_again_for_a_result_that_was_dropped_is_an_error_that_says_so():
    def kernel(x, tl):
        h = composite(tl, x)
        tl.wait(h)
        tl.wait(h)

    with pytest.raises(LaunchError, match=r"was dropped after tl\.wait had returned it") as caught:
        run_kernel(kernel, X)
    assert "y = tl.wait(h)" in str(caught.value.hint)
    assert "tl.wait(h)" in str(caught.value.where)


def test_waiting_for_one_that_writes_memory_may_be_repeated():
    def kernel(x, out, tl):
        h = tl.composite("math", tl.ref(x), out_ptr=out, math_op="exp")
        assert tl.wait(h) is None
        assert tl.wait(h) is None

    (_, out), _ = run_kernel(kernel, X[:8], np.zeros_like(X[:8]))
    assert (out == 1).all()
