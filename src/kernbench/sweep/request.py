"""A sweep from its description to its result files. The command line and `kernbench.sweep` both come here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing import current_process
from pathlib import Path

from kernbench.common.errors import TopologyError, UsageError
from kernbench.runtime_api.bench_params import check_names
from kernbench.runtime_api.bench_runner import devices_of
from kernbench.sweep.chosen_points import check_further, examples_of, machine_keys_of, points_of, refuse_early
from kernbench.sweep.context import WORKER, SweepContext, digest_of, machine_tree
from kernbench.sweep.derived import COLUMNS
from kernbench.sweep.description import MODES
from kernbench.sweep.description import AxesMode as AxesMode
from kernbench.sweep.description import SweepRequest as SweepRequest
from kernbench.sweep.driver import Driven, FixedPlan, NothingKept, RowStore, SweepPlan, SweepProgress, drive
from kernbench.sweep.folder import SweepFolder
from kernbench.sweep.importance import importance_of
from kernbench.sweep.objectives import (
    Objective,
    check_columns,
    check_objectives,
    default_objectives,
    pareto_front,
    ranked,
)
from kernbench.sweep.plot import draw_sweep, plot_files, prepare
from kernbench.sweep.points import MACHINE, JsonValue, Point, check_keys, zipped
from kernbench.sweep.pool import Pool, SerialPool
from kernbench.sweep.results import PARQUET, results_as_json, write_results
from kernbench.sweep.rows import TABLE, SweepRow
from kernbench.sweep.scenario import ScenarioPlan, ScenarioResults, check_weighed, not_weighed, results_of
from kernbench.sweep.sensitivity import (
    Effect,
    draw_tornado,
    effects_of,
    tornado_files,
    without_effects,
)
from kernbench.topology.load import load_spec
from kernbench.topology.spec_base import MAX_SIPS

Importance = Mapping[str, Mapping[str, float]]  # objective -> axis -> share of its variance
MadeWith = Mapping[str, Mapping[str, str]]  # identities by their digests
BEST = 10
SCENARIO_OBJECTIVES = (Objective("tokens_per_s", maximize=True), Objective("cost_usd"))
STUDY = "optuna.db"
SHIPPED = "kernbench.benches"  # whose rows have the same figures, whatever their parameters but the phase


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What a sweep came to. `ran` were run now, the others were there; `run_s` is what those took together."""

    rows: list[SweepRow]
    ran: int
    run_s: float
    objectives: tuple[Objective, ...]
    best: list[SweepRow]
    front: list[SweepRow]
    identity: Mapping[str, str]
    made_with: MadeWith
    notes: list[str]
    files: list[Path]
    scenario: ScenarioResults | None = None
    sensitivity: list[Effect] = field(default_factory=list)
    importance: Importance = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """As in `results.json`, and what happened now."""
        data = results_as_json(self.identity, self.made_with, self.rows, self.objectives, self.best, self.front)
        data |= further_results(self.scenario, self.sensitivity, self.importance)
        rows = data.pop("rows")
        return {**data, "ran": self.ran, "notes": self.notes, "files": [str(file) for file in self.files], "rows": rows}


