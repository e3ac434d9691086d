"""`kernbench topology`: totals of a machine, and its diagrams."""

from __future__ import annotations

from pathlib import Path

import click

from kernbench.cli.options import load_machine, machine_options, print_json
from kernbench.common.errors import UsageError
from kernbench.report.diagrams import emit_diagrams
from kernbench.report.machine_facts import graph_as_json, machine_facts_as_json, machine_facts_of
from kernbench.report.machine_facts_text import graph_as_text, machine_facts_as_text
from kernbench.report.rates import rates_page


@click.command()
@machine_options
@click.option(
    "--emit",
    metavar="DIR",
    default=None,
    help="Write pictures of tray, SIP, cube and PE there as SVG, and a cube's mesh as YAML.",
)
@click.option("--nodes", is_flag=True, help="Also list every node and link.")
@click.option(
    "--rates", is_flag=True, help="Print rates, latencies and rules instead, with worked examples (Markdown)."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def topology(
    topology: str | None, settings: tuple[str, ...], emit: str | None, nodes: bool, rates: bool, as_json: bool
) -> int:
    """Describe a machine: counts, memories, bandwidths, the longest paths. --emit draws it."""
    if rates and (as_json or nodes or emit is not None):
        raise UsageError("--rates with another output", hint="leave --json, --nodes and --emit out")
    if emit is not None and not emit.strip():
        raise UsageError("--emit takes a folder, not an empty name", hint="write --emit . for the current folder")
    graph = load_machine(topology, settings)
    if rates:
        click.echo(rates_page(graph))
        return 0
    summary = machine_facts_of(graph)
    for warning in summary.warnings:
        click.echo(f"warning: {warning}", err=True)
    written = [] if emit is None else [str(path) for path in emit_diagrams(graph, Path(emit))]
    if as_json:
        data = machine_facts_as_json(summary)
        if nodes:
            data |= graph_as_json(graph)
        if emit is not None:
            data["files"] = written
        print_json(data)
        return 0
    click.echo(machine_facts_as_text(summary, graph.spec))
    if nodes:
        click.echo("\n" + graph_as_text(graph))
    for path in written:
        click.echo(f"wrote {path}")
    return 0
