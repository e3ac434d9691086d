"""Ops of `tl` against Triton's interpreter: the same expression, the same blocks, by hypothesis.

Where both define a result it is the same, bit for bit, but for functions such as exp, which agree within the dtype's
tolerance. They differ in what is listed here; each of these has a test at the end of this file:

    what                     Triton                              KernBench
    // and % of integers     towards zero, as in C               down, as in Python and numpy
    sum, max, argmax, ...    drop the axis unless keep_dims      keep it at size 1 unless keep_dims=False
    tl.dot of f16            gives f32                           gives f16 unless out_dtype="f32" or acc is f32
    u32 with i32             u32                                 i64, which holds both
    f16 / f16                gives f32                           gives f16
    max, min of i8, i16, f16 give i32 and f32                    give the block's own type

Spelled differently, and judged: `tl.topk` gives values alone in Triton, and places too here; `tl.cat(a, b, dim=0)` is
`tl.cat([a, b], axis=0)`; `tl.split` halves a last axis of two and drops it, here it cuts any axis and keeps it; there
is no `isnan` in Triton (`x != x`). Its functions of real numbers take f32 alone, so narrower floats are widened and
rounded back there; here they are computed in f32 anyway. Its blocks have sizes that are powers of two, so all do here.

Not judged, as Triton's interpreter does not know it or changed its mind between 3.7 and 3.9: `tanh`; arithmetic in
bf16; `~` of unsigned numbers; the sign of -0.0 (a minus is 0 - x in 3.7); the larger of NaN and a number (NaN in 3.7
and here, the number in 3.9); `tl.softmax` (the default of 3.7 drops the axis before it broadcasts; it is written out).
"""

from __future__ import annotations

import operator
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.frontends.triton_interpreter import both, near, same, triton

from kernbench.common.dtypes import BF16, DTYPES, F16, F32, I8, I16, I32, I64, INT_RANGE, U8, U32, DType


def larger(a, b):
    return (a > b) * a + (a <= b) * b


def product(a, b):
    return a * b


few = settings(max_examples=15, deadline=None)
light = settings(max_examples=40, deadline=None)
FLOATS = [F32, F16, BF16]
WHOLES = [I64, I32, I16, I8, U8, U32]
sizes = st.sampled_from([1, 2, 4, 8])
shapes = st.lists(sizes, min_size=1, max_size=3).map(tuple)
several = shapes.filter(lambda shape: prod(shape) > 1)  # Triton's interpreter cannot flip or rank a single element
matrices = st.tuples(sizes, sizes)


@st.composite
def blocks(draw, kinds, shapes, low=-8.0, high=8.0):
    """A block of one of these types: floats are quarters, so that some are equal; integers are of the whole range."""
    dtype: DType = draw(st.sampled_from(kinds))
    shape = draw(shapes) if isinstance(shapes, st.SearchStrategy) else shapes
    if dtype.is_float:
        quarters = draw(arrays(np.int32, shape, elements=st.integers(int(4 * low), int(4 * high))))
        return (quarters.astype(np.float32) / 4).astype(dtype.numpy)
    return draw(arrays(dtype.numpy, shape, elements=st.integers(*INT_RANGE[dtype])))


@st.composite
def two_blocks(draw, kinds):
    """Two of one type, of shapes that broadcast."""
    a = draw(blocks(kinds, shapes))
    kind = [dtype for dtype in kinds if dtype.numpy == a.dtype]
    side = draw(st.sampled_from([a.shape, *[(*a.shape[:i], 1, *a.shape[i + 1 :]) for i in range(a.ndim)]]))
    return a, draw(blocks(kind, side))


def wide(compute):
    """In Triton: f32 inside, the block's own type outside."""

    def computed(tl, *blocks):
        narrow = blocks[0].dtype
        return compute(tl, *(block.to(tl.float32) for block in blocks)).to(narrow)

    return computed


# ---- one block