def run_sweep(
    request: SweepRequest,
    progress: Callable[[SweepProgress], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> SweepReport:
    """Run what is missing of a sweep; raises UsageError or TopologyError for what is wrong with the whole of it. What
    is wrong with some of its machines is passed to `note` before any point runs.
    """
    if current_process().name == WORKER:
        raise UsageError(
            "a sweep began while a worker loaded its function",
            hint="in a script, call kernbench.sweep under `if __name__ == '__main__':`",
        )
    tree = machine_tree(request.topology, request.overrides)
    context = SweepContext(request.target, request.title, tree, request.device, request.verify_data, request.cost)
    _check(request, context)
    identity = context.identity(_values(request))
    objectives = request.objectives or (
        SCENARIO_OBJECTIVES if request.scenario is not None else default_objectives(examples_of(request))
    )
    check_columns(objectives, examples_of(request))
    adaptive = request.search is not None and request.search.method == "optuna"
    if adaptive and request.scenario is not None:
        check_weighed(objectives)
    points = [] if adaptive else points_of(request, tree)
    early = refuse_early(points, tree)
    if note is not None:
        for each in early:
            note(each)
    with closing(pool_of(context, request.workers, request.cluster, request.point_timeout_s)) as pool:
        if request.out is None:
            driven = _drive(request, points, pool, identity, objectives, NothingKept(), progress)
            return _report(request, driven, objectives, identity, {digest_of(identity): identity}, early)
        with closing(SweepFolder(request.out, identity, resume_anyway=request.resume_anyway)) as folder:
            if request.retry_failed:
                folder.forget_failed()
            driven = _drive(request, points, pool, identity, objectives, folder, progress)
            return _report(request, driven, objectives, identity, folder.made_with, [*folder.notes, *early])


def _drive(
    request: SweepRequest,
    points: list[Point],
    pool: Pool,
    identity: Mapping[str, str],
    objectives: tuple[Objective, ...],
    store: RowStore,
    progress: Callable[[SweepProgress], None] | None,
) -> Driven:
    if request.out is not None and request.plot:
        progress = _prepare_at_first(progress)
    plan = _plan(request, points, identity, objectives)
    return drive(plan, pool, store, progress, digest_of(identity), _first_row_check(request, objectives))


def _first_row_check(request: SweepRequest, objectives: tuple[Objective, ...]) -> Callable[[SweepRow], None] | None:
    """A check of objectives on each row alone, which ends a sweep at its first point: where points differ in their
    machines only, what one has no number for has no number anywhere. Rows of benches' tables may differ by machine.
    """
    if request.points is not None or request.scenario is not None:
        return None
    names = {part for name in request.axes for part in name.split("&")}
    varied = [name for name in names if not name.startswith(MACHINE)]
    is_shipped = request.target.place.startswith(SHIPPED)
    if "phase" in varied or (varied and not is_shipped):
        return None
    asked = tuple(
        each for each in objectives if each.column in COLUMNS or not (varied or each.column.startswith(TABLE))
    )
    return lambda row: check_objectives(asked, [row])


def _prepare_at_first(progress: Callable[[SweepProgress], None] | None) -> Callable[[SweepProgress], None]:
    """`progress`, which also gets the drawing ready once points are under way."""
    prepared: list[bool] = []

    def show(now: SweepProgress) -> None:
        if not prepared:
            prepared.append(True)
            prepare()
        if progress is not None:
            progress(now)

    return show


def pool_of(
    context: SweepContext,
    workers: int | None = None,
    cluster: str | None = None,
    point_timeout_s: float | None = None,
) -> Pool:
    """Who runs points: see SweepRequest. Raises UsageError for a function that no other process can find, and for a
    time limit where points do not run in processes of this computer: only those can be ended.
    """
    local = [target for target in (context.target, context.cost) if target is not None and target.is_local]
    if point_timeout_s is not None:
        _check_timeout(
            point_timeout_s, "on a cluster" if cluster else "in this process" if local or workers == 0 else ""
        )
    if cluster is not None and not local:
        from kernbench.sweep.cluster_pool import ClusterPool

        return ClusterPool(context, cluster)
    if workers == 0 or (local and workers is None and cluster is None):
        return SerialPool(context)
    if local:
        raise UsageError(
            f"another process cannot find the function '{local[0].name}'",
            hint="define it at the top of a file, or leave workers and cluster out to run in this process",
        )
    from kernbench.sweep.local_pool import LocalPool

    if workers is not None and workers < 0:
        raise UsageError(f"{workers} workers", hint="give 1 or more")
    return LocalPool(context, workers_of(workers), point_timeout_s)


def _check_timeout(seconds: float, elsewhere: str) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < float("inf"):
        raise UsageError(f"the time limit of a point is {seconds!r}", hint="give a number of seconds above 0")
    if elsewhere:
        raise UsageError(
            f"points that run {elsewhere} have no time limit",
            hint="leave --point-timeout out, or run a function of a file with --workers",
        )


def workers_of(asked: int | None) -> int:
    """How many processes run points: as asked, or one per core."""
    from kernbench.sweep.local_pool import all_cores

    return asked or all_cores()


def _plan(
    request: SweepRequest, points: list[Point], identity: Mapping[str, str], objectives: tuple[Objective, ...]
) -> SweepPlan:
    search = request.search
    if search is None or search.method != "optuna":
        return FixedPlan(points)
    from kernbench.sweep.optuna_plan import OptunaPlan

    storage = search.storage or (str(request.out / STUDY) if request.out is not None else None)
    if request.scenario is None:
        return OptunaPlan(request.axes, request.params, search, objectives, storage, digest_of(identity))
    about = f"{digest_of(identity)} {request.scenario.identity}"
    machines = OptunaPlan(request.axes, request.params, search, objectives, storage, about)
    return ScenarioPlan(request.scenario, machines)


def _values(request: SweepRequest) -> list[object]:
    """What points set, each value once or more."""
    listed_values = [list(setting.values()) for setting in request.points or []]
    work = [] if request.scenario is None else [list(each.params.values()) for each in request.scenario.workloads]
    return [*request.params.values(), *request.axes.values(), *listed_values, *work]


def _check(request: SweepRequest, context: SweepContext) -> None:
    """Raise for what would be wrong with every point."""
    if request.points is not None and (request.axes or request.search is not None):
        raise UsageError("a sweep has a list of points, or axes", hint="leave one of them out")
    if request.points is not None and not request.points:
        raise UsageError("the list of points is empty", hint="give at least one")
    if request.search is not None and not request.axes:
        raise UsageError("a search needs axes to search over", hint="give some: --over m=128,256,512")
    if request.mode not in MODES:
        raise UsageError(f"no mode '{request.mode}'", hint=f"use one of {', '.join(MODES)}")
    if request.mode == "zip" and (request.points is not None or request.search is not None):
        raise UsageError("only axes without a search can be zipped", hint="leave zip out")
    if request.mode == "zip":
        zipped(request.axes, request.params)
    for names in [request.axes, *(request.points or [])]:
        check_keys(names)
    check_further(request)
    devices_of(request.device, MAX_SIPS)  # how it is written; whether the machine has it is each point's own error
    fn = request.target.load()
    for point in examples_of(request):
        check_names(fn, point.params)
    for key, value in machine_keys_of(request).items():
        _check_key(context.machine, key, value)


def _check_key(machine: Mapping[str, JsonValue], key: str, value: JsonValue) -> None:
    """Raise TopologyError when the machine has no such key. A value that does not fit is the point's own error."""
    try:
        load_spec(machine, {key: value})
    except TopologyError as error:
        faults = [fault for fault in error.faults if "unknown key" in fault.what or "no key" in fault.what]
        faults += [fault for fault in error.faults if "no entry" in fault.what or "not a key path" in fault.what]
        if faults:
            raise TopologyError(faults) from None


def _report(
    request: SweepRequest,
    driven: Driven,
    objectives: tuple[Objective, ...],
    identity: Mapping[str, str],
    made_with: MadeWith,
    notes: Sequence[str],
) -> SweepReport:
    rows = driven.rows
    check_objectives(objectives, rows)
    mix = None if request.scenario is None else results_of(request.scenario, rows, objectives)
    best, front = ranked(rows, objectives)[:BEST], pareto_front(rows, objectives)
    if mix is not None:  # rows of different work are not compared
        best, front = [], []
    shown, params = (rows, request.params) if mix is None else (mix.weighted, {})
    effects = effects_of(request.axes, params, shown, objectives) if request.sensitivity else []
    explained = importance_of(shown, objectives) if not request.sensitivity else {}
    results = results_as_json(identity, made_with, rows, objectives, best, front)
    results |= further_results(mix, effects, explained)
    drawn = front if mix is None else mix.ranking.front
    plotted = objectives if mix is None else mix.objectives
    files, warnings = _write(request, shown, drawn, rows, plotted, results, effects)
    if mix is not None:
        warnings += not_weighed(objectives)
    if request.sensitivity:
        warnings += without_effects(params, shown, objectives, effects)
    unusual = [row.warnings for row in rows if row.is_feasible and row.warnings]
    if unusual:
        warnings.insert(
            0, f"{len(unusual)} of {len(rows)} points: {unusual[0]} (and others: see the column `warnings`)"
        )
    unfit = sum(not row.fits for row in rows)
    if unfit:
        warnings.insert(0, f"{unfit} of {len(rows)} points do not fit the memory of their machine, and are not ranked")
    over = sum(row.fits and row.infeasible is not None for row in rows)
    if over:
        warnings.insert(
            0, f"{over} of {len(rows)} points are infeasible, and are not ranked: see the column `infeasible`"
        )
    notes = [*notes, *warnings]
    return SweepReport(
        rows,
        driven.ran,
        driven.run_s,
        objectives,
        best,
        front,
        identity,
        made_with,
        notes,
        files,
        mix,
        effects,
        explained,
    )


def further_results(mix: ScenarioResults | None, effects: Sequence[Effect], explained: Importance) -> dict[str, object]:
    """What `results.json` has of a scenario, of axes that were varied alone, and of how much each axis explains."""
    found: dict[str, object] = {} if mix is None else {"scenario": mix.as_json()}
    found |= {"importance": explained} if explained else {}
    return found | ({"sensitivity": [effect.as_json() for effect in effects]} if effects else {})


def _write(
    request: SweepRequest,
    shown: Sequence[SweepRow],
    front: Sequence[SweepRow],
    rows: Sequence[SweepRow],
    objectives: Sequence[Objective],
    results: Mapping[str, object],
    effects: Sequence[Effect],
) -> tuple[list[Path], list[str]]:
    """The result files, and what could not be made. `shown` are the rows of the plot."""
    if request.out is None:
        return [], []
    files, changed = write_results(request.out, results, rows)
    notes = [] if any(file.name == PARQUET for file in files) else ["no results.parquet: pip install 'kernbench[log]'"]
    drawn = tornado_files(request.out) if effects else plot_files(request.out)
    if request.plot and (front or effects) and (changed or not all(file.is_file() for file in drawn)):
        mix = request.scenario
        title, what = (request.title, "points") if mix is None else (f"{mix.name}, weighted", "machines")
        try:
            if effects:  # points that differ in one axis each make no line over the first axis
                draw_tornado(title, effects, objectives, request.out)
            else:
                draw_sweep(title, shown, objectives, front, request.out, what)
        except UsageError as error:
            return files, [*notes, f"no plot: {error.hint}"]
    return [*files, *(file for file in drawn if file.is_file())], notes
