"""Loads, stores and atomics of `tl` against Triton's interpreter: masked, strided, and by row numbers.

Triton says where each lane lies by a block of pointers; `tl` by `shape`, `strides=` and `rows=`. Offsets on a pointer
count elements in Triton and bytes here. Two things are left open by Triton and defined here, so they are judged by the
numpy oracle alone: what a masked lane of a load without `other` holds (0 here), and what a masked lane of an atomic
returns (0 here).
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.frontends.triton_interpreter import on_triton, tl, triton

from kernbench.testing import run_kernel

light = settings(max_examples=40, deadline=None)
sizes = st.sampled_from([1, 2, 4, 8])
TYPES = st.sampled_from([np.float32, np.float16, np.int8, np.int32])


def numbers(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 100 + 1).astype(dtype)


def same(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    """Every array of both kernels holds the same bytes, operands too."""
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.tobytes() == their.tobytes(), (mine, their)


# ---- masked


@triton.jit
def masked_copy(x, out, length, other, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(out + at, tl.load(x + at, mask=at < length, other=other))


@light
@given(st.sampled_from([1, 2, 8, 64]), st.integers(0, 64), st.integers(-9, 9), TYPES)
def test_a_tail_that_is_masked_out_holds_other(size, length, other, dtype):
    """The tensor ends where the mask does."""
    length = min(size, length)
    x, out = numbers(max(length, 1), dtype=dtype), np.zeros(size, dtype)

    def kernel(x, out, length, other, tl):
        tl.store(out, tl.load(x, (size,), mask=tl.arange(0, size) < length, other=other))

    arguments = (x, out, length, other)
    same(run_kernel(kernel, *arguments).arrays, on_triton(masked_copy, *arguments, size=size))


@triton.jit
def masked_both_ways(x, out, keep_in, keep_out, rows: tl.constexpr, cols: tl.constexpr):
    at = tl.arange(0, rows)[:, None] * cols + tl.arange(0, cols)[None, :]
    block = tl.load(x + at, mask=tl.load(keep_in + at) > 0, other=-5)
    tl.store(out + at, block, mask=tl.load(keep_out + at) > 0)


@light
@given(sizes, sizes, TYPES, st.data())
def test_any_mask_of_a_load_and_of_a_store(rows, cols, dtype, data):
    shape = rows, cols
    keep_in, keep_out = (data.draw(arrays(np.int8, shape, elements=st.integers(0, 1))) for _ in range(2))

    def kernel(x, out, keep_in, keep_out, tl):
        block = tl.load(x, mask=tl.load(keep_in) > 0, other=-5)
        tl.store(out, block, mask=tl.load(keep_out) > 0)

    arguments = (numbers(*shape, dtype=dtype), -numbers(*shape, dtype=dtype), keep_in, keep_out)
    same(run_kernel(kernel, *arguments).arrays, on_triton(masked_both_ways, *arguments, rows=rows, cols=cols))


@triton.jit
def block_of_a_matrix(x, out, n_rows, n_cols, width, rows: tl.constexpr, cols: tl.constexpr):
    r, c = tl.arange(0, rows), tl.arange(0, cols)
    inside = (r < n_rows)[:, None] & (c < n_cols)[None, :]
    block = tl.load(x + r[:, None] * width + c[None, :], mask=inside, other=0)
    tl.store(out + r[:, None] * cols + c[None, :], block)


@light
@given(sizes, sizes, st.integers(1, 9), st.integers(1, 9), TYPES)
def test_a_block_that_hangs_over_the_edges_of_a_matrix(rows, cols, n_rows, n_cols, dtype):
    """Triton's way to tile a matrix whose sides are no multiples of the block's, with the same mask here."""
    x, out = numbers(n_rows, n_cols, dtype=dtype), np.ones((rows, cols), dtype)

    def kernel(x, out, n_rows, n_cols, width, tl):
        r, c = tl.arange(0, rows), tl.arange(0, cols)
        inside = (r < n_rows)[:, None] & (c < n_cols)[None, :]
        tl.store(out, tl.load(x, (rows, cols), strides=(width, 1), mask=inside, other=0))

    arguments = (x, out, n_rows, n_cols, n_cols)
    same(run_kernel(kernel, *arguments).arrays, on_triton(block_of_a_matrix, *arguments, rows=rows, cols=cols))


# ---- strided


@triton.jit
def strided_load(x, out, first, outer, inner, rows: tl.constexpr, cols: tl.constexpr):
    r, c = tl.arange(0, rows)[:, None], tl.arange(0, cols)[None, :]
    tl.store(out + r * cols + c, tl.load(x + first + r * outer + c * inner))


@light
@given(sizes, sizes, st.integers(1, 40), st.integers(1, 5), st.integers(0, 9), TYPES)
def test_a_strided_load_is_a_block_of_pointers(rows, cols, outer, inner, first, dtype):
    """Strides may overlap: a load reads an element as often as it is asked to."""
    x, out = numbers(400, dtype=dtype), np.zeros((rows, cols), dtype)

    def kernel(x, out, first, outer, inner, tl):
        tl.store(out, tl.load(x + first * x_bytes, (rows, cols), strides=(outer, inner)))

    x_bytes = x.itemsize
    arguments = (x, out, first, outer, inner)
    same(run_kernel(kernel, *arguments).arrays, on_triton(strided_load, *arguments, rows=rows, cols=cols))


@triton.jit
def strided_store(x, new, keep, first, outer, inner, rows: tl.constexpr, cols: tl.constexpr):
    r, c = tl.arange(0, rows)[:, None], tl.arange(0, cols)[None, :]
    at = r * cols + c
    tl.store(x + first + r * outer + c * inner, tl.load(new + at), mask=tl.load(keep + at) > 0)


@light
@given(sizes, sizes, st.integers(1, 4), st.integers(0, 9), st.integers(0, 9), TYPES, st.data())
def test_a_strided_store_leaves_the_rest_alone(rows, cols, inner, gap, first, dtype, data):
    outer = (cols - 1) * inner + 1 + gap  # no two lanes at one place: Triton leaves open which of them stays
    x, new = numbers(400, dtype=dtype), -numbers(rows, cols, dtype=dtype)
    keep = data.draw(arrays(np.int8, (rows, cols), elements=st.integers(0, 1)))

    def kernel(x, new, keep, first, outer, inner, tl):
        tl.store(x + first * x_bytes, tl.load(new), strides=(outer, inner), mask=tl.load(keep) > 0)

    x_bytes = x.itemsize
    arguments = (x, new, keep, first, outer, inner)
    same(run_kernel(kernel, *arguments).arrays, on_triton(strided_store, *arguments, rows=rows, cols=cols))


# ---- by row numbers


@triton.jit
def gather_rows(x, index, out, skip, width, rows: tl.constexpr, cols: tl.constexpr):
    r, c = tl.arange(0, rows), tl.arange(0, cols)[None, :]
    chosen = tl.load(index + r)[:, None]
    tl.store(out + r[:, None] * cols + c, tl.load(x + chosen * width + skip + c, mask=chosen >= 0, other=-1))


@light
@given(sizes, sizes, st.integers(0, 3), TYPES, st.data())
def test_a_gather_takes_rows_in_any_order_and_leaves_negative_ones_out(rows, cols, skip, dtype, data):
    x, out = numbers(12, 11, dtype=dtype), np.zeros((rows, cols), dtype)
    index = data.draw(arrays(np.int32, rows, elements=st.integers(-1, 11)))

    def kernel(x, index, out, skip, width, tl):
        chosen = tl.load(index)
        there = tl.expand_dims(chosen, 1) >= 0
        tl.store(out, tl.load(x + skip * x_bytes, (rows, cols), rows=chosen, mask=there, other=-1))

    x_bytes = x.itemsize
    arguments = (x, index, out, skip, 11)
    same(run_kernel(kernel, *arguments).arrays, on_triton(gather_rows, *arguments, rows=rows, cols=cols))


@triton.jit
def scatter_rows(x, index, new, width, rows: tl.constexpr, cols: tl.constexpr):
    r, c = tl.arange(0, rows), tl.arange(0, cols)[None, :]
    chosen = tl.load(index + r)[:, None]
    tl.store(x + chosen * width + c, tl.load(new + r[:, None] * cols + c), mask=chosen >= 0)


@light
@given(sizes, sizes, TYPES, st.data())
def test_a_scatter_puts_rows_where_they_belong(rows, cols, dtype, data):
    x, new = numbers(12, 8, dtype=dtype), -numbers(rows, cols, dtype=dtype)
    order = data.draw(st.permutations(range(12)))[:rows]  # each row once: Triton leaves open which of two stays
    dropped = data.draw(arrays(np.bool_, rows))
    index = np.where(dropped, -1, order).astype(np.int32)

    def kernel(x, index, new, width, tl):
        chosen = tl.load(index)
        tl.store(x, tl.load(new), rows=chosen, mask=tl.expand_dims(chosen, 1) >= 0)

    arguments = (x, index, new, 8)
    same(run_kernel(kernel, *arguments).arrays, on_triton(scatter_rows, *arguments, rows=rows, cols=cols))


# ---- atomics


@triton.jit
def change(x, new, keep, old, op: tl.constexpr, size: tl.constexpr):
    at = tl.arange(0, size)
    lanes = tl.load(keep + at) > 0
    tl.store(old + at, op(x + 2 + at, tl.load(new + at), mask=lanes), mask=lanes)


# Triton's interpreter exchanges integers alone.
ATOMICS = {"add": "if", "max": "if", "min": "if", "xchg": "i", "and": "i", "or": "i", "xor": "i"}
ATOMIC_CASES = [(op, dtype) for op, kinds in ATOMICS.items() for dtype in ("int32", "float32", "int64")
                if np.dtype(dtype).kind in kinds]  # fmt: skip


@pytest.mark.parametrize(("op", "dtype"), ATOMIC_CASES)
@light
@given(sizes, st.data())
def test_an_atomic_changes_memory_and_returns_what_it_held(op, dtype, size, data):
    values = st.integers(-100, 100)
    x, new = (data.draw(arrays(dtype, n, elements=values)) for n in (16, size))
    keep = data.draw(arrays(np.int8, size, elements=st.integers(0, 1)))
    old = np.full(size, 7, dtype)

    def kernel(x, new, keep, old, tl):
        lanes = tl.load(keep) > 0
        held = getattr(tl, f"atomic_{op}")(x + 2 * x_bytes, tl.load(new), mask=lanes)
        tl.store(old, held, mask=lanes)

    x_bytes = x.itemsize
    arguments = (x, new, keep, old)
    theirs = on_triton(change, *arguments, op=lambda *a, **k: getattr(tl, f"atomic_{op}")(*a, **k), size=size)
    same(run_kernel(kernel, *arguments).arrays, theirs)


@triton.jit
def compare_and_swap(x, expected, new, old, size: tl.constexpr):
    at = tl.arange(0, size)
    tl.store(old + at, tl.atomic_cas(x + at, tl.load(expected + at), tl.load(new + at)))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@light
@given(sizes, st.data())
def test_cas_puts_a_value_where_memory_holds_the_expected_one(dtype, size, data):
    x, expected, new = (data.draw(arrays(dtype, size, elements=st.integers(0, 3))) for _ in range(3))

    def kernel(x, expected, new, old, tl):
        tl.store(old, tl.atomic_cas(x, tl.load(expected), tl.load(new)))

    arguments = (x, expected, new, np.zeros(size, dtype))
    same(run_kernel(kernel, *arguments).arrays, on_triton(compare_and_swap, *arguments, size=size))


@triton.jit
def add_rows(x, index, new, rows: tl.constexpr, cols: tl.constexpr):
    r, c = tl.arange(0, rows), tl.arange(0, cols)[None, :]
    chosen = tl.load(index + r)[:, None]
    tl.atomic_add(x + chosen * cols + c, tl.load(new + r[:, None] * cols + c))


@light
@given(sizes, sizes, st.data())
def test_rows_that_are_named_twice_are_added_twice(rows, cols, data):
    x, new = numbers(4, cols, dtype=np.int32), numbers(rows, cols, dtype=np.int32)
    index = data.draw(arrays(np.int32, rows, elements=st.integers(0, 3)))

    def kernel(x, index, new, tl):
        tl.atomic_add(x, tl.load(new), rows=tl.load(index))

    arguments = (x, index, new)
    same(run_kernel(kernel, *arguments).arrays, on_triton(add_rows, *arguments, rows=rows, cols=cols))


@triton.jit
def take_a_number(counter, taken):
    tl.store(taken + tl.program_id(0), tl.atomic_add(counter, 3))


@pytest.mark.parametrize("programs", [1, 2, 4])
def test_programs_that_count_together_take_every_number_once(programs):
    """Triton's interpreter runs program after program; here they come in the order in which they arrive."""
    counter, taken = np.array([5], np.int32), np.zeros(programs, np.int32)

    def kernel(counter, taken, tl):
        held = tl.atomic_add(counter, 3)
        tl.store(taken + 4 * tl.program_id(0), held)

    ours = run_kernel(kernel, counter, taken, grid=(programs,)).arrays
    theirs = on_triton(take_a_number, counter, taken, grid=(programs,))
    assert ours[0] == theirs[0] == 5 + 3 * programs
    assert sorted(ours[1]) == sorted(theirs[1]) == [5 + 3 * n for n in range(programs)]
