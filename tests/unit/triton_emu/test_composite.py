"""Composites give the numbers of the whole product and its epilogues, whatever the tiles, scopes and places of
operands.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.errors import LaunchError
from kernbench.sim_engine.op_log import OpLog
from kernbench.testing import run_kernel
from kernbench.topology import load_topology

erf = np.vectorize(math.erf, otypes=[np.float32])


def f16(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def composed(a, b, epilogue=lambda tl, *extra: [], extras=(), out=None, **options):
    """The output of a streamed gemm; `epilogue(tl, *references)` makes its steps."""
    m, n = a.shape[0], b.shape[1]
    out = np.zeros((m, n), np.float16) if out is None else out

    def kernel(a, b, c, *extra, tl):
        steps = epilogue(tl, *(tl.ref(x) for x in extra))
        tl.wait(tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c, epilogue=steps, **options))

    return run_kernel(kernel, a, b, out, *extras).arrays[2]


def assert_close(found, expected):
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=2e-3, atol=2e-3)


@settings(max_examples=15, deadline=None)
@given(st.tuples(*[st.integers(1, 80)] * 3), st.sampled_from([None, (16, 16, 16), (7, 100, 5)]))
def test_any_shape_and_tile_give_the_product(size, tile):
    m, k, n = size
    a, b = f16(m, k), f16(k, n, seed=1)
    assert_close(composed(a, b, tile_shape=tile), a.astype(np.float32) @ b.astype(np.float32))


def test_a_composite_is_one_value_however_many_tiles_it_has():
    made: list[int] = []

    def kernel(a, b, c, m, k, n, tl):
        x, y = tl.ref(a), tl.ref(b)
        before = tl.zeros((1,)).value.id
        tl.wait(tl.composite("gemm", x, y, out_ptr=c, tile_shape=(m, k, n)))
        made.append(tl.zeros((1,)).value.id - before)

    a, b = f16(64, 64), f16(64, 64, seed=1)
    for tile in ((64, 64, 64), (8, 8, 8)):  # one tile, and 8 x 8 x 8 of them
        run_kernel(kernel, a, b, np.zeros((64, 64), np.float16), *tile)
    # Both operands are what was written, whole; the product is one value; and the tensor that tells the number.
    assert made == [2, 2]


WIDE_A, WIDE_B = f16(40, 70), f16(70, 50, seed=1)
PRODUCT = WIDE_A.astype(np.float32) @ WIDE_B.astype(np.float32)
ROW, COLUMN, WHOLE = f16(50, seed=2), f16(40, 1, seed=3), f16(40, 50, seed=4)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([{"op": "relu"}], np.maximum(PRODUCT, 0)),
        ([{"op": "gelu"}], 0.5 * PRODUCT * (1 + erf(PRODUCT / math.sqrt(2)))),
        ([{"op": "silu"}], PRODUCT / (1 + np.exp(-PRODUCT))),
        ([{"op": "sigmoid"}], 1 / (1 + np.exp(-PRODUCT))),
        ([{"op": "scale", "factor": 0.25}, {"op": "exp"}], np.exp(PRODUCT * 0.25)),
        ([{"op": "scale", "factor": 0.25, "scope": "k_tile"}], PRODUCT * 0.25),
        ([{"op": "dequant", "scale": 0.5, "scope": "k_tile"}, {"op": "tanh"}], np.tanh(PRODUCT * 0.5)),
        ([{"op": "clamp", "min": -1, "max": 1.5}], np.clip(PRODUCT, -1, 1.5)),
        ([{"op": "relu", "scope": "kernel"}, {"op": "add", "other": 1}], np.maximum(PRODUCT + 1, 0)),
    ],
)
def test_epilogues_without_tensors(steps, expected):
    found = composed(WIDE_A, WIDE_B, lambda tl: steps)
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    ("step", "tensor", "expected"),
    [
        ({"op": "bias", "bias": None}, ROW, PRODUCT + ROW.astype(np.float32)),
        ({"op": "bias", "bias": None}, COLUMN, PRODUCT + COLUMN.astype(np.float32)),
        ({"op": "add", "other": None}, WHOLE, PRODUCT + WHOLE.astype(np.float32)),
        ({"op": "mul", "other": None}, WHOLE, PRODUCT * WHOLE.astype(np.float32)),
        ({"op": "sub", "other": None}, ROW, PRODUCT - ROW.astype(np.float32)),
        ({"op": "dequant", "scale": None, "scope": "k_tile"}, ROW, PRODUCT * ROW.astype(np.float32)),
        ({"op": "maximum", "other": None, "scope": "kernel"}, COLUMN, np.maximum(PRODUCT, COLUMN.astype(np.float32))),
    ],
)
@pytest.mark.parametrize("loaded", [False, True])
def test_epilogues_with_tensors_from_memory_or_tcm(step, tensor, expected, loaded):
    def kernel(a, b, c, d, tl):
        other = tl.load(d) if loaded else tl.ref(d)
        ready = {key: other if value is None else value for key, value in step.items()}
        tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c, epilogue=[ready])

    found = run_kernel(kernel, WIDE_A, WIDE_B, np.zeros((40, 50), np.float16), tensor).arrays[2]
    np.testing.assert_allclose(found.astype(np.float32), expected, rtol=4e-3, atol=4e-3)


def test_loaded_referenced_and_transposed_operands_give_the_same():
    turned = np.ascontiguousarray(WIDE_B.T)

    def kernel(a, b, bt, c, d, e, tl):
        tl.composite("gemm", tl.load(a), tl.ref(b), out_ptr=c)
        tl.composite("gemm", tl.ref(a), tl.trans(tl.ref(bt)), out_ptr=d)
        tl.store(e, tl.wait(tl.composite("gemm", tl.load(a), tl.load(bt).T)))

    outs = [np.zeros((40, 50), np.float16) for _ in range(3)]
    arrays = run_kernel(kernel, WIDE_A, WIDE_B, turned, *outs).arrays
    for found in arrays[3:]:
        assert_close(found, PRODUCT)


def test_a_result_in_tcm_may_be_used_before_it_is_waited_for():
    def kernel(a, b, c, tl):
        h = tl.composite("gemm", tl.ref(a), tl.ref(b), out_dtype="f32")
        assert h.out is not None
        tl.store(c, tl.cast(tl.relu(h.out), "f16"))

    found = run_kernel(kernel, WIDE_A, WIDE_B, np.zeros((40, 50), np.float16)).arrays[2]
    assert_close(found, np.maximum(PRODUCT, 0))


def test_integers_and_their_types():
    a, b = np.full((5, 9), 3, np.int8), np.full((9, 4), -2, np.int8)
    assert (composed(a, b, out=np.zeros((5, 4), np.int32)) == -54).all()


def test_math_composites():
    def kernel(a, b, c, d, e, tl):
        tl.composite("math", tl.ref(a), out_ptr=c, math_op="exp", epilogue=[{"op": "scale", "factor": 2}])
        tl.composite("math", tl.ref(a), tl.ref(b), out_ptr=d, math_op="add")
        tl.composite("math", tl.ref(a), out_ptr=e, math_op="softmax")

    x, row = f16(6, 11, 90), f16(90, seed=1)
    outs = [np.zeros((6, 11, 90), np.float16) for _ in range(3)]
    c, d, e = run_kernel(kernel, x, row, *outs).arrays[2:]
    wide = x.astype(np.float32)
    assert_close(c, 2 * np.exp(wide))
    assert_close(d, wide + row.astype(np.float32))
    grown = np.exp(wide - wide.max(-1, keepdims=True))
    assert_close(e, grown / grown.sum(-1, keepdims=True))


@settings(max_examples=15, deadline=None)
@given(
    st.tuples(st.integers(1, 50), st.integers(1, 140)),
    st.tuples(*[st.sampled_from(["whole", "row", "line", "column", "one", "number"])] * 2),
    st.booleans(),
)
def test_math_composites_broadcast_both_ways(size, kinds, loaded):
    m, n = size
    shapes = {"whole": (m, n), "row": (1, n), "line": (n,), "column": (m, 1), "one": (1, 1), "number": (1,)}
    a, b = (f16(*shapes[kind], seed=seed) for seed, kind in enumerate(kinds))
    expected = a.astype(np.float32) - b.astype(np.float32)

    def kernel(a, b, c, tl):
        tl.composite("math", tl.load(a) if loaded else tl.ref(a), tl.ref(b), out_ptr=c, math_op="sub")

    found = run_kernel(kernel, a, b, np.zeros(expected.shape, np.float16)).arrays[2]
    assert_close(found, expected)


class TestOrder:
    """A command that touches bytes which a composite has yet to write waits for it: memory is as the program reads."""

    def test_a_composite_reads_what_an_earlier_one_writes(self):
        def kernel(x, o, tl):
            tl.composite("math", tl.ref(x), math_op="exp", out_ptr=o)
            tl.composite("math", tl.ref(o), math_op="neg", out_ptr=o)

        found = run_kernel(kernel, f16(4, 4), f16(4, 4, seed=1)).arrays[1]
        assert_close(found, -np.exp(f16(4, 4).astype(np.float32)))

    def test_an_epilogue_reads_what_an_earlier_composite_writes(self):
        def kernel(x, b, o, tl):
            tl.composite("math", tl.ref(x), math_op="neg", out_ptr=b)
            tl.composite("math", tl.ref(x), math_op="abs", out_ptr=o, epilogue=[{"op": "add", "other": tl.ref(b)}])

        x = f16(4, 4)
        found = run_kernel(kernel, x, f16(4, 4), np.zeros((4, 4), np.float16)).arrays[2]
        assert_close(found, np.abs(x.astype(np.float32)) - x.astype(np.float32))

    def test_loads_and_stores_wait_too(self):
        def kernel(x, o, p, tl):
            tl.composite("math", tl.ref(x), math_op="neg", out_ptr=o)
            tl.store(p, tl.load(o + 2, (4,)))
            tl.composite("math", tl.ref(x), math_op="exp", out_ptr=o)
            tl.store(o, tl.zeros((4,)))

        x = f16(8)
        _, o, p = run_kernel(kernel, x, f16(8, seed=1), np.zeros(4, np.float16)).arrays
        assert (p == -x[1:5]).all()
        assert (o[:4] == 0).all()
        assert_close(o[4:], np.exp(x[4:].astype(np.float32)))

    def test_the_wait_is_a_dependency_in_time_and_in_the_log(self):
        def kernel(x, o, p, tl):
            tl.composite("math", tl.ref(x), math_op="exp", out_ptr=o)
            tl.composite("math", tl.ref(o), math_op="neg", out_ptr=p)
            tl.load(p)

        log = OpLog()
        x = f16(64, 64)
        run_kernel(kernel, x, np.zeros_like(x), np.zeros_like(x), op_log=log)
        first, second = (r for r in log.records if r.op_name == "composite_math")
        (load,) = (r for r in log.records if r.op_name == "dma_read")
        reads = [r for r in log.records if r.op_name == "TileToken/DMA_READ" and r.t_start >= first.t_end]
        assert second.t_start == first.t_end + 1  # the scheduler's overhead
        assert len(reads) == 2  # of 64 x 128: two tiles of 32 rows
        assert all(first in [log[at] for at in r.dependency_ids] for r in reads)
        assert load.t_start > second.t_end
        assert second in [log[at] for at in load.dependency_ids]

    def test_composites_that_do_not_meet_run_side_by_side(self):
        def kernel(x, o, apart, tl):
            tl.composite("gemm", tl.ref(x, (32, 32)), tl.ref(x, (32, 32)), out_ptr=o)
            tl.composite("gemm", tl.ref(x, (32, 32)), tl.ref(x, (32, 32)), out_ptr=o + (2048 if apart else 2046))

        x, o = f16(32, 32), np.zeros(2048, np.float16)
        beside, behind = (run_kernel(kernel, x, o, apart).time_ns for apart in (True, False))
        assert beside < behind


def test_references_are_read_when_the_composite_is_issued():
    def kernel(a, b, c, tl):
        h = tl.composite("gemm", tl.ref(a), tl.ref(b), out_ptr=c)
        tl.store(a, tl.zeros((40, 70)))  # too late to matter
        tl.wait(h)

    arrays = run_kernel(kernel, WIDE_A, WIDE_B, np.zeros((40, 50), np.float16)).arrays
    assert_close(arrays[2], PRODUCT)
    assert not arrays[0].any()


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda tl, x, y, p: tl.composite("conv", x, y), "unknown op 'conv'"),
        (lambda tl, x, y, p: tl.composite("gemm", x), "needs a and b"),
        (lambda tl, x, y, p: tl.composite("gemm", y, x), r"gemm of \(70, 50\) by \(40, 70\)"),
        (lambda tl, x, y, p: tl.composite("math", x, math_op="sinh"), "unknown math_op 'sinh'"),
        (lambda tl, x, y, p: tl.composite("math", x, y, math_op="exp"), "exp takes 1 tensors"),
        (
            lambda tl, x, y, p: tl.composite("gemm", x, y, epilogue=[{"op": "swish"}]),
            r"epilogue\[0\]: unknown op 'swish'",
        ),
        (lambda tl, x, y, p: tl.composite("gemm", x, y, epilogue=[{"op": "bias"}]), "bias has no 'bias'"),
        (lambda tl, x, y, p: tl.composite("gemm", x, y, epilogue=["relu"]), "epilogue.0. is 'relu'"),
        (lambda tl, x, y, p: tl.composite("gemm", x, y, epilogue=[{"op": "relu", "factor": 2}]), "no field 'factor'"),
        (
            lambda tl, x, y, p: tl.composite("gemm", x, y, epilogue=[{"op": "relu", "scope": "row"}]),
            "unknown scope 'row'",
        ),
        (
            lambda tl, x, y, p: tl.composite("gemm", x, y, epilogue=[{"op": "relu", "scope": "k_tile"}]),
            "cannot be applied to partial sums",
        ),
        (
            lambda tl, x, y, p: tl.composite("gemm", x, y, epilogue=[{"op": "bias", "bias": tl.zeros((49,))}]),
            r"bias has shape \(49,\)",
        ),
        (lambda tl, x, y, p: tl.composite("gemm", x, y, tile_shape=(512, 512, 512)), "needs"),
        (lambda tl, x, y, p: tl.composite("gemm", x, y, tile_shape="big"), "tile_shape is 'big'"),
        (lambda tl, x, y, p: tl.composite("gemm", x, y, tile_shape=(True, True, True)), "tile_shape is .True, True"),
        (
            lambda tl, x, y, p: tl.composite("gemm", x, y, acc_dtype="i32"),
            "acc_dtype i32 cannot hold sums of f16 and f16",
        ),
        (
            lambda tl, x, y, p: tl.composite("math", tl.zeros((4,), "i8"), math_op="abs", acc_dtype="i8"),
            "acc_dtype i8 cannot hold sums of i8",
        ),
        (lambda tl, x, y, p: tl.composite("math", x, y, math_op="add"), "do not broadcast"),
        (
            lambda tl, x, y, p: tl.composite("math", tl.zeros((2, 1, 5)), tl.zeros((1, 3, 5)), math_op="add"),
            r"a has shape \(2, 1, 5\)",
        ),
        (lambda tl, x, y, p: tl.composite("gemm", x, y, out_ptr=p + 2000), "run past 'c'"),
        (lambda tl, x, y, p: tl.composite("gemm", x, y, out_ptr=p, out_dtype="f32"), "holds f16"),
        (lambda tl, x, y, p: tl.wait(x), "not a composite of this kernel"),
    ],
)
def test_mistakes_fail_at_the_call(call, complaint):
    def kernel(a, b, c, tl):
        call(tl, tl.ref(a), tl.ref(b), c)

    # A tile of 512 x 512 x 512 is cut to the matrices, and then its operands alone need 12600 bytes of registers.
    graph = load_topology(
        None,
        {
            "system.sips.count": 1,
            "sip.cube_mesh.w": 1,
            "sip.cube_mesh.h": 1,
            "cube.pe_template.components.pe_fetch_store.attrs.register_file_bytes": 12288,
        },
    )
    with pytest.raises(LaunchError, match=complaint):
        run_kernel(kernel, WIDE_A, WIDE_B, np.zeros((40, 50), np.float16), topology=graph)


@pytest.mark.parametrize("shape", [(8192,), (1, 8192), (8192, 1)])
@pytest.mark.parametrize("op", ["exp", "add"])
def test_a_vector_takes_what_a_matrix_of_as_many_elements_takes(shape, op):
    def kernel(x, y, out, tl):
        operands = (tl.ref(x), tl.ref(y)) if op == "add" else (tl.ref(x),)
        tl.wait(tl.composite("math", *operands, out_ptr=out, math_op=op))

    def run(shape):
        x, y = (np.linspace(0, 1, 8192).reshape(shape).astype(np.float16) for _ in range(2))
        arrays, ns = run_kernel(kernel, x, y, np.zeros_like(x))
        expected = x + y if op == "add" else np.exp(x.astype(np.float32)).astype(np.float16)
        np.testing.assert_array_equal(arrays[2], expected)
        return ns

    assert run(shape) == run((64, 128))
