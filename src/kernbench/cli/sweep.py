"""`kernbench sweep`: many runs of a bench over values of its parameters and of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import click

from kernbench.cli.options import machine_options, print_json, stdout_for_json
from kernbench.cli.sweep_request import SweepOptions, request_of
from kernbench.cli.sweep_text import report_as_text
from kernbench.cli.terminal import ProgressLine, painter
from kernbench.sweep.driver import SweepProgress
from kernbench.sweep.request import SweepReport, SweepRequest, run_sweep
from kernbench.sweep.rows import SweepRow

STOPPED = 130  # the exit code of a command ended by Ctrl-C


@click.command()
@click.argument("file", required=False, metavar="[FILE.yaml]")
@click.option("--bench", metavar="BENCH", help="A name or number of `kernbench list`, or FILE.py[:NAME].")
@click.option(
    "--over",
    multiple=True,
    metavar="NAME=VALUES",
    help="An axis: m=128,256,512 or m=128..1024*2 or m=16..64+16, and machine:KEY=VALUES for the machine. "
    "machine:A&machine:B=1&8,2&16 sets several keys at once. "
    "May be repeated: all combinations are run.",
)
@click.option(
    "--scenario",
    metavar="FILE.yaml",
    help="Workloads of llm-layer with weights, in place of a bench: each point is run on all of them.",
)
@click.option(
    "--where",
    multiple=True,
    metavar="CONDITION",
    help="Leave out points that break it: --where 'machine:cube.ucie.n_connections * 128 <= 512'. May be repeated.",
)
@click.option(
    "--sensitivity", is_flag=True, help="Vary each axis alone, from the machine as it is; draw a tornado chart."
)
@click.option("--zip", is_flag=True, help="Run the axes side by side instead of all combinations.")
@click.option("--param", multiple=True, metavar="NAME=VALUE", help="Set a parameter of all points. May be repeated.")
@machine_options
@click.option("--device", metavar="DEVICE", help="As for `kernbench run`.")
@click.option("--verify-data", is_flag=True, help="Compare the tensors of every point with what the bench states.")
@click.option("--search", metavar="METHOD", help="random or optuna: run some of the combinations, not all.")
@click.option("--trials", type=int, help="How many, for a search.  [default: 100]")
@click.option("--seed", type=int, help="Of a search.  [default: 0]")
@click.option("--batch", type=int, help="Trials that Optuna proposes at a time.  [default: 8]")
@click.option("--storage", metavar="FILE|URL", help="Where Optuna keeps its study.  [default: in the folder]")
@click.option(
    "--objective",
    metavar="COLUMNS",
    help="What is best: total_ns:min,cost:min or any column with a number, min or max.",
)
@click.option("--cost", metavar="FILE.py:NAME", help="A function of a machine's spec for the column `cost`.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes.  [default: one per core]")
@click.option("--cluster", metavar="ADDRESS", help="Run on the workers of a dask scheduler: tcp://host:8786.")
@click.option("--out", metavar="DIR", help="The folder for rows, tables and the plot.  [default: NAME.sweep]")
@click.option("--retry-failed", is_flag=True, help="Run points again that failed in an earlier call.")
@click.option(
    "--resume-anyway",
    is_flag=True,
    help="Keep rows that were made with another text of the bench, of what it imports, of ccl.yaml or of KernBench.",
)
@click.option("--point-timeout", type=float, metavar="SECONDS", help="End a point that runs longer: it has failed.")
@click.option("--allow-failures", is_flag=True, help="Exit with 0 although some points failed.")
@click.option("--plot/--no-plot", default=True, help="Draw the sweep as PNG and SVG.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sweep(as_json: bool, settings: tuple[str, ...], allow_failures: bool, **options: Any) -> int:
    """Run a bench over values of its parameters and of the machine; store every row, and print the best.

    Rows are stored in a folder as they are computed: the same command resumes an interrupted sweep.
    """
    with stdout_for_json(as_json):
        given = SweepOptions(**{name: options[name] for name in _NAMES if name != "set"}, set=settings)
        request = request_of(given)
        said: list[str] = []
        report = _run(request, said)
    if report is None:
        return STOPPED
    if as_json:
        print_json(report.as_json())
    else:
        click.echo(report_as_text(report, painter(), said))
    return _exit_code(report.rows, allow_failures)


def _exit_code(rows: Sequence[SweepRow], allow_failures: bool) -> int:
    """1 where a point failed, or, when failures are allowed, where verified data was wrong or no point was right."""
    if allow_failures:
        return 1 if any(row.wrong for row in rows) or all(row.has_failed for row in rows) else 0
    return 1 if any(row.has_failed for row in rows) else 0


_NAMES = [part.name for part in fields(SweepOptions)]


def _run(request: SweepRequest, said: list[str]) -> SweepReport | None:
    """Run the sweep; None if it was interrupted. Notes that are printed before any point runs are added to `said`."""
    bar = ProgressLine(on_pipe=True)
    latest: list[SweepProgress] = []

    def show(progress: SweepProgress) -> None:
        latest[:] = [progress]
        failed = f", {progress.failed} failed" if progress.failed else ""
        left = _duration(progress.left_s)
        bar.show(f"sweep {request.title}: {progress.done} of {progress.total} points{failed}, {left} left")

    def say(note: str) -> None:
        said.append(note)
        click.echo(f"note: {note}", err=True)

    try:
        return run_sweep(request, show, say)
    except KeyboardInterrupt:
        bar.clear()
        done = f" after {latest[0].done} of {latest[0].total} points" if latest else ""
        click.echo(f"stopped{done}; rows are in {request.out}, the same command goes on", err=True)
        return None
    finally:
        bar.clear()


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
