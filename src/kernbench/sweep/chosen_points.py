"""The points that a request comes to: axes combined or one at a time, conditions, workloads of a scenario.

Machines that cannot be loaded are found before anything runs: a sweep of none but such machines is refused, others
have their reason noted at once; their rows have the whole error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from kernbench.common.errors import TopologyError, UsageError
from kernbench.sweep.capacity import reason_of
from kernbench.sweep.description import SweepRequest
from kernbench.sweep.points import MACHINE, JsonValue, Point, grid, grid_point, listed, uncoupled, zipped
from kernbench.sweep.search import random_points
from kernbench.sweep.sensitivity import check_sensitivity, one_at_a_time
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import values_of

MOST_LOADED_EARLY = 200  # machines; a load takes some 10 ms


def points_of(request: SweepRequest, machine: Mapping[str, JsonValue]) -> list[Point]:
    """All points of a request without an adaptive search; raises UsageError when conditions leave none."""
    points = _combined(request, machine)
    kept = [point for point in points if all(condition.holds(point, machine) for condition in request.where)]
    if not kept:
        texts = ", ".join(condition.text for condition in request.where)
        raise UsageError(f"no point of {len(points)} satisfies the conditions", where=texts, hint="relax one of them")
    return kept if request.scenario is None else request.scenario.points(kept)


def _combined(request: SweepRequest, machine: Mapping[str, JsonValue]) -> list[Point]:
    if request.points is not None:
        return listed(request.points, request.params)
    if request.sensitivity:
        base, *others = one_at_a_time(request.axes, request.params)
        return [base, *(each for each in others if not _is_alike(each, base, machine))]
    if request.search is not None:
        return random_points(request.axes, request.params, request.search)
    return (zipped if request.mode == "zip" else grid)(request.axes, request.params)


def _is_alike(point: Point, base: Point, machine: Mapping[str, JsonValue]) -> bool:
    """Whether a point of --sensitivity sets what is so already; 4096 is 4096.0."""
    if point.params != base.params:
        return False
    try:
        return values_of(load_spec(machine, point.machine)) == values_of(load_spec(machine))
    except TopologyError:
        return False


def examples_of(request: SweepRequest) -> list[Point]:
    """Points enough to see which parameters are given and whether the machine changes."""
    if request.points is not None:
        found = listed(request.points, request.params)
    else:
        last = {name: [values[0], values[-1]] for name, values in request.axes.items()}
        found = [grid_point(last, number, request.params) for number in (0, 2 ** len(last) - 1)]
    return found if request.scenario is None else request.scenario.points(found)


def check_further(request: SweepRequest) -> None:
    """Raise UsageError for conditions or --sensitivity that do not go with the rest of a request."""
    if request.sensitivity:
        check_sensitivity(request.axes, request.points is not None, request.search is not None, request.mode)
    if request.search is None or request.search.method != "optuna":
        return
    if request.where:
        raise UsageError("Optuna proposes points by itself", hint="use --where with a grid or with --search random")


def settings_of(request: SweepRequest) -> list[dict[str, JsonValue]]:
    """What points set, each axis at least once, by single keys."""
    if request.points is not None:
        return [dict(point) for point in request.points]
    return [uncoupled(name, values[0]) for name, values in request.axes.items()]


def machine_keys_of(request: SweepRequest) -> dict[str, JsonValue]:
    """The keys of the machine that points set, with an example of a value."""
    found: dict[str, JsonValue] = {}
    for setting in settings_of(request):
        for name, value in setting.items():
            if name.startswith(MACHINE):
                found.setdefault(name.removeprefix(MACHINE), value)
    return found


def refuse_early(points: Sequence[Point], machine: Mapping[str, JsonValue]) -> list[str]:
    """A note for each reason why machines cannot be loaded, other than memories that are too small, which are counted
    by what does not fit; raises TopologyError when there is no other machine.
    """
    machines = {point.machine_key: point for point in points}
    wrong: dict[str, TopologyError] = {}
    for key, point in list(machines.items())[:MOST_LOADED_EARLY]:
        try:
            load_spec(machine, point.machine)
        except TopologyError as error:
            wrong[key] = error
    if wrong and len(wrong) == len(machines):
        raise next(iter(wrong.values()))
    first = {key: error.faults[0] for key, error in wrong.items() if reason_of(error) is None}
    reasons = [f"{first[p.machine_key].what} ({first[p.machine_key].key})" for p in points if p.machine_key in first]
    return [
        f"{count} of {len(points)} points have a machine that cannot be loaded: {reason}"
        for reason, count in Counter(reasons).items()
    ]
