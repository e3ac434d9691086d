"""How much of the spread of an objective each axis explains: the main effects of an analysis of variance.

All axes together explain a part of the variance; the share of an axis is what is lost when it is left out. So an axis
that does nothing has none, although a search may have tried its values with good values of others. On a whole grid that
is the variance of the objective's means by value of the axis. Axes that always change together are one axis. What axes
do only together is in no share, so shares need not add up to 1.

A number with many values counts by its square and itself, anything else by each of its values.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from kernbench.common.array_types import Floats
from kernbench.sweep.objectives import Objective
from kernbench.sweep.points import JsonValue
from kernbench.sweep.rows import SweepRow, varying

FEW_VALUES = 5  # or a quarter of the rows: values of an axis that each have a mean of their own


def importance_of(rows: Sequence[SweepRow], objectives: Sequence[Objective]) -> dict[str, dict[str, float]]:
    """Objective -> axis -> its share of the variance, the largest first; empty with one axis, or too few rows to tell
    the axes apart.
    """
    found: dict[str, dict[str, float]] = {}
    for objective in objectives:
        values = [(row, worth) for row in rows if (worth := objective.worth(row)) is not None]
        shown = [row for row, _ in values]
        axes = _axes([axis for axis in varying(rows) if axis != objective.column], shown)
        worths = np.array([worth for _, worth in values])
        if len(axes) < 2 or worths.min() == worths.max():
            continue
        if 1 + sum(terms.shape[1] for terms in axes.values()) >= len(values):
            continue
        shares = _shares(axes, worths)
        found[objective.column] = dict(sorted(shares.items(), key=lambda item: -item[1]))
    return found


def _axes(names: Sequence[str], rows: Sequence[SweepRow]) -> dict[str, Floats]:
    """The terms of each axis by row; those of axes that always change together once, under all of their names."""
    flats = [row.flat() for row in rows]
    together: dict[tuple[int, ...], list[str]] = {}
    for name in names:
        numbers: dict[str, int] = {}
        kinds = tuple(numbers.setdefault(json.dumps(flat.get(name)), len(numbers)) for flat in flats)
        if len(numbers) > 1:
            together.setdefault(kinds, []).append(name)
    return {" + ".join(same): _terms([flat.get(same[0]) for flat in flats], kinds) for kinds, same in together.items()}


def _terms(values: Sequence[JsonValue], kinds: Sequence[int]) -> Floats:
    count = max(kinds) + 1
    numbers = [value for value in values if isinstance(value, (int, float)) and not isinstance(value, bool)]
    if count > max(FEW_VALUES, len(values) // 4) and len(numbers) == len(values):
        column = np.array(numbers, float)
        column = (column - column.mean()) / column.std()
        return np.stack([column, column**2], axis=1)
    return np.equal.outer(kinds, range(1, count)).astype(float)


def _shares(axes: dict[str, Floats], worths: Floats) -> dict[str, float]:
    total = float(((worths - worths.mean()) ** 2).sum())
    whole = _unexplained([*axes.values()], worths)
    left = {axis: _unexplained([terms for other, terms in axes.items() if other != axis], worths) for axis in axes}
    return {axis: max(0.0, round((without - whole) / total, 9)) for axis, without in left.items()}


def _unexplained(terms: Sequence[Floats], worths: Floats) -> float:
    """The sum of squares that the best sum of all terms leaves."""
    columns = np.concatenate([np.ones((len(worths), 1)), *terms], axis=1)
    best = np.linalg.lstsq(columns, worths, rcond=None)[0]
    return float(((worths - columns @ best) ** 2).sum())
