"""Sensitivity: each axis varied alone, from the machine and the parameters as they are; changes of every objective.

The chart is a tornado: one bar per value, those of an axis together, the widest axis first. Panels of objectives are
stacked, each with its own order of axes; the colour of a bar says whether the objective becomes better or worse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kernbench.common.errors import UsageError
from kernbench.report.figures import drawing, save_figure
from kernbench.sweep.objectives import Objective
from kernbench.sweep.points import Axes, JsonValue, Point, point_of
from kernbench.sweep.rows import SweepRow, short_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes as MatplotlibAxes

TORNADO = "sensitivity"
BETTER, WORSE = "#4477AA", "#CC3311"
BAR_IN, PANEL_IN = 0.24, 3.6  # height of a bar, width of the widest bars of a panel, in inches
LETTER_IN = 0.075  # width of a letter
AXIS_GAP = 0.6  # of a bar, between axes


@dataclass(frozen=True, slots=True)
class Effect:
    """What one value of one axis does to an objective."""

    objective: str
    axis: str
    value: JsonValue
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


def one_at_a_time(axes: Axes, params: Mapping[str, JsonValue]) -> list[Point]:
    """The point as it is, then every value of every axis alone; a point that is written twice is one point."""
    points = [point_of({}, params)]
    points += [point_of({name: value}, params) for name, values in axes.items() for value in values]
    return list({point.key: point for point in points}.values())


def effects_of(
    axes: Axes, params: Mapping[str, JsonValue], rows: Sequence[SweepRow], objectives: Sequence[Objective]
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
    params: Mapping[str, JsonValue],
    rows: Sequence[SweepRow],
    objectives: Sequence[Objective],
    effects: Sequence[Effect],
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
    value = None if row.has_failed else row.value(objective.column)  # of a machine that is not simulated, its price
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def tornado_files(folder: Path) -> list[Path]:
    return [folder / f"{TORNADO}.png", folder / f"{TORNADO}.svg"]


def draw_tornado(title: str, effects: Sequence[Effect], objectives: Sequence[Objective], folder: Path) -> list[Path]:
    """One panel per objective, one below the other, as SVG and PNG; raises UsageError without matplotlib."""
    drawn = [each for each in objectives if any(effect.objective == each.column for effect in effects)]
    if not drawn:
        return []
    groups = [_by_axis([effect for effect in effects if effect.objective == each.column]) for each in drawn]
    heights = [sum(len(own) + AXIS_GAP for own in group.values()) * BAR_IN + 0.75 for group in groups]
    with drawing():
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Patch

        longest = max(len(line) for group in groups for axis in group for line in _axis_label(axis).split("\n"))
        letters = longest + 2 * max(len(_bar_text(effect)) for effect in effects)
        figure = Figure(figsize=(PANEL_IN + 0.5 + LETTER_IN * letters, 0.7 + sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        figure.suptitle(f"{title}: each axis alone")
        panels = figure.subplots(len(drawn), 1, squeeze=False, height_ratios=heights)[:, 0]
        for panel, objective, group in zip(panels, drawn, groups, strict=True):
            _bars(panel, objective, group)
        colours = [Patch(color=BETTER, label="better"), Patch(color=WORSE, label="worse")]
        figure.legend(handles=colours, loc="outside lower right", ncols=2, frameon=False, fontsize="small")
        return save_figure(figure, folder / TORNADO)


def _by_axis(effects: Sequence[Effect]) -> dict[str, list[Effect]]:
    found: dict[str, list[Effect]] = {}
    for effect in effects:
        found.setdefault(effect.axis, []).append(effect)
    return found


def _axis_label(axis: str) -> str:
    """A line for each key of a coupled axis."""
    return short_axis(axis).replace(" & ", " &\n")


def _bars(panel: MatplotlibAxes, objective: Objective, group: Mapping[str, Sequence[Effect]]) -> None:
    """A bar for each value of an axis, with the value beside it: two values on one side of zero are both visible."""
    y, places = 0.0, list[float]()
    ends = [0.0, *(100 * effect.change for own in group.values() for effect in own)]
    for own in group.values():
        places.append(y + (len(own) - 1) / 2)
        for effect in own:
            change = 100 * effect.change
            panel.barh(y, change, height=0.8, color=BETTER if (change > 0) == objective.maximize else WORSE)
            panel.annotate(
                _bar_text(effect),
                (change, y),
                xytext=(3 if change >= 0 else -3, 0),
                textcoords="offset points",
                va="center",
                ha="left" if change >= 0 else "right",
                fontsize="small",
            )
            y += 1
        y += AXIS_GAP
    panel.set_yticks(places, [_axis_label(axis) for axis in group])
    panel.set_ylim(y - AXIS_GAP - 0.3, -0.7)  # the first axis on top
    texts = max(len(_bar_text(effect)) for own in group.values() for effect in own)
    room = (max(ends) - min(ends) or 1.0) * texts * LETTER_IN / PANEL_IN
    panel.set_xlim(min(ends) - room, max(ends) + room)
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set_xlabel(f"change of {objective.column} (%), {'more' if objective.maximize else 'less'} is better")


def _bar_text(effect: Effect) -> str:
    """The value, the parts of a coupled one as they are given, and its change."""
    value = "&".join(map(str, effect.value)) if isinstance(effect.value, list) else str(effect.value)
    return f"{value} ({100 * effect.change:+.3g} %{', infeasible' if effect.infeasible else ''})"


def check_sensitivity(axes: Axes, has_points: bool, has_search: bool, mode: str) -> None:
    """Raise UsageError where axes cannot be varied one at a time."""
    if not axes or has_points or has_search or mode == "zip":
        raise UsageError(
            "--sensitivity varies axes one at a time", hint="give axes with --over, and no points, search or --zip"
        )