REAL = {
    "exp": lambda tl, x: tl.exp(x),
    "exp2": lambda tl, x: tl.exp2(x),
    "log": lambda tl, x: tl.log(tl.abs(x) + 0.25),
    "log2": lambda tl, x: tl.log2(tl.abs(x) + 0.25),
    "sqrt": lambda tl, x: tl.sqrt(tl.abs(x)),
    "rsqrt": lambda tl, x: tl.rsqrt(tl.abs(x) + 0.25),
    "sin": lambda tl, x: tl.sin(x),
    "cos": lambda tl, x: tl.cos(x),
    "erf": lambda tl, x: tl.erf(x),
    "sigmoid": lambda tl, x: tl.sigmoid(x),
}


@pytest.mark.parametrize("op", REAL)
@few
@given(blocks([F32, F16], shapes))
def test_functions_of_real_numbers(op, x):
    near(both(REAL[op], x, theirs=wide(REAL[op])), slack=2)


@pytest.mark.parametrize("op", ["floor", "ceil"])
@light
@given(blocks(FLOATS, shapes))
def test_rounding_to_whole_numbers(op, x):
    same(both(lambda tl, t: getattr(tl, op)(t), x, theirs=wide(lambda tl, t: getattr(tl, op)(t))))


@light
@given(blocks([F32, F16, I32, I8], shapes))
def test_abs_and_minus(x):
    same(both(lambda tl, t: tl.abs(t), x))
    near(both(lambda tl, t: -t, x))


@light
@given(blocks([F32], shapes), st.data())
def test_isnan_is_being_unequal_to_itself(x, data):
    x[data.draw(arrays(bool, x.shape))] = np.nan
    same(both(lambda tl, t: tl.isnan(t), x, theirs=lambda tl, t: t != t))


@light
@given(blocks([I64, I32, I16, I8], shapes))
def test_every_bit_turned(x):
    same(both(lambda tl, t: ~t, x))


CASTS = [F32, F16, I64, I32, I16, I8]


@pytest.mark.parametrize("target", CASTS)
@light
@given(blocks(CASTS, shapes))
def test_casts(target, x):
    """Floats to integers are cut; integers wrap; f32 to f16 is to the nearest."""
    name = target.numpy_name
    if x.dtype.kind == "i" and target.is_float:
        x = x & np.array(127, x.dtype)  # f16 holds these
    same(both(lambda tl, t: t.to(getattr(tl, name)), x))


# ---- two and three blocks

ARITHMETIC = {"+": operator.add, "-": operator.sub, "*": operator.mul}
COMPARING = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip


@pytest.mark.parametrize("op", [*ARITHMETIC, *COMPARING])
@light
@given(two_blocks([F32, F16, *WHOLES]))
def test_arithmetic_and_comparisons(op, pair):
    same(both(lambda tl, a, b: {**ARITHMETIC, **COMPARING}[op](a, b), *pair))


@light
@given(two_blocks([F32, F16]))
def test_division(pair):
    a, b = pair
    narrow = lambda tl, x, y: (x / y).to(x.dtype)  # noqa: E731  # f16 over f16 is f32 in Triton
    same(both(lambda tl, x, y: x / y, a, np.where(b == 0, np.ones((), b.dtype), b), theirs=narrow))


@light
@given(two_blocks([F32, F16, *WHOLES]))
def test_larger_and_smaller(pair):
    same(both(lambda tl, a, b: tl.maximum(a, b), *pair))
    same(both(lambda tl, a, b: tl.minimum(a, b), *pair))


@pytest.mark.parametrize("op", [operator.and_, operator.or_, operator.xor])
@light
@given(two_blocks(WHOLES))
def test_bits(op, pair):
    same(both(lambda tl, a, b: op(a, b), *pair))


@pytest.mark.parametrize("op", [operator.lshift, operator.rshift])
@light
@given(two_blocks(WHOLES))
def test_shifts(op, pair):
    """By less than the width: signed numbers keep their sign to the right."""
    a, b = pair
    same(both(lambda tl, x, y: op(x, y), a, (b % (8 * b.itemsize)).astype(b.dtype)))


