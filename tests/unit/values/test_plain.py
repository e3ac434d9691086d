"""The second meaning of every op: it agrees with the first, and sees when the first is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from kernbench.common.array_types import Array
from kernbench.common.dtypes import BF16, DTYPES, F8E4M3, F8E5M2, F16, F32, I8, INT_RANGE, DType
from kernbench.sim_engine.data_executor import DataCheck, DataExecutor
from kernbench.values.graph import Value, ValueGraph
from kernbench.values.ops import OPS
from kernbench.values.plain import KNOWN, expected

seeds = st.integers(0, 2**32 - 1)
dtypes = st.sampled_from(DTYPES)
shapes = st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple)
NOT_ELEMENTWISE = ("dot", "dot_acc", "cast")
ELEMENTWISE = [name for name, op in OPS.items() if list(op.params) == ["dtype"] and name not in NOT_ELEMENTWISE]
WHOLE = ("shl", "shr", "bit_and", "bit_or", "bit_xor", "bit_not")
REDUCTIONS = [name for name, op in OPS.items() if list(op.params) == ["axis", "keep_dims", "dtype"]]
EXTREMES = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 65504.0, 1e30, -1e38, 1e-30]


def draw(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Numbers of every size, some of them extreme."""
    if not dtype.is_float:
        low, high = INT_RANGE[dtype]
        small = rng.integers(max(low, -9), min(high, 9), shape, endpoint=True)
        large = rng.integers(low, high, shape, endpoint=True)
        return np.where(rng.random(shape) < 0.8, small, large).astype(dtype.numpy)
    plain = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 3, shape)
    with np.errstate(over="ignore"):
        mixed = np.where(rng.random(shape) < 0.9, plain, rng.choice(EXTREMES, shape))
        return mixed.astype(np.float32).astype(dtype.numpy)


def checked(*outputs: Value) -> list[DataCheck]:
    executor = DataExecutor(debug_ops=True, threads=1)
    executor.run(outputs)
    return executor.ops


def test_every_op_has_a_second_meaning() -> None:
    assert {*OPS, "view", "gather"} == KNOWN


@pytest.mark.parametrize("op", ELEMENTWISE)
@settings(max_examples=15, deadline=None)
@given(st.data(), seeds)
def test_both_meanings_agree_on_elementwise_ops(op: str, data: st.DataObject, seed: int) -> None:
    arity, graph = OPS[op].arity, ValueGraph()
    found = data.draw(mutually_broadcastable_shapes(num_shapes=arity, max_dims=3, max_side=5, min_side=1))
    rng = np.random.default_rng(seed)
    kinds = st.sampled_from([dtype for dtype in DTYPES if not dtype.is_float]) if op in WHOLE else dtypes
    inputs = [graph.constant(draw(rng, shape, data.draw(kinds))) for shape in found.input_shapes]
    (check,) = checked(graph.apply(op, inputs))
    assert check.ok, check


def some(rng: np.random.Generator, shape: tuple[int, ...], dtype: DType) -> Array:
    """Whole numbers near 0, many of them equal."""
    low = INT_RANGE[dtype][0] if not dtype.is_float else -3
    return rng.integers(max(low, -3), 3, shape, endpoint=True).astype(np.float32).astype(dtype.numpy)


@pytest.mark.parametrize("op", [*REDUCTIONS, "softmax", "cumsum", "sort", "flip"])
@settings(max_examples=15, deadline=None)
@given(st.data(), shapes, dtypes, seeds)
def test_both_meanings_agree_along_an_axis(
    op: str, data: st.DataObject, shape: tuple[int, ...], dtype: DType, seed: int
) -> None:
    graph = ValueGraph()
    array = some(np.random.default_rng(seed), shape, dtype)
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    more = {"keep_dims": data.draw(st.booleans())} if op in REDUCTIONS else {}
    more = {"descending": data.draw(st.booleans())} if op == "sort" else more
    (check,) = checked(graph.apply(op, [graph.constant(array)], axis=axis, **more))
    assert check.ok, check


