"""Backends by name, and the estimate of the time of an evaluation."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from kernbench.common.errors import UsageError
from kernbench.sim_engine.data_executor import DataExecutor
from kernbench.values.backend import Rates
from kernbench.values.backends import backend_named
from kernbench.values.estimate import OpWork, seconds_for, work_of
from kernbench.values.graph import ValueGraph
from kernbench.values.numpy_backend import NumpyBackend


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    backend_named.cache_clear()
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "kernbench.values.on_torch.backend", raising=False)


@pytest.mark.usefixtures("without_torch")
def test_the_torch_backend_without_pytorch_says_what_to_install():
    with pytest.raises(UsageError, match="needs PyTorch, which is not installed") as error:
        backend_named("torch")
    assert "pip install torch" in str(error.value)


def test_there_is_one_backend_of_a_name():
    assert backend_named("numpy") is backend_named("numpy")
    assert backend_named("numpy").device == "cpu"


def product_of_sums() -> tuple[ValueGraph, object]:
    graph = ValueGraph()
    a = graph.constant(np.ones((8, 16), np.float16))
    b = graph.apply("add", (graph.constant(np.ones((16, 4), np.float32)), 1))
    return graph, graph.apply("dot", (a, b))


def test_work_is_operations_of_products_and_bytes_of_the_rest():
    graph, value = product_of_sums()
    # The product: 2 * 8 * 16 * 4 operations. The sum: 64 elements of 4 bytes read and as many written, and the number
    # 1, which is a value of 4 bytes read once and made once.
    assert work_of([value, value]) == OpWork(2 * 8 * 16 * 4, 64 * 4 * 2 + 4 + 4, values=3)
    graph.apply("neg", (value,))  # it has no user
    DataExecutor(threads=1).run([value])
    assert work_of([value]) == OpWork(0, 0)


def test_seconds_are_work_over_measured_rates():
    class Slow(NumpyBackend):
        def rates(self) -> Rates:
            return Rates(1e9, 1e8)

    assert seconds_for(OpWork(20_000_000_000, 500_000_000), Slow()) == 20 + 5
    assert seconds_for(OpWork(0, 0, values=1_000_000), Slow()) == 20
    assert seconds_for(OpWork(1000, 1000), Slow()) == 0  # too little to measure


def test_rates_are_measured():
    flops_s, bytes_s = NumpyBackend().rates()
    assert flops_s > 1e6
    assert bytes_s > 1e6


@pytest.mark.parametrize(("rate", "announced"), [(1e3, [1.024]), (1e4, [])])
def test_a_long_data_pass_is_announced_before_it_begins(
    monkeypatch: pytest.MonkeyPatch, rate: float, announced: list[float]
):
    monkeypatch.setattr("kernbench.sim_engine.data_executor.LONG_S", 1.0)
    monkeypatch.setattr("kernbench.values.estimate.LEAST_FLOPS", 0)
    monkeypatch.setattr(NumpyBackend, "rates", lambda self: Rates(rate, float("inf")))
    _, value = product_of_sums()
    found: list[float] = []
    DataExecutor(threads=1, announce=lambda seconds: found.append(seconds)).run([value])
    # 1,024 operations at 1,000 a second take 1.024 s, at 10,000 a second a tenth of that
    assert found == pytest.approx(announced, rel=1e-3)
