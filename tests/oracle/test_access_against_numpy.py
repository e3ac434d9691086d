"""Loads and stores that are strided, masked or by row numbers, and atomics, against what numpy's indexing says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from kernbench.policy.placement.dp import DPPolicy
from kernbench.testing import run_kernel, tiny_machine

FEW = settings(max_examples=15, deadline=None)
SPREAD = DPPolicy(pe="row_wise", num_cubes=1, num_pes=4)


def numbers(*shape: int, dtype: object = np.float32) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) + 1).astype(dtype)


@st.composite
def strided_blocks(draw):
    """A shape, strides and an offset, in elements, that stay inside 24 x 32 elements."""
    rows, cols = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    inner = draw(st.integers(1, 3))
    outer = draw(st.integers(1, 40))
    last = (rows - 1) * outer + (cols - 1) * inner
    return (rows, cols), (outer, inner), draw(st.integers(0, 24 * 32 - 1 - last)), draw(st.booleans())


@pytest.mark.needs("addresses", reason="PE 0 reads and writes the parts of others")
@FEW
@given(strided_blocks(), st.sampled_from([np.float32, np.float16, np.int8]))
def test_a_strided_load_is_what_numpy_sees_with_those_strides(block, dtype):
    shape, strides, offset, spread = block
    x = numbers(24, 32, dtype=dtype)
    item = x.itemsize

    def kernel(x, out, tl):
        if tl.program_id(0) == 0:
            tl.store(out.storage, tl.load(x + offset * item, shape, strides=strides))

    wanted = as_strided(x.reshape(-1)[offset:], shape, tuple(step * item for step in strides))
    machine = tiny_machine(4, 1)
    arrays, _ = run_kernel(
        kernel, x, np.zeros(shape, dtype), grid=(4,), topology=machine, dp=SPREAD if spread and shape[0] >= 4 else None
    )
    assert (arrays[1] == wanted).all()


@FEW
@given(st.integers(1, 7), st.integers(1, 7), st.integers(1, 4), st.integers(0, 9), st.data())
def test_a_strided_store_leaves_everything_else_as_it_was(rows, cols, inner, more, data):
    outer = (cols - 1) * inner + 1 + more
    mask = data.draw(st.none() | st.lists(st.booleans(), min_size=rows * cols, max_size=rows * cols))
    x, new = numbers(512), -numbers(rows, cols)
    lanes = None if mask is None else np.array(mask).reshape(rows, cols)

    def kernel(x, new, keep, tl):
        chosen = None if lanes is None else tl.load(keep) > 0
        tl.store(x + 8, tl.load(new), strides=(outer, inner), mask=chosen)

    wanted = x.copy()
    window = as_strided(wanted[2:], (rows, cols), (outer * 4, inner * 4))
    window[...] = new if lanes is None else np.where(lanes, new, window)
    keep = np.ones((rows, cols), np.int8) if lanes is None else lanes.astype(np.int8)
    arrays, _ = run_kernel(kernel, x, new, keep)
    assert (arrays[0] == wanted).all()


@FEW
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.sampled_from([None, 7.0, -1.5]))
def test_masked_lanes_hold_other_and_may_lie_outside_the_tensor(mask, other):
    """The tensor is only as long as the last lane that is let through."""
    lanes = np.array(mask)
    length = max(int(np.flatnonzero(lanes).max(initial=-1)) + 1, 1)
    x = numbers(length)

    def kernel(x, keep, out, tl):
        chosen = tl.load(keep) > 0
        given = {} if other is None else {"other": other}
        tl.store(out, tl.load(x, (len(mask),), mask=chosen, **given))

    padded = np.concatenate([x, np.zeros(len(mask), np.float32)])[: len(mask)]
    arrays, _ = run_kernel(kernel, x, lanes.astype(np.int8), np.zeros(len(mask), np.float32))
    assert (arrays[2] == np.where(lanes, padded, 0.0 if other is None else other)).all()


@FEW
@given(st.lists(st.integers(0, 11), min_size=1, max_size=20), st.integers(1, 8), st.integers(0, 3), st.booleans())
def test_a_gather_takes_rows_by_number(rows, width, skip, spread):
    x = numbers(12, 11)
    width = min(width, 11 - skip)

    def kernel(x, index, out, tl):
        if tl.program_id(0) == 0:
            tl.store(out, tl.load(x + skip * 4, (len(rows), width), rows=tl.load(index)))

    index = np.array(rows, np.int32)
    out = np.zeros((len(rows), width), np.float32)
    arrays, _ = run_kernel(kernel, x, index, out, grid=(4,), topology=tiny_machine(4, 1), dp=None)
    assert (arrays[2] == x[index, skip : skip + width]).all()


@FEW
@given(st.lists(st.integers(0, 11), min_size=1, max_size=20), st.data())
def test_a_scatter_puts_rows_by_number_and_the_last_of_two_stays(rows, data):
    x, new = numbers(12, 5), -numbers(len(rows), 5)
    lanes = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))))
    rows = [row if lane else 99 for row, lane in zip(rows, lanes, strict=True)]  # masked out, a row may be anything

    def kernel(x, index, keep, new, tl):
        chosen = tl.load(keep, (len(rows), 1)) > 0
        tl.store(x, tl.load(new), rows=tl.load(index), mask=chosen)

    wanted = x.copy()
    for at, row in enumerate(rows):
        if lanes[at]:
            wanted[row] = new[at]
    arrays, _ = run_kernel(kernel, x, np.array(rows, np.int32), lanes.astype(np.int8), new)
    assert (arrays[0] == wanted).all()


@FEW
@given(
    st.sampled_from(["add", "max", "min", "and", "or", "xor", "xchg"]),
    st.lists(st.integers(-50, 50), min_size=1, max_size=12),
    st.data(),
)
def test_an_atomic_changes_memory_and_returns_what_it_held(op, values, data):
    n = len(values)
    lanes = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
    x, new = numbers(16, dtype=np.int32), np.array(values, np.int32)
    numpy_op = {
        "add": np.add,
        "max": np.maximum,
        "min": np.minimum,
        "and": np.bitwise_and,
        "or": np.bitwise_or,
        "xor": np.bitwise_xor,
        "xchg": lambda held, given: given,
    }[op]

    def kernel(x, new, keep, old, tl):
        change = getattr(tl, f"atomic_{op}")
        tl.store(old, change(x + 8, tl.load(new), mask=tl.load(keep) > 0))

    wanted = x.copy()
    wanted[2 : 2 + n] = np.where(lanes, numpy_op(x[2 : 2 + n], new), x[2 : 2 + n])
    arrays, _ = run_kernel(kernel, x, new, lanes.astype(np.int8), np.zeros(n, np.int32))
    assert (arrays[0] == wanted).all()
    assert (arrays[3] == np.where(lanes, x[2 : 2 + n], 0)).all()


@FEW
@given(st.sampled_from(["i8", "i16", "f16", "f32", "i32"]), st.integers(0, 7))
def test_a_load_reads_bytes_as_another_dtype(dtype, skip):
    x = np.arange(64, dtype=np.float32) * 1.37 - 11
    raw = x.view(np.uint8)
    names = {"i8": np.int8, "i16": np.int16, "f16": np.float16, "f32": np.float32, "i32": np.int32}
    item = np.dtype(names[dtype]).itemsize

    def kernel(x, out, tl):
        tl.store(out, tl.load(x + skip * item, (16,), dtype))

    wanted = raw[skip * item : (skip + 16) * item].view(names[dtype])
    arrays, _ = run_kernel(kernel, x, np.zeros(16, names[dtype]))
    assert (arrays[1].view(np.uint8) == wanted.view(np.uint8)).all()
