"""Figures with a low and a high end, which follow from the ranges of coefficients, as one value."""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.report.ranges import FigureRange

ENDS_OF: Mapping[str, tuple[str, str]] = {  # column -> the columns of its ends
    "energy_j": ("energy_low_j", "energy_high_j"),
    "area_mm2": ("area_low_mm2", "area_high_mm2"),
    "sip_w": ("sip_low_w", "sip_high_w"),
    "cost_usd": ("cost_low_usd", "cost_high_usd"),
    "mj_per_token": ("mj_per_token_low", "mj_per_token_high"),
    "tokens_per_s_per_usd": ("tokens_per_s_per_usd_low", "tokens_per_s_per_usd_high"),
}


def with_ends(flat: Mapping[str, object], column: str) -> object:
    """The value of a column, as a Range where the row has both of its ends."""
    value = flat.get(column)
    low, high = (flat.get(name) for name in ENDS_OF.get(column, ("", "")))
    numbers = [each for each in (low, value, high) if isinstance(each, int | float) and not isinstance(each, bool)]
    return FigureRange(*map(float, numbers)) if len(numbers) == 3 else value
