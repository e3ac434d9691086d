"""`kernbench runs`: the saved runs in a folder."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.cli.options import print_json
from kernbench.common.errors import KernBenchError
from kernbench.common.units import format_ns
from kernbench.report.explain.headline import main_scope
from kernbench.report.rows import rows_as_text
from kernbench.report.runs.saved_run import find_runs, open_run

SCHEMA = 1


@click.command()
@click.argument("folder", metavar="[DIR]", default=".")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def runs(folder: str, as_json: bool) -> int:
    """List the runs that `kernbench run --save` wrote at and below DIR (here, if left out)."""
    rows = [_row(path) for path in find_runs(folder)]
    if as_json:
        print_json({"schema": SCHEMA, "command": "runs", "runs": rows})
        return 0
    if not rows:
        click.echo(f"no saved runs in {folder}; `kernbench run --bench NAME --save {folder}/NAME` makes one")
        return 0
    shown = [
        {
            "id": row["id"],
            "run": row["name"],
            "machine": row["machine"],
            "launches": format_ns(float(str(row["launches_ns"]))),
            "whole run": format_ns(float(str(row["total_ns"]))),
            "data": row["verified"],
            "ops": f"{row['ops']:,}",
            "folder": row["dir"],
        }
        for row in rows
        if row["error"] is None
    ]
    if shown:
        click.echo(rows_as_text(shown))
    for row in rows:
        if row["error"] is not None:
            click.echo(f"{row['dir']}: {row['error']}")
    return 0


def _row(path: Path) -> dict[str, object]:
    """A run, or the error of its folder."""
    try:
        run = open_run(path)
        about, launches_ns = run.manifest, main_scope(run).scope.total_ns
    except KernBenchError as error:
        empty = dict.fromkeys(("id", "name", "machine", "total_ns", "launches_ns", "verified", "launches", "ops"))
        return {**empty, "dir": str(path), "error": error.what}
    return {
        "id": about.hash[:12],
        "name": about.title,
        "machine": about.machine,
        "total_ns": about.total_ns,
        "launches_ns": launches_ns,  # what `explain` and the page show first
        "verified": about.verified,
        "launches": about.launches,
        "ops": about.ops,
        "dir": str(path),
        "error": None,
    }
