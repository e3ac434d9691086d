"""`kernbench probe`: measure a machine, print tables or JSON, draw charts."""

from __future__ import annotations

import re
from pathlib import Path

import click

from kernbench.cli.options import load_machine, machine_options, print_json
from kernbench.cli.terminal import ProgressLine, painter
from kernbench.common.errors import UsageError
from kernbench.common.units import KIB, MIB
from kernbench.probes.as_json import report_as_json
from kernbench.probes.as_text import report_as_text
from kernbench.probes.probe import ALL, DEFAULT_BYTES, MAX_BYTES, ProbeReport, run_probe

_SIZE = re.compile(r"(\d{1,12})\s*(?:(k|m)(?:i?b)?|b)?", re.IGNORECASE | re.ASCII)


@click.command()
@machine_options
@click.option(
    "--case",
    "cases",
    multiple=True,
    metavar="NAME",
    help="A case by name; may be repeated. All of them if left out.",
)
@click.option(
    "--nbytes",
    default=str(DEFAULT_BYTES),
    metavar="SIZE",
    show_default=True,
    help="Of each transfer: 32768, 32KiB, 1MiB.",
)
@click.option("--sweep/--no-sweep", default=True, help="Also measure the uncontended cases at 4 KiB to 1 MiB.")
@click.option(
    "--detail/--no-detail", default=None, help="Show routes hop by hop; the default for cases by name, not for all."
)
@click.option("--strict", is_flag=True, help="Exit with 1 when a check fails.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--plot", metavar="DIR", default=None, help="Write a chart of each kind of contention there, as PNG, SVG and JSON."
)
def probe(
    topology: str | None,
    settings: tuple[str, ...],
    cases: tuple[str, ...],
    nbytes: str,
    sweep: bool,
    detail: bool | None,
    strict: bool,
    as_json: bool,
    plot: str | None,
) -> int:
    """Measure transfers between places of a machine, uncontended and under load.

    Every uncontended transfer is compared with the textbook formula, and invariants of any machine are checked.
    """
    size = read_size(nbytes)
    if plot is not None and not plot.strip():
        raise UsageError("--plot takes a folder, not an empty name", hint="write --plot . for the current folder")
    graph = load_machine(topology, settings)
    bar = ProgressLine()
    report = run_probe(
        graph,
        cases or ALL,
        size,
        sweep,
        detail=cases not in ((), (ALL,)) if detail is None else detail,
        progress=(lambda done, total, what: bar.show(f"probe {done}/{total}  {what}")) if bar.wanted else None,
    )
    bar.clear()
    written = _plot(report, plot) if plot is not None else []
    if as_json:
        data = report_as_json(report)
        if plot is not None:
            data["files"] = [str(path) for path in written]
        print_json(data)
    else:
        click.echo(report_as_text(report, painter()))
        for path in written:
            click.echo(f"wrote {path}")
    return 1 if strict and not report.ok else 0


def read_size(text: str) -> int:
    """`32768`, `32KiB`, `4k` or `1MiB` in bytes; K and M are powers of two. Raises UsageError."""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise UsageError(f"--nbytes takes a size, not '{text[:40]}'", hint="write for example 32768, 32KiB or 1MiB")
    number, unit = found.groups()
    nbytes = int(number) * {"k": KIB, "m": MIB}.get((unit or "").lower(), 1)
    if not 1 <= nbytes <= MAX_BYTES:
        raise UsageError(f"--nbytes {text.strip()} is out of range", hint=f"give 1 to {MAX_BYTES} (64MiB)")
    return nbytes


def _plot(report: ProbeReport, folder: str) -> list[Path]:
    from kernbench.probes.charts import write_charts  # needs matplotlib

    return write_charts(report, Path(folder))
