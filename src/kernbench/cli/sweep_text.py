"""A sweep as text: the number of points, the best, the Pareto front, failures, files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernbench.cli.terminal import indented
from kernbench.report.paint import Paint
from kernbench.sweep.points import MACHINE, Value
from kernbench.sweep.request import SweepReport
from kernbench.sweep.rows import TABLE, SweepRow, table_columns, table_rows, varying

FRONT_SHOWN = 20
TABLE_SHOWN = 40


def report_as_text(report: SweepReport, paint: Paint) -> str:
    rows = report.rows
    failed = [row for row in rows if not row.ok]
    kept = len(rows) - report.ran
    points = "point" if len(rows) == 1 else "points"
    lines = [f"{report.identity['bench']}: {len(rows)} {points}, {report.ran} run now, {max(kept, 0)} kept"]
    lines += [f"note: {note}" for note in report.notes]
    shown = [*varying(rows)]
    shown += [o.column for o in report.objectives if o.column not in shown]
    shown += [name for name in ("bound", "roofline_share") if name not in shown]
    if report.best:
        lines += ["", paint(f"Best by {report.objectives[0]}", "title"), *_table(report.best, shown)]
    if len(report.objectives) > 1 and report.front:
        over = ", ".join(str(objective) for objective in report.objectives)
        lines += ["", paint(f"Pareto front over {over}", "title"), *_table(report.front[:FRONT_SHOWN], shown)]
        lines += _more(len(report.front) - FRONT_SHOWN)
    tables = table_rows(rows)
    if tables:
        own = [name for name in table_columns(tables) if name.startswith(TABLE)]
        columns = ["point", *(name for name in varying(rows) if TABLE + name not in own), *own]
        lines += ["", paint("Rows that the bench returned", "title"), *_cells(tables[:TABLE_SHOWN], columns)]
        lines += _more(len(tables) - TABLE_SHOWN)
    if failed:
        lines += ["", paint(f"{len(failed)} failed", "fail"), *_failures(failed, varying(rows))]
    if report.files:
        names = ", ".join(file.name for file in report.files)
        lines += ["", f"wrote {report.files[0].parent}: {names}"]
    return "\n".join(lines)


def _more(count: int) -> list[str]:
    return [f"  ... and {count} more"] if count > 0 else []


def _failures(failed: Sequence[SweepRow], names: Sequence[str]) -> list[str]:
    """Of each point: its number and key, its values under `names`, and the whole of its error."""
    lines: list[str] = []
    for row in failed:
        settings = row.settings()
        own = ", ".join(f"{name}={settings[name]}" for name in names if name in settings)
        lines += [f"  {row.point}  key {row.key}  {own}".rstrip(), *indented(row.error or "failed")]
    return lines


def _table(rows: Sequence[SweepRow], columns: Sequence[str]) -> list[str]:
    return _cells([row.flat() for row in rows], ["point", *columns])


def _cells(flats: Sequence[Mapping[str, Value]], names: Sequence[str]) -> list[str]:
    cells = [[_short(name) for name in names]]
    cells += [[_cell(name, flat.get(name)) for name in names] for flat in flats]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]


def _short(name: str) -> str:
    if name == "roofline_share":
        return "% of roofline"
    name = name.removeprefix(TABLE)
    return ".".join(name.removeprefix(MACHINE).split(".")[-2:]) if name.startswith(MACHINE) else name


def _cell(name: str, value: Value) -> str:
    if name == "roofline_share" and isinstance(value, float):
        return f"{value:.1%}"
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return str(value)