@pytest.mark.parametrize("op", [operator.floordiv, operator.mod])
@light
@given(two_blocks(WHOLES))
def test_quotients_and_remainders_of_numbers_that_are_not_negative(op, pair):
    a, b = (x & np.iinfo(x.dtype).max for x in pair)
    same(both(lambda tl, x, y: op(x, y), a, np.maximum(b, np.ones((), b.dtype))))


@light
@given(two_blocks([F32, F16, I32]), st.data())
def test_where(pair, data):
    keep = data.draw(arrays(np.bool_, pair[0].shape))
    same(both(lambda tl, c, a, b: tl.where(c, a, b), keep, *pair))


@light
@given(blocks([F32], shapes), st.data())
def test_fma_and_clamp(x, data):
    y, z = (data.draw(blocks([F32], x.shape)) for _ in range(2))
    same(both(lambda tl, a, b, c: tl.fma(a, b, c), x, y, z))  # quarters: nothing is rounded
    low, high = np.minimum(y, z), np.maximum(y, z)
    same(both(lambda tl, a, b, c: tl.clamp(a, b, c), x, low, high))


@light
@given(blocks([I8, I16], shapes), st.sampled_from([I16, I32, I64]), st.data())
def test_two_integer_types_of_one_sign_give_the_wider(x, other, data):
    y = data.draw(blocks([other], x.shape))
    same(both(lambda tl, a, b: a + b, x, y))


# ---- along an axis


def narrow(compute):
    """In Triton: back in the block's own type, from the 32 bits that max and topk give for narrower ones."""
    return lambda tl, x: compute(tl, x).to(x.dtype)


@st.composite
def with_axis(draw, kinds, **limits):
    x = draw(blocks(kinds, shapes, **limits))
    return x, draw(st.integers(0, x.ndim - 1))


@pytest.mark.parametrize("op", ["sum", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("keep_dims", [True, False])
@light
@given(with_axis([F32, I32, I8, U8], low=-4, high=4))
def test_reductions(op, keep_dims, drawn):
    """Sums of quarters are exact in any order; the first of equals is found."""
    x, axis = drawn
    if op == "sum" and x.dtype == np.int32:
        x = x // 8  # at most eight elements to an axis: Triton's interpreter refuses a sum that needs more than 32 bits
    compute = lambda tl, t: getattr(tl, op)(t, axis, keep_dims=keep_dims)  # noqa: E731  # one line for both languages
    same(both(compute, x, theirs=narrow(compute) if op in ("max", "min") else compute))


@light
@given(with_axis([F32, I32, I16, U8], low=-4, high=4))
def test_cumsum(drawn):
    x, axis = drawn
    same(both(lambda tl, t: tl.cumsum(t, axis), x))


@light
@given(with_axis([F32]))
def test_softmax(drawn):
    x, axis = drawn

    def theirs(tl, t):
        grown = tl.exp(t - tl.max(t, axis, keep_dims=True))
        return grown / tl.sum(grown, axis, keep_dims=True)

    near(both(lambda tl, t: tl.softmax(t, axis), x, theirs=theirs))


@light
@given(blocks([F32, F16, *WHOLES], shapes), st.booleans())
def test_sort(x, descending):
    compute = lambda tl, t: tl.sort(t, descending=descending)  # noqa: E731  # one line for both languages
    same(both(compute, x, theirs=narrow(compute)))


@light
@given(blocks([F32, F16, I32, U8], several), st.data())
def test_topk(x, data):
    k = data.draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= x.shape[-1] and n * x.size > x.shape[-1]]))
    same(both(lambda tl, t: tl.topk(t, k)[0], x, theirs=narrow(lambda tl, t: tl.topk(t, k))))


@light
@given(blocks([F32, F16, I8], several), st.data())
def test_flip(x, data):
    axis = data.draw(st.integers(0, x.ndim - 1))
    same(both(lambda tl, t: tl.flip(t, axis), x))


@light
@given(with_axis([F32, F16, I32, I8]), st.data())
def test_gather(drawn, data):
    x, axis = drawn
    count = data.draw(sizes)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    places = data.draw(arrays(np.int32, shape, elements=st.integers(0, x.shape[axis] - 1)))
    same(both(lambda tl, t, at: tl.gather(t, at, axis), x, places))


