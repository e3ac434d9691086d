"""`kernbench run` of an evaluation: prints an estimate, runs the points, prints the paths of results and figures."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from kernbench.benches._params import read_params
from kernbench.benches.registry import BenchSpec
from kernbench.cli.options import load_machine, print_json, stdout_for_json
from kernbench.cli.terminal import ProgressLine, indented
from kernbench.common.errors import UsageError

if TYPE_CHECKING:
    from kernbench.evaluation.run import Estimate, EvaluationReport
    from kernbench.sweep.driver import SweepProgress

OUT = "kernbench-out"
STOPPED = 130


class EvaluationOptions(NamedTuple):
    """The options of the command line."""

    topology: str | None
    settings: tuple[str, ...]
    params: tuple[str, ...]
    out: str | None
    redraw: bool
    workers: int | None
    cluster: str | None
    resume_anyway: bool


def is_evaluated(spec: BenchSpec, of_evaluations: Mapping[str, object], of_runs: Mapping[str, object]) -> bool:
    """Whether a bench is to be evaluated: it is only an evaluation, or it has one and `--out` is given.

    Raises UsageError for options that do not apply.
    """
    given = [option for option, value in of_evaluations.items() if value not in (None, False)]
    if spec.evaluation is None and given:
        raise UsageError(
            f"{given[0]} is for evaluations, and bench '{spec.name}' has no evaluation",
            hint="leave it out; `kernbench sweep --out DIR` runs any bench over values of its parameters",
        )
    evaluated = spec.is_evaluation or of_evaluations["--out"] is not None or of_evaluations["--redraw"] is True
    if not evaluated and given:
        raise UsageError(f"{given[0]} is for the evaluation of '{spec.name}'", hint="give --out DIR to evaluate it")
    refused = [option for option, value in of_runs.items() if value not in (None, False)]
    if evaluated and refused:
        raise UsageError(f"{refused[0]} is for one run, and an evaluation has many", hint="leave it out")
    return evaluated


# Variables of other evaluations of the same names, and what does here what they do there.
REPLACED_VARIABLES = {
    "MILESTONE_FAST": "`--redraw` draws the results in --out again; without it, points that are in --out are kept",
    "GQA_VALIDATION": "points of the part 'validated' are compared with numpy in every evaluation",
}


def evaluate_bench(spec: BenchSpec, options: EvaluationOptions, as_json: bool) -> int:
    """Evaluate it; returns the exit code."""
    for name, instead in REPLACED_VARIABLES.items():
        if os.environ.get(name):
            click.echo(f"note: {name} in the environment is not read: {instead}", err=True)
    out = _folder(spec, options)
    bar = ProgressLine(on_pipe=True)
    try:
        with stdout_for_json(as_json):
            report = _redraw(spec, options, out) if options.redraw else _evaluate(spec, options, out, bar)
    except KeyboardInterrupt:
        bar.clear()
        click.echo(f"stopped; the same command goes on from {out}", err=True)
        return STOPPED
    finally:
        bar.clear()
    if as_json:
        print_json(report.as_json())
    else:
        click.echo("\n".join(_as_text(report, out)))
    return 1 if report.results.failed else 0


def _folder(spec: BenchSpec, options: EvaluationOptions) -> Path:
    if options.out is not None and not options.out.strip():
        raise UsageError("--out takes a folder, not an empty name", hint=f"leave it out for {OUT}/{spec.name}")
    return Path(options.out) if options.out is not None else Path(OUT) / spec.name.replace(":", "-")


def _redraw(spec: BenchSpec, options: EvaluationOptions, out: Path) -> EvaluationReport:
    from kernbench.evaluation.run import redraw

    given: dict[str, object] = {"--topology": options.topology, "--set": options.settings, "--param": options.params}
    given |= {"--workers": options.workers, "--cluster": options.cluster}
    given |= {"--resume-anyway": options.resume_anyway}
    for option, value in given.items():
        if value:
            raise UsageError(f"{option} with --redraw", hint="--redraw draws the results that are there; leave one out")
    assert spec.evaluation is not None
    return redraw(spec.evaluation, spec.name, out)


def _evaluate(spec: BenchSpec, options: EvaluationOptions, out: Path, bar: ProgressLine) -> EvaluationReport:
    from kernbench.evaluation.run import EvaluationRequest, evaluate

    assert spec.evaluation is not None
    request = EvaluationRequest(
        evaluation=spec.evaluation,
        name=spec.name,
        description=spec.description,
        machine=load_machine(options.topology, options.settings),
        parameters=dict(read_params(spec.evaluation_params, options.params, os.environ)),
        out=out,
        workers=options.workers,
        cluster=options.cluster,
        resume_anyway=options.resume_anyway,
    )

    def announce(estimate: Estimate) -> None:
        kept = estimate.points - estimate.missing
        there = f", {kept} of them there" if kept else ""
        long = f"; about {duration_text(estimate.seconds)} in {estimate.workers} processes" if estimate.missing else ""
        long = "; run by the cluster" if options.cluster and estimate.missing else long
        click.echo(f"{spec.name}: {estimate.points} points{there}{long}; into {out}", err=True)

    def show(now: SweepProgress) -> None:
        bar.show(f"{now.done}/{now.total} points, {now.failed} failed, about {duration_text(now.left_s)} left")

    return evaluate(request, announce, show)


def duration_text(seconds: float) -> str:
    """`40 s`, `3 min`: a duration, rounded."""
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min"


def _as_text(report: EvaluationReport, out: Path) -> list[str]:
    results, failed = report.results, report.results.failed
    lines = [f"{results.bench}: {len(results.rows)} points, {report.ran} run now; machine {results.topology}"]
    lines += [f"note: {note}" for note in report.notes]
    if failed:
        lines += [f"{len(failed)} failed, so no figures are drawn"]
        for row in failed:
            lines += [f"  {row['point']}", *indented(str(row["error"]))]
    lines += [f"wrote {file}" for file in report.files]
    lines += [f"drew  {figure}" for figure in report.figures if figure.suffix == ".png"]
    if report.figures:
        lines.append(f"one page of it all: kernbench report {out}")
    return lines
