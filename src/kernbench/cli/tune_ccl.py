"""`kernbench tune-ccl`: measure which algorithm is the fastest at which size, and write the table that `auto` takes."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from kernbench import __version__
from kernbench.benches._ccl_tuning import DTYPE, TABLES, Tuned, tune
from kernbench.benches._collectives import sizes_between
from kernbench.ccl.config import load_ccl_config
from kernbench.ccl.tuned import Measurement, check_writable, table_text, write_whole
from kernbench.cli.ccl import read_bytes
from kernbench.cli.options import load_machine, machine_options, print_json
from kernbench.cli.terminal import ProgressLine
from kernbench.common.errors import UsageError
from kernbench.common.units import counted, format_bytes
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.machine_hash import machine_hash

JSON_SCHEMA = 1
DEFAULT_FILE = "ccl.tuned.yaml"


@click.command()
@machine_options
@click.option("-b", "--minbytes", default="256", show_default=True, metavar="SIZE", help="First size.")
@click.option("-e", "--maxbytes", default="1M", show_default=True, metavar="SIZE", help="Last size.")
@click.option("-f", "--stepfactor", default=4, show_default=True, help="From one size to the next, as a factor.")
@click.option("--table", "tables", multiple=True, metavar="NAME", help=f"{', '.join(TABLES)}; may be repeated.  [all]")
@click.option(
    "--chunk", "chunks", multiple=True, default=("4K", "16K", "64K"), show_default=True, metavar="SIZE",
    help="chunk_bytes to try with long messages; may be repeated.",
)  # fmt: skip
@click.option("--ccl", "ccl_file", default=None, metavar="FILE", help="A ccl.yaml.  [default: as for process groups]")
@click.option("-o", "--output", default=DEFAULT_FILE, show_default=True, metavar="FILE", help="The table.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; the file is written all the same.")
def tune_ccl(
    topology: str | None,
    settings: tuple[str, ...],
    minbytes: str,
    maxbytes: str,
    stepfactor: int,
    tables: tuple[str, ...],
    chunks: tuple[str, ...],
    ccl_file: str | None,
    output: str,
    as_json: bool,
) -> int:
    """Measure the algorithms of collectives on a machine, and write the fastest by size as a table for `auto`.

    Take it with `auto: ccl.tuned.yaml` in ccl.yaml. Bytes are those of a rank's tensor; in all_reduce_per_cube, of a
    cube's addend.
    """
    for name in tables:
        if name not in TABLES:
            raise UsageError(f"no table '{name[:40]}'", hint=f"use some of {', '.join(TABLES)}")
    sizes = sizes_between(read_bytes(minbytes, "-b"), read_bytes(maxbytes, "-e"), stepfactor)
    tried = [read_bytes(chunk, "--chunk") for chunk in chunks]
    for chunk in tried:
        if chunk % 256:
            raise UsageError(f"--chunk {chunk} is not a multiple of 256", hint="use for example 4K, 16K, 64K")
    path = Path(output).expanduser()
    check_writable(path)
    graph, config = load_machine(topology, settings), load_ccl_config(ccl_file)
    bar = ProgressLine()
    found: list[Tuned] = []
    for name in [table for table in TABLES if table in (tables or TABLES)]:
        found.append(tune(graph, name, sizes, tried, config, bar.show if bar.wanted else _say_nothing))
    bar.clear()
    write_whole(path, table_text({tuned.table: tuned.rows for tuned in found}, _about(graph, sizes, path)))
    _print(found, graph, path, as_json)
    return 0


def _say_nothing(_: str) -> None:
    pass


def _about(graph: TopologyGraph, sizes: list[int], path: Path) -> list[str]:
    machine = f"{graph.spec.system.name} ({machine_hash(graph.spec)})"
    extent = f"{counted(graph.spec.n_sips, 'SIP')} of {counted(graph.spec.sip.n_cubes, 'cube')}"
    return [
        f"Written by kernbench tune-ccl {__version__} for machine {machine},",
        f"{extent}, measured from {format_bytes(sizes[0])} to {format_bytes(sizes[-1])} in {DTYPE}.",
        f"Take it with `auto: {path.name}` in ccl.yaml.",
    ]


def _print(found: list[Tuned], graph: TopologyGraph, path: Path, as_json: bool) -> None:
    if as_json:
        about = {"schema": JSON_SCHEMA, "command": "tune-ccl", "machine": graph.spec.system.name}
        about |= {"machine_hash": machine_hash(graph.spec), "ranks": graph.spec.n_sips, "file": str(path)}
        print_json({**about, "tables": [_as_json(tuned) for tuned in found]})
        return
    click.echo(f"# machine {graph.spec.system.name}, {counted(graph.spec.n_sips, 'rank')}; simulated time")
    for tuned in found:
        click.echo(f"{tuned.table}")
        for now, before in zip(tuned.chosen, tuned.before, strict=True):
            gain = before.time_ns / now.time_ns if now.time_ns else 1.0
            was = "as before" if now[1:3] == before[1:3] else f"x{gain:.2f} faster than {_name(before)}"
            click.echo(f"  {format_bytes(now.nbytes):>10}  {now.time_ns / 1000:12.2f} us  {_name(now):44}  {was}")
    click.echo(f"written to {path}: take it with `auto: {path.name}` in a ccl.yaml next to it")


def _name(trial: Measurement) -> str:
    return trial.algorithm + ("" if trial.chunk_bytes is None else f", chunks of {format_bytes(trial.chunk_bytes)}")


def _as_json(tuned: Tuned) -> dict[str, object]:
    return {
        "table": tuned.table,
        "rows": [asdict(row) for row in tuned.rows],
        "sizes": [
            {
                "size_bytes": now.nbytes,
                "algorithm": now.algorithm,
                "chunk_bytes": now.chunk_bytes,
                "time_us": now.time_ns / 1000,
                "before": {
                    "algorithm": before.algorithm,
                    "chunk_bytes": before.chunk_bytes,
                    "time_us": before.time_ns / 1000,
                },
                "gain": before.time_ns / now.time_ns if now.time_ns else 1.0,
            }
            for now, before in zip(tuned.chosen, tuned.before, strict=True)
        ],
        "trials": [
            {
                "size_bytes": trial.nbytes,
                "algorithm": trial.algorithm,
                "chunk_bytes": trial.chunk_bytes,
                "time_us": trial.time_ns / 1000,
            }
            for trial in tuned.trials
        ],
    }
