"""`kernbench run`: a bench on a machine, and what came of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace

import click

from kernbench.benches._params import read_params
from kernbench.benches.registry import BenchSpec, resolve
from kernbench.cli.op_log_file import op_log_file
from kernbench.cli.options import load_machine, machine_options, print_json, stdout_for_json
from kernbench.cli.terminal import ProgressLine, in_colour, paint
from kernbench.common.errors import KernBenchError, UsageError
from kernbench.common.units import format_ns
from kernbench.report.rows import rows_as_text
from kernbench.report.run_figures import figures_of, rows_of, run_as_json
from kernbench.report.run_summary import plain, summary_as_text
from kernbench.runtime_api.bench_failure import bench_failed
from kernbench.runtime_api.bench_runner import NO_REFERENCE, BenchResult, RunOptions, devices_of, run_bench
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology.graph import TopologyGraph
from kernbench.values.op import BackendName


@click.command()
@click.option(
    "--bench",
    "identifier",
    required=True,
    metavar="BENCH",
    help="A name or number of `kernbench list`, or FILE.py[:NAME].",
)
@machine_options
@click.option(
    "--device",
    default=None,
    metavar="DEVICE",
    help="all (once for each SIP), whole (once, with the whole tray), or one SIP: sip:0.  [default: as the bench says]",
)
@click.option(
    "--param",
    "settings_of_bench",
    multiple=True,
    metavar="NAME=VALUE",
    help="Set a parameter of the bench. May be repeated.",
)
@click.option(
    "--verify-data",
    is_flag=True,
    help="Compute the tensors and compare them with what the bench states by torch.check; exit with 1 if one is wrong, "
    "2 if none is stated.",
)
@click.option("--debug-ops", is_flag=True, help="Also compare every intermediate op with double precision.")
@click.option(
    "--backend",
    type=click.Choice(["numpy", "torch"]),
    default="numpy",
    show_default=True,
    help="What computes tensors: torch keeps them on a GPU where there is one.",
)
@click.option(
    "--check-races",
    is_flag=True,
    help="Look for kernels that touch the same bytes of memory in no order; exit with 1 if some do.",
)
@click.option(
    "--oplog",
    metavar="FILE",
    default=None,
    help="Write what every engine did, and when, to FILE as Parquet; it is replaced when the run is over.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def run(
    identifier: str,
    topology: str | None,
    settings: tuple[str, ...],
    device: str | None,
    settings_of_bench: tuple[str, ...],
    verify_data: bool,
    debug_ops: bool,
    backend: BackendName,
    check_races: bool,
    oplog: str | None,
    as_json: bool,
) -> int:
    """Run a bench: how long it takes, how near the machine's peak it comes, whether its tensors are right.

    On several devices it runs once on each, side by side in one simulation, unless it drives the whole tray itself.
    """
    with stdout_for_json(as_json):
        spec = resolve(identifier)
        chosen = spec.device_for(device)
        params = read_params(spec.params, settings_of_bench, os.environ)
        graph = load_machine(topology, settings)
        devices_of(chosen, graph.spec.n_sips)  # what is wrong is said before a file is begun
        with op_log_file(oplog) if oplog is not None else nullcontext(OpLog()) as log:
            options = RunOptions(
                device=chosen,
                verify_data=verify_data,
                debug_ops=debug_ops,
                op_log=log,
                check_races=check_races,
                backend=backend,
                announce_data_pass=_announce,
            )
            result = _run(spec, graph, options, params)
    figures = figures_of(result, params)
    if as_json:
        print_json(run_as_json(figures))
    else:
        click.echo(summary_as_text(figures, paint if in_colour() else plain))
        if rows := rows_of(result):
            click.echo(f"\n{rows_as_text(rows)}")
        if oplog is not None:
            click.echo(f"wrote {oplog}: {len(log):,} ops")
    if result.completion.error_code == NO_REFERENCE:
        raise UsageError(
            f"{result.completion.error_message}",
            where=f"bench '{spec.name}'",
            hint="state in the bench what its tensors must hold: torch.check(tensor, array); or do not ask to verify",
        )
    return 0 if result.ok else 1


def _announce(seconds: float) -> None:
    click.echo(f"data pass: about {seconds:,.0f} s", err=True)


def _run(spec: BenchSpec, graph: TopologyGraph, options: RunOptions, params: Mapping[str, object]) -> BenchResult:
    bar = ProgressLine()
    if bar.wanted:
        options = replace(options, progress=lambda now_ns: bar.show(f"run {spec.name}: {format_ns(now_ns)} simulated"))
    try:
        return run_bench(spec.run, graph, options, name=spec.name, params=params)
    except KernBenchError:
        raise
    except (Exception, SystemExit) as error:
        raise bench_failed(spec.name, spec.run, error) from error
    finally:
        bar.clear()
