"""`kernbench ccl`: collectives by size, with the options and the table of nccl-tests."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, TypeVar

import click

from kernbench.benches._ccl_runs import check_algorithms, measure_alone
from kernbench.benches._collectives import (
    COLLECTIVE_NAMES,
    OPS,
    REDUCES,
    CollectiveName,
    Measured,
    OpName,
    Wanted,
    check_root,
    sizes_between,
)
from kernbench.ccl.config import load_ccl_config, resolve_algorithm_config
from kernbench.ccl.modules import load_algorithm
from kernbench.cli.options import load_machine, machine_options, print_json
from kernbench.cli.terminal import ProgressLine
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.common.units import GIB, KIB, MIB, counted
from kernbench.report.collective_table import listing, summary_line, table_head, table_row
from kernbench.topology.graph import TopologyGraph

JSON_SCHEMA = 1
MOST_BYTES = GIB
FIRST, LAST = "1K", "256K"  # without -b: a range that takes seconds, where nccl-tests takes 32M
_SIZE = re.compile(r"(\d{1,12})\s*([kmg])?i?b?", re.IGNORECASE | re.ASCII)
# Names of nccl-tests, and ours.
DTYPES = {
    "half": "f16", "f16": "f16", "float16": "f16", "bfloat16": "bf16", "bf16": "bf16", "float": "f32", "f32": "f32",
    "float32": "f32", "int8": "i8", "i8": "i8", "uint8": "u8", "u8": "u8", "int32": "i32", "i32": "i32",
    "uint32": "u32", "u32": "u32",
}  # fmt: skip
NAMES = {
    name.replace("_", ""): name for name in COLLECTIVE_NAMES
}  # `alltoall`, `allreduce`: as nccl-tests calls its programs

# Options of nccl-tests that have no effect here.
IGNORED_OPTIONS = (
    ("-n", "--iters"), ("-w", "--warmup_iters"), ("-m", "--agg_iters"), ("-N", "--run_cycles"), ("-a", "--average"),
    ("-p", "--parallel_init"), ("-z", "--blocking"), ("-y", "--stream_null"), ("-T", "--timeout"),
    ("-G", "--cudagraph"), ("-C", "--report_cputime"), ("-R", "--local_register"), ("-S", "--report_timestamps"),
)  # fmt: skip
_GIVEN = "kernbench.ccl.needless"
F = TypeVar("F", bound=Callable[..., Any])
Known = TypeVar("Known", bound=str)


def _ignored_options(command: F) -> F:
    for short, long in IGNORED_OPTIONS:
        option = click.option(short, long, type=int, expose_value=False, hidden=True, callback=_record_ignored)
        command = option(command)
    return command


def _record_ignored(context: click.Context, option: click.Parameter, value: int | None) -> None:
    if value is not None:
        context.meta.setdefault(_GIVEN, []).append(option.opts[0])


@click.command()
@machine_options
@click.argument("collective", default="all_reduce", metavar="[COLLECTIVE]")
@click.option("-b", "--minbytes", default=None, metavar="SIZE", help=f"First size.  [default: {FIRST}]")
@click.option("-e", "--maxbytes", default=None, metavar="SIZE", help=f"Last size.  [default: the first, else {LAST}]")
@click.option("-i", "--stepbytes", default=None, metavar="SIZE", help="From one size to the next, in bytes.")
@click.option("-f", "--stepfactor", default=4, show_default=True, help="From one size to the next, as a factor.")
@click.option("-o", "--op", "ops", default="sum", show_default=True, help="sum, prod, min, max, avg, or all.")
@click.option("-d", "--datatype", default="float", show_default=True, help="half, float, bfloat16, int8, ... or all.")
@click.option("-r", "--root", default=0, show_default=True, help="Of broadcast, reduce, gather and scatter.")
@click.option("-c", "--check", default=1, show_default=True, type=click.IntRange(0), help="0: count no wrong elements.")
@click.option("-g", "--ngpus", default=None, type=click.IntRange(1), help="SIPs per thread.  [those of the machine]")
@click.option("-t", "--nthreads", default=None, type=click.IntRange(1), help="Threads: there are -t times -g ranks.")
@_ignored_options
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
    root: int,
    check: int,
    ngpus: int | None,
    nthreads: int | None,
    algorithms: tuple[str, ...],
    ccl_file: str | None,
    wants_list: bool,
    as_json: bool,
) -> int:
    """Measure a collective over a range of sizes: time, algorithm and bus bandwidth, wrong elements.

    COLLECTIVE is all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather or scatter.

    The time is that of the slowest kernel: from the first PE's start to the last one's end, of all ranks. The launch,
    which takes the host's message to the PEs and the answer back, is not in it. Size, count, algbw and busbw are as
    nccl-tests defines them: the count is per rank.

    Takes the options of nccl-tests. A run is exact and the same every time, so there is nothing to warm up, to repeat
    or to average: -n, -w, -m, -N, -a, -p, -z, -y, -T, -G, -C, -R and -S are accepted and have no effect. Sizes cost run
    time: a MiB takes seconds, 32M minutes.
    """
    if wants_list:
        _print_list(ccl_file, as_json)
        return 0
    name = _collective(collective)
    sizes = _sizes(minbytes, maxbytes, stepbytes, stepfactor)
    if ngpus is not None or nthreads is not None:
        settings = (*settings, f"system.sips.count={(ngpus or 1) * (nthreads or 1)}")
    wanted = [
        Wanted(name, nbytes, dtype, op, root)
        for dtype in _chosen(datatype, DTYPES, "-d")
        for op in _ops(name, ops, dtype)
        for nbytes in sizes
    ]
    check_algorithms(name, algorithms, ccl_file)
    graph = load_machine(topology, settings)
    check_root(name, root, graph.spec.n_sips)
    _note_ignored(context)
    if not as_json:
        _print_head(name, graph)
    found: list[Measured] = []
    for row in _measure(graph, wanted, algorithms, ccl_file, bool(check)):
        found.append(row)
        if not as_json:
            click.echo(table_row(row.as_json()))
    _print_end(found, graph, as_json)
    return 1 if any(row.wrong for row in found) else 0


def _sizes(minbytes: str | None, maxbytes: str | None, stepbytes: str | None, stepfactor: int) -> list[int]:
    """The sizes of -b, -e, -i and -f."""
    last = read_bytes(maxbytes or minbytes or LAST, "-b" if maxbytes is None else "-e")
    first = read_bytes(minbytes, "-b") if minbytes else min(read_bytes(FIRST, "-b"), last)
    return sizes_between(first, last, stepfactor, 0 if stepbytes is None else read_bytes(stepbytes, "-i"))


def _measure(
    graph: TopologyGraph, wanted: list[Wanted], algorithms: tuple[str, ...], ccl_file: str | None, check: bool
) -> Iterator[Measured]:
    """Measure in order, with each algorithm or the configured one."""
    runs = list(product(algorithms or (None,), wanted))
    bar = ProgressLine()
    for number, (algorithm, each) in enumerate(runs, start=1):
        if bar.wanted:
            bar.show(f"ccl {number}/{len(runs)}  {each.collective} of {each.nbytes} bytes")
        found = measure_alone(graph, each, algorithm=algorithm, ccl=ccl_file, check=check)
        bar.clear()
        yield found


def _note_ignored(context: click.Context) -> None:
    given = context.meta.get(_GIVEN, [])
    if given:
        names = ", ".join(option for option, _ in IGNORED_OPTIONS if option in given)
        click.echo(f"note: {names} did nothing: a run is deterministic, and one iteration is exact", err=True)


def _print_head(collective: str, graph: TopologyGraph) -> None:
    ranks = counted(graph.spec.n_sips, "rank")
    click.echo(f"# {collective} on machine {graph.spec.system.name}, {ranks}; simulated time")
    click.echo("# time: of the slowest kernel, without the launch")
    click.echo(table_head())


def _print_end(found: list[Measured], graph: TopologyGraph, as_json: bool) -> None:
    rows = [row.as_json() for row in found]
    if as_json:
        about = {"schema": JSON_SCHEMA, "command": "ccl", "machine": graph.spec.system.name, "ranks": graph.spec.n_sips}
        print_json({**about, "ok": not any(row.wrong for row in found), "rows": rows})
    else:
        click.echo(summary_line(rows))


def _print_list(ccl_file: str | None, as_json: bool) -> None:
    config = load_ccl_config(ccl_file)
    chosen: dict[str, str] = {name: config.collectives[name] for name in COLLECTIVE_NAMES}
    loaded = [load_algorithm(resolve_algorithm_config(config, name)) for name in config.algorithms]
    rows: list[dict[str, object]] = [
        {"algorithm": each.name, "collectives": list(each.collectives), "summary": each.summary} for each in loaded
    ]
    if as_json:
        print_json({"schema": JSON_SCHEMA, "command": "ccl", "collectives": chosen, "algorithms": rows})
    else:
        click.echo("\n".join(listing(rows, chosen)))


def _collective(text: str) -> CollectiveName:
    name = NAMES.get(text.lower().replace("_", "").replace("-", "").removesuffix("perf"))
    if name is None:
        raise UsageError(f"no collective '{text[:40]}'", hint=f"use one of {', '.join(COLLECTIVE_NAMES)}")
    return name


def _ops(collective: CollectiveName, text: str, dtype: str) -> list[OpName]:
    """The reductions of -o, if the collective reduces. `all` leaves out the mean of integers, which does not exist."""
    if collective not in REDUCES:
        return ["sum"]
    found = _chosen(text, {op: op for op in OPS}, "-o")
    if dtype_of(dtype).is_float:
        return found
    if text == "avg":
        raise UsageError(f"-o avg of {dtype}: an average of whole numbers need not be one", hint="use a float type")
    return [op for op in found if op != "avg"]


def _chosen(text: str, known: Mapping[str, Known], option: str) -> list[Known]:
    if text == "all":
        return list(dict.fromkeys(known.values()))
    if text not in known:
        raise UsageError(f"{option} {text[:40]} is not known", hint=f"use one of {', '.join(known)}, or all")
    return [known[text]]


def read_bytes(text: str, option: str) -> int:
    """`8`, `64K`, `128M` in bytes; K, M and G are powers of two. Raises UsageError."""
    found = _SIZE.fullmatch(text.strip())
    number, unit = found.groups() if found else ("0", "")
    nbytes = int(number) * {"k": KIB, "m": MIB, "g": GIB}.get((unit or "").lower(), 1)
    if not 1 <= nbytes <= MOST_BYTES:
        raise UsageError(f"{option} takes a size, not '{text[:40]}'", hint="write for example 8, 64K, 128M; at most 1G")
    return nbytes
