"""`kernbench fidelity`: what is exact, what is approximated and in which direction, what is left out."""

from __future__ import annotations

import click

from kernbench.cli.options import print_json
from kernbench.common.errors import UsageError
from kernbench.report.fidelity import as_json, as_markdown, as_text


@click.command()
@click.option("--json", "json_wanted", is_flag=True, help="Print JSON.")
@click.option("--markdown", is_flag=True, help="Print the page that docs/fidelity.md holds.")
def fidelity(json_wanted: bool, markdown: bool) -> None:
    """What the model reproduces exactly, what it approximates and in which direction, and what it leaves out."""
    if json_wanted and markdown:
        raise UsageError("--json and --markdown exclude each other", hint="choose one")
    if json_wanted:
        print_json(as_json())
    elif markdown:
        click.echo(as_markdown(), nl=False)
    else:
        click.echo(as_text())
