"""A figure with its range: what follows when every coefficient is at its low end, at its value, at its high end.

The ends are worst cases: errors of different coefficients are not assumed to cancel.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum

from kernbench.common.frozen import frozen
from kernbench.topology.coefficients import Coefficient


@frozen
class FigureRange:
    """A value and its ends."""

    low: float
    value: float
    high: float

    def __mul__(self, factor: float) -> FigureRange:
        return FigureRange(self.low * factor, self.value * factor, self.high * factor)

    def __add__(self, other: FigureRange) -> FigureRange:
        return FigureRange(self.low + other.low, self.value + other.value, self.high + other.high)

    def times(self, other: FigureRange) -> FigureRange:
        """The product of two figures that are not negative, end by end."""
        return FigureRange(self.low * other.low, self.value * other.value, self.high * other.high)

    def as_json(self) -> dict[str, float]:
        return {"low": self.low, "value": self.value, "high": self.high}


ZERO = FigureRange(0.0, 0.0, 0.0)


def exactly(value: float) -> FigureRange:
    """A figure without a range."""
    return FigureRange(value, value, value)


def range_of(coefficient: Coefficient) -> FigureRange:
    """The range of a coefficient."""
    return FigureRange(coefficient.low, coefficient.value, coefficient.high)


def total(parts: Iterable[FigureRange]) -> FigureRange:
    """The sum of ranges, exact in each end."""
    found = list(parts)
    return FigureRange(fsum(p.low for p in found), fsum(p.value for p in found), fsum(p.high for p in found))
