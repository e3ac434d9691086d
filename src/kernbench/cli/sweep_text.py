"""A sweep as text: the number of points, the best, the Pareto front, failures, files."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kernbench.cli.terminal import indented
from kernbench.report.paint import Paint
from kernbench.report.ranges import FigureRange
from kernbench.sweep.derived import DERIVED, LIMIT
from kernbench.sweep.ends import with_ends
from kernbench.sweep.points import MACHINE
from kernbench.sweep.request import SweepReport
from kernbench.sweep.rows import TABLE, SweepRow, short_axis, table_rows, varying
from kernbench.sweep.scenario import Ranking, failed_only, machine_numbers

FRONT_SHOWN = 20
TABLE_SHOWN = 40
BAR = 40  # characters of a change by 100 %
OF_PLANS = ("plan", "plan_users", "latency_ms")


def report_as_text(report: SweepReport, paint: Paint, said: Collection[str] = ()) -> str:
    """The whole report; `said` are notes that were printed before."""
    rows = report.rows
    failed = [row for row in rows if row.has_failed]
    excluded = [row for row in rows if not row.is_feasible and not row.has_failed]
    kept = len(rows) - report.ran
    points = "point" if len(rows) == 1 else "points"
    lines = [f"{report.identity['bench']}: {len(rows)} {points}, {report.ran} run now, {max(kept, 0)} kept"]
    lines += [f"note: {note}" for note in report.notes if note not in said]
    shown = [*varying(rows)]
    shown += [o.column for o in report.objectives if o.column not in shown]
    shown += [name for name in (*OF_PLANS, LIMIT, "roofline_share") if name not in shown]
    shown = [name for name in shown if name not in OF_PLANS or any(row.flat().get(name) is not None for row in rows)]
    if report.scenario is not None:
        lines += _scenario(report, paint)
    if report.sensitivity:
        lines += _sensitivity(report, paint)
    if report.best:
        lines += ["", paint(f"Best by {report.objectives[0]}", "title"), *_table(report.best, shown)]
    if len(report.objectives) > 1 and report.front:
        over = ", ".join(str(objective) for objective in report.objectives)
        lines += ["", paint(f"Pareto front over {over}", "title"), *_table(report.front[:FRONT_SHOWN], shown)]
        lines += _more(len(report.front) - FRONT_SHOWN)
    for objective, shares in report.importance.items():
        words = ", ".join(f"{short_axis(axis)} {share:.0%}" for axis, share in shares.items())
        lines += ["", f"Spread of {objective} explained by {words}"]
    tables = table_rows(rows)
    if tables and report.scenario is None and not report.sensitivity:
        lines += ["", paint("Rows that the bench returned", "title"), *_returned(tables, varying(rows))]
    if excluded and report.scenario is None:
        lines += ["", paint(f"{len(excluded)} infeasible", "title"), *_reasons(excluded, varying(rows))]
    if failed:
        lines += ["", paint(f"{len(failed)} failed", "fail"), *_failures(failed, varying(rows))]
    if report.files:
        names = ", ".join(file.name for file in report.files)
        lines += ["", f"wrote {report.files[0].parent}: {names}"]
    return "\n".join(lines)


def _returned(tables: Sequence[Mapping[str, object]], varied: Sequence[str]) -> list[str]:
    """A table for each kind of rows: those with the same columns."""
    kinds: dict[tuple[str, ...], list[Mapping[str, object]]] = {}
    for row in tables:
        kinds.setdefault(tuple(name for name in row if name.startswith(TABLE)), []).append(row)
    lines: list[str] = []
    for own, rows in kinds.items():
        columns = ["point", *(name for name in varied if TABLE + name not in own), *own]
        lines += [*([""] if lines else []), *_cells(rows[:TABLE_SHOWN], columns), *_more(len(rows) - TABLE_SHOWN)]
    return lines


def _scenario(report: SweepReport, paint: Paint) -> list[str]:
    """The best machines by workload and by weighted figures: rows of different work are not compared."""
    mix, lines = report.scenario, list[str]()
    numbers = machine_numbers(report.rows)
    assert mix is not None
    machine = [name for name in varying(report.rows) if name.startswith(MACHINE)]
    shown = [*machine, *dict.fromkeys([*(o.column for o in report.objectives), *DERIVED, LIMIT])]
    for name, ranking in mix.workloads.items():
        share = next(mix.scenario.share(each) for each in mix.scenario.workloads if each.name == name)
        title = f"{name} ({share:.0%} of tokens), best by {report.objectives[0]}"
        lines += ["", paint(title, "title"), *_ranked(ranking, shown, numbers)]
    best, weighed = mix.ranking.best, mix.objectives
    if best:
        title = f"Weighted, best by {weighed[0]}"
        lines += [
            "",
            paint(title, "title"),
            *_machines(best, [*shown, "area_mm2", "sip_w"], {row.point: row.point for row in best}),
        ]
    if best and len(weighed) > 1:
        front = ", ".join(str(row.point) for row in mix.ranking.front)
        lines += [f"  machines on the front over {', '.join(str(o) for o in weighed)}: {front}"]
    failed = failed_only(report.rows)  # told below
    excluded = [row for row in mix.weighted if not row.is_feasible and row.point not in failed]
    if excluded:
        title = f"{len(excluded)} of {len(mix.weighted)} machines are infeasible"
        lines += ["", paint(title, "title"), *_reasons(excluded, varying(mix.weighted))]
    return lines


def _ranked(ranking: Ranking, shown: Sequence[str], numbers: Mapping[int, int]) -> list[str]:
    if not ranking.best:
        return ["  no machine does it: reasons are below"]
    return _machines(ranking.best, shown, numbers)


def _machines(rows: Sequence[SweepRow], names: Sequence[str], numbers: Mapping[int, int]) -> list[str]:
    """A line for each machine, by its number in the scenario."""
    shown = _with_values(rows, names)
    return _cells([{"machine": numbers[row.point], **_figures(row, shown)} for row in rows], ["machine", *shown])


def _reasons(excluded: Sequence[SweepRow], names: Sequence[str]) -> list[str]:
    """Why points are infeasible: their numbers, their values under `names`, the reason."""
    lines: list[str] = []
    for row in excluded[:FRONT_SHOWN]:
        settings = row.settings()
        own = ", ".join(f"{short_axis(name)}={settings[name]}" for name in names if name in settings)
        lines.append(f"  {row.point}  {own}: {row.infeasible}" if own else f"  {row.point}  {row.infeasible}")
    return lines + _more(len(excluded) - FRONT_SHOWN)


def _with_values(rows: Sequence[SweepRow], names: Sequence[str]) -> list[str]:
    return [name for name in dict.fromkeys(names) if any(row.flat().get(name) is not None for row in rows)]


def _sensitivity(report: SweepReport, paint: Paint) -> list[str]:
    """What each value of each axis changes, the widest axis first."""
    lines: list[str] = []
    for objective in dict.fromkeys(effect.objective for effect in report.sensitivity):
        own = [effect for effect in report.sensitivity if effect.objective == objective]
        weighted = "weighted " if report.scenario is not None else ""
        lines += ["", paint(f"Sensitivity of {weighted}{objective}, {own[0].base:,.6g} as it is", "title")]
        width = max(len(short_axis(effect.axis)) for effect in own)
        for effect in own:
            bar = "#" * min(round(abs(effect.change) * BAR), BAR)
            value = " & ".join(map(str, effect.value)) if isinstance(effect.value, list) else str(effect.value)
            line = f"  {short_axis(effect.axis):<{width}}  {value:>12}  {effect.change:+8.1%}  {bar}".rstrip()
            lines.append(f"{line}  (infeasible)" if effect.infeasible else line)
    return lines


def _more(count: int) -> list[str]:
    return [f"  ... and {count} more"] if count > 0 else []


def _failures(failed: Sequence[SweepRow], names: Sequence[str]) -> list[str]:
    """Of each point: its number and key, its values under `names`; then the whole error of those that have the same."""
    by_error: dict[str, list[SweepRow]] = {}
    for row in failed:
        by_error.setdefault(row.error or "failed", []).append(row)
    lines: list[str] = []
    for error, rows in by_error.items():
        for row in rows:
            settings = row.settings()
            own = ", ".join(f"{name}={settings[name]}" for name in names if name in settings)
            lines.append(f"  {row.point}  key {row.key}  {own}".rstrip())
        lines += indented(error)
    return lines


def _table(rows: Sequence[SweepRow], columns: Sequence[str]) -> list[str]:
    return _cells([_figures(row, ["point", *columns]) for row in rows], ["point", *columns])


def _figures(row: SweepRow, names: Sequence[str]) -> dict[str, object]:
    """The values under these names, with their ranges."""
    flat = row.flat(*names)
    if row.roofline_share is not None and row.bound is not None:
        flat["roofline_share"] = f"{row.roofline_share:.1%} {row.bound}"
    return {name: with_ends(flat, name) for name in names}


def _cells(flats: Sequence[Mapping[str, object]], names: Sequence[str]) -> list[str]:
    cells = [[_short(name) for name in names]]
    cells += [[_cell(name, flat.get(name)) for name in names] for flat in flats]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]


def _short(name: str) -> str:
    if name == "roofline_share":
        return "% of roofline"
    if name == LIMIT:
        return "limited by"
    return short_axis(name.removeprefix(TABLE))


def _cell(name: str, value: object) -> str:
    if isinstance(value, FigureRange):
        return f"{_cell(name, value.value)} ({_cell(name, value.low)} to {_cell(name, value.high)})"
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, float):
        return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.4g}"
    return str(value)
