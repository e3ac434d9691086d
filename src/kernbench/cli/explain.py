"""`kernbench explain`: where the time of a saved run went, and what would bound it without a component."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import click

from kernbench.cli.options import given_words, print_json, refuse_two_scopes, stdout_for_json
from kernbench.cli.run_page import bench_of, next_of, refuse_edited, write_file, write_page
from kernbench.cli.terminal import painter
from kernbench.common.errors import UsageError
from kernbench.common.units import format_ns
from kernbench.report.explain.as_json import explanation_as_json
from kernbench.report.explain.as_text import explanation_as_text
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.explanation import explain as explain_run
from kernbench.report.explain.headline import main_scope, scope_id, scope_name
from kernbench.report.explain.what_if import TARGETS, WhatIf, targets_of, what_ifs
from kernbench.report.runs.saved_run import SavedRun, open_run
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.topology import load_topology


@click.command()
@click.argument("run", metavar="RUN")
@click.option("--launch", type=int, default=None, metavar="N", help="Explain one launch, by its number from 0 on.")
@click.option("--whole", is_flag=True, help="Explain the whole run, with what the host did around the launches.")
@click.option(
    "--what-if",
    "patterns",
    multiple=True,
    metavar="COMPONENT",
    help="Run again with a component made free, and compare with the path's estimate. May be repeated, and may have a "
    f"*: {', '.join(TARGETS)}.",
)
@click.option(
    "--save",
    metavar="DIR",
    default=None,
    help="With --what-if: save the new runs, each as a folder in DIR; `kernbench web RUN DIR` shows them beside it.",
)
@click.option(
    "--progress", is_flag=True, help="With --what-if: print the simulated time on standard error now and then."
)
@click.option("--picture", metavar="FILE.svg", default=None, help="Also draw the critical path.")
@click.option(
    "--html",
    metavar="FILE.html",
    default=None,
    help="Also write the run as one page that needs no server and no network.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    run: str,
    launch: int | None,
    whole: bool,
    patterns: tuple[str, ...],
    save: str | None,
    progress: bool,
    picture: str | None,
    html: str | None,
    as_json: bool,
) -> int:
    """Where the time of RUN went: its critical path from launch to completion, by class, engine, link and kernel line.

    RUN is a folder that `kernbench run --save` wrote. The scope is its launch, or the time from the first of several to
    the end of the last, as in `kernbench web`. The parts of each table sum to that time.
    """
    refuse_two_scopes(launch, whole)
    if save is not None and not patterns:
        raise UsageError("--save without --what-if", hint="give --what-if COMPONENT: RUN itself is saved already")
    saved = open_run(run)
    explanation = explain_run(saved, launch) if whole or launch is not None else main_scope(saved)
    estimated = what_ifs(saved, explanation, patterns)
    with stdout_for_json(as_json):
        found = [measured(saved, explanation, one, save, progress=progress) for one in estimated]
    title = ", ".join(filter(None, (saved.name, scope_name(saved, explanation.scope))))
    if picture is not None:
        _draw(explanation, title, picture)
    if html is not None:
        write_page(saved, explanation, title, html, run, "--html")
    if as_json:
        data = explanation_as_json(explanation, next_of(saved, explanation, run).command)
        data["run"] = {"id": saved.id, "name": saved.name}
        data["what_if"] = [one.as_json() for one in found]
        print_json(data)
        return 0
    free = [] if found else what_ifs(saved, explanation, targets_of(saved.graph.spec))
    click.echo(explanation_as_text(explanation, title, painter(), next_of(saved, explanation, run), free))
    if found:
        click.echo("\nWhat if (the estimate takes the component out of this path only)")
        for one in found:
            click.echo(f"  {one}")
            if one.saved is not None:
                click.echo(f"    wrote {one.saved}")
    for name in (picture, html):
        if name is not None:
            click.echo(f"wrote {name}")
    return 0


@dataclass(frozen=True, slots=True)
class MeasuredWhatIf:
    """A component that was made free: the estimate and the measurement."""

    estimated: WhatIf
    total_ns: float
    saved: Path | None = None  # the folder of the new run

    @property
    def gained_ns(self) -> float:
        return self.estimated.total_ns - self.total_ns

    def __str__(self) -> str:
        one = self.estimated
        gained = self.gained_ns / one.total_ns if one.total_ns else 0.0
        return (
            f"{one.name} free: {format_ns(self.total_ns)} instead of {format_ns(one.total_ns)} ({-gained:+.1%}); "
            f"estimated along the path: {format_ns(one.estimated_ns)} ({-one.share:+.1%})"
        )

    def as_json(self) -> dict[str, object]:
        one = self.estimated
        return {
            "component": one.name,
            "settings": dict(one.settings),
            "total_ns": one.total_ns,
            "gain_ns": one.gain_ns,
            "foreseen_ns": one.estimated_ns,
            "measured_ns": self.total_ns,
        }


def measured(
    saved: SavedRun, explanation: Explanation, estimated: WhatIf, save: str | None, *, progress: bool = False
) -> MeasuredWhatIf:
    """Run the bench again on a machine where the component is free."""
    target = None if save is None else Path(save) / estimated.name.replace(" and ", "+")
    result = _run_again(saved, estimated, target, progress)
    scope, launches = explanation.scope, result.launches
    if scope_id(saved, scope) == "run":
        return MeasuredWhatIf(estimated, result.total_ns, target)
    if len(launches) != len(saved.launches):
        raise UsageError(
            f"the bench launched {len(launches)} kernels when it ran again, not {len(saved.launches)}",
            where=saved.manifest.identifier,
            hint="is it the same file?",
        )
    chosen = launches if scope.launch < 0 else [launches[scope.launch]]
    took = max(launch.end_ns for launch in chosen) - min(launch.start_ns for launch in chosen)
    return MeasuredWhatIf(estimated, took, target)


def _run_again(saved: SavedRun, estimated: WhatIf, target: Path | None, progress: bool) -> BenchResult:
    from kernbench.report.runs.save import About, run_folder

    about = saved.manifest
    spec, params = bench_of(saved)
    refuse_edited(saved)
    graph = load_topology(saved.graph.spec, estimated.settings)
    options = RunOptions(device=about.device, progress=_print_progress if progress else None)
    if target is None:
        return run_bench(spec.run, graph, options, name=spec.name, params=params)
    with run_folder(target) as folder:
        watched = replace(options, op_log=folder.log, activity=folder.activity)
        result = run_bench(spec.run, graph, watched, name=spec.name, params=params)
        title = f"{about.title}, {estimated.name} free"
        command = given_words()
        there = os.path.join(saved.path, str(about.raw.get("directory", ".")))
        directory = os.path.relpath(os.path.realpath(there), os.path.realpath(target))
        written = About(
            command, about.identifier, spec.name, params, about.device,
            title=title, directory=directory, program=about.raw.get("program"),
        )  # fmt: skip
        folder.write(result, written)
    return result


def _print_progress(now_ns: float) -> None:
    click.echo(f"simulated {now_ns:.0f} ns", err=True)


def _draw(explanation: Explanation, title: str, name: str) -> None:
    from kernbench.report.explain.picture import explanation_as_svg

    write_file(name, explanation_as_svg(explanation, title), ".svg", "--picture")
