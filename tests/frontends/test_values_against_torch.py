"""Ops against PyTorch, where it is installed: the same names on the same numbers, and the torch backend against
numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.dtypes import BF16, F16, F32, DType
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import ValueGraph

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the numpy oracle judges the same ops")

UNARY = {
    "exp": torch.exp,
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "rsqrt": lambda x: torch.rsqrt(x.abs() + 1),
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "sigmoid": torch.sigmoid,
    "silu": torch.nn.functional.silu,
    "tanh": torch.tanh,
    "erf": torch.erf,
}
BEFORE = {"sqrt": lambda g, x: g.apply("abs", (x,)), "rsqrt": lambda g, x: g.apply("add", (g.apply("abs", (x,)), 1))}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "eq": torch.eq,
    "lt": torch.lt,
}
floats = st.sampled_from([F32, F16, BF16])
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)
seeds = st.integers(0, 2**31 - 1)


def pair(shape: tuple[int, ...], dtype: DType, seed: int) -> tuple[np.ndarray, torch.Tensor]:
    array = np.random.default_rng(seed).standard_normal(shape).astype(np.float32).astype(dtype.numpy)
    tensor = torch.from_numpy(array.astype(np.float32)).to(getattr(torch, dtype.numpy_name))
    return array, tensor


def agree(got: np.ndarray, tensor: torch.Tensor, dtype: DType, slack: float = 1.0) -> None:
    assert str(tensor.dtype) == f"torch.{dtype.numpy_name}"
    expected = tensor.to(torch.float32).numpy()
    np.testing.assert_allclose(got.astype(np.float32), expected, rtol=dtype.rtol * slack, atol=dtype.atol * slack)


@pytest.mark.parametrize("op", UNARY)
@settings(max_examples=20, deadline=None)
@given(shapes, floats, seeds)
def test_unary_ops(op, shape, dtype, seed):
    array, tensor = pair(shape, dtype, seed)
    graph = ValueGraph()
    x = BEFORE.get(op, lambda g, v: v)(graph, graph.constant(array))
    value = graph.apply(op, (x,))
    agree(evaluate([value])[0], UNARY[op](tensor), value.dtype)


@pytest.mark.parametrize("op", BINARY)
@settings(max_examples=20, deadline=None)
@given(shapes, floats, floats, seeds)
def test_binary_ops_mix_dtypes_alike(op, shape, left, right, seed):
    (a, ta), (b, tb) = pair(shape, left, seed), pair(shape[-1:], right, seed + 1)
    graph = ValueGraph()
    value = graph.apply(op, (graph.constant(a), graph.constant(b)))
    agree(evaluate([value])[0], BINARY[op](ta, tb), value.dtype)


@settings(max_examples=20, deadline=None)
@given(shapes, floats, st.floats(-4, 4, width=32), seeds)
def test_scalars_do_not_widen(shape, dtype, scalar, seed):
    array, tensor = pair(shape, dtype, seed)
    graph = ValueGraph()
    value = graph.apply("mul", (graph.constant(array), scalar))
    agree(evaluate([value])[0], tensor * scalar, value.dtype)


@settings(max_examples=20, deadline=None)
@given(shapes, floats, st.data(), seeds)
def test_softmax_and_sums(shape, dtype, data, seed):
    axis = data.draw(st.integers(0, len(shape) - 1))
    array, tensor = pair(shape, dtype, seed)
    graph = ValueGraph()
    expected = {"softmax": torch.softmax(tensor, axis), "sum": tensor.sum(axis), "mean": tensor.mean(axis)}
    for op in expected:
        value = graph.apply(op, (graph.constant(array),), axis=axis)
        agree(evaluate([value])[0], expected[op], value.dtype)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), floats, seeds)
def test_dot_rounded_to_its_inputs_type_is_matmul(m, k, n, dtype, seed):
    (a, ta), (b, tb) = pair((m, k), dtype, seed), pair((k, n), dtype, seed + 1)
    graph = ValueGraph()
    value = graph.apply("dot", (graph.constant(a), graph.constant(b)), dtype=dtype)
    agree(evaluate([value])[0], ta @ tb, dtype, slack=10)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.sampled_from([F16, BF16]), seeds)
def test_an_accumulating_dot_is_addmm_in_f32_rounded_once(m, k, n, dtype, seed):
    (a, ta), (b, tb), (c, tc) = (pair(s, dtype, seed + i) for i, s in enumerate(((m, k), (k, n), (m, n))))
    graph = ValueGraph()
    value = graph.apply("dot_acc", [graph.constant(x) for x in (c, a, b)], dtype=dtype)
    exact = torch.addmm(tc.float(), ta.float(), tb.float())
    agree(evaluate([value])[0], exact.to(tc.dtype), dtype, slack=2)


@settings(max_examples=20, deadline=None)
@given(shapes, st.sampled_from([F32, F16]), st.data(), seeds)
def test_orders_and_sums_so_far(shape, dtype, data, seed):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    k = data.draw(st.integers(1, shape[axis]))
    array, tensor = pair(shape, dtype, seed)
    graph = ValueGraph()
    x = graph.constant(array)
    top = torch.topk(tensor, k, dim=axis)
    expected = {
        ("topk", ("k", k)): top.values,
        ("topk_index", ("k", k)): top.indices,
        ("sort", ("descending", True)): torch.sort(tensor, dim=axis, descending=True).values,
        ("argmax", ("keep_dims", True)): torch.argmax(tensor, dim=axis, keepdim=True),
        ("argmin", ("keep_dims", False)): torch.argmin(tensor, dim=axis),
        ("flip",): torch.flip(tensor, (axis,)),
    }
    for (op, *params), want in expected.items():
        got = evaluate([graph.apply(op, [x], axis=axis, **dict(params))])[0]
        np.testing.assert_array_equal(got, want.numpy())
    value = graph.apply("cumsum", [x], axis=axis)
    agree(evaluate([value])[0], torch.cumsum(tensor, axis), dtype, slack=2)


WHOLE = {
    "bit_and": torch.bitwise_and,
    "bit_or": torch.bitwise_or,
    "bit_xor": torch.bitwise_xor,
    "shl": lambda a, b: torch.bitwise_left_shift(a, b.abs() % 8),
    "shr": lambda a, b: torch.bitwise_right_shift(a, b.abs() % 8),
    "floordiv": lambda a, b: torch.div(a, b.abs() % 8 + 1, rounding_mode="floor"),
    "mod": lambda a, b: torch.remainder(a, b.abs() % 8 + 1),
}


@pytest.mark.parametrize("op", WHOLE)
@settings(max_examples=20, deadline=None)
@given(st.sampled_from(["int8", "int16", "int32", "int64", "uint8"]), seeds)
def test_integers(op, name, seed):
    info = np.iinfo(name)
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(info.min, info.max, 16, endpoint=True).astype(name) for _ in range(2))
    ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    small = (tb.abs() % 8).numpy()
    right = b if op.startswith("bit") else small if op in ("shl", "shr") else small + np.ones((), name)
    graph = ValueGraph()
    got = evaluate([graph.apply(op, (graph.constant(a), graph.constant(right)))])[0]
    np.testing.assert_array_equal(got, WHOLE[op](ta, tb).numpy())


def test_the_torch_backend_agrees_with_numpy():
    def values():
        rng = np.random.default_rng(3)
        graph = ValueGraph()
        a, b = (graph.constant(rng.standard_normal((48, 48)).astype(np.float16)) for _ in range(2))
        acc = graph.apply("dot", (a, b))
        return [graph.apply("gelu", (graph.apply("dot_acc", (acc, a, b)),)), acc]

    for ours, theirs in zip(evaluate(values()), evaluate(values(), backend="torch"), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
