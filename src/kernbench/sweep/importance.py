"""How much of the spread of an objective each axis explains: the main effects of an analysis of variance.

The share of an axis is the variance of the objective's means by value of the axis over the variance of all rows, each
value counted as often as rows have it. What axes do together is in no share, so shares need not add up to 1. It holds
for grids and for searches alike, as far as the rows go.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import fsum

from kernbench.sweep.objectives import Objective
from kernbench.sweep.rows import SweepRow, varying

LEAST_ROWS = 4


def importance_of(rows: Sequence[SweepRow], objectives: Sequence[Objective]) -> dict[str, dict[str, float]]:
    """Objective -> axis -> its share of the variance, the largest first; empty with few rows or one axis."""
    axes = varying(rows)
    found: dict[str, dict[str, float]] = {}
    for objective in objectives:
        values = [(row, worth) for row in rows if (worth := objective.worth(row)) is not None]
        if len(axes) < 2 or len(values) < LEAST_ROWS:
            continue
        mean = fsum(worth for _, worth in values) / len(values)
        total = fsum((worth - mean) ** 2 for _, worth in values)
        if not total:
            continue
        shares = {axis: _explained(axis, values, mean) / total for axis in axes if axis != objective.column}
        found[objective.column] = dict(sorted(shares.items(), key=lambda item: -item[1]))
    return found


def _explained(axis: str, values: Sequence[tuple[SweepRow, float]], mean: float) -> float:
    groups: dict[str, list[float]] = {}
    for row, worth in values:
        groups.setdefault(json.dumps(row.flat().get(axis)), []).append(worth)
    return fsum(len(group) * (fsum(group) / len(group) - mean) ** 2 for group in groups.values())
