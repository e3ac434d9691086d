"""`random`: numbers that depend on seed and position alone."""

from __future__ import annotations

import numpy as np
import pytest

from kernbench.common.errors import DataError
from kernbench.sim_engine.data_executor import DataExecutor
from kernbench.values.evaluate import evaluate
from kernbench.values.graph import ValueGraph


def drawn(shape: tuple[int, ...], seed: int, scale: float = 1.0, dtype: str = "f32") -> np.ndarray:
    return evaluate([ValueGraph().apply("random", (), shape=shape, seed=seed, scale=scale, dtype=dtype)])[0]


def test_the_first_number_by_hand():
    # Counter 0 hashes to 0: every step of the hash keeps it. So the number is 0 * 2**-23 - 1, times sqrt(3).
    assert drawn((1,), 0)[0] == np.float32(-1) * np.float32(3**0.5)


def test_a_number_depends_on_its_place_in_c_order_and_not_on_the_shape():
    assert drawn((300_000,), 5)[77_777:77_780].tolist() == drawn((1000, 300), 5)[259, 77:80].tolist()


def test_seeds_give_other_numbers_and_the_same_seed_the_same():
    assert (drawn((64,), 1) == drawn((64,), 1)).all()
    assert (drawn((64,), 1) != drawn((64,), 2)).all()


def test_they_have_the_mean_and_deviation_that_were_asked_for():
    x = drawn((1 << 18,), 3, scale=0.5).astype(np.float64)
    # The mean of n such numbers deviates by 0.5 / sqrt(n), about 0.001; four of those are allowed.
    assert abs(x.mean()) < 0.004
    assert abs(x.std() - 0.5) < 0.002
    assert abs(x).max() <= 0.5 * 3**0.5
    assert abs(np.corrcoef(x[:-1], x[1:])[0, 1]) < 0.01


def test_f16_is_the_f32_number_rounded_once():
    assert (drawn((999,), 4, dtype="f16") == drawn((999,), 4).astype(np.float16)).all()


def test_its_second_definition_agrees():
    executor = DataExecutor(threads=1, debug_ops=True)
    executor.run([ValueGraph().apply("random", (), shape=(3, 50), seed=9, scale=0.1, dtype="f16")])
    assert [check.ok for check in executor.ops] == [True]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"dtype": "i32"}, "random: i32 times 1.0"),
        ({"shape": (1 << 16, 1 << 16)}, "more than 4294967295 elements"),
        ({"seed": 0.5}, "seed is 0.5"),
    ],
)
def test_what_cannot_be_drawn_is_refused(params, message):
    with pytest.raises(DataError, match=message):
        ValueGraph().apply("random", (), **{"shape": (2,), "seed": 1, **params})
