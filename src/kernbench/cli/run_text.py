"""Prints what `kernbench run` found: the answer first, then launches and one chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kernbench.cli.terminal import painter
from kernbench.report.run_figures import RunFigures, rows_of
from kernbench.runtime_api.bench_result import BenchResult

if TYPE_CHECKING:
    from kernbench.report.explain.explanation import Explanation
    from kernbench.report.run_command import RunCommand


def show_run(figures: RunFigures, command: RunCommand, oplog: str | None, *, full: bool, stats: bool) -> None:
    """Print the run: the answer, the launches, one chart; with `full`, all details."""
    from kernbench.report.explain.headline import headline, wrapped
    from kernbench.report.rows import rows_as_text
    from kernbench.report.run_answer import ANSWER, answer_lines, path_chart
    from kernbench.report.run_summary import full_summary, short_summary
    from kernbench.report.simulation_text import simulation_as_text

    result, painted = figures.result, painter()
    found = _explained(result, command)
    click.echo("\n".join(answer_lines(figures, found, command, painted)))
    click.echo((full_summary if full else short_summary)(figures, painted))
    if found is not None:
        click.echo("\n" + "\n".join(path_chart(found, painted)))
        click.echo(wrapped(headline(found.run)))
    if rows := [row for row in rows_of(result) if ANSWER not in row]:
        click.echo(f"\n{rows_as_text(rows)}")
    if stats:
        click.echo(f"\n{painted('How it was simulated', 'title')}\n{simulation_as_text(result.simulation)}")
    if result.fast_check is not None:
        click.echo(f"\n{painted('Fast paths', 'title')}\n{result.fast_check.as_text()}")
    if (report := figures.params.get("mapping_report", "-")) not in ("", "-"):
        click.echo(f"wrote {report}")
    for name in (oplog, command.saved):
        if name is not None and result.op_log is not None:
            then = (
                f"; see it with `kernbench explain {name}` or `kernbench web {name}`" if name is command.saved else ""
            )
            click.echo(f"wrote {name}: {len(result.op_log):,} ops{then}")


def verdict_as_json(result: BenchResult, command: RunCommand) -> dict[str, object] | None:
    """The verdict with what to run next, or None if it would take too long to find."""
    from kernbench.report.explain.verdict import verdict_of

    found = _explained(result, command)
    if found is None:
        return None
    verdict = verdict_of(found)
    return verdict.as_json(command.next_command(verdict.cause))


def _explained(result: BenchResult, command: RunCommand) -> Explanation | None:
    """The explanation of the launches, or None if it would take too long."""
    from kernbench.report.explain.headline import main_scope
    from kernbench.report.runs.live_run import live_run
    from kernbench.report.runs.saved_run import open_run

    if not result.launches or not result.completion.ok:
        return None
    saved = command.saved
    run = live_run(result, is_triton=command.is_triton) if saved is None else open_run(saved)
    return None if run is None else main_scope(run)
