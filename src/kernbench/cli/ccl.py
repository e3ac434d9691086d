"""`kernbench ccl`: collectives by size, with the options and the table of nccl-tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import click

from kernbench.benches._ccl_runs import check_algorithms, measure_alone
from kernbench.benches._collective_calls import COLLECTIVE_NAMES, NEVER_IN_PLACE, ONLY_IN_PLACE, WantedCollective, forms
from kernbench.benches._collectives import Measured, check_root
from kernbench.ccl.config import load_ccl_config, resolve_algorithm_config
from kernbench.ccl.modules import load_algorithm
from kernbench.cli.ccl_request import FIRST, LAST, ignored_options, note_ignored, read_bytes, sizes_of, wanted_of
from kernbench.cli.options import load_machine, machine_options, print_json
from kernbench.cli.terminal import ProgressLine
from kernbench.common.errors import UsageError
from kernbench.common.units import counted
from kernbench.report.collective_table import (
    CollectiveRow,
    csv_lines,
    listing,
    memory_line,
    summary_line,
    table_head,
    table_row,
)
from kernbench.topology.graph import TopologyGraph

__all__ = ["ccl", "read_bytes"]

JSON_SCHEMA = 1


@click.command()
@machine_options
@click.argument("collective", default="all_reduce", metavar="[COLLECTIVE]")
@click.option("-b", "--minbytes", default=None, metavar="SIZE", help=f"First size.  [default: {FIRST}]")
@click.option("-e", "--maxbytes", default=None, metavar="SIZE", help=f"Last size.  [default: the first, else {LAST}]")
@click.option("-i", "--stepbytes", default=None, metavar="SIZE", help="From one size to the next, in bytes.")
@click.option("-f", "--stepfactor", default=4, show_default=True, help="From one size to the next, as a factor.")
@click.option("-o", "--op", "ops", default="sum", show_default=True, help="sum, prod, min, max, avg, or all.")
@click.option(
    "-d", "--datatype", default="float", show_default=True,
    help="half, float, double, bfloat16, f8e4m3, f8e5m2, int8 to int64, uint8 to uint64, bool, or all.",
)  # fmt: skip
@click.option("-r", "--root", default="0", show_default=True, help="Of broadcast, reduce, gather and scatter; or all.")
@click.option("-c", "--check", default=1, show_default=True, type=click.IntRange(0), help="0: count no wrong elements.")
@click.option("-g", "--ngpus", default=None, type=click.IntRange(1), help="SIPs per thread.  [those of the machine]")
@click.option("-t", "--nthreads", default=None, type=click.IntRange(1), help="Threads: there are -t times -g ranks.")
@click.option("-M", "--memory", default=0, show_default=True, type=click.IntRange(0, 1), help="1: report memory.")
@click.option(
    "-Z", "--output_format", default=None, type=click.Choice(["csv", "json"]), help="Print CSV, or JSON as --json does."
)
@ignored_options
@click.option("--algorithm", "algorithms", multiple=True, metavar="NAME", help="A name in ccl.yaml; may be repeated.")
@click.option("--ccl", "ccl_file", default=None, metavar="FILE", help="A ccl.yaml.  [default: as for process groups]")
@click.option("--list", "wants_list", is_flag=True, help="List collectives and algorithms; run nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def ccl(
    context: click.Context,
    topology: str | None,
    settings: tuple[str, ...],
    collective: str,
    minbytes: str | None,
    maxbytes: str | None,
    stepbytes: str | None,
    stepfactor: int,
    ops: str,
    datatype: str,
    root: str,
    check: int,
    ngpus: int | None,
    nthreads: int | None,
    memory: int,
    output_format: str | None,
    algorithms: tuple[str, ...],
    ccl_file: str | None,
    wants_list: bool,
    as_json: bool,
) -> int:
    """Measure a collective over a range of sizes: time, algorithm and bus bandwidth, wrong elements.

    COLLECTIVE is all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather, scatter, sendrecv (to
    the next rank) or barrier.

    The time is that of the slowest kernel: from the first PE's start to the last one's end, of all ranks. The launch,
    which takes the host's message to the PEs and the answer back, is not in it; the columns `with launch` have the
    times with it. Size, count, algbw and busbw are as nccl-tests defines them: the count is per rank. N/A: the
    collective has no such form. all_reduce, broadcast and reduce are in place, all_to_all and sendrecv never.

    Takes the options of nccl-tests, and -Z of rccl-tests. A run is exact and the same every time, so there is nothing
    to warm up, to repeat or to average: -n, -w, -m, -N, -a, -p, -z, -y, -T, -G, -C, -R, -S, -I and -K are accepted and
    have no effect. Sizes cost run time: a MiB takes seconds, 32M minutes.
    """
    if wants_list:
        _print_list(ccl_file, as_json)
        return 0
    if as_json and output_format == "csv":
        raise UsageError("--json and -Z csv together", hint="give one of them")
    as_json = as_json or output_format == "json"
    if ngpus is not None or nthreads is not None:
        settings = (*settings, f"system.sips.count={(ngpus or 1) * (nthreads or 1)}")
    sizes = sizes_of(minbytes, maxbytes, stepbytes, stepfactor)
    wanted_of(collective, sizes, datatype, ops, root, 1, context)  # before a machine is made: wrong input is cheap
    graph = load_machine(topology, settings)
    wanted = wanted_of(collective, sizes, datatype, ops, root, graph.spec.n_sips, context)
    check_algorithms(wanted[0], algorithms, ccl_file)
    for each in wanted:
        check_root(each.collective, each.root, graph.spec.n_sips)
    note_ignored(context)
    measured = _measure(graph, wanted, algorithms, ccl_file, bool(check))
    if as_json:
        rows = list(measured)
        _print_json(rows, graph, topology, settings)
    elif output_format is not None:
        rows = list(measured)
        click.echo("\n".join(csv_lines(rows)))
    else:
        _print_head(wanted[0].collective, graph, topology, settings)
        rows = _print_table(measured, with_memory=bool(memory))
    return 0 if _is_right(rows) else 1


def _print_table(measured: Iterator[CollectiveRow], *, with_memory: bool) -> list[CollectiveRow]:
    """Print each row as soon as it is measured, then the summary; returns the rows."""
    rows: list[CollectiveRow] = []
    for row in measured:
        rows.append(row)
        click.echo(table_row(row))
    click.echo(summary_line(rows))
    if with_memory:
        click.echo(memory_line(rows))
    return rows


def _measure(
    graph: TopologyGraph, wanted: list[WantedCollective], algorithms: tuple[str, ...], ccl_file: str | None, check: bool
) -> Iterator[CollectiveRow]:
    """Measure in order, with each algorithm or the configured one, in each form that there is."""
    runs = list(product(algorithms or (None,), wanted))
    bar = ProgressLine()
    for number, (algorithm, each) in enumerate(runs, start=1):
        found: dict[bool, Measured] = {}
        for in_place in forms(each.collective):
            if bar.wanted:
                bar.show(f"ccl {number}/{len(runs)}  {each.collective} of {each.nbytes} bytes")
            asked = each._replace(in_place=in_place)
            found[in_place] = measure_alone(graph, asked, algorithm=algorithm, ccl=ccl_file, check=check)
            bar.clear()
        yield _row(found)


def _row(found: dict[bool, Measured]) -> CollectiveRow:
    """Both forms as a row; its own figures are those of the first form that there is."""
    first = next(iter(found.values()))
    out, inside = found.get(False), found.get(True)
    return {
        **first.as_json(),
        "algorithm": "/".join(dict.fromkeys(each.algorithm for each in found.values())),
        "out_of_place": None if out is None else out.figures(),
        "in_place": None if inside is None else inside.figures(),
    }


def _is_right(rows: Sequence[CollectiveRow]) -> bool:
    figures = [row[form] for row in rows for form in ("out_of_place", "in_place")]
    return not any(isinstance(each, dict) and each["wrong"] for each in figures)


def _print_head(collective: str, graph: TopologyGraph, topology: str | None, settings: Sequence[str]) -> None:
    source = f" of {topology}" if topology else ""
    ranks = counted(graph.spec.n_sips, "rank")
    click.echo(f"# {collective} on machine {graph.spec.system.name}{source}, {ranks}; simulated time")
    changed = _changed(settings)
    if changed:
        click.echo(f"# the machine is changed: {', '.join(f'{key}={value}' for key, value in changed.items())}")
    click.echo("# time: of the slowest kernel, without the launch; with launch: from the call to its completion")
    if collective in (*ONLY_IN_PLACE, *NEVER_IN_PLACE):
        only = "in place" if collective in ONLY_IN_PLACE else "out of place"
        click.echo(f"# torch.distributed has {collective} {only} only" if collective != "barrier" else "# no elements")
    click.echo(table_head())


def _changed(settings: Sequence[str]) -> dict[str, str]:
    """Settings of --set, -g and -t by key; the last one of a key holds."""
    pairs = (setting.partition("=") for setting in settings)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _print_json(
    rows: Sequence[CollectiveRow], graph: TopologyGraph, topology: str | None, settings: Sequence[str]
) -> None:
    print_json(
        {
            "schema": JSON_SCHEMA,
            "command": "ccl",
            "machine": graph.spec.system.name,
            "topology": topology,
            "changed": _changed(settings),
            "ranks": graph.spec.n_sips,
            "ok": _is_right(rows),
            "rows": rows,
        }
    )


def _print_list(ccl_file: str | None, as_json: bool) -> None:
    config = load_ccl_config(ccl_file)
    names = [each for name in COLLECTIVE_NAMES for each in WantedCollective(name, 0, "f32").configured_as()]
    chosen: dict[str, str] = {name: config.collectives[name] for name in names}
    loaded = [load_algorithm(resolve_algorithm_config(config, name)) for name in config.algorithms]
    rows: list[dict[str, object]] = [
        {"algorithm": each.name, "collectives": list(each.collectives), "summary": each.summary} for each in loaded
    ]
    if as_json:
        print_json({"schema": JSON_SCHEMA, "command": "ccl", "collectives": chosen, "algorithms": rows})
    else:
        click.echo("\n".join(listing(rows, chosen)))
