"""Pass 2 and verification: tolerances by dtype, NaN and infinity, and ops computed a second time."""

from __future__ import annotations

import json

import numpy as np
import pytest

from kernbench.common.dtypes import BF16, F16, F32, I32, I64, DType
from kernbench.common.errors import DataError, UsageError
from kernbench.sim_engine.data_executor import DataCheck, DataExecutor, compare
from kernbench.values.graph import ValueGraph

INF, NAN = float("inf"), float("nan")


def check(got: list[float], want: list[float], dtype: DType = F32) -> DataCheck:
    return compare("t", dtype, np.array(got, dtype.numpy), want)


@pytest.mark.parametrize(
    ("dtype", "close", "far"),
    [(F32, 1.9e-5, 2.2e-5), (F16, 1.9e-3, 3.0e-3), (BF16, 1.6e-2, 2.4e-2)],  # atol + rtol * 1 = 2e-5, 2e-3, 2e-2
)
def test_a_result_may_be_off_by_the_tolerance_of_its_dtype(dtype: DType, close: float, far: float) -> None:
    assert check([1.0 + close], [1.0], dtype).ok
    assert not check([1.0 + far], [1.0], dtype).ok


def test_integers_must_be_equal() -> None:
    assert check([3], [3], I32).ok
    wrong = check([3, 5], [3, 7], I32)
    assert not wrong.ok
    assert wrong.max_abs_err == 2.0


def test_tolerances_may_be_given() -> None:
    assert compare("t", F32, np.array([1.5], np.float32), [1.0], rtol=0.0, atol=0.5).ok
    assert not compare("t", F32, np.array([1.5], np.float32), [1.0], rtol=0.0, atol=0.4).ok
    assert compare("t", F32, np.array([1.5, 0.0], np.float32), [1.0, 0.0], rtol=np.inf, atol=0.0).ok


def test_nan_agrees_with_nan_and_infinity_with_itself() -> None:
    assert check([NAN, INF, -INF], [NAN, INF, -INF]).ok
    for got, want in ((NAN, 1.0), (1.0, NAN), (INF, 1.0), (INF, -INF), (1.0, INF)):
        wrong = check([got], [want])
        assert not wrong.ok
        assert wrong.max_abs_err == INF


def test_an_error_without_bound_is_inf_in_json_and_nan_is_nan() -> None:
    data = json.loads(json.dumps(check([NAN], [1.0]).as_json(), allow_nan=False))
    assert (data["ok"], data["max_abs_err"]) == (False, "inf")
    assert data["mismatch"] == {"wrong": 1, "elements": 1, "index": [0], "got": "nan", "want": 1.0, "rel_err": "inf"}
    assert "mismatch" not in check([1.0], [1.0]).as_json()
    assert json.loads(json.dumps(check([-INF], [INF]).as_json()))["mismatch"]["got"] == "-inf"


def test_a_wrong_result_says_how_many_elements_differ_and_shows_the_first() -> None:
    got = np.array([[1, 2, 5], [4, 5, 9]], np.float32)
    wrong = compare("t", F32, got, [[1, 2, 4], [4, 5, 6]]).mismatch
    assert str(wrong) == (
        "2 of 6 elements differ, the first element [0, 2]: got 5, want 4, relative error 0.25"  # 1 / 4
    )
    assert wrong is not None
    assert (wrong.wrong, wrong.elements, wrong.index, wrong.got, wrong.want, wrong.rel_err) == (
        2,
        6,
        (0, 2),
        5,
        4,
        0.25,
    )
    close = compare("t", F32, got, [[1, 2, 4], [4, 5, 6]], rtol=0.0, atol=1.0).mismatch  # 5 for 4 is close enough now
    assert close is not None
    assert (close.wrong, close.index) == (1, (1, 2))


def test_large_integers_are_shown_exactly() -> None:
    wrong = compare("t", I64, np.array([1, 2**60 + 1]), np.array([1, 2**60])).mismatch
    assert wrong is not None
    assert (wrong.wrong, wrong.index, wrong.got - wrong.want) == (1, (1,), 1)


def test_a_reference_of_another_shape_is_refused() -> None:
    with pytest.raises(DataError, match=r"has shape \(2,\), its reference \(1, 2\)"):
        compare("t", F32, np.zeros(2, np.float32), np.zeros((1, 2)))


def test_outputs_are_computed_in_order() -> None:
    graph = ValueGraph()
    a = graph.constant(np.arange(6, dtype=np.float32).reshape(2, 3))
    double = graph.apply("add", [a, a])
    total = graph.apply("sum", [double], axis=1)
    arrays = DataExecutor().run([total, double])
    assert arrays[0].reshape(-1).tolist() == [6.0, 24.0]
    assert arrays[1].tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("threads", [0, -1, True, 1.5])
def test_no_threads_are_refused(threads: int) -> None:
    with pytest.raises(UsageError, match="threads is"):
        DataExecutor(threads=threads)


def test_every_op_is_compared_when_ops_are_debugged() -> None:
    graph = ValueGraph()
    a = graph.constant(np.arange(6, dtype=np.float32).reshape(2, 3))
    double = graph.apply("add", [a, a])
    total = graph.apply("sum", [double], axis=1)
    executor = DataExecutor(debug_ops=True)
    executor.run([total])
    assert [(op.tensor.split()[1].partition("[")[0], op.ok) for op in executor.ops] == [("add", True), ("sum", True)]


def test_constants_and_single_numbers_are_compared_too() -> None:
    graph = ValueGraph()
    ramp = graph.apply("arange", [], start=0, stop=4, dtype="f32")
    total = graph.apply("sum", [graph.apply("add", [ramp, 1])])  # a single number: 0 + 1 + 2 + 3 and four ones
    executor = DataExecutor(debug_ops=True)
    assert float(executor.run([total])[0]) == 10.0
    assert {op.tensor.split()[1].partition("[")[0] for op in executor.ops} >= {"arange", "add", "sum"}
    assert all(op.ok for op in executor.ops)


def test_a_wrong_op_is_found_when_ops_are_debugged(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = ValueGraph()
    a = graph.constant(np.ones(4, np.float32))
    double = graph.apply("add", [a, a])

    def wrong(values: object, **_: object) -> list[object]:
        double.data = np.zeros(4, np.float32)
        return [double.data]

    monkeypatch.setattr("kernbench.sim_engine.data_executor.evaluate", wrong)
    executor = DataExecutor(debug_ops=True)
    executor.run([double])
    assert [(op.ok, op.max_abs_err) for op in executor.ops] == [(False, 2.0)]
