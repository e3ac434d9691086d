"""Axes of a sweep's picture."""

from __future__ import annotations

import pytest

from kernbench.sweep.plot import LEAST_SPAN, _at_least


@pytest.mark.parametrize(
    ("ends", "drawn"),
    [
        ((1000.0, 1000.2), (995.099, 1005.101)),  # 0.02 %: drawn in 1 % of the value
        ((-1000.2, -1000.0), (-1005.101, -995.099)),
        ((900.0, 1000.0), (900.0, 1000.0)),
        ((-0.05, 0.05), (-0.05, 0.05)),
    ],
)
def test_figures_that_hardly_differ_look_alike(ends: tuple[float, float], drawn: tuple[float, float]) -> None:
    assert LEAST_SPAN == 0.01
    assert _at_least(*ends) == pytest.approx(drawn)
