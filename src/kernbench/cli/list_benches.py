"""`kernbench list`: the benches, and the parameters of one."""

from __future__ import annotations

import click

from kernbench.benches.registry import BenchSpec, list_all, resolve
from kernbench.cli.options import print_json, stdout_for_json

SCHEMA = 1


@click.command("list")
@click.argument("bench", required=False, metavar="[BENCH]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_benches(bench: str | None, as_json: bool) -> None:
    """List the benches; with a name, a number or FILE.py[:NAME], the parameters of that one."""
    with stdout_for_json(as_json):
        table = list_all()  # loaded first: only benches of the table have a number
        specs = table if bench is None else (resolve(bench),)
    if bench is None:
        if as_json:
            print_json({"schema": SCHEMA, "command": "list", "benches": [_as_json(spec) for spec in specs]})
            return
        width = max(len(spec.name) for spec in specs)
        for spec in specs:
            click.echo(f"{spec.number:>3}  {spec.name:<{width}}  {spec.description}{_tray(spec)}")
        return
    (spec,) = specs
    if as_json:
        print_json({"schema": SCHEMA, "command": "list", "benches": [_as_json(spec)]})
    else:
        click.echo("\n".join(_details(spec)))


def _as_json(spec: BenchSpec) -> dict[str, object]:
    return {
        "number": spec.number or None,
        "name": spec.name,
        "description": spec.description,
        "devices": spec.devices,
        "params": [param.as_json() for param in spec.params],
    }


def _tray(spec: BenchSpec) -> str:
    return " [whole tray]" if spec.devices == "whole" else ""


def _details(spec: BenchSpec) -> list[str]:
    lines = [(f"{spec.name}: {spec.description}" if spec.description else spec.name) + _tray(spec)]
    if not spec.params:
        return [*lines, "", "no parameters"]
    rows = [("parameter", "default", "type", "environment", "meaning")]
    for param in spec.params:
        default = "(must be given)" if param.default is None else str(param.default)
        kind = f"{param.type_name}, {param.least}" if param.least is not None else param.type_name
        rows.append((param.name, default, kind, param.env or "", param.meaning))
    widths = [max(len(row[i]) for row in rows) if any(row[i] for row in rows[1:]) else 0 for i in range(len(rows[0]))]
    table = [[f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True) if w] for row in rows]
    lines += ["", *("  ".join(cells).rstrip() for cells in table)]
    first = spec.params[0]
    return [*lines, "", f"set one with --param {first.name}={first.default if first.default is not None else '...'}"]
