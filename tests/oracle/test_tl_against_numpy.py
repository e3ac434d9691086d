"""Every `tl` op in a kernel on a machine, against numpy in f64: all dtypes, any shapes, numpy's broadcasting.

The references and tolerances are those of `test_values_against_numpy.py`, which judges the same ops without a machine.
Here operands travel from the host to HBM and TCM, and results back: a result must be right where the kernel reads it
and, byte for byte the same, where it was stored.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes
from tests.oracle import test_values_against_numpy as judge

from kernbench.common.dtypes import BOOL, DTYPES, INT_RANGE, DType, dtype_of, promote
from kernbench.testing import run_kernel
from kernbench.triton_emu.names import Names
from kernbench.triton_emu.tl_context import TLContext

KEEPING = ["neg", "abs", "relu", "floor", "ceil"]
ASKING = ["logical_not", "isnan"]
FUNCTIONS = [op for op in judge.UNARY if op not in (*KEEPING, *ASKING)]  # of real numbers: integers give f32
ARITHMETIC = ["add", "sub", "mul", "div", "maximum", "minimum"]
COMPARING = ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"]
TERNARY = ["fma", "clamp", "where"]
REDUCING = ["sum", "mean", "max", "min", "argmax", "argmin"]
MOVING = ["trans", "reshape", "broadcast_to", "part", "cast", "arange", "full", "zeros", "load", "store"]
PRODUCTS = ["dot", "composite", "ref", "wait"]
IN_OTHER_FILES = [  # test_integers_against_numpy, test_axis_ops_against_numpy, test_access_against_numpy, test_access
    "send", "send_async", "recv", "recv_async", "recv_no_consume",  # test_messages_random, test_pe_ipcq
    "load_async", "store_async", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor",
    "atomic_xchg", "atomic_cas",
    "floordiv", "mod", "pow", "bitwise", "bit_not", "sort", "topk", "cumsum", "flip", "cat", "permute", "expand_dims",
    "split",
    "argsort", "associative_scan", "cumprod", "gather", "interleave", "join", "ravel", "reduce", "xor_sum",
    "multicast",  # test_multicast
    "barrier",  # test_barrier; the following: test_debugging
    "assume", "broadcast", "device_assert", "device_print", "div_rn", "fdiv", "full_like", "max_constancy",
    "max_contiguous", "multiple_of", "ones", "ones_like", "range", "sqrt_rn", "static_assert", "static_print",
    "static_range", "view", "zeros_like",
]  # fmt: skip
NAMES = [name for name in vars(Names) if not name.startswith("_")]
BUFFERS = ["alias", "buffer", "charge", "charge_atomic", "charge_dot", "read_into", "write_from"]  # without numbers
NOT_MATH = [
    *BUFFERS,
    "close",
    "cdiv",
    "cycles",
    "directions",
    "ended",
    "evaluate",
    "known_numbers",
    "num_programs",
    "peer",
    "physical_id",
    "program_id",
]

dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 2**32 - 1)
light = settings(max_examples=20, deadline=None)


def test_every_op_of_tl_is_judged():
    here = {*FUNCTIONS, *KEEPING, *ASKING, *ARITHMETIC, "compare", *TERNARY, *REDUCING, "softmax"}
    public = {name for name in dir(TLContext) if not name.startswith("_")}
    assert public == here | {*MOVING, *PRODUCTS, *NOT_MATH, *IN_OTHER_FILES, *NAMES}


def seen(compute, *arrays):
    """What `compute(tl, *tensors)` gives by name, as a kernel sees it; operands come back from memory as they went."""
    found: dict[str, np.ndarray] = {}

    def kernel(*pointers, tl):
        tensors = [tl.load(pointer) for pointer in pointers]
        for name, result in compute(tl, *tensors).items():
            found[name] = result.numpy()
            assert dtype_of(result.dtype).numpy == found[name].dtype
        for pointer, tensor in zip(pointers, tensors, strict=True):
            tl.store(pointer, tensor)

    left = run_kernel(kernel, *arrays).arrays
    for array, after in zip(arrays, left, strict=True):
        assert (array.dtype, array.shape, array.tobytes()) == (after.dtype, after.shape, after.tobytes())
    return found


def agree(got, exact, dtype, slack=1.0):
    judge.agree(got, exact, dtype_of(dtype), slack)


def result_dtype(array: np.ndarray) -> DType:
    return dtype_of(array.dtype)


@light
@given(shapes, dtypes, seeds)
def test_ops_of_one_tensor(shape, dtype, seed):
    x = judge.draw(np.random.default_rng(seed), shape, dtype)
    size = np.abs(x.astype(np.float32)).astype(dtype.numpy)
    positive = {"log", "log2", "sqrt", "rsqrt"}
    names = [*FUNCTIONS, *KEEPING, *ASKING]
    found = seen(lambda tl, a, b: {op: getattr(tl, op)(b if op in positive else a) for op in names}, x, size)
    real = dtype if dtype.is_float else dtype_of("f32")
    expected = {**dict.fromkeys(FUNCTIONS, real), **dict.fromkeys(ASKING, BOOL)}
    for op, got in found.items():
        with np.errstate(all="ignore"):
            exact = judge.UNARY[op](judge.wide(size if op in positive else x))
        agree(got, exact, expected.get(op, result_dtype(got)))
    if dtype is not BOOL:
        assert all(found[op].dtype == dtype.numpy for op in KEEPING)


@light
@given(mutually_broadcastable_shapes(num_shapes=2, min_dims=1, max_dims=3, max_side=5), dtypes, dtypes, seeds)
def test_ops_of_two_tensors(found_shapes, left, right, seed):
    rng = np.random.default_rng(seed)
    a, b = (judge.draw(rng, shape, d) for shape, d in zip(found_shapes.input_shapes, (left, right), strict=True))
    assume(a.size and b.size)

    def compute(tl, x, y):
        return {op: getattr(tl, op)(x, y) for op in ARITHMETIC} | {op: tl.compare(op, x, y) for op in COMPARING}

    for op, got in seen(compute, a, b).items():
        with np.errstate(all="ignore"):
            agree(got, judge.BINARY[op](judge.wide(a), judge.wide(b)), BOOL if op in COMPARING else result_dtype(got))
        if left is right and left.is_float and op in ARITHMETIC:
            assert got.dtype == left.numpy


@light
@given(shapes, dtypes, st.one_of(st.integers(-9, 9), st.floats(-4, 4, width=32)), seeds)
def test_operators_with_a_number_on_either_side(shape, dtype, number, seed):
    x = judge.draw(np.random.default_rng(seed), shape, dtype)
    assume(dtype.name[0] != "u" or isinstance(number, float) or number >= 0)

    def compute(tl, t):
        return {
            "t+s": t + number, "s+t": number + t, "t-s": t - number, "s-t": number - t, "t*s": t * number,
            "t/s": t / (abs(number) + 1), "s/t": number / t, "-t": -t, "t<s": t < number, "t>=s": t >= number,
            "t==s": t == number, "t!=s": t != number,
        }  # fmt: skip

    wide, floor = judge.wide(x), abs(number) + 1
    with np.errstate(all="ignore"):
        exact = {
            "t+s": wide + number, "s+t": number + wide, "t-s": wide - number, "s-t": number - wide,
            "t*s": wide * number, "t/s": wide / floor, "s/t": number / wide, "-t": -wide,
            "t<s": wide < number, "t>=s": wide >= number, "t==s": wide == number, "t!=s": wide != number,
        }  # fmt: skip
        for name, got in seen(compute, x).items():
            agree(got, exact[name], result_dtype(got))


@light
@given(mutually_broadcastable_shapes(num_shapes=3, min_dims=1, max_dims=3, max_side=4), st.tuples(*[dtypes] * 3), seeds)
def test_ops_of_three_tensors(found_shapes, kinds, seed):
    rng = np.random.default_rng(seed)
    arrays = [judge.draw(rng, shape, d) for shape, d in zip(found_shapes.input_shapes, kinds, strict=True)]
    assume(all(array.size for array in arrays))
    found = seen(lambda tl, *t: {name: getattr(tl, name)(*t) for name in TERNARY}, *arrays)
    for op, got in found.items():
        with np.errstate(all="ignore"):
            agree(got, judge.TERNARY[op](*map(judge.wide, arrays)), result_dtype(got))


@light
@given(shapes, dtypes, st.data(), st.booleans(), seeds)
def test_reductions_and_softmax(shape, dtype, data, keep_dims, seed):
    axis = data.draw(st.one_of(st.none(), st.integers(-len(shape), len(shape) - 1)))
    along = -1 if axis is None else axis
    x = judge.draw(np.random.default_rng(seed), shape, dtype)

    def compute(tl, t):
        reduced = {op: getattr(tl, op)(t, axis=axis, keep_dims=keep_dims) for op in REDUCING}
        return {**reduced, "softmax": tl.softmax(t, axis=along)}

    found = seen(compute, x)
    wide = judge.wide(x)
    grown = np.exp(wide - wide.max(axis=along, keepdims=True))
    agree(found.pop("softmax"), grown / grown.sum(axis=along, keepdims=True), dtype if dtype.is_float else "f32")
    for op, got in found.items():
        agree(got, judge.REDUCE[op](wide, axis=axis, keepdims=keep_dims), result_dtype(got))


@light
@given(shapes, dtypes, dtypes, st.data(), seeds)
def test_views_move_bytes_and_change_none(shape, dtype, target, data, seed):
    x = judge.draw(np.random.default_rng(seed), shape, dtype)
    one = st.one_of(st.integers(0, 2), st.builds(slice, st.integers(-3, 2), st.none(), st.sampled_from([None, 2])))
    index = tuple(data.draw(st.lists(one, max_size=len(shape))))
    try:
        part = x[index]
    except IndexError:
        part = x
        index = ()
    assume(part.size)

    def compute(tl, t):
        views = {"part": t[index], "flat": tl.reshape(t, -1), "wider": tl.broadcast_to(t, (2, *t.shape))}
        if len(shape) > 1:
            views["trans"] = tl.trans(t)
        return {**views, "cast": tl.cast(t, target.name), "full": tl.full(t.shape, 1, dtype.name)}

    found = seen(compute, x)
    exact = {"part": part, "flat": x.reshape(-1), "wider": np.broadcast_to(x, (2, *shape))}
    if len(shape) > 1:
        exact["trans"] = np.swapaxes(x, -1, -2)
    for name, expected in exact.items():
        assert (found[name].shape, found[name].tobytes()) == (expected.shape, expected.tobytes())
    exact = judge.wide(x)
    agree(found["cast"], np.maximum(exact, 0) if dtype.is_float and target.name[0] == "u" else exact, target)
    agree(found["full"], np.ones(shape), dtype)


@light
@given(st.tuples(*[st.integers(1, 40)] * 3), dtypes, dtypes, seeds, st.booleans())
def test_products_by_dot_and_by_composite(size, left, right, seed, turned):
    """A composite streams its operands tile by tile; its sum is still one sum, rounded once to the output's type."""
    m, k, n = size
    rng = np.random.default_rng(seed)
    a, b = judge.draw(rng, (m, k), left), judge.draw(rng, (n, k) if turned else (k, n), right)
    dot: list[np.ndarray] = []

    def kernel(x, y, out, tl):
        first, second = tl.load(x), tl.load(y)
        dot.append((first @ (second.T if turned else second)).numpy())
        there = tl.ref(y).T if turned else tl.ref(y)
        tl.wait(tl.composite("gemm", tl.ref(x), there, out_ptr=out, epilogue=[{"op": "relu"}]))

    out = np.zeros((m, n), promote(left, right).accumulate.numpy)
    _, _, stored = run_kernel(kernel, a, b, out).arrays
    exact = judge.wide(a) @ (judge.wide(b).T if turned else judge.wide(b))
    agree(dot[0], exact, result_dtype(dot[0]), slack=10)  # up to 40 additions in f32
    agree(stored, np.maximum(exact, 0), result_dtype(out), slack=10)


