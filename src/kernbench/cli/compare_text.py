"""A comparison of machines as text: a column for each machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kernbench.common.units import format_bytes
from kernbench.probes.probe import DEFAULT_BYTES
from kernbench.report.compare import MachineColumn, differences
from kernbench.report.paint import Paint
from kernbench.report.ranges import FigureRange
from kernbench.sweep.derived import DERIVED, LIMIT
from kernbench.sweep.ends import with_ends
from kernbench.sweep.request import SweepReport
from kernbench.sweep.rows import SweepRow

KEYS_SHOWN = 60
VALUE_SHOWN = 40  # characters


class Latency(NamedTuple):
    """The time of an uncontended transfer of so many bytes."""

    ns: float
    nbytes: int


def comparison_as_text(
    columns: Sequence[MachineColumn],
    probes: Mapping[str, Sequence[Latency | None]],
    work: Sequence[SweepReport],
    paint: Paint,
) -> str:
    names = [column.name for column in columns]
    reasons = infeasible_of(columns, work)
    numbers = {text: at for at, text in enumerate(dict.fromkeys(text for own in reasons for text in own), 1)}
    totals: dict[str, list[object]] = {key: [each.totals[key] for each in columns] for key in columns[0].totals}
    if numbers:
        totals = {"feasible": [_feasible(own, numbers) for own in reasons], **totals}
    parts = [paint("Machines", "title"), *_table(names, totals)]
    for text, at in numbers.items():
        over = ", ".join(name for name, own in zip(names, reasons, strict=True) if text in own)
        parts.append(f"  ({at}) {over}: {text}")
    if probes:
        title = paint("Latency of 32 KiB, ns, uncontended", "title")
        parts += ["", title, *_table(names, {name: [each and each.ns for each in row] for name, row in probes.items()})]
        parts += _other_sizes(names, probes)
    for title, rows in _workloads(work, numbers):
        parts += ["", paint(title, "title"), *_table(names, rows)]
    changed = differences(columns)
    if changed:
        shown = dict(list(changed.items())[:KEYS_SHOWN])
        parts += ["", paint("Keys that differ", "title"), *_table(names, _shortened(shown))]
        if len(changed) > KEYS_SHOWN:
            parts.append(f"  ... and {len(changed) - KEYS_SHOWN} more: --json has all")
    warnings = [f"  {column.name}: {text}" for column in columns for text in column.warnings]
    if warnings:
        parts += ["", paint("Warnings", "title"), *warnings]
    return "\n".join(parts)


def _other_sizes(names: Sequence[str], probes: Mapping[str, Sequence[Latency | None]]) -> Iterator[str]:
    """The cases of each machine whose transfers are of another size, such as one block of a stack."""
    for at, name in enumerate(names):
        by_size: dict[int, list[str]] = {}
        for case, row in probes.items():
            latency = row[at]
            if latency is not None and latency.nbytes != DEFAULT_BYTES:
                by_size.setdefault(latency.nbytes, []).append(case)
        for size, cases in by_size.items():
            yield f"  {name}: {format_bytes(size)} in {', '.join(cases)}"


def _shortened(rows: Mapping[str, Sequence[object]]) -> dict[str, list[object]]:
    """Lists and mappings in a line each, cut where they are long: --json has them whole."""
    texts = {key: [_cell(value) for value in values] for key, values in rows.items()}
    return {
        key: [text if len(text) <= VALUE_SHOWN else f"{text[: VALUE_SHOWN - 3]}..." for text in values]
        for key, values in texts.items()
    }


def infeasible_of(columns: Sequence[MachineColumn], work: Sequence[SweepReport]) -> list[list[str]]:
    """Why each machine is infeasible, or failed at a workload: `limits` without a run, then what workloads say."""
    found = [list(column.infeasible) for column in columns]
    for own, report in zip(found, work, strict=False):
        own += [text for row in report.rows for text in _reasons(row) if text not in own]
    return [list(dict.fromkeys(own)) for own in found]


def _reasons(row: SweepRow) -> list[str]:
    if row.has_failed:
        return [f"failed: {(row.error or 'its data is wrong').partition(chr(10))[0]}"]
    return row.infeasible.split("; ") if row.infeasible else []


def _feasible(reasons: Sequence[str], numbers: Mapping[str, int]) -> str:
    return f"no ({', '.join(str(numbers[text]) for text in reasons)})" if reasons else "yes"


def _workloads(
    work: Sequence[SweepReport], numbers: Mapping[str, int]
) -> Iterator[tuple[str, dict[str, list[object]]]]:
    """A table by workload, and one of weighted figures. A machine without a figure has the numbers of its reasons."""
    if not work or work[0].scenario is None:
        return
    mix = work[0].scenario.scenario
    for at, workload in enumerate(mix.workloads):
        rows = [report.rows[at] for report in work]
        figures: dict[str, list[object]] = {
            name: [with_ends(row.flat(), name) for row in rows]
            for name in DERIVED
            if any(name in row.derived() for row in rows)
        }
        figures["limited by"] = [row.derived().get(LIMIT) for row in rows]
        figures["% of roofline"] = [
            None if row.roofline_share is None else f"{row.roofline_share:.1%} {row.bound}" for row in rows
        ]
        figures["sip_w"] = [with_ends(row.flat(), "sip_w") for row in rows]
        if any(_reasons(row) for row in rows):
            figures = {"feasible": [_feasible(_reasons(row), numbers) for row in rows], **figures}
        yield f"{workload.name}, {mix.share(workload):.0%} of tokens", figures
    weighted = [report.scenario.weighted[0] for report in work if report.scenario is not None]
    names = [name for name in DERIVED if any(name in row.derived() for row in weighted)]
    yield "Weighted over all workloads", {name: [with_ends(row.flat(), name) for row in weighted] for name in names}


def _table(names: Sequence[str], rows: Mapping[str, Sequence[object]]) -> list[str]:
    cells = [["", *names], *([label, *(_cell(value) for value in values)] for label, values in rows.items())]
    widths = [max(len(line[at]) for line in cells) for at in range(len(names) + 1)]
    return [
        "  " + "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    ]


def _cell(value: object) -> str:
    if isinstance(value, FigureRange):
        return f"{_number(value.value)} ({_number(value.low)} to {_number(value.high)})"
    if value is None:
        return "-"
    return _number(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _number(value: float) -> str:
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.4g}"
