"""Sensitivity: each axis varied alone, from the machine and the parameters as they are; changes of every objective.

The chart is a tornado: one bar per axis, from the least to the most of the objective, the widest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.common.errors import UsageError
from kernbench.report.figures import drawing, save_figure
from kernbench.sweep.objectives import Objective
from kernbench.sweep.points import Axes, Point, Value, point_of
from kernbench.sweep.rows import SweepRow, short_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes as MatplotlibAxes

TORNADO = "sensitivity"
MORE, LESS = "#CC3311", "#4477AA"


@dataclass(frozen=True, slots=True)
class Effect:
    """What one value of one axis does to an objective."""

    objective: str
    axis: str
    value: Value
    point: int
    base: float
    at: float
    infeasible: str | None = None  # the reason, where the point cannot be built or used

    @property
    def change(self) -> float:
        """Relative to the base."""
        return self.at / self.base - 1 if self.base else 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "objective": self.objective,
            "axis": self.axis,
            "value": self.value,
            "point": self.point,
            "base": self.base,
            "at": self.at,
            "change": self.change,
            "infeasible": self.infeasible,
        }


def one_at_a_time(axes: Axes, params: Mapping[str, Value]) -> list[Point]:
    """The point as it is, then every value of every axis alone; a point that is written twice is one point."""
    points = [point_of({}, params)]
    points += [point_of({name: value}, params) for name, values in axes.items() for value in values]
    return list({point.key: point for point in points}.values())


def effects_of(
    axes: Axes, params: Mapping[str, Value], rows: Sequence[SweepRow], objectives: Sequence[Objective]
) -> list[Effect]:
    """The effect of each value on each objective; the widest axis of an objective first. Points without a number, as
    those that failed, are left out.
    """
    by_key = {row.key: row for row in rows}
    base = by_key.get(point_of({}, params).key)
    found: list[Effect] = []
    for objective in objectives:
        start = None if base is None else _number(base, objective)
        if base is None or start is None:
            continue
        own: dict[str, list[Effect]] = {}
        for name, values in axes.items():
            for value in values:
                row = by_key.get(point_of({name: value}, params).key)
                at = None if row is None else _number(row, objective)
                if row is not None and at is not None and row.point != base.point:
                    effect = Effect(objective.column, name, value, row.point, start, at, row.infeasible)
                    own.setdefault(name, []).append(effect)
        for name in sorted(own, key=lambda name: -span(own[name])):
            found += own[name]
    return found


def without_effects(
    params: Mapping[str, Value], rows: Sequence[SweepRow], objectives: Sequence[Objective], effects: Sequence[Effect]
) -> list[str]:
    """A note on each objective without effects: the reason."""
    key = point_of({}, params).key
    base = next((row for row in rows if row.key == key), None)
    missing = [objective for objective in objectives if all(each.objective != objective.column for each in effects)]
    return [f"no sensitivity of {objective.column}: {_why_none(base, objective)}" for objective in missing]


def _why_none(base: SweepRow | None, objective: Objective) -> str:
    if base is None:
        return "the machine as it is breaks a condition"
    if _number(base, objective) is None:
        why = base.infeasible or (base.error or "").partition("\n")[0]
        return f"the machine as it is has no number ({why})" if why else "the machine as it is has no number"
    return "no other point has a number"


def span(effects: Sequence[Effect]) -> float:
    """The width of an axis: from the least to the most relative change, the base included."""
    changes = [0.0, *(effect.change for effect in effects)]
    return max(changes) - min(changes)


def _number(row: SweepRow, objective: Objective) -> float | None:
    value = row.value(objective.column) if row.ok else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def tornado_files(folder: Path) -> list[Path]:
    return [folder / f"{TORNADO}.png", folder / f"{TORNADO}.svg"]


def draw_tornado(title: str, effects: Sequence[Effect], folder: Path) -> list[Path]:
    """One panel per objective, as SVG and PNG; raises UsageError without matplotlib."""
    names = list(dict.fromkeys(effect.objective for effect in effects))
    if not names:
        return []
    bars = max(sum(effect.objective == name for effect in effects) for name in names)
    with drawing():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(4.2 * len(names) + 1.5, 1.6 + 0.25 * bars), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"{title}: each axis alone")
        for at, name in enumerate(names):
            panel = figure.add_subplot(1, len(names), at + 1)
            _bars(panel, [effect for effect in effects if effect.objective == name])
            panel.set_xlabel(f"change of {name} (%)")
        return save_figure(figure, folder / TORNADO)


def _bars(panel: MatplotlibAxes, effects: Sequence[Effect]) -> None:
    """A bar for each value of an axis, with the value at its end: two values on one side of zero are both visible."""
    axes = list(dict.fromkeys(effect.axis for effect in effects))
    for at, axis in enumerate(axes):
        own = [effect for effect in effects if effect.axis == axis]
        height = 0.8 / len(own)
        for place, effect in enumerate(own):
            change, y = 100 * effect.change, at + (place + 0.5) * height - 0.4
            panel.barh(y, change, height=0.9 * height, color=MORE if change > 0 else LESS)
            panel.annotate(
                str(effect.value) + (" (infeasible)" if effect.infeasible else ""),
                (change, y),
                xytext=(3 if change >= 0 else -3, 0),
                textcoords="offset points",
                va="center",
                ha="left" if change >= 0 else "right",
                fontsize="small",
            )
    panel.set_yticks(range(len(axes)), [short_axis(axis) for axis in axes])
    panel.invert_yaxis()
    panel.margins(x=0.15)
    panel.axvline(0, color="black", linewidth=0.8)


def check_sensitivity(axes: Axes, has_points: bool, has_search: bool, mode: str) -> None:
    """Raise UsageError where axes cannot be varied one at a time."""
    if not axes or has_points or has_search or mode == "zip":
        raise UsageError(
            "--sensitivity varies axes one at a time", hint="give axes with --over, and no points, search or --zip"
        )
