"""`tl.dot(a, b, acc)`: the product is added to acc in the GEMM engine, at the cost of the product alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from kernbench.common.errors import LaunchError
from kernbench.sim_engine.data_executor import DataExecutor
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import ValueGraph

M, K, N, BLOCK = 32, 256, 32, 64


def rounded(x: np.ndarray, dtype: type) -> np.ndarray:
    return x.astype(dtype).astype(np.float32)


def operands(dtype: type = np.float16) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return tuple((rng.standard_normal(shape) / 8).astype(np.float32).astype(dtype) for shape in ((M, K), (K, N)))


def timed(kernel, *arrays):
    log = OpLog()
    return run_kernel(kernel, *arrays, op_log=log), log


def loop(a, b, out, tl):
    """A sum over K written by hand."""
    x, y, acc = tl.load(a), tl.load(b), tl.zeros((M, N), tl.float32)
    for k in range(0, K, BLOCK):
        acc = tl.dot(x[:, k : k + BLOCK], y[k : k + BLOCK], acc)
    tl.store(out, acc)


def loop_without_sums(a, b, out, tl):
    x, y = tl.load(a), tl.load(b)
    for k in range(0, K, BLOCK):
        last = tl.dot(x[:, k : k + BLOCK], y[k : k + BLOCK], out_dtype=tl.float32)
    tl.store(out, last)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_a_k_loop_gives_the_whole_product(dtype):
    a, b = operands(dtype)
    out = run_kernel(loop, a, b, np.zeros((M, N), np.float32)).arrays[2]
    np.testing.assert_allclose(out, a.astype(np.float64) @ b.astype(np.float64), rtol=1e-5, atol=1e-5)


def test_a_k_loop_costs_its_products_and_no_math():
    a, b = operands()
    out = np.zeros((M, N), np.float32)
    (_, time_ns), log = timed(loop, a, b, out)
    (_, without_ns), _ = timed(loop_without_sums, a, b, out)
    assert time_ns == without_ns
    products = [r for r in log.records if r.op_kind == "gemm"]
    # 32 * 64 * 32 multiply-accumulates at 4096 per ns are 16 ns
    assert [r.t_end - r.t_start for r in products] == [16.0] * (K // BLOCK)
    assert not [r for r in log.records if r.op_kind == "math"]


def test_the_log_says_what_was_added_to():
    a, b = operands()
    _, log = timed(loop, a, b, np.zeros((M, N), np.float32))
    first, second, *_ = (number for number, r in log.items() if r.op_kind == "gemm")
    assert log[second].params["src_acc_addr"] == log[first].params["dst_addr"]
    assert first in log[second].dependency_ids


def test_a_narrow_accumulator_is_rounded_at_every_step_and_the_sum_is_f32():
    a, b = operands()

    def kernel(x, y, out, tl):
        acc = tl.full((M, N), 1000.0, "f16")
        for _ in range(3):
            acc = tl.dot(tl.load(x), tl.load(y), acc)
        assert acc.dtype == tl.float16
        tl.store(out, acc)

    found = run_kernel(kernel, a, b, np.zeros((M, N), np.float16)).arrays[2]
    product, exact = a.astype(np.float64) @ b.astype(np.float64), np.full((M, N), 1000.0)
    for _ in range(3):
        exact = (exact + product).astype(np.float16).astype(np.float64)  # steps of 0.5 near 1000
    assert np.mean(found.astype(np.float64) == exact) > 0.99  # the BLAS and f64 may fall on two sides of a tie
    assert np.abs(found - exact).max() <= 0.5
    plain = rounded(rounded(np.full((M, N), 1000.0), np.float16) + 3 * product, np.float16)
    assert not np.array_equal(found, plain)


def test_out_dtype_rounds_the_whole_sum_once():
    # 2049 is no f16 (steps of 2 there): f16(1) + f16(2048) would be 2048, and 2049 + 1 = 2050 is one.
    def kernel(x, out, tl):
        acc = tl.full((1, 1), 2048.0, "f32")
        both = tl.dot(tl.load(x), tl.load(x).T, acc, out_dtype="f16")  # 1 * 1 + 1 * 1
        tl.store(out, both)

    found = run_kernel(kernel, np.ones((1, 2), np.float16), np.zeros((1, 1), np.float16)).arrays[1]
    assert found.tolist() == [[2050.0]]


def test_integers_add_in_i32():
    def kernel(x, out, tl):
        acc = tl.full((2, 2), 2**30, "i32")
        tl.store(out, tl.dot(tl.load(x), tl.load(x).T, acc))

    x = np.full((2, 4), 100, np.int8)
    assert (run_kernel(kernel, x, np.zeros((2, 2), np.int32)).arrays[1] == 2**30 + 4 * 100 * 100).all()


def test_batches_have_accumulators_of_their_own():
    rng = np.random.default_rng(0)
    a, b, acc = (rng.standard_normal(s).astype(np.float32) for s in ((3, 4, 5), (3, 5, 6), (3, 4, 6)))

    def kernel(x, y, z, tl):
        tl.store(z, tl.dot(tl.load(x), tl.load(y), acc=tl.load(z)))

    found = run_kernel(kernel, a, b, acc).arrays[2]
    np.testing.assert_allclose(found, a @ b + acc, rtol=1e-5, atol=1e-5)


def test_a_sum_over_no_k_is_acc():
    def kernel(z, tl):
        tl.store(z, tl.dot(tl.zeros((2, 0)), tl.zeros((0, 2)), tl.load(z)))

    acc = np.array([[1, 2], [3, 4]], np.float16)
    assert np.array_equal(run_kernel(kernel, acc).arrays[0], acc)


def test_sums_that_begin_in_different_types_are_not_mixed_up():
    graph = ValueGraph()
    a, b = graph.constant(np.eye(2, dtype=np.float16)), graph.constant(np.ones((2, 2), np.float16))

    def sum_from(dtype: str):
        value = graph.constant(np.full((2, 2), 3.0), dtype)
        for _ in range(2):
            value = graph.apply("dot_acc", [value, a, b])
        return value

    for array in evaluate([sum_from(dtype) for dtype in ("bf16", "f32", "f16")]):  # evaluated together
        assert (array == 5.0).all()


def test_debug_ops_judges_every_link():
    values = []

    def kernel(x, out, tl):
        acc = tl.zeros((4, 4), "f16")
        for _ in range(3):
            acc = tl.dot(tl.load(x), tl.load(x), acc)
        values.append(acc.value)
        tl.store(out, acc)

    run_kernel(kernel, np.full((4, 4), 0.5, np.float16), np.zeros((4, 4), np.float16))
    executor = DataExecutor(debug_ops=True, threads=1)
    executor.run(values)
    assert all(check.ok for check in executor.ops)


@pytest.mark.parametrize(
    ("call", "complaint", "hint"),
    [
        (lambda tl, x: tl.dot(x, x, "f32"), "dot: acc is the type f32, expected a tensor", "say out_dtype='f32'"),
        (lambda tl, x: tl.dot(x, x, tl.float16), "dot: acc is the type f16, expected a tensor", "say out_dtype='f16'"),
        (lambda tl, x: tl.dot(x, x, np.float32), "dot: acc is the type f32, expected a tensor", "say out_dtype='f32'"),
        (lambda tl, x: tl.dot(x, x, 3), "dot: acc is a int", "give a tensor"),
        (lambda tl, x: tl.dot(x, x, x[:2]), r"the accumulator is f16\[2, 4\], expected f32\[4, 4\]", "zeros"),
        (lambda tl, x: tl.dot(x, x, x.to("i32")), r"is i32\[4, 4\], expected f32\[4, 4\]", "'f32'"),
        (lambda tl, x: tl.dot(x.to("i8"), x.to("i8"), x), r"is f16\[4, 4\], expected i32\[4, 4\]", "'i32'"),
        (lambda tl, x: tl.dot(x.to("i8"), x.to("i8"), x.to("i64")), r"is i64\[4, 4\], expected i32", "'i32'"),
    ],
)
def test_what_cannot_be_added_to_is_refused_at_the_line(call, complaint, hint):
    def kernel(p, tl):
        call(tl, tl.load(p))

    with pytest.raises(LaunchError, match=complaint) as caught:
        run_kernel(kernel, np.ones((4, 4), np.float16))
    assert hint in str(caught.value.failures[0].hint)
    assert caught.value.failures[0].file == __file__
