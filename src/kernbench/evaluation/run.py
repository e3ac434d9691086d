"""Runs an evaluation: the missing points first, then the results file and the figures.

Rows are stored in `points/` of the folder as they are computed, so that an interrupted evaluation resumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from kernbench.common.errors import UsageError
from kernbench.common.version import __version__
from kernbench.evaluation.contract import Evaluation, Row, Rows, Setting
from kernbench.evaluation.results import (
    JSON,
    EvaluationResults,
    draw_figures,
    flat_row,
    read_results,
    write_results,
)
from kernbench.runtime_api.bench_runner import WHOLE
from kernbench.sweep.context import SweepContext, digest_of, machine_tree
from kernbench.sweep.driver import SweepProgress, drive
from kernbench.sweep.folder import SweepFolder
from kernbench.sweep.points import JsonValue, Point, listed, point_of
from kernbench.sweep.request import pool_of, workers_of
from kernbench.sweep.rows import SweepRow
from kernbench.sweep.target import target_of
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.machine_hash import machine_hash

POINTS = "points"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequest:
    """What to evaluate, on which machine, the output folder, and the workers (see SweepRequest)."""

    evaluation: Evaluation
    name: str
    description: str
    machine: TopologyGraph
    parameters: Mapping[str, JsonValue]
    out: Path
    workers: int | None = None
    cluster: str | None = None
    resume_anyway: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """Before the run: the number of points, how many are missing, and an estimate of their time."""

    points: int
    missing: int
    seconds: float
    workers: int


@dataclass(frozen=True, slots=True)
class EvaluationReport:
    """The result. `ran` points were run now, the others were stored before. There are no figures if a point failed."""

    results: EvaluationResults
    ran: int
    notes: tuple[str, ...]
    files: tuple[Path, ...]
    figures: tuple[Path, ...]

    def as_json(self) -> dict[str, object]:
        """The content of `results.json`, and what this run did."""
        data = self.results.as_json()
        rows = data.pop("rows")
        return {
            **data,
            "ok": not self.results.failed,
            "ran": self.ran,
            "notes": list(self.notes),
            "files": [str(file) for file in (*self.files, *self.figures)],
            "rows": rows,
        }


def evaluate(
    request: EvaluationRequest,
    announce: Callable[[Estimate], None] | None = None,
    progress: Callable[[SweepProgress], None] | None = None,
) -> EvaluationReport:
    """Run an evaluation into its folder; raises UsageError where the folder holds something else."""
    _check_place(request.out)
    evaluation, spec = request.evaluation, request.machine.spec
    settings = evaluation.points(request.machine, **request.parameters)
    if not settings:
        raise UsageError(
            f"evaluation '{request.name}' has no point on machine '{spec.system.name}'",
            hint="take a larger machine, or other parameters",
        )
    tree = machine_tree(request.machine, None)
    context = SweepContext(target_of(evaluation.point), request.name, tree, WHOLE)
    points = listed(settings, {})
    identity = context.identity([list(setting.values()) for setting in settings])
    with (
        closing(SweepFolder(request.out / POINTS, identity, resume_anyway=request.resume_anyway)) as folder,
        closing(pool_of(context, request.workers, request.cluster)) as pool,
    ):
        folder.forget_failed()
        missing = [setting for setting in settings if folder.get(point_of(setting, {})) is None]
        if announce is not None:
            announce(_estimate(request, settings, missing))
        driven = drive(_Plan(points, evaluation.further), pool, folder, progress, digest_of(identity))
        notes = tuple(folder.notes)
    results = EvaluationResults(
        bench=request.name,
        description=request.description,
        version=__version__,
        topology=spec.system.name,
        topology_hash=machine_hash(spec),
        parameters=request.parameters,
        machine=tree,
        facts=evaluation.facts,
        rows=tuple(flat_row(row) for row in driven.rows),
    )
    files = write_results(request.out, results)
    figures, drawing_notes = ([], []) if results.failed else _drawn(request.out, evaluation, results)
    return EvaluationReport(results, driven.ran, (*notes, *drawing_notes), (*files,), (*figures,))


class _Plan:
    """The points of an evaluation, then what its rows call for."""

    def __init__(self, points: Sequence[Point], further: Callable[[Rows], Sequence[Setting]] | None) -> None:
        self._next = points
        self._further = further
        self._rows: list[Row] = []
        self._seen: dict[str, None] = {}

    @property
    def total(self) -> int:
        return len(self._seen)

    def next_batch(self) -> Sequence[Point]:
        self._seen |= {point.key: None for point in self._next}
        return self._next

    def report(self, rows: Sequence[SweepRow]) -> None:
        self._rows += [flat_row(row) for row in rows if row.ok]
        found = [] if self._further is None else listed(self._further(self._rows), {})
        self._next = [point for point in found if point.key not in self._seen]


def redraw(evaluation: Evaluation, name: str, out: Path) -> EvaluationReport:
    """Draw the figures again from the results that a folder has; raises UsageError when those are of another bench."""
    results = read_results(out)
    if results.bench != name:
        raise UsageError(
            f"the folder has results of '{results.bench}', not of '{name}'", where=str(out), hint="give its folder"
        )
    if results.failed:
        raise UsageError(
            f"{len(results.failed)} points of these results failed",
            where=str(out / JSON),
            hint="run it without --redraw",
        )
    try:
        evaluation.figures(results.rows, results.graph())
    except KeyError as error:
        raise UsageError(
            f"rows of these results have no {error}: another version of KernBench has made them",
            where=str(out / JSON),
            hint="run it without --redraw",
        ) from None
    figures, drawing_notes = _drawn(out, evaluation, results)
    return EvaluationReport(results, 0, (*drawing_notes,), (), (*figures,))


def _drawn(out: Path, evaluation: Evaluation, results: EvaluationResults) -> tuple[list[Path], list[str]]:
    charts = evaluation.figures(results.rows, results.graph())
    try:
        return draw_figures(out, results, charts), []
    except UsageError as error:  # without matplotlib only the tables are written
        return [], [f"no figures: {error.hint}"]


def _estimate(request: EvaluationRequest, settings: Sequence[Setting], missing: Sequence[Setting]) -> Estimate:
    workers = workers_of(request.workers)
    seconds = sum(request.evaluation.seconds(setting) for setting in missing)
    longest = max((request.evaluation.seconds(setting) for setting in missing), default=0.0)
    return Estimate(len(settings), len(missing), max(seconds / workers, longest), workers)


def _check_place(path: Path) -> None:
    """Raise UsageError for a folder that holds something else."""
    if path.exists() and not path.is_dir():
        raise UsageError("the folder of an evaluation is a file", where=str(path), hint="give another folder (--out)")
    if path.is_dir() and any(path.iterdir()) and not (path / POINTS).is_dir() and not (path / JSON).is_file():
        raise UsageError(
            "the folder is not empty and holds no evaluation",
            where=str(path),
            hint="give an empty or new folder (--out)",
        )
