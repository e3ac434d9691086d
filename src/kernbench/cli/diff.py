"""`kernbench diff`: what changed between two saved runs, and where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from kernbench.cli.options import print_json, refuse_two_scopes
from kernbench.cli.terminal import painter
from kernbench.common.units import counted, format_ns
from kernbench.report.explain.diff import Difference, DiffRow, diff_runs, differences
from kernbench.report.explain.headline import wrapped
from kernbench.report.runs.saved_run import open_run

MOST_ROWS = 10
TITLES = {
    "class": "By class",
    "launch": "By launch",
    "engine": "By engine",
    "link": "By link (queueing)",
    "line": "By kernel line",
}


@click.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--launch", type=int, metavar="N", help="Compare launch N of A, from 0 on, with the launch of that name in B."
)
@click.option("--whole", is_flag=True, help="Compare the whole runs, with what the host did around the launches.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def diff(a: str, b: str, launch: int | None, whole: bool, as_json: bool) -> int:
    """The difference of run B from run A: in total, and on the critical path by class, launch, engine, link, line.

    A and B are folders that `kernbench run --save` wrote. The scope is that of `kernbench web`: the launch of a run, or
    the time from the first of several to the end of the last. The rows of each table sum to the change.
    """
    refuse_two_scopes(launch, whole)
    found = diff_runs(open_run(a), open_run(b), launch, whole=whole)
    if as_json:
        print_json(found.as_json())
    else:
        click.echo("\n".join(_text(found)))
    return 0


def _text(found: Difference) -> Iterator[str]:
    title = painter()
    a, b = found.a, found.b
    share = f" ({found.delta_ns / a.total_ns:+.1%})" if a.total_ns else ""
    for letter, side in (("A", a), ("B", b)):
        yield f"{letter} {side.name}: {format_ns(side.total_ns)}"
        yield wrapped(side.sentence)
    yield f"B - A: {_signed(found.delta_ns)}{share}"
    if (runs := (a.run.total_ns, b.run.total_ns)) != (a.total_ns, b.total_ns):
        yield f"The whole runs, with what the host did, take {format_ns(runs[0])} and {format_ns(runs[1])}: --whole."
    yield from differences(a.run, b.run)
    for name, rows in found.tables.items():
        yield ""
        yield title(TITLES[name], "title")
        yield from _table(rows)


def _table(rows: Sequence[DiffRow]) -> Iterator[str]:
    """The rows that changed most, the others as one, and their sum."""
    shown = [row for row in rows[:MOST_ROWS] if row.delta_ns or row.only]
    rest = rows[len(shown) :]
    lines = [
        (row.name, _time(row.a_ns), _time(row.b_ns), _signed(row.delta_ns), f"only in {row.only}" if row.only else "")
        for row in shown
    ]
    if rest:
        a, b = (sum(getattr(row, name) or 0.0 for row in rest) for name in ("a_ns", "b_ns"))
        lines.append((counted(len(rest), "other"), _time(a), _time(b), _signed(b - a), ""))
    total = sum(row.delta_ns for row in rows)
    lines.append(("sum", "", "", _signed(total), ""))
    width = min(70, max(len(line[0]) for line in lines))
    for name, before, after, delta, note in lines:
        yield f"  {name[:width]:<{width}}  {before:>10}  {after:>10}  {delta:>11}  {note}".rstrip()


def _time(ns: float | None) -> str:
    return "-" if ns is None else format_ns(ns)


def _signed(ns: float) -> str:
    return f"{'-' if ns < 0 else '+'}{format_ns(abs(ns))}"