@pytest.mark.parametrize("op", [larger, product])
@few
@given(with_axis([F32, I32], low=-2, high=2), st.booleans())
def test_reductions_with_a_function_of_the_users_own(op, drawn, keep_dims):
    """Products of a few halves and quarters are exact in any order."""
    x, axis = drawn
    theirs = triton.jit(op)
    compute = lambda tl, t: tl.reduce(t, axis, op, keep_dims=keep_dims)  # noqa: E731  # one line for both languages
    same(both(compute, x, theirs=lambda tl, t: tl.reduce(t, axis, theirs, keep_dims=keep_dims)))


@pytest.mark.parametrize("op", [larger, product])
@few
@given(with_axis([F32, I32], low=-2, high=2), st.booleans())
def test_scans_with_a_function_of_the_users_own(op, drawn, reverse):
    x, axis = drawn
    theirs = triton.jit(op)
    compute = lambda tl, t: tl.associative_scan(t, axis, op, reverse=reverse)  # noqa: E731  # one line for both
    same(both(compute, x, theirs=lambda tl, t: tl.associative_scan(t, axis, theirs, reverse=reverse)))


@few
@given(blocks([F32, F16, I8], shapes))
def test_join_and_interleave(x):
    for name in ("join", "interleave"):
        same(both(lambda tl, a, b, name=name: getattr(tl, name)(a, b), x, x[..., ::-1].copy()))


# ---- views


@light
@given(with_axis([F32, F16, I8]), st.data())
def test_cat(drawn, data):
    x, axis = drawn
    kind = [dtype for dtype in DTYPES if dtype.numpy == x.dtype]
    y = data.draw(blocks(kind, x.shape))
    theirs = lambda tl, a, b: tl.cat(a, b, dim=axis)  # noqa: E731  # spelled otherwise in Triton
    same(both(lambda tl, a, b: tl.cat([a, b], axis=axis), x, y, theirs=theirs))


@light
@given(blocks([F32, I32], st.tuples(sizes, sizes, st.just(2))), st.sampled_from([0, 1]))
def test_split_of_a_last_axis_of_two(x, which):
    def ours(tl, t):
        half = tl.split(t, 2, axis=-1)[which]
        return tl.reshape(half, half.shape[:-1])

    same(both(ours, x, theirs=lambda tl, t: tl.split(t)[which]))


@light
@given(blocks([F32, I8], st.tuples(sizes, sizes, sizes)), st.permutations([0, 1, 2]))
def test_permute(x, axes):
    same(both(lambda tl, t: tl.permute(t, tuple(axes)), x))


@light
@given(blocks([F32, I8], matrices))
def test_trans_and_reshape(x):
    same(both(lambda tl, t: tl.trans(t), x))
    same(both(lambda tl, t: tl.reshape(t, (prod(x.shape),)), x))


@light
@given(with_axis([F32, I8]))
def test_expand_dims(drawn):
    x, axis = drawn
    same(both(lambda tl, t: tl.expand_dims(t, axis), x))
    same(both(lambda tl, t: tl.expand_dims(t, x.ndim), x))
    if x.ndim == 2:
        same(both(lambda tl, t: t[:, None, :], x))


@light
@given(blocks([F32, I8], st.tuples(st.just(1), sizes)), sizes)
def test_broadcast_to(x, rows):
    same(both(lambda tl, t: tl.broadcast_to(t, (rows, x.shape[1])), x))


# ---- products

SIDES = st.sampled_from([1, 2, 16, 32])
SEEDS = st.integers(0, 2**32 - 1)


def matrix(rng: np.random.Generator, shape: tuple[int, int], dtype: DType) -> np.ndarray:
    """As `blocks`, quickly: quarters up to 8, whose products and sums f32 holds exactly, or integers of any size."""
    if dtype.is_float:
        return (rng.integers(-32, 32, shape, endpoint=True) / 4).astype(dtype.numpy)
    return rng.integers(*INT_RANGE[dtype], shape, endpoint=True).astype(dtype.numpy)