PARTS = {
    "rows": lambda t: t[1:],
    "columns": lambda t: t[:, 2:],
    "every other": lambda t: t[::2],
    "turned": lambda t: t.T,
    "from an axis more": lambda t: t[None, 1:][0],
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("view", PARTS)
def test_products_of_parts_are_those_of_numpys_parts(dtype, view):
    rng = np.random.default_rng(7)
    x, part = judge.draw(rng, (4, 6), dtype), PARTS[view]

    def kernel(p, tl):
        whole = part(tl.load(p))
        rows = tl.load(p + 6 * dtype.itemsize, (2, 6))  # part of the tensor in memory
        found.append((whole @ whole.T).numpy())
        found.append(tl.dot(rows, tl.load(p, (3, 6)).T).numpy())

    found: list[np.ndarray] = []
    run_kernel(kernel, x)
    expected = judge.wide(part(x))
    agree(found[0], expected @ expected.T, result_dtype(found[0]), slack=10)
    agree(found[1], judge.wide(x[1:3]) @ judge.wide(x[:3]).T, result_dtype(found[1]), slack=10)


FLOATS = st.sampled_from([t for t in DTYPES if t.is_float])


@light
@given(st.tuples(*[st.integers(1, 24)] * 3), st.integers(1, 4), FLOATS, FLOATS, FLOATS, seeds)
def test_a_sum_of_products_is_rounded_once_a_link(size, links, left, right, kept, seed):
    """Against f64: with acc in f32 the sum of all links; with a narrower one, each link rounded to it."""
    m, k, n = size
    rng = np.random.default_rng(seed)
    a, b, start = (judge.draw(rng, s, t) for s, t in (((links, m, k), left), ((links, k, n), right), ((m, n), kept)))

    def compute(tl, x, y, acc):
        sums = {"start": acc}
        for at in range(links):
            acc = tl.dot(x[at], y[at], acc)
            sums[f"{at}"] = acc
        return {**sums, "wide": tl.dot(x[0], y[0], acc=sums["start"], out_dtype="f32")}

    found = seen(compute, a, b, start)
    for at in range(links):
        before = judge.wide(found["start" if at == 0 else f"{at - 1}"])
        agree(found[f"{at}"], before + judge.wide(a[at]) @ judge.wide(b[at]), kept, slack=10)
    agree(found["wide"], judge.wide(start) + judge.wide(a[0]) @ judge.wide(b[0]), "f32", slack=10)


WHOLES = st.sampled_from([t for t in DTYPES if not t.is_float])


@light
@given(st.tuples(*[st.integers(1, 9)] * 3), WHOLES, WHOLES, seeds)
def test_sums_of_integer_products_are_exact_and_wrap(size, left, right, seed):
    m, k, n = size
    rng = np.random.default_rng(seed)
    total = promote(left, right).accumulate
    a, b, start = (
        rng.integers(*INT_RANGE[t], s, endpoint=True).astype(t.numpy)
        for s, t in (((m, k), left), ((k, n), right), ((m, n), total))
    )
    found = seen(lambda tl, x, y, acc: {"sum": tl.dot(x, y, acc)}, a, b, start)["sum"]
    assert found.dtype == total.numpy
    exact = start.astype(object) + a.astype(object) @ b.astype(object)  # Python's integers
    bits = 8 * total.itemsize
    assert ((exact - found.astype(object)) % (1 << bits) == 0).all()


@given(st.integers(-5, 5), st.integers(1, 9), dtypes)
@light
def test_makers(start, count, dtype):
    assume(dtype is not BOOL and (dtype.name[0] != "u" or start >= 0))

    def compute(tl):
        return {"arange": tl.arange(start, start + count, dtype.name), "zeros": tl.zeros((2, count), dtype.name)}

    found = seen(compute)
    agree(found["arange"], np.arange(start, start + count).astype(float), dtype)
    agree(found["zeros"], np.zeros((2, count)), dtype)
