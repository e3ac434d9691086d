"""`offsets=` of loads, stores and atomics, and engines without numbers (`tl.buffer`, `tl.read_into`, `tl.charge`).

The tiny machine of `kernbench.testing`: a load of 4 KiB, 256 lanes of MATH and tiles of GEMM cost a buffer what they
cost a tensor, so the times of `tl`'s own ops are the arithmetic.
"""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import LaunchError
from kernbench.testing import run_kernel
from kernbench.triton_emu.block_access import dense, of_offsets

X = np.arange(1024, dtype=np.float32)


def ns_of(kernel, *arrays):
    return run_kernel(kernel, *arrays).time_ns


# ---- offsets=


def test_a_load_by_offsets_takes_elements_in_any_order_and_a_byte_once():
    order = np.array([[3, 1], [1, 1000]])

    def kernel(x, out, tl):
        tl.store(out, tl.load(x, offsets=order))

    (_, out), _ = run_kernel(kernel, X, np.zeros((2, 2), np.float32))
    assert out.tolist() == [[3, 1], [1, 1000]]


def test_a_dense_block_by_offsets_costs_what_the_dense_block_costs():
    def by_offsets(x, tl):
        tl.load(x, offsets=np.arange(1024))

    def plain(x, tl):
        tl.load(x, (1024,))

    assert ns_of(by_offsets, X) == ns_of(plain, X)


def test_a_store_by_offsets_leaves_what_its_mask_leaves_out():
    def kernel(x, tl):
        tl.store(x, tl.full((4,), -1.0, "f32"), offsets=[8, 2, 4, 6], mask=tl.arange(0, 4) < 3)

    (out,), _ = run_kernel(kernel, X[:9])
    assert out.tolist() == [0, 1, -1, 3, -1, 5, 6, 7, -1]


def test_atomics_by_offsets_add_every_lane_of_one_place():
    def kernel(x, tl):
        tl.atomic_add(x, tl.full((4,), 1.0, "f32"), offsets=[5, 5, 0, 5])

    (out,), _ = run_kernel(kernel, np.zeros(8, np.float32))
    assert out.tolist() == [1, 0, 0, 0, 0, 3, 0, 0]


@pytest.mark.parametrize(
    ("offsets", "message"),
    [([1.5], "whole numbers"), ([[0, 1], [2]], "lists of several lengths"), ([0, 5000], "past 'x'")],
)
def test_offsets_that_are_none_or_reach_outside_are_refused_at_the_line(offsets, message):
    def kernel(x, tl):
        tl.load(x, offsets=offsets)

    with pytest.raises(LaunchError, match=message):
        run_kernel(kernel, X)


def test_a_stride_of_0_reads_one_element_for_many_lanes():
    def kernel(x, out, tl):
        tl.store(out, tl.load(x + 4, (3, 4), strides=(1, 0)))

    (_, out), _ = run_kernel(kernel, X, np.zeros((3, 4), np.float32))
    assert out.tolist() == [[1] * 4, [2] * 4, [3] * 4]


# ---- f64 and u64


def test_doubles_and_64_bit_unsigned_integers_are_computed_as_numpy_does():
    a, b = np.array([0.1, 1e300]), np.array([0.2, -3.0])
    c = np.array([2**64 - 1, 7], np.uint64)

    def kernel(a, b, c, tl):
        tl.store(a, tl.load(a) * tl.load(b) + 1)
        tl.store(c, tl.load(c) // 3 + 2)

    (out, _, whole), _ = run_kernel(kernel, a, b, c)
    assert out.tolist() == (a * b + 1).tolist()
    assert whole.tolist() == (c // np.uint64(3) + np.uint64(2)).tolist()


# ---- buffers


def test_a_buffer_costs_its_engines_what_a_tensor_does():
    lanes = dense((64, 64), dtype_of("f16"))
    a = np.zeros((64, 64), np.float16)

    def tensors(x, tl):
        block = tl.load(x)
        product = tl.dot(block, block, out_dtype="f32")
        tl.store(x, tl.cast(tl.exp(product), "f16"))

    def buffers(x, tl):
        block = tl.buffer((64, 64), "f16")
        product, grown, out = tl.buffer((64, 64), "f32"), tl.buffer((64, 64), "f32"), tl.buffer((64, 64), "f16")
        loaded = tl.read_into(block, x, lanes)
        multiplied = tl.charge_dot(product, block, block, after=[loaded])
        exponential = tl.charge("exp", grown, [product], after=[multiplied])
        rounded = tl.charge("cast", out, [grown], after=[exponential])
        tl.wait(tl.write_from(out, x, lanes, after=[rounded]))

    assert ns_of(buffers, a) == ns_of(tensors, a) > 0


def test_done_is_called_when_a_command_ends_and_commands_wait_for_those_before_them():
    seen = []

    def kernel(x, tl):
        def note(name):
            return lambda: seen.append((name, tl._runner.now_ns))

        start = tl._runner.now_ns
        block, out = tl.buffer((1024,), "f32"), tl.buffer((1024,), "f32")
        loaded = tl.read_into(block, x, dense((1024,), dtype_of("f32")), done=note("load"))
        tl.charge("exp", out, [block], after=[loaded], done=note("exp"))
        assert tl._runner.now_ns == start  # nothing was waited for
        tl.wait()

    run_kernel(kernel, X)
    assert [name for name, _ in seen] == ["load", "exp"]
    # MATH has 256 lanes of f16, 128 of f32: 1024 elements take 8 ns, PE_SCHEDULER's 1 ns before them.
    assert seen[1][1] - seen[0][1] == 9.0


def test_a_store_behind_a_load_of_the_same_bytes_waits_for_it():
    order = []

    def kernel(x, tl):
        lanes = dense((1024,), dtype_of("f32"))
        tl.read_into(tl.buffer((1024,), "f32"), x, lanes, done=lambda: order.append("read"))
        tl.write_from(tl.buffer((1024,), "f32"), x, lanes, done=lambda: order.append("written"))
        tl.wait()

    run_kernel(kernel, X)
    assert order == ["read", "written"]


def test_an_atomic_of_a_front_end_says_which_lanes_have_arrived():
    lanes = of_offsets(np.array([0, 4, 64]), dtype_of("f32"), None)
    seen = []

    def kernel(x, tl):
        tl.charge_atomic("add", x, lanes, lambda first, count: seen.append((first, count)))

    run_kernel(kernel, X)
    assert sorted(seen) == [(0, 2), (2, 1)]


def test_a_buffer_has_no_numbers_and_a_tensor_is_no_buffer():
    def looks(x, tl):
        tl.buffer((4,), "f32").numpy()

    def charges(x, tl):
        tl.charge("exp", tl.load(x))

    with pytest.raises(LaunchError, match="numbers of a buffer"):
        run_kernel(looks, X)
    with pytest.raises(LaunchError, match="a tensor that has numbers"):
        run_kernel(charges, X)


def test_a_buffer_waits_for_room_that_commands_under_way_give_back():
    def kernel(x, tl):
        lanes = dense((1 << 10,), dtype_of("f32"))
        for _ in range(8):  # 8 buffers of 256 KiB in 1 MiB of TCM
            room = tl.buffer((1 << 16,), "f32")
            tl.read_into(room, x, lanes)

    assert ns_of(kernel, X) > 0
