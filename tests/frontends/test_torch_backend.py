"""The torch backend against numpy's: every op, every element type, bytes, chains, and whole runs.

Integers, bools and whatever only moves bits must be equal; floats agree within the tolerance of the result's type.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.cli.main import main
from kernbench.common.dtypes import BOOL, DTYPES, F8E4M3, F16, F32, I64, DType, dtype_of
from kernbench.common.errors import DataError
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import Value, ValueGraph
from kernbench.values.ops import OPS

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from kernbench.values.on_torch.backend import COMPUTED, SOURCES  # noqa: E402  # needs torch
from kernbench.values.on_torch.storage import Resident  # noqa: E402

seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e30, -1e30, 448.0, 1e-8]
APART = {"dot", "dot_acc", "reshape", "permute", "broadcast_to", "slice", "concat", "cast", "arange", "full", "topk",
         "topk_index", "random", "gather_along"}  # fmt: skip


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType, special: bool = False) -> np.ndarray:
    if dtype is BOOL:
        return rng.integers(0, 2, shape).astype(bool)
    if not dtype.is_float:
        info = np.iinfo(dtype.numpy)
        if special:
            return rng.integers(info.min, info.max, shape, dtype.numpy, endpoint=True)
        return rng.integers(max(info.min, -11), 12, shape).astype(dtype.numpy)
    drawn = (rng.standard_normal(shape) * 2).astype(np.float32)
    if special:
        drawn = np.where(rng.random(shape) < 0.4, rng.choice(SPECIAL, shape), drawn).astype(np.float32)
    with np.errstate(over="ignore"):
        return drawn.astype(dtype.numpy)


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32).astype(np.float64)


def agree(ours: np.ndarray, theirs: np.ndarray, dtype: DType, slack: float = 1.0) -> None:
    assert theirs.dtype == ours.dtype == dtype.numpy
    assert theirs.shape == ours.shape
    if not dtype.is_float:
        np.testing.assert_array_equal(theirs, ours)
        return
    np.testing.assert_allclose(wide(theirs), wide(ours), rtol=dtype.rtol * slack, atol=dtype.atol * slack)


def same_by_both(build, slack: float = 1.0) -> None:
    """`build(graph)` gives values; both backends must agree on each."""
    try:
        ours = build(ValueGraph())
    except DataError:
        return  # ops that do not take these types
    theirs = build(ValueGraph())
    kinds = [value.dtype for value in ours]
    for a, b, dtype in zip(evaluate(ours), evaluate(theirs, backend="torch"), kinds, strict=True):
        agree(a, b, dtype, slack)


def test_both_backends_know_the_same_ops():
    assert {*COMPUTED, *SOURCES} == set(OPS)


@pytest.mark.parametrize("op", sorted(set(OPS) - APART))
@settings(max_examples=40, deadline=None)
@given(st.data(), seeds)
def test_ops_of_the_table(op, data, seed):
    rng = np.random.default_rng(seed)
    rank = data.draw(st.integers(2, 3))
    shape = tuple(data.draw(st.integers(1, 5)) for _ in range(rank))
    special = data.draw(st.booleans()) and op not in ("sum", "mean", "softmax", "cumsum", "sin", "cos", "pow")
    arrays = []
    for at in range(OPS[op].arity):
        own = tuple(1 if at and data.draw(st.booleans()) else size for size in shape)
        arrays.append(draw(rng, own, data.draw(dtypes), special))
    if op == "pow":
        arrays = [np.abs(x) if x.dtype.kind not in "b" else x for x in arrays]
    params = {"axis": data.draw(st.integers(0, rank - 1))} if "axis" in OPS[op].params else {}

    def build(graph: ValueGraph) -> list[Value]:
        return [graph.apply(op, [graph.constant(x) for x in arrays], **params)]

    same_by_both(build, slack=2.0)


@settings(max_examples=150, deadline=None)
@given(dtypes, dtypes, seeds)
def test_casts(source, target, seed):
    array = draw(np.random.default_rng(seed), (4, 7), source, special=True)
    same_by_both(lambda graph: [graph.apply("cast", (graph.constant(array),), dtype=target)], slack=0.0)


@settings(max_examples=40, deadline=None)
@given(dtypes, dtypes, dtypes, seeds)
def test_products(left, right, out, seed):
    rng = np.random.default_rng(seed)
    a, b = draw(rng, (2, 3, 6), left), draw(rng, (6, 5), right)

    def build(graph: ValueGraph) -> list[Value]:
        first = graph.apply("dot", (graph.constant(a), graph.constant(b)))
        again = graph.apply("dot_acc", (first, graph.constant(a), graph.constant(b)))
        return [first, again, graph.apply("dot", (graph.constant(a), graph.constant(b)), dtype=out)]

    same_by_both(build, slack=4.0)


@settings(max_examples=40, deadline=None)
@given(dtypes, seeds)
def test_moves(dtype, seed):
    array = draw(np.random.default_rng(seed), (3, 4, 5), dtype, special=True)

    def build(graph: ValueGraph) -> list[Value]:
        x = graph.constant(array)
        row = graph.apply("slice", (x,), starts=(0, 1, 2), stops=(3, 2, 5), steps=(2, 1, 2))
        return [
            graph.apply("reshape", (x,), shape=(12, 5)), graph.apply("permute", (x,), axes=(2, 0, 1)), row,
            graph.apply("broadcast_to", (row,), shape=(2, 4, 2)), graph.apply("concat", (x, x), axis=1),
            graph.apply("concat", (x, graph.constant(array.astype(np.float32))), axis=0),
            graph.apply("gather_along", (x, graph.constant(np.arange(30).reshape(3, 2, 5) % 4)), axis=1),
            graph.apply("topk", (x,), k=3), graph.apply("topk_index", (x,), k=2, axis=0),
            graph.full((3, 2), 1, dtype), graph.apply("arange", (), start=3, stop=9, dtype=dtype),
            graph.apply("add", (graph.full((3, 4, 5), 1, dtype), 2)),
            *[graph.apply("random", (), shape=(7, 9), seed=seed, scale=0.3, dtype=dtype)] * dtype.is_float,
        ]  # fmt: skip

    same_by_both(build, slack=0.0)


@settings(max_examples=150, deadline=None)
@given(st.data(), dtypes, dtypes, seeds)
def test_views_and_gathers_of_bytes(data, source, target, seed):
    rng = np.random.default_rng(seed)
    array = draw(rng, (8, 16), source)
    flat = array.nbytes
    size = target.itemsize
    run = size * data.draw(st.integers(1, 3))
    rows = data.draw(st.integers(1, 4))
    stride = data.draw(st.integers(run, run + 5))
    offset = data.draw(st.integers(0, flat - ((rows - 1) * stride + run)))
    uniform = data.draw(st.booleans())

    def build(graph: ValueGraph) -> list[Value]:
        parent = graph.full(array.shape, 1, source) if uniform else graph.constant(array)
        type_ = graph.type_of((rows * run // size,), target)
        strided = graph.view(parent, type_, offset, stride, rows)
        double = graph.type_of((2 * rows * run // size,), target)
        patch = (offset, stride, 0, run + run, rows, run)
        gathered = graph.gather(double, [parent, strided], [patch, (0, run, run, run + run, rows - 1 or 1, run)])
        return [strided, gathered, graph.view(gathered, type_, 0, 0, 1)]

    def raw(backend: str) -> list[np.ndarray]:
        return [x.view(np.uint8) for x in evaluate(build(ValueGraph()), backend=backend)]

    for ours, theirs in zip(raw("numpy"), raw("torch"), strict=True):
        np.testing.assert_array_equal(theirs, ours)


@pytest.mark.parametrize("tile", [(4, 8, 4), (16, 16, 16)])
def test_tile_products_of_a_k_loop(tile):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((32, 32)).astype(np.float16) for _ in range(2))
    m, k, n = tile

    def build(graph: ValueGraph) -> list[Value]:
        left, right = graph.constant(a), graph.constant(b)
        found = []
        for i in range(0, 32, m):
            for j in range(0, 32, n):
                acc = graph.full((m, n), 0, F32)
                for at in range(0, 32, k):
                    x = graph.view(left, graph.type_of((m, k), F16), 2 * (i * 32 + at), 64, m)
                    y = graph.view(right, graph.type_of((k, n), F16), 2 * (at * 32 + j), 64, k)
                    acc = graph.apply("dot_acc", (acc, x, y))
                found.append(acc)
        return found

    same_by_both(build, slack=4.0)


def test_values_stay_on_the_device_until_the_host_reads_them():
    graph = ValueGraph()
    x = graph.constant(np.ones((4, 4), np.float16))
    y = graph.apply("add", (x, 1))
    z = graph.apply("mul", (y, y))
    array = evaluate([z], backend="torch")[0]
    assert isinstance(array, np.ndarray)
    assert all(isinstance(value.data, Resident) for value in (x, y, z))
    assert evaluate([graph.apply("add", (z, x))])[0][0, 0] == 5  # numpy goes on from where torch left off


def test_products_do_not_use_tf32_and_leave_the_setting_as_it_was():
    torch.set_float32_matmul_precision("medium")
    try:
        graph = ValueGraph()
        x = graph.constant(np.full((1, 1), 1 + 2**-20, np.float32))
        assert evaluate([graph.apply("dot", (x, x))], backend="torch")[0][0, 0] > 1 + 2**-20
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("dtype", [dtype_of("f32"), F8E4M3, I64, dtype_of("u32"), dtype_of("bf16")])
def test_arrays_come_back_as_they_went(dtype):
    array = draw(np.random.default_rng(1), (3, 5), dtype, special=True)
    back = evaluate([ValueGraph().constant(array)], backend="torch")[0]
    np.testing.assert_array_equal(back.view(np.uint8), array.view(np.uint8))
    assert not back.flags.writeable


@pytest.mark.parametrize("bench", ["matmul-composite", "softmax", "flash-attention", "llm-layer"])
def test_runs_are_verified_with_the_torch_backend(bench, capsys):
    args = ["run", "--bench", bench, "--verify-data", "--backend", "torch", "--json"]
    with pytest.raises(SystemExit) as end:
        main([*args, "--set", "sip.cube_mesh.w=2", "--set", "sip.cube_mesh.h=1"])
    assert end.value.code == 0
    found = json.loads(capsys.readouterr().out)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    assert found["data"]
    assert found["backend"] == {"name": "torch", "device": device}
