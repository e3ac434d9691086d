"""Values: numbering, types, scalars, and the errors of shapes and dtypes that do not fit."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from kernbench.common.dtypes import BF16, BOOL, F8E4M3, F16, F32, F64, I8, I32, I64, U64
from kernbench.common.errors import DataError
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import ValueGraph


@pytest.fixture
def graph():
    return ValueGraph()


def test_ids_count_up_and_graphs_share_nothing():
    for graph in (ValueGraph(), ValueGraph()):
        a = graph.full((2, 2), 1.0, F16)
        b = graph.apply("add", (a, a))
        assert (a.id, b.id) == (1, 2)
        assert b.inputs == (a, a)


def test_a_constant_is_a_copy_that_cannot_be_written(graph):
    array = np.ones((2, 3), np.float32)
    value = graph.constant(array)
    array[0, 0] = 5
    assert value.data[0, 0] == 1
    assert (value.shape, value.dtype, value.nbytes) == ((2, 3), F32, 24)
    with pytest.raises(ValueError, match="read-only"):
        value.data[0, 0] = 2


def test_a_constant_is_converted_when_asked_and_what_has_no_type_is_refused_otherwise(graph):
    assert graph.constant([1.5, 2.5], "bf16").dtype is BF16
    assert graph.constant([1, 2], I8).data.tolist() == [1, 2]
    assert graph.constant([1.5]).dtype is F64
    assert graph.constant(np.ones(2, np.uint64)).dtype is U64
    with pytest.raises(DataError, match="complex64"):
        graph.constant(np.ones(2, np.complex64))
    whole = graph.constant([2**40, -1])
    assert (whole.dtype, whole.data.tolist()) == (I64, [2**40, -1])


def test_a_huge_full_value_takes_no_memory_even_when_evaluated(graph):
    value = graph.full((1 << 20, 1 << 20), 2.0, F16)
    assert value.nbytes == 2 << 40
    array = evaluate([value])[0]
    assert array[5, 7] == 2
    assert array.strides == (0, 0)


def test_a_scalar_keeps_its_precision_and_the_type_of_the_tensor(graph):
    x = graph.constant(np.array([3.0], np.float16))
    tenth = graph.apply("mul", (x, 0.1))
    assert tenth.dtype is F16
    # 3 * f32(0.1) = 0.3 rounds to 0.3 in f16; 3 * f16(0.1) would round to 0.2999.
    assert evaluate([tenth])[0][0] == np.float16(0.3)
    assert graph.apply("sub", (1, x)).dtype is F16
    assert graph.apply("add", (graph.full((2,), 1, I8), 3)).dtype is I8
    assert graph.apply("add", (graph.full((2,), 1, I8), 0.5)).dtype is F32
    assert graph.apply("lt", (x, 4)).dtype is BOOL


def test_a_choice_between_scalars_takes_the_type_of_the_scalars(graph):
    mask = graph.constant([True, False])
    assert graph.apply("where", (mask, 1.0, 0.0)).dtype is F32
    assert graph.apply("where", (mask, 1, 0)).dtype is I32
    half = graph.apply("where", (mask, graph.full((2,), 1.0, F16), float("-inf")))
    assert half.dtype is F16
    assert evaluate([half])[0].tolist() == [1, -np.inf]


def test_result_types(graph):
    h, b8, i = graph.full((2, 3), 1.0, F16), graph.full((3,), 1.0, F8E4M3), graph.full((2, 3), 1, I8)
    w = graph.full((3, 4), 1.0, F16)
    assert graph.apply("add", (h, b8)).type is graph.type_of((2, 3), F16)
    assert graph.apply("div", (i, i)).dtype is F32
    assert graph.apply("sum", (i,), axis=0).type is graph.type_of((3,), I32)
    assert graph.apply("sum", (h,), axis=-1, keep_dims=True).type is graph.type_of((2, 1), F16)
    assert graph.apply("dot", (h, w)).type is graph.type_of((2, 4), F32)
    assert graph.apply("dot", (h, w), dtype="f16").dtype is F16
    assert graph.apply("dot", (i, graph.full((3, 4), 1, I8))).dtype is I32
    assert graph.apply("trans", (h,)).shape == (3, 2)
    assert graph.apply("reshape", (h,), shape=[3, -1]).shape == (3, 2)
    assert graph.apply("slice", (h,), starts=(0, 1), stops=(2, 3)).shape == (2, 2)
    assert graph.apply("concat", (h, i), axis=1).type is graph.type_of((2, 6), F16)
    assert graph.apply("arange", start=2, stop=5).type is graph.type_of((3,), I32)
    assert graph.apply("add", (graph.full((2,), True, BOOL), graph.full((2,), True, BOOL))).dtype is I32


@pytest.mark.parametrize(
    ("op", "shapes", "params", "says"),
    [
        ("add", [(2, 3), (4,)], {}, r"add: shapes \(2, 3\) and \(4,\) do not broadcast: 3 against 4 in dimension -1"),
        ("dot", [(2, 3), (4, 5)], {}, r"K = 3, \(4, 5\) has K = 4"),
        ("dot", [(3,), (3, 5)], {}, r"give two matrices"),
        ("dot_acc", [(2, 2), (2, 3), (3, 5)], {}, r"the accumulator is f16\[2, 2\], expected f32\[2, 5\]"),
        ("sum", [(2, 3)], {"axis": 2}, "axis 2 of a tensor of 2 dimensions"),
        ("sum", [(2, 3)], {"axis": 1.5}, "axis is 1.5"),
        ("max", [(2, 0)], {"axis": 1}, "max over no elements"),
        ("reshape", [(2, 3)], {"shape": (4, 2)}, r"\(2, 3\) has 6 elements and does not fit \(4, 2\)"),
        ("permute", [(2, 3)], {"axes": (0, 0)}, "name each of 0 to 1 once"),
        ("broadcast_to", [(2, 3)], {"shape": (2, 1)}, r"\(2, 3\) does not become \(2, 1\)"),
        ("slice", [(2, 3)], {"starts": (0, 0), "stops": (2, 4)}, "0 <= start <= stop <= size"),
        ("concat", [(2, 3), (3, 3)], {"axis": 1}, r"\(3, 3\) against \(2, 3\)"),
        ("cast", [(2,)], {}, "cast needs 'dtype'"),
        ("exp", [(2,)], {"axis": 1}, "exp has no parameter 'axis'"),
        ("exp", [(2,), (2,)], {}, "exp takes 1 inputs, got 2"),
        ("expo", [(2,)], {}, "no op 'expo'"),
    ],
)
def test_what_does_not_fit_says_what_was_expected(graph, op, shapes, params, says):
    with pytest.raises(DataError, match=says):
        graph.apply(op, [graph.full(shape, 1.0, F16) for shape in shapes], **params)


def test_inputs_that_are_not_tensors_are_refused(graph):
    x = graph.full((2, 2), 1.0, F16)
    with pytest.raises(DataError, match="an input is a str"):
        graph.apply("add", (x, "1"))
    with pytest.raises(DataError, match="trans takes tensors"):
        graph.apply("trans", (3,))
    with pytest.raises(DataError, match=r"full: 1\.5 does not fit i8"):
        graph.full((2,), 1.5, I8)


def test_a_value_is_small(graph):
    a, b = graph.full((32, 64), 1.0, F16), graph.full((64, 32), 1.0, F16)
    acc = graph.apply("dot", (a, b))
    value = graph.apply("dot_acc", (acc, a, b))
    held = sys.getsizeof(value) + sys.getsizeof(value.inputs) + sys.getsizeof(value.id)  # the type is shared
    assert held <= 300
