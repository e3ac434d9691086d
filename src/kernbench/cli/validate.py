"""`kernbench validate`: how far the model is from measured hardware, set by set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from kernbench.cli.options import print_json
from kernbench.cli.terminal import ProgressLine
from kernbench.common.errors import UsageError
from kernbench.validation.contract import Regime, SetVerdict, ValidationSet, judge
from kernbench.validation.data import DataFolder
from kernbench.validation.sets import SETS, chosen_sets

JSON_SCHEMA = 1
FIGURES = Path("kernbench-out") / "validation"


@click.command()
@click.argument("sets", nargs=-1, metavar="[SET]...")
@click.option(
    "--data",
    metavar="DIR",
    default=None,
    help="Measurements, laid out as the shipped ones; without SET, its sets.  [default: those]",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--figures", is_flag=True, help=f"Draw simulated against measured values into {FIGURES}.")
def validate(sets: tuple[str, ...], data: str | None, as_json: bool, figures: bool) -> int:
    """Simulate what was measured on real hardware, and print the errors.

    SET: noc_traces, collectives, gpu_operators, memory, arrays; default: all.
    """
    if data is not None and not Path(data).is_dir():
        raise UsageError(f"--data: there is no folder '{data}'", hint="give the folder that has 1_noc_traces")
    bar = ProgressLine()
    verdicts = []
    try:
        for chosen in _those_with_data(chosen_sets(sets), None if sets or data is None else Path(data)):
            folder = DataFolder(chosen.folder, None if data is None else Path(data))
            verdicts.append(judge(chosen, folder, bar.show))
    finally:
        bar.clear()
    drawn = _draw(verdicts) if figures else []
    if as_json:
        print_json({"schema": JSON_SCHEMA, "sets": [verdict.as_json() for verdict in verdicts]})
    else:
        click.echo("\n\n".join(as_text(verdict) for verdict in verdicts))
        for path in drawn:
            click.echo(f"drew  {path}")
    return 0


def _those_with_data(chosen: Sequence[ValidationSet], data: Path | None) -> list[ValidationSet]:
    """Where no set is named, those that a folder of measurements has."""
    if data is None:
        return list(chosen)
    found = [each for each in chosen if (data / each.folder).is_dir()]
    if not found:
        raise UsageError(
            f"--data: '{data}' has no measurements", hint=f"it needs one of {', '.join(each.folder for each in chosen)}"
        )
    return found


def _draw(verdicts: list[SetVerdict]) -> list[Path]:
    from kernbench.validation.figures import draw

    FIGURES.mkdir(parents=True, exist_ok=True)
    return [path for verdict in verdicts for path in draw(verdict, FIGURES)]


def as_text(verdict: SetVerdict) -> str:
    """The table of a set: its cases, and the errors of its regimes."""
    width = max([len(row.case) for row in verdict.rows] + [4])
    lines = [f"{verdict.set.name}: {verdict.set.title} ({verdict.set.quantity})"]
    lines.append(f"{'case':<{width}}  {'regime':<10} {'measured':>12} {'simulated':>12} {'error':>9}")
    for row in verdict.rows:
        measured = "-" if row.measured is None else f"{row.measured:.1f}"
        error = "-" if row.error is None else error_text(row.error, verdict.set.unit, signed=True)
        lines.append(f"{row.case:<{width}}  {row.regime:<10} {measured:>12} {row.simulated:>12.1f} {error:>9}")
    lines += [regime_text(regime) for regime in verdict.regimes]
    lines += [f"fitted: {constant}" for constant in verdict.set.fitted] or ["fitted: nothing"]
    lines += [f"peer:   {peer.name} {peer.error} ({peer.source})" for peer in verdict.set.peers]
    return "\n".join(lines)


def regime_text(regime: Regime) -> str:
    if regime.mean is None or regime.bias is None or regime.median is None or regime.worst is None:
        return f"{regime.name}: nothing was measured"
    mean, bias, middle, worst = (
        error_text(value, regime.unit, signed=value is regime.bias)
        for value in (regime.mean, regime.bias, regime.median, regime.worst)
    )
    return f"{regime.name}: {regime.n} cases, mean error {mean}, bias {bias}, median {middle}, worst {worst}"


def error_text(value: float, unit: str, *, signed: bool = False) -> str:
    return f"{value:{'+' if signed else ''}.2f} {'%' if unit == 'pct' else 'pt'}"


__all__ = ["SETS", "as_text", "validate"]
