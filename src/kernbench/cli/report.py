"""`kernbench report`: the results of an evaluation or of a sweep as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.cli.options import print_json
from kernbench.common.errors import UsageError
from kernbench.common.output_files import PAGE, check_output

SCHEMA = 1


@click.command()
@click.argument("folder", metavar="DIR")
@click.option("--out", metavar="FILE", default=None, help="Where to write it.  [default: DIR/report.html]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(folder: str, out: str | None, as_json: bool) -> int:
    """Make one self-contained HTML file of the results that an evaluation or a sweep wrote to DIR.

    Figures are inline, tables sort by a click on a column's name; the limits of the model are listed. The page of a
    sweep has the best by kind of work, and what is infeasible with its reason.
    """
    from kernbench.evaluation.page import write_page
    from kernbench.sweep.page import is_sweep, write_sweep_page

    where = Path(folder)
    if not where.is_dir():
        raise UsageError(
            "no such folder", where=folder, hint="name the folder that `kernbench run --out` or `kernbench sweep` wrote"
        )
    if out is not None and (not out.strip() or Path(out).is_dir()):
        raise UsageError(f"--out takes a file, not '{out}'", hint="leave it out for DIR/report.html")
    if out is not None:
        check_output(out, PAGE, f"--out {out}")
    path = (write_sweep_page if is_sweep(where) else write_page)(where, None if out is None else Path(out))
    if as_json:
        print_json({"schema": SCHEMA, "command": "report", "file": str(path), "bytes": path.stat().st_size})
    else:
        click.echo(f"wrote {path}")
    return 0
