"""`kernbench ccl`: collectives by size, with the options and the table of nccl-tests."""

from __future__ import annotations

import re

import click

from kernbench.benches._ccl_runs import measure_alone
from kernbench.benches._collectives import (
    COLLECTIVE_NAMES,
    OPS,
    REDUCES,
    CollectiveName,
    Measured,
    Wanted,
    sizes_between,
)
from kernbench.cli.options import load_machine, machine_options, print_json
from kernbench.cli.terminal import ProgressLine
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import UsageError
from kernbench.common.units import GIB, KIB, MIB
from kernbench.report.collective_table import collective_table, summary_line

JSON_SCHEMA = 1
MOST_BYTES = GIB
_SIZE = re.compile(r"(\d{1,12})\s*([kmg])?i?b?", re.IGNORECASE | re.ASCII)
# As nccl-tests names them, and as we do.
DTYPES = {
    "half": "f16", "f16": "f16", "float16": "f16", "bfloat16": "bf16", "bf16": "bf16", "float": "f32", "f32": "f32",
    "float32": "f32", "int8": "i8", "i8": "i8", "uint8": "u8", "u8": "u8", "int32": "i32", "i32": "i32",
    "uint32": "u32", "u32": "u32",
}  # fmt: skip
NAMES = {
    name.replace("_", ""): name for name in COLLECTIVE_NAMES
}  # `alltoall`, `allreduce`: as nccl-tests calls its programs


@click.command()
@machine_options
@click.argument("collective", default="all_reduce", metavar="[COLLECTIVE]")
@click.option("-b", "--minbytes", default="32M", show_default=True, metavar="SIZE", help="First size.")
@click.option("-e", "--maxbytes", default=None, metavar="SIZE", help="Last size.  [default: the first]")
@click.option("-i", "--stepbytes", default=None, metavar="SIZE", help="From one size to the next, in bytes.")
@click.option("-f", "--stepfactor", default=2, show_default=True, help="From one size to the next, as a factor.")
@click.option("-o", "--op", "ops", default="sum", show_default=True, help="sum, prod, min, max, avg, or all.")
@click.option("-d", "--datatype", default="float", show_default=True, help="half, float, bfloat16, int8, ... or all.")
@click.option("-r", "--root", default=0, show_default=True, help="Of broadcast, reduce, gather and scatter.")
@click.option("-c", "--check", default=1, show_default=True, type=click.IntRange(0, 1), help="1: count wrong elements.")
@click.option("-g", "--ngpus", default=None, type=int, help="Ranks: so many SIPs.  [default: those of the machine]")
@click.option("--algorithm", "algorithms", multiple=True, metavar="NAME", help="A name in ccl.yaml; may be repeated.")
@click.option("--ccl", "ccl_file", default=None, metavar="FILE", help="A ccl.yaml.  [default: as for process groups]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ccl(
    topology: str | None,
    settings: tuple[str, ...],
    collective: str,
    minbytes: str,
    maxbytes: str | None,
    stepbytes: str | None,
    stepfactor: int,
    ops: str,
    datatype: str,
    root: int,
    check: int,
    ngpus: int | None,
    algorithms: tuple[str, ...],
    ccl_file: str | None,
    as_json: bool,
) -> int:
    """Measure a collective over a range of sizes: time, algorithm and bus bandwidth, wrong elements.

    Takes the options of nccl-tests. A run is exact and the same every time, so there is nothing to warm up or to
    average: -w, -n and -m are not needed. COLLECTIVE is all_reduce, all_gather, reduce_scatter, broadcast, reduce,
    all_to_all, gather or scatter.
    """
    name = _collective(collective)
    first = read_bytes(minbytes, "-b")
    last = first if maxbytes is None else read_bytes(maxbytes, "-e")
    sizes = sizes_between(first, last, stepfactor, 0 if stepbytes is None else read_bytes(stepbytes, "-i"))
    if ngpus is not None:
        settings = (*settings, f"system.sips.count={ngpus}")
    graph = load_machine(topology, settings)
    wanted = [
        Wanted(name, nbytes, dtype, op, root)  # type: ignore[arg-type]  # one of OPS
        for dtype in _chosen(datatype, DTYPES, "-d")
        for op in (_ops(ops, dtype) if name in REDUCES else ["sum"])
        for nbytes in sizes
    ]
    bar = ProgressLine()
    rows: list[Measured] = []
    for algorithm in algorithms or (None,):
        for each in wanted:
            if bar.wanted:
                bar.show(f"ccl {len(rows) + 1}/{len(wanted) * max(len(algorithms), 1)}  {name} of {each.nbytes} bytes")
            rows.append(measure_alone(graph, each, algorithm=algorithm, ccl=ccl_file, check=bool(check)))
    bar.clear()
    _print(rows, name, graph.spec.system.name, graph.spec.n_sips, as_json)
    return 1 if any(row.wrong for row in rows) else 0


def _print(rows: list[Measured], collective: str, machine: str, ranks: int, as_json: bool) -> None:
    plain = [row.as_json() for row in rows]
    if as_json:
        about = {"schema": JSON_SCHEMA, "command": "ccl", "machine": machine, "ranks": ranks}
        print_json({**about, "ok": not any(row.wrong for row in rows), "rows": plain})
        return
    click.echo(f"# {collective} on machine {machine}, {ranks} ranks; simulated time")
    click.echo(collective_table(plain))
    click.echo(summary_line(plain))


def _collective(text: str) -> CollectiveName:
    name = NAMES.get(text.lower().replace("_", "").replace("-", "").removesuffix("perf"))
    if name is None:
        raise UsageError(f"no collective '{text[:40]}'", hint=f"use one of {', '.join(COLLECTIVE_NAMES)}")
    return name


def _ops(text: str, dtype: str) -> list[str]:
    """All that there are leaves out the mean of integers, which there is not."""
    found = _chosen(text, dict(zip(OPS, OPS, strict=True)), "-o")
    return [op for op in found if op != "avg" or text != "all" or dtype_of(dtype).is_float]


def _chosen(text: str, known: dict[str, str], option: str) -> list[str]:
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