@light
@given(SIDES, SIDES, SIDES, st.sampled_from([F16, F32, I8]), SEEDS)
def test_dot(m, k, n, dtype, seed):
    rng = np.random.default_rng(seed)
    a, b = (matrix(rng, shape, dtype) for shape in ((m, k), (k, n)))
    summed = (I32 if dtype is I8 else F32).numpy_name
    same(both(lambda tl, x, y: tl.dot(x, y, out_dtype=getattr(tl, summed)), a, b))


@light
@given(SIDES, SIDES, SIDES, st.sampled_from([F16, F32, I8]), SEEDS)
def test_dot_with_acc(m, k, n, dtype, seed):
    """Twice, as in a loop over K; sums of i8 may wrap."""
    rng = np.random.default_rng(seed)
    summed = I32 if dtype is I8 else F32
    a, b, acc = (matrix(rng, s, t) for s, t in (((m, k), dtype), ((k, n), dtype), ((m, n), summed)))

    def compute(tl, x, y, z):
        out_dtype = getattr(tl, summed.numpy_name)
        return tl.dot(x, y, tl.dot(x, y, z, out_dtype=out_dtype), out_dtype=out_dtype)

    same(both(compute, a, b, acc))


@few
@given(SIDES, SIDES, SIDES, SEEDS)
def test_dot_of_numbers_that_are_rounded(m, k, n, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n)))
    acc = rng.standard_normal((m, n)).astype(np.float32)
    near(both(lambda tl, x, y, z: tl.dot(x, y, z), a, b, acc), slack=10)


# ---- where the two differ


def differ(compute, *arrays):
    ours, theirs = both(compute, *arrays)
    return ours.tolist(), theirs.tolist()


def test_triton_divides_towards_zero_and_we_divide_down():
    x, y = np.array([7, -7, 7, -7], np.int32), np.array([2, 2, -2, -2], np.int32)
    assert differ(lambda tl, a, b: a // b, x, y) == ([3, -4, -4, 3], [3, -3, -3, 3])
    assert differ(lambda tl, a, b: a % b, x, y) == ([1, 1, -1, -1], [1, -1, 1, -1])


def test_triton_drops_a_reduced_axis_by_default():
    x = np.ones((2, 4), np.float32)
    same(both(lambda tl, t: tl.sum(t, 1), x, theirs=lambda tl, t: tl.sum(t, 1, keep_dims=True)))
    same(both(lambda tl, t: tl.sum(t, 1, keep_dims=False), x, theirs=lambda tl, t: tl.sum(t, 1)))


def test_triton_gives_f32_for_a_product_of_f16():
    x = np.ones((4, 4), np.float16)
    same(both(lambda tl, t: tl.dot(t, t, out_dtype="f32"), x, theirs=lambda tl, t: tl.dot(t, t)))
    same(both(lambda tl, t: tl.dot(t, t), x, theirs=lambda tl, t: tl.dot(t, t).to(tl.float16)))


def test_triton_gives_f32_for_a_quotient_of_f16():
    x = np.array([1, 2], np.float16)
    same(both(lambda tl, t: t.to("f32") / t.to("f32"), x, theirs=lambda tl, t: t / t))
    same(both(lambda tl, t: t / t, x, theirs=lambda tl, t: (t / t).to(tl.float16)))


def test_triton_gives_32_bits_for_the_largest_of_narrow_numbers():
    x = np.array([[1, 5], [7, 2]], np.int8)
    same(both(lambda tl, t: tl.max(t, 1).to("i32"), x, theirs=lambda tl, t: tl.max(t, 1, keep_dims=True)))


def test_triton_takes_u32_for_the_mix_of_u32_and_i32():
    x, y = np.array([1, 2], np.uint32), np.array([-2, 5], np.int32)
    ours, theirs = both(lambda tl, a, b: a + b, x, y, theirs=lambda tl, a, b: (a + b).to(tl.int64))
    assert (ours.tolist(), theirs.tolist()) == ([-1, 7], [2**32 - 1, 7])
