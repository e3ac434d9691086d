"""`kernbench trace`: a saved run for Perfetto."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.common.errors import UsageError
from kernbench.common.units import format_bytes
from kernbench.report.runs.saved_run import open_run
from kernbench.report.traces.chrome import write_trace


@click.command()
@click.argument("run", metavar="RUN")
@click.option(
    "-o", "--output", metavar="FILE.json.gz", help="Where to write it; RUN.json.gz in this folder, if left out."
)
def trace(run: str, output: str | None) -> int:
    """Write RUN as a trace that https://ui.perfetto.dev and chrome://tracing open.

    RUN is a folder that `kernbench run --save` wrote. Processes are cubes, threads are engines; the critical path has
    a track of its own. Flows lead from sends to receives and from DMA requests to HBM; counters say how busy links are
    and how many flits wait.
    """
    saved = open_run(run)
    output = output or f"{saved.path.resolve().name}.json.gz"
    target = Path(output)
    if not output.endswith(".json.gz") or target.is_dir() or not target.parent.is_dir():
        raise UsageError(
            "the trace cannot be written there",
            where=f"-o {output}",
            hint="name a .json.gz file in a folder that exists",
        )
    events = write_trace(saved, target)
    click.echo(f"wrote {output}: {events:,} events, {format_bytes(target.stat().st_size)}; open it in ui.perfetto.dev")
    return 0
