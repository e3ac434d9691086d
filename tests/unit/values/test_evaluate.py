"""Pass 2: same bits however it is batched, no recursion, results cached, intermediates let go."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.dtypes import BF16, DTYPES, F8E4M3, F16, F32, I8
from kernbench.common.errors import DataError, UsageError
from kernbench.values import chains, stacking
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import ValueGraph
from kernbench.values.numpy_backend import NumpyBackend
from kernbench.values.plan import plan_levels

UNARY = ("exp", "exp2", "log", "sqrt", "rsqrt", "sin", "cos", "erf", "gelu", "sigmoid", "silu", "tanh", "abs", "relu")


def tiled_gemm(graph, a, b, tile):
    """C tiles of a @ b as chains of products of tiles cut out of two parents."""
    (m, k), n = a.shape, b.shape[1]
    tm, tk, tn = tile
    size = a.dtype.itemsize
    results = []
    for i in range(0, m, tm):
        for j in range(0, n, tn):
            acc = None
            for at in range(0, k, tk):
                left = graph.view(a, graph.type_of((tm, tk), a.dtype), (i * k + at) * size, k * size, tm)
                right = graph.view(b, graph.type_of((tk, tn), b.dtype), (at * n + j) * size, n * size, tk)
                acc = graph.apply("dot", (left, right)) if acc is None else graph.apply("dot_acc", (acc, left, right))
            results.append(acc)
    return results


def random_array(rng, shape, dtype):
    if dtype.is_float:
        return rng.standard_normal(shape).astype(np.float32).astype(dtype.numpy)
    return rng.integers(0, 2 if dtype.name == "bool" else 100, shape).astype(dtype.numpy)


def gemm_values(dtype=F16, m=64, k=96, n=48):
    rng = np.random.default_rng(7)
    graph = ValueGraph()
    a, b = (graph.constant(random_array(rng, shape, dtype)) for shape in ((m, k), (k, n)))
    return graph, a, b


@pytest.mark.parametrize("dtype", [F16, BF16, F8E4M3, F32, I8])
def test_a_sum_of_tiles_has_the_same_bits_batched_threaded_or_alone(dtype):
    (graph, a, b), (other, c, d) = gemm_values(dtype), gemm_values(dtype)
    together = evaluate(tiled_gemm(graph, a, b, (16, 32, 16)), threads=2)
    wide = [x.data.astype(np.int32 if dtype is I8 else np.float32) for x in (a, b)]
    for at, value in enumerate(tiled_gemm(other, c, d, (16, 32, 16))):
        one_by_one = evaluate([value], threads=1)[0]
        assert one_by_one.tobytes() == together[at].tobytes()
        row, column = divmod(at, 3)
        by_hand = None
        for k in range(0, 96, 32):
            tile = np.matmul(
                wide[0][row * 16 : row * 16 + 16, k : k + 32].copy(),
                wide[1][k : k + 32, column * 16 : column * 16 + 16].copy(),
            )
            by_hand = tile if by_hand is None else by_hand + tile
        assert one_by_one.tobytes() == by_hand.tobytes()


@pytest.mark.parametrize("chunk", [1, 5000, 100_000])
def test_chunks_of_any_size_give_the_same_bits(chunk, monkeypatch):
    graph, a, b = gemm_values()
    expected = [x.tobytes() for x in evaluate(tiled_gemm(graph, a, b, (16, 32, 16)), threads=1)]
    for module in (stacking, chains):
        monkeypatch.setattr(module, "CHUNK_BYTES", chunk)
    monkeypatch.setattr(NumpyBackend, "chunk_bytes", chunk)
    graph, a, b = gemm_values()
    assert [x.tobytes() for x in evaluate(tiled_gemm(graph, a, b, (16, 32, 16)), threads=3)] == expected


def test_columns_side_by_side_or_one_by_one_give_the_same_bits(monkeypatch):
    (graph, a, b), (other, c, d) = gemm_values(), gemm_values()
    expected = evaluate(tiled_gemm(graph, a, b, (16, 32, 16)), threads=1)
    monkeypatch.setattr(chains, "joins_exactly", lambda m, k, n, columns: False)
    got = evaluate(tiled_gemm(other, c, d, (16, 32, 16)), threads=1)
    assert [x.tobytes() for x in got] == [x.tobytes() for x in expected]


def test_tiles_are_joined_only_where_a_wide_product_has_the_same_bits(monkeypatch):
    # A BLAS whose last bits depend on the width of a product: what is wider than a tile is rounded once, from doubles.
    true_matmul = np.matmul

    def matmul(a, b):
        wide = b.shape[-1] > 16 and a.dtype == np.float32
        return true_matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.float32) if wide else true_matmul(a, b)

    monkeypatch.setattr(np, "matmul", matmul)
    monkeypatch.setattr(chains, "joins_exactly", chains.joins_exactly.__wrapped__)  # what is cached is of the real one
    assert not chains.joins_exactly(16, 32, 16, 3)
    (graph, a, b), (other, c, d) = gemm_values(F32), gemm_values(F32)
    together = evaluate(tiled_gemm(graph, a, b, (16, 32, 16)))
    one_by_one = [evaluate([value])[0] for value in tiled_gemm(other, c, d, (16, 32, 16))]
    assert [tile.tobytes() for tile in together] == [tile.tobytes() for tile in one_by_one]


def test_tiles_are_joined_where_every_element_is_added_up_in_the_same_order(monkeypatch):
    def matmul(a, b):
        return sum(a[..., at : at + 1] * b[..., at : at + 1, :] for at in range(a.shape[-1]))  # whatever the width

    monkeypatch.setattr(np, "matmul", matmul)
    assert chains.joins_exactly.__wrapped__(4, 6, 5, 3)
    assert chains.joins_exactly.__wrapped__(1, 6, 1, 2)


@pytest.mark.parametrize("k", [16, 64, 96, 256])
@pytest.mark.parametrize("tile", [(8, 1), (64, 1), (16, 16), (32, 33)])
def test_a_grid_of_products_has_the_bits_of_each_alone_whatever_the_sizes(tile, k):
    # Tiles of one column are products with a vector, which a BLAS adds up in another order than products of matrices.
    m, n = tile
    (graph, a, b), (other, c, d) = (gemm_values(F32, 2 * m, k, 4 * n) for _ in range(2))
    together = evaluate(tiled_gemm(graph, a, b, (m, k, n)))
    one_by_one = [evaluate([value])[0] for value in tiled_gemm(other, c, d, (m, k, n))]
    assert [x.tobytes() for x in together] == [x.tobytes() for x in one_by_one]


def test_chains_that_start_from_a_value_add_to_it():
    graph, a, b = gemm_values()
    bias = graph.constant(np.arange(256, dtype=np.float32).reshape(16, 16))
    tiles = [graph.apply("dot_acc", (bias, *link.inputs[-2:])) for link in tiled_gemm(graph, a, b, (16, 96, 16))]
    wide = a.data.astype(np.float32), b.data.astype(np.float32)
    for at, got in enumerate(evaluate(tiles)):
        row, column = divmod(at, 3)
        rows, columns = slice(row * 16, row * 16 + 16), slice(column * 16, column * 16 + 16)
        np.testing.assert_array_equal(got, bias.data + wide[0][rows].copy() @ wide[1][:, columns].copy())


def test_a_link_read_in_the_middle_of_a_chain_changes_nothing():
    def chain_values():
        graph, a, b = gemm_values()
        last = tiled_gemm(graph, a, b, (16, 16, 16))[0]
        links = [last]
        while links[-1].op == "dot_acc":
            links.append(links[-1].inputs[0])
        return links[::-1]

    expected = evaluate(chain_values()[-1:], keep_inputs=True)[0]
    each = chain_values()
    one_by_one = [
        evaluate([link])[0].tobytes() for link in each
    ]  # oldest first: each starts from the cached one before
    assert one_by_one[-1] == expected.tobytes()
    roots = chain_values()
    assert [x.tobytes() for x in evaluate(roots)] == one_by_one
    shared = chain_values()
    middle = evaluate([shared[5], shared[2]])
    assert [x.tobytes() for x in middle] == [one_by_one[5], one_by_one[2]]
    assert evaluate([shared[3]])[0].tobytes() == one_by_one[3]


def test_a_link_that_another_op_uses_is_computed_once_and_cuts_the_chain():
    graph, a, b = gemm_values()
    last = tiled_gemm(graph, a, b, (16, 32, 16))[0]
    middle = last.inputs[0]
    double = graph.apply("add", (middle, middle))
    units = [unit for level in plan_levels([last, double]) for group in level.chains.values() for unit in group]
    assert sorted(len(unit.links) for unit in units) == [1, 2]
    got = evaluate([double, last])
    assert middle.data is not None
    np.testing.assert_array_equal(got[0], middle.data * 2)


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(UNARY),
    st.sampled_from([F32, F16, BF16]),
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.integers(2, 9),
    st.integers(0, 2**32 - 1),
)
def test_elementwise_ops_have_the_same_bits_batched_or_alone(op, dtype, shape, count, seed):
    rng = np.random.default_rng(seed)
    arrays = [np.abs(random_array(rng, shape, dtype)) for _ in range(count)]
    graph = ValueGraph()
    together = evaluate([graph.apply(op, (graph.constant(x),)) for x in arrays], threads=1)
    one_by_one = [evaluate([graph.apply(op, (graph.constant(x),))], threads=1)[0] for x in arrays]
    assert [x.tobytes() for x in together] == [x.tobytes() for x in one_by_one]


@settings(max_examples=20, deadline=None)
@given(
    st.sampled_from(["sum", "mean", "max", "min", "softmax"]),
    st.sampled_from(DTYPES),
    st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.integers(2, 5),
    st.data(),
)
def test_reductions_have_the_same_bits_batched_or_alone(op, dtype, shape, count, data):
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    arrays = [random_array(rng, shape, dtype) for _ in range(count)]
    graph = ValueGraph()
    together = evaluate([graph.apply(op, (graph.constant(x),), axis=axis) for x in arrays], threads=1)
    one_by_one = [evaluate([graph.apply(op, (graph.constant(x),), axis=axis)], threads=1)[0] for x in arrays]
    assert [x.tobytes() for x in together] == [x.tobytes() for x in one_by_one]


def test_twenty_thousand_dependent_ops_need_no_recursion():
    graph = ValueGraph()
    value = graph.constant(np.zeros(1, np.int32))
    for _ in range(20_000):
        value = graph.apply("neg", (value,))
    levels = plan_levels([value])
    assert len(levels) == 20_000
    one, two = graph.constant(np.ones((1, 1), np.int8)), graph.constant(np.full((1, 1), 2, np.int8))
    acc = graph.apply("dot", (one, two))
    for _ in range(19_999):
        acc = graph.apply("dot_acc", (acc, one, two))
    assert evaluate([acc])[0].tolist() == [[40_000]]
    del value, acc, levels  # freeing a long chain must not recurse either


def test_an_evaluated_value_is_computed_once_and_lets_go_of_its_inputs():
    graph = ValueGraph()
    x = graph.constant(np.arange(4, dtype=np.float32))
    inner = graph.apply("exp", (x,))
    outer = graph.apply("neg", (inner,))
    first = evaluate([outer])[0]
    assert evaluate([outer])[0] is first
    assert outer.inputs == ()
    assert outer.op == "neg"
    kept = graph.apply("neg", (graph.apply("exp", (x,)),))
    evaluate([kept], keep_inputs=True)
    assert kept.inputs[0].data is not None


def test_views_gathers_and_products_let_go_of_their_inputs_too():
    graph = ValueGraph()
    x = graph.apply("exp", (graph.constant(np.zeros((2, 2), np.float32)),))
    view = graph.view(x, graph.type_of((2,), F32), 4, 0, 1)
    gathered = graph.gather(graph.type_of((4,), F32), (x,), ((0, 0, 8, 0, 1, 8),))
    product = graph.apply("dot", (x, x))
    arrays = evaluate([view, gathered, product])
    assert [array.tolist() for array in arrays] == [[1, 1], [0, 0, 1, 1], [[2, 2], [2, 2]]]
    assert [value.inputs for value in (x, view, gathered, product)] == [(), (), (), ()]


def test_intermediates_without_references_are_freed():
    graph = ValueGraph()
    inner = graph.apply("exp", (graph.constant(np.arange(4, dtype=np.float32)),))
    evaluate([inner])
    watched = weakref.ref(inner.data.base if inner.data.base is not None else inner.data)
    outer = graph.apply("neg", (inner,))
    del inner
    evaluate([outer])
    gc.collect()
    assert watched() is None


def test_results_cannot_be_written():
    graph = ValueGraph()
    x = graph.constant(np.ones((2, 2), np.float32))
    for value in (graph.apply("trans", (x,)), graph.apply("dot", (x, x)), graph.full((2, 2), 1.0, F32)):
        with pytest.raises(ValueError, match="read-only"):
            evaluate([value])[0][0, 0] = 5


def test_values_of_two_graphs_do_not_mix():
    late = ValueGraph()
    for _ in range(5):
        foreign = late.apply("exp", (late.full((2,), 1.0, F32),))
    mixed = ValueGraph().apply("neg", (foreign,))
    with pytest.raises(DataError, match="of another graph"):
        evaluate([mixed])


def test_an_unknown_backend_is_refused():
    with pytest.raises(UsageError, match="no backend 'cuda'"):
        evaluate([], backend="cuda")


def test_a_gather_lays_pieces_side_by_side():
    graph = ValueGraph()
    a, b = graph.constant(np.arange(4, dtype=np.int8)), graph.full((4,), 9, I8)
    # a in two rows of 2 at columns 0-1, b in two rows of 1 at column 2; column 3 stays zero.
    value = graph.gather(graph.type_of((2, 4), I8), (a, b), ((0, 2, 0, 4, 2, 2), (1, 1, 2, 4, 2, 1)))
    assert evaluate([value])[0].tolist() == [[0, 1, 9, 0], [2, 3, 9, 0]]
