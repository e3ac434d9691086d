"""`kernbench run`: runs a bench on a machine and prints its results."""

from __future__ import annotations

from typing import Any

import click

from kernbench.benches.registry import BenchSpec
from kernbench.cli.evaluate import evaluate_bench
from kernbench.cli.options import given_words, machine_options, print_json, stdout_for_json
from kernbench.cli.run_recorded import run_recorded
from kernbench.cli.run_request import RunArguments, one_run, workload_of
from kernbench.cli.run_text import show_run, verdict_as_json
from kernbench.cli.run_triton import triton_as_json, triton_as_text
from kernbench.common.errors import UsageError
from kernbench.report.run_figures import figures_of, run_as_json, warnings_of
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import NO_REFERENCE


@click.command()
@click.option(
    "--bench",
    "identifier",
    default=None,
    metavar="BENCH",
    help="A name or number of `kernbench list`, or FILE.py[:NAME].",
)
@click.option(
    "--triton",
    "triton_file",
    metavar="FILE.py",
    default=None,
    help="Run a program that launches Triton kernels, unmodified; its arguments follow, options of it after --.",
)
@click.option(
    "--schedule",
    type=click.Choice(["static", "dynamic"]),
    default=None,
    help="With --triton: contiguous shares of a grid for PEs, or a queue.  [default: static]",
)
@click.option(
    "--placement",
    type=click.Choice(["auto", "slabs", "interleave", "replicate"]),
    default=None,
    help="With --triton: where tensors lie: next to the programs that use them, or dealt in pages.  [default: auto]",
)
@click.option(
    "--benchmarks",
    metavar="N|NAME=VALUE[,VALUE]",
    default=None,
    help="With --triton: the first N sizes of every triton.testing.perf_report, or those with a value.  [default: all]",
)
@click.argument("program_args", nargs=-1, metavar="[ARGS]...", type=click.UNPROCESSED)
@machine_options
@click.option(
    "--device",
    default=None,
    metavar="DEVICE",
    help="all (once for each SIP), whole (once, with the whole tray), or one SIP: sip:0.  [default: set by the bench]",
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
    help="Detect races: unordered accesses of kernels to the same bytes of memory; exit with 1 if there are any.",
)
@click.option(
    "--check-fast",
    is_flag=False,
    flag_value="all",
    type=click.Choice(["all", "each"]),
    metavar="[=each]",
    help="Run it again with all fast paths off and compare times, op log, counters and numbers; exit with 1 if they "
    "differ. With =each, also switch them off one at a time.",
)
@click.option(
    "--stats", is_flag=True, help="Print what was replayed, what was simulated and why, and how long it took."
)
@click.option(
    "--mapping-report",
    is_flag=False,
    flag_value="-",
    metavar="[=FILE]",
    help="Print what a layer's mapping was chosen from; with =FILE, also write the choice there: --param mapping=FILE "
    "takes it again.",
)
@click.option(
    "--max-time",
    metavar="TIME",
    default=None,
    help="End a run that exceeds TIME of simulated time, such as 1ms, and report where every PE is; exit with 2.",
)
@click.option(
    "--oplog",
    metavar="FILE",
    default=None,
    help="Write what every engine did, and when, to FILE as Parquet; it is replaced when the run is over.",
)
@click.option(
    "--out",
    metavar="DIR",
    default=None,
    help="Evaluate the bench into DIR: results, figures.  [default for an evaluation: kernbench-out/BENCH]",
)
@click.option("--redraw", is_flag=True, help="Of an evaluation: draw the figures again from the results in DIR.")
@click.option("--fast", "old_redraw", is_flag=True, hidden=True)
@click.option("--workers", type=click.IntRange(min=1), help="Of an evaluation: processes.  [default: one per core]")
@click.option("--cluster", metavar="ADDRESS", help="Of an evaluation: run on the workers of a dask scheduler.")
@click.option(
    "--resume-anyway", is_flag=True, help="Of an evaluation: keep rows that were made with another source of KernBench."
)
@click.option(
    "--save",
    metavar="DIR",
    default=None,
    help="Save the run as a folder for explain, trace, diff and web. Every flit is recorded: the same times, but "
    "slower.",
)
@click.option(
    "--bins",
    type=click.IntRange(256, 1 << 20),
    help="With --save: the maximum number of bins for link activity over time.  [default: 4096]",
)
@click.option("--full", is_flag=True, help="Also print engines, roofline, links and energy.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def run(redraw: bool, old_redraw: bool, full: bool, as_json: bool, **given: Any) -> int:
    """Run a bench: how long it takes, how near the machine's peak it comes, whether its tensors are right.

    On several devices it runs once on each, side by side in one simulation, unless it drives the whole tray itself.
    An evaluation runs many points, and writes their rows and figures to a folder. A program with Triton kernels runs on
    one device, with the numbers that PyTorch and Triton's interpreter compute.
    """
    if old_redraw:
        click.echo("--fast is deprecated: it is called --redraw now", err=True)
    with stdout_for_json(as_json):
        work = workload_of(RunArguments(**given, redraw=redraw or old_redraw))
    arguments, spec, program = work
    if arguments.are_of_an_evaluation(spec):
        spec.device_for(arguments.device)
        return evaluate_bench(spec, arguments.evaluation(), as_json)
    with stdout_for_json(as_json):
        one = one_run(work)
        result = run_recorded(one, arguments)
    with result.simulation.phase("report"):
        figures = figures_of(result, one.params)
    for warning in warnings_of(result):
        click.echo(f"warning: {warning}", err=True)
    from kernbench.report.run_command import RunCommand

    words = arguments.command() if program is None else given_words()
    command = RunCommand(words, spec.name, arguments.save, lambda cause: spec.advised(cause, one.params), spec.meanings)
    if as_json:
        data = run_as_json(figures)
        if arguments.stats:
            data |= {"simulation": result.simulation.as_json(), "verdict": verdict_as_json(result, command)}
        print_json(data if program is None else triton_as_json(data, result, program))
    else:
        if program is not None:
            click.echo(f"{triton_as_text(result, program)}\n")
        if result.launches or program is None:
            show_run(figures, command, arguments.oplog, full=full, stats=arguments.stats)
    return _exit_code(spec, result)


def _exit_code(spec: BenchSpec, result: BenchResult) -> int:
    """0 for success, else 1; raises UsageError if there was nothing to verify."""
    if result.completion.error_code == NO_REFERENCE:
        raise UsageError(
            f"{result.completion.error_message}",
            where=f"bench '{spec.name}'",
            hint="state in the bench what its tensors must hold: torch.check(tensor, array); or do not ask to verify",
        )
    return 0 if result.ok else 1