@settings(max_examples=15, deadline=None)
@given(shapes, dtypes, st.data(), seeds)
def test_both_meanings_agree_on_orders_with_nan_and_equals(
    shape: tuple[int, ...], dtype: DType, data: st.DataObject, seed: int
) -> None:
    graph, rng = ValueGraph(), np.random.default_rng(seed)
    x = graph.constant(np.where(rng.random(shape) < 0.5, some(rng, shape, dtype), draw(rng, shape, dtype)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(1, shape[axis]))
    made = [graph.apply(op, [x], k=k, axis=axis) for op in ("topk", "topk_index")]
    made += [graph.apply(op, [x], axis=axis, descending=down) for op in ("sort", "argsort") for down in (False, True)]
    made.append(graph.apply("gather_along", [x, made[-1]], axis=axis))
    checks = checked(*made, graph.apply("argmax", [x], axis=axis), graph.apply("argmin", [x]))
    assert all(check.ok for check in checks), checks


@settings(max_examples=15, deadline=None)
@given(st.tuples(*[st.integers(1, 20)] * 3), dtypes, dtypes, st.sampled_from(["f16", "bf16", None]), seeds)
def test_both_meanings_agree_on_products(
    size: tuple[int, int, int], left: DType, right: DType, rounded: str | None, seed: int
) -> None:
    (m, k, n), graph, rng = size, ValueGraph(), np.random.default_rng(seed)
    a, b = (rng.standard_normal(shape).astype(np.float32) * 3 for shape in ((m, k), (k, n)))
    a, b = (np.abs(x) if t.name[0] == "u" else x for x, t in ((a, left), (b, right)))
    x, y = graph.constant(a.astype(left.numpy)), graph.constant(b.astype(right.numpy))
    first = graph.apply("dot", [x, y])
    second = graph.apply("dot_acc", [first, x, y], dtype=rounded if first.dtype.is_float else None)
    checks = checked(graph.apply("dot_acc", [second, x, y]), first)
    assert all(check.ok for check in checks), checks


@settings(max_examples=15, deadline=None)
@given(shapes, dtypes, dtypes, seeds)
def test_both_meanings_agree_on_what_moves(shape: tuple[int, ...], dtype: DType, other: DType, seed: int) -> None:
    graph, rng = ValueGraph(), np.random.default_rng(seed)
    x = graph.constant(draw(rng, (2, *shape), dtype))
    turned = graph.apply("permute", [graph.apply("trans", [x])], axes=tuple(reversed(range(len(x.shape)))))
    flat = graph.apply("reshape", [turned], shape=(-1,))
    cut = graph.apply("slice", [flat], starts=(1,), stops=flat.shape, steps=(2,))
    cast = graph.apply("cast", [graph.apply("concat", [cut, graph.apply("cast", [cut], dtype=other)])], dtype=other)
    counted = graph.apply("arange", start=0, stop=2, dtype=other)
    spread = graph.apply("broadcast_to", [graph.full((1,), 1, other)], shape=(3, 2))
    half = graph.view(x, graph.type_of((x.nbytes,), I8), 0, 0, 1)
    patched = graph.gather(graph.type_of((x.nbytes,), I8), [half], [(1, 0, 0, 0, 1, x.nbytes - 1)])
    comb = graph.view(x, graph.type_of((2, 1), dtype), 0, x.nbytes // 2, 2)
    checks = checked(cast, counted, spread, patched, comb)
    assert {check.tensor.split()[1].partition("[")[0] for check in checks} >= {"concat", "view", "gather", "slice"}
    assert all(check.ok for check in checks), [check for check in checks if not check.ok]


def test_sums_that_cancel_are_not_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    # Terms of about 30 that add up to nearly nothing: f32 leaves more of them than 1e-5, and is not wrong.
    graph, rng = ValueGraph(), np.random.default_rng(3)
    half = rng.standard_normal(2048).astype(np.float32) * 30
    terms = rng.permutation(np.concatenate([half, -half + np.float32(1e-6)]))
    product = [graph.constant(terms.reshape(1, -1)), graph.constant(np.ones((4096, 1), np.float32))]
    (check,) = checked(graph.apply("dot", product))
    assert check.ok, check
    monkeypatch.setattr("kernbench.values.plain.SUM_SLACK", 0.0)
    (check,) = checked(graph.apply("dot", product))
    assert not check.ok


@pytest.mark.parametrize("dtype", [F16, BF16, F8E4M3, F8E5M2, F32])
def test_results_beyond_a_type_are_expected_as_it_holds_them(dtype: DType) -> None:
    graph = ValueGraph()
    x = graph.constant(np.array([3.0e38, -3.0e38], np.float32))
    (check,) = checked(graph.apply("add", [x, x], dtype=dtype))  # infinite, or 448 where there is no infinity
    assert check.ok
    assert x.data is not None
    wanted = expected(graph.apply("add", [x, x], dtype=dtype), [x.data, x.data])
    assert abs(wanted.answer).tolist() == [448.0 if dtype is F8E4M3 else np.inf] * 2


# ---- faults


def spoil(monkeypatch: pytest.MonkeyPatch, op: str, other: str) -> None:
    """From now on `op` computes what `other` should."""
    monkeypatch.setitem(OPS, op, replace(OPS[op], compute=OPS[other].compute))


@pytest.mark.parametrize(
    ("op", "other"),
    [("add", "sub"), ("sub", "add"), ("mul", "add"), ("div", "mul"), ("fma", "clamp"), ("exp", "exp2"), ("log", "log2"),
     ("gelu", "silu"), ("silu", "relu"), ("erf", "tanh"), ("sigmoid", "tanh"), ("rsqrt", "sqrt"), ("sin", "cos"),
     ("relu", "abs"), ("abs", "neg"), ("maximum", "minimum"), ("lt", "le"), ("eq", "ne"), ("logical_and", "logical_or"),
     ("sum", "mean"), ("max", "min"), ("argmax", "argmin"), ("argmin", "argmax"), ("floor", "ceil"), ("ceil", "floor"),
     ("floordiv", "div"), ("mod", "sub"), ("pow", "mul"), ("isnan", "logical_not"),
     ("bias_add", "scale"), ("scale", "bias_add"), ("dequant", "add")],
)  # fmt: skip
def test_a_wrong_definition_is_found(op: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, op, other)
    graph = ValueGraph()
    x, y, z = (graph.constant(np.array(v, np.float32)) for v in ([-2.0, 1.5, 0.0], [3.0, 1.5, 2.0], [5.0, -7.0, 0.5]))
    if op in ("log", "rsqrt"):
        x = y
    (check,) = checked(graph.apply(op, [x, y, z][: OPS[op].arity]))
    assert not check.ok
    assert check.tensor.split()[1].startswith(f"{op}[")


@pytest.mark.parametrize(
    ("op", "other"),
    [("bit_and", "bit_or"), ("bit_or", "bit_xor"), ("bit_xor", "bit_or"), ("shl", "shr"), ("shr", "shl"),
     ("bit_not", "neg"), ("floordiv", "mod")],
)  # fmt: skip
def test_a_wrong_definition_on_integers_is_found(op: str, other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, op, other)
    graph = ValueGraph()
    x, y = graph.constant(np.array([6, -7, 5], np.int64)), graph.constant(np.array([3, 5, 2], np.int64))
    (check,) = checked(graph.apply(op, [x, y][: OPS[op].arity]))
    assert not check.ok


def test_the_last_bit_of_a_64_bit_integer_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "bit_or", "bit_xor")
    graph = ValueGraph()
    x, one = graph.constant(np.array([2**62 + 1])), graph.constant(np.array([1]))
    (check,) = checked(graph.apply("bit_or", [x, one]))  # as xor, 2**62, which as a double is the same
    assert (check.ok, check.max_abs_err) == (False, 1.0)


def test_results_of_a_batch_that_are_mixed_up_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def mixed_up(values: list[Value], stack: Array) -> None:
        for value, array in zip(values, stack[::-1], strict=True):
            value.data = array

    monkeypatch.setattr("kernbench.values.numpy_backend._store_stack", mixed_up)
    graph = ValueGraph()
    sums = [graph.apply("add", [graph.constant(np.full(4, n, np.float32)), 1]) for n in range(17)]  # 16 are no batch
    wrong = [check for check in checked(*sums) if not check.ok]
    # 1, 2, ..., 17 came as 17, 16, ..., 1: off by 16, 14, ..., 2, 0, 2, ..., 16
    assert [check.max_abs_err for check in wrong] == [*range(16, 0, -2), *range(2, 17, 2)]


def test_a_fault_is_reported_where_it_is_and_not_in_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(monkeypatch, "mul", "add")
    graph = ValueGraph()
    x = graph.constant(np.arange(4, dtype=np.float32))
    total = graph.apply("sum", [graph.apply("exp", [graph.apply("mul", [x, 3])])])
    assert [check.tensor.split()[1] for check in checked(total) if not check.ok] == ["mul[4]"]


def test_a_chain_of_products_is_judged_by_its_last_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kernbench.values.numpy_backend.product", lambda a, b, *types: np.matmul(a, b) * np.float32(1.01)
    )
    graph = ValueGraph()
    a, b = graph.constant(np.eye(4, dtype=np.float32)), graph.constant(np.ones((4, 4), np.float32))
    value = graph.apply("dot", [a, b], dtype="f32")
    for _ in range(3):
        value = graph.apply("dot_acc", [value, a, b])
    (check,) = checked(value)  # links inside the chain are not stored
    assert check.tensor.split()[1] == "dot_acc[4,"
    assert not check.ok
    assert check.max_abs_err == pytest.approx(4 * 0.01)
