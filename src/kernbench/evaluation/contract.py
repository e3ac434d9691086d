"""The parts of an evaluation: its points, what is measured at each, and the figures that show it. One file holds one.

points     settings of all runs on a machine, from the evaluation's parameters. Names are parameters of `point`;
           `machine:KEY` changes the machine for that point. A feature that the machine lacks has no point
further    settings that the rows so far call for, asked after every batch until it has none that is new; None: no more
point      a bench: runs one point and returns its results by name, all finite numbers
figures    charts of the rows. It computes theory from the machine, and depends on rows and machine only
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kernbench.common.frozen import frozen

if TYPE_CHECKING:  # every bench imports this module; only an evaluation needs the machine, sweeps and charts
    from kernbench.report.charts import Chart
    from kernbench.sweep.points import JsonValue
    from kernbench.topology.graph import TopologyGraph

Setting = dict[str, bool | int | float | str]
Row = Mapping[str, "JsonValue"]
Rows = Sequence[Row]


@frozen
class Evaluation:
    """`seconds` estimates how long a point takes on one core. `facts` are the topics of `kernbench fidelity` that a
    reader of the figures must know.
    """

    points: Callable[..., Sequence[Setting]]  # (machine, **parameters)
    point: Callable[..., Mapping[str, float]]  # (torch, **setting)
    figures: Callable[[Rows, TopologyGraph], Sequence[Chart]]
    seconds: Callable[[Setting], float]
    facts: tuple[str, ...] = ()
    further: Callable[[Rows], Sequence[Setting]] | None = None


def where(rows: Rows, **values: JsonValue) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(name) == value for name, value in values.items())]


def number(row: Row, name: str) -> float:
    """A figure of a row; raises KeyError where it has none."""
    value = row[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise KeyError(name)
    return float(value)


def text(row: Row, name: str) -> str:
    return str(row[name])


def curve(rows: Rows, x: str, y: str, scale: float = 1.0) -> tuple[tuple[float, float], ...]:
    """(x, y * scale) of every row, in order of x."""
    return tuple(sorted((number(row, x), number(row, y) * scale) for row in rows))


def values_of(rows: Rows, name: str) -> list[JsonValue]:
    """The values of a column, each once, in order of the rows."""
    return list({repr(row[name]): row[name] for row in rows if row.get(name) is not None}.values())
