"""`kernbench run`: runs a bench on a machine and prints its results."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from kernbench.benches._params import read_params
from kernbench.benches.registry import BenchSpec, resolve
from kernbench.cli.evaluate import EvaluationOptions, evaluate_bench, is_evaluated
from kernbench.cli.options import load_machine, machine_options, print_json, stdout_for_json
from kernbench.cli.run_triton import triton_as_json, triton_as_text, triton_program
from kernbench.cli.terminal import ProgressLine, painter
from kernbench.common.errors import KernBenchError, UsageError
from kernbench.common.units import format_ns, parse_ns
from kernbench.report.run_figures import RunFigures, figures_of, rows_of, run_as_json, warnings_of
from kernbench.runtime_api.bench_failure import bench_failed
from kernbench.runtime_api.bench_runner import NO_REFERENCE, BenchResult, RunOptions, devices_of, run_bench
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology.graph import TopologyGraph
from kernbench.values.op import BackendName

if TYPE_CHECKING:
    from kernbench.cli.run_triton import Placement, Schedule
    from kernbench.report.explain.explanation import Explanation
    from kernbench.report.run_command import RunCommand
    from kernbench.triton.program_file import ProgramFile

BINS = 4096


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
    type=click.IntRange(min=0),
    metavar="N",
    default=None,
    help="With --triton: the number of sizes of every triton.testing.perf_report.  [default: all]",
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
def run(
    identifier: str | None,
    triton_file: str | None,
    schedule: Schedule | None,
    placement: Placement | None,
    benchmarks: int | None,
    program_args: tuple[str, ...],
    topology: str | None,
    settings: tuple[str, ...],
    device: str | None,
    settings_of_bench: tuple[str, ...],
    verify_data: bool,
    debug_ops: bool,
    backend: BackendName,
    check_races: bool,
    check_fast: Literal["all", "each"] | None,
    stats: bool,
    mapping_report: str | None,
    max_time: str | None,
    oplog: str | None,
    out: str | None,
    redraw: bool,
    old_redraw: bool,
    workers: int | None,
    cluster: str | None,
    resume_anyway: bool,
    save: str | None,
    bins: int | None,
    full: bool,
    as_json: bool,
) -> int:
    """Run a bench: how long it takes, how near the machine's peak it comes, whether its tensors are right.

    On several devices it runs once on each, side by side in one simulation, unless it drives the whole tray itself.
    An evaluation runs many points, and writes their rows and figures to a folder. A program with Triton kernels runs on
    one device, with the numbers that PyTorch and Triton's interpreter compute.
    """
    program: ProgramFile | None = None
    with stdout_for_json(as_json):
        if triton_file is None:
            _refuse_options_of_programs(schedule, placement, benchmarks, program_args)
            if identifier is None:
                raise UsageError("nothing to run", hint="give --bench BENCH, or --triton FILE.py")
            spec = resolve(identifier)
        else:
            if identifier is not None:
                raise UsageError("--bench and --triton together", hint="give one of them")
            program, spec = triton_program(triton_file, program_args, schedule, placement, benchmarks)
            identifier, device = triton_file, device or "sip:0"
    if old_redraw:
        click.echo("--fast is deprecated: it is called --redraw now", err=True)
        redraw = True
    of_evaluations = {"--out": out, "--redraw": redraw, "--workers": workers, "--cluster": cluster}
    of_evaluations["--resume-anyway"] = resume_anyway
    of_runs = {"--verify-data": verify_data, "--debug-ops": debug_ops, "--check-races": check_races}
    of_runs |= {"--check-fast": check_fast is not None, "--stats": stats}
    of_runs |= {"--oplog": oplog is not None, "--save": save is not None, "--backend": backend != "numpy"}
    of_runs |= {"--max-time": max_time is not None}
    if mapping_report is not None:
        settings_of_bench = (*settings_of_bench, f"mapping_report={mapping_report}")
    if bins is not None and save is None:
        raise UsageError("--bins without --save", hint="give --save DIR: bins are for the link activity of a saved run")
    if is_evaluated(spec, of_evaluations, of_runs):
        spec.device_for(device)
        evaluation = EvaluationOptions(
            topology, settings, settings_of_bench, out, redraw, workers, cluster, resume_anyway
        )
        return evaluate_bench(spec, evaluation, as_json)
    with stdout_for_json(as_json):
        options = RunOptions(
            device=spec.device_for(device),
            verify_data=verify_data,
            debug_ops=debug_ops,
            check_races=check_races,
            check_fast="each" if check_fast == "each" else check_fast is not None,
            backend=backend,
            max_time_ns=_limit_ns(max_time),
            announce_data_pass=_announce,
        )
        params = read_params(spec.params, settings_of_bench, os.environ)
        started = None if program is None else program.started
        one = OneRun(identifier, spec, load_machine(topology, settings), options, params, started)
        result = _run_recorded(one, oplog, save, bins or BINS, settings_of_bench)
    with result.simulation.phase("report"):
        figures = figures_of(result, params)
    for warning in warnings_of(result):
        click.echo(f"warning: {warning}", err=True)
    from kernbench.report.run_command import RunCommand

    words = _command(identifier, topology, settings, device, settings_of_bench, verify_data)
    if program is not None:
        words = ["kernbench", *sys.argv[1:]]
    command = RunCommand(words, spec.name, save, lambda cause: spec.advised(cause, params))
    if as_json:
        data = run_as_json(figures)
        if stats:
            data |= {"simulation": result.simulation.as_json(), "verdict": _verdict(result, command)}
        print_json(data if program is None else triton_as_json(data, program))
    else:
        if program is not None:
            click.echo(f"{triton_as_text(result, program)}\n")
        _show(figures, command, oplog, full=full, stats=stats)
    return _exit_code(spec, result)


def _refuse_options_of_programs(schedule: object, placement: object, benchmarks: object, args: Sequence[str]) -> None:
    """Raise UsageError for what only a program with Triton kernels takes."""
    given = {"--schedule": schedule, "--placement": placement, "--benchmarks": benchmarks}
    for option, value in given.items():
        if value is not None:
            raise UsageError(f"{option} without --triton", hint="give --triton FILE.py, or leave it out")
    if args:
        raise UsageError(f"unexpected argument '{args[0]}'", hint="give --bench BENCH, or --triton FILE.py [ARGS]")


def _command(
    identifier: str,
    topology: str | None,
    settings: Sequence[str],
    device: str | None,
    settings_of_bench: Sequence[str],
    verify_data: bool,
) -> list[str]:
    """The command that repeats this run."""
    words = ["kernbench", "run", "--bench", identifier]
    words += [] if topology is None else ["--topology", topology]
    words += [] if device is None else ["--device", device]
    words += [word for setting in settings for word in ("--set", setting)]
    words += [word for setting in settings_of_bench for word in ("--param", setting)]
    return [*words, "--verify-data"] if verify_data else words


def _limit_ns(text: str | None) -> float | None:
    """The time of `--max-time` in ns; raises UsageError if it is not a time."""
    if text is None:
        return None
    limit_ns = parse_ns(text)
    if not limit_ns:
        raise UsageError(f"--max-time is '{text}'", hint="give a time of more than 0: 500ns, 20us, 1ms or 1s")
    return limit_ns


class OneRun(NamedTuple):
    """A single run, not an evaluation: `identifier` is the name of the bench as given by the user."""

    identifier: str
    spec: BenchSpec
    graph: TopologyGraph
    options: RunOptions
    params: Mapping[str, object]
    program: Mapping[str, object] | None = None  # how a program with Triton kernels was started


def _run_recorded(
    one: OneRun, oplog: str | None, save: str | None, bins: int, settings_of_bench: Sequence[str]
) -> BenchResult:
    """Run it with its log in memory, in a file, or in a run folder."""
    devices_of(one.options.device, one.graph.spec.n_sips)  # errors are reported before a file is created
    if save is None:
        with _op_log(oplog) as log:
            return _run(one, op_log=log)
    if oplog is not None:
        raise UsageError("--save and --oplog together", hint="leave --oplog out: a saved run has ops.parquet")
    return _save(save, bins, one, settings_of_bench)


def _exit_code(spec: BenchSpec, result: BenchResult) -> int:
    """0 for success, else 1; raises UsageError if there was nothing to verify."""
    if result.completion.error_code == NO_REFERENCE:
        raise UsageError(
            f"{result.completion.error_message}",
            where=f"bench '{spec.name}'",
            hint="state in the bench what its tensors must hold: torch.check(tensor, array); or do not ask to verify",
        )
    return 0 if result.ok else 1


def _show(figures: RunFigures, command: RunCommand, oplog: str | None, *, full: bool, stats: bool) -> None:
    """Print the run: the answer, the launches, one chart; with `full`, all details."""
    from kernbench.report.explain.headline import headline, wrapped
    from kernbench.report.rows import rows_as_text
    from kernbench.report.run_answer import answer_lines, path_chart
    from kernbench.report.run_summary import run_summary_as_text, short_summary
    from kernbench.report.simulation_text import simulation_as_text

    result, painted = figures.result, painter()
    found = _explained(result, command.saved)
    click.echo("\n".join(answer_lines(figures, found, command, painted)))
    click.echo(short_summary(figures, painted) if not full else f"\n{run_summary_as_text(figures, painted)}")
    if found is not None:
        click.echo("\n" + "\n".join(path_chart(found, painted)))
        click.echo(wrapped(headline(found.run)))
    if rows := rows_of(result):
        click.echo(f"\n{rows_as_text(rows)}")
    if stats:
        click.echo(f"\n{painted('How it was simulated', 'title')}\n{simulation_as_text(result.simulation)}")
    if result.fast_check is not None:
        click.echo(f"\n{painted('Fast paths', 'title')}\n{result.fast_check.as_text()}")
    for name in (oplog, command.saved):
        if name is not None and result.op_log is not None:
            then = (
                f"; see it with `kernbench explain {name}` or `kernbench web {name}`" if name is command.saved else ""
            )
            click.echo(f"wrote {name}: {len(result.op_log):,} ops{then}")


def _verdict(result: BenchResult, command: RunCommand) -> dict[str, object] | None:
    """The verdict with what to run next, or None if it would take too long to find."""
    from kernbench.report.explain.verdict import verdict_of
    from kernbench.report.explain.what_if import component_of

    found = _explained(result, command.saved)
    if found is None:
        return None
    verdict = verdict_of(found)
    return verdict.as_json(command.next_command(verdict.cause, component_of(verdict)))


def _explained(result: BenchResult, saved: str | None) -> Explanation | None:
    """The explanation of the launches, or None if it would take too long."""
    from kernbench.report.explain.headline import main_scope
    from kernbench.report.runs.live_run import live_run
    from kernbench.report.runs.saved_run import open_run

    if not result.launches or not result.completion.ok:
        return None
    run = live_run(result) if saved is None else open_run(saved)
    return None if run is None else main_scope(run)


def _save(name: str, bins: int, one: OneRun, settings_of_bench: Sequence[str]) -> BenchResult:
    """Run and write the run folder."""
    from kernbench.report.runs.save import About, run_folder

    with run_folder(name, most_bins=bins) as folder:
        result = _run(one, op_log=folder.log, activity=folder.activity)
        names = (setting.partition("=")[0].strip().replace("-", "_") for setting in settings_of_bench)
        chosen = list(dict.fromkeys(names))
        command = ["kernbench", *sys.argv[1:]]
        directory = os.path.relpath(os.getcwd(), os.path.realpath(name))
        about = About(
            command, one.identifier, one.spec.name, one.params, str(one.options.device), chosen,
            directory=directory, program=one.program,
        )  # fmt: skip
        folder.write(result, about)
    return result


def _op_log(name: str | None) -> AbstractContextManager[OpLog]:
    """The log in memory, or in the file of that name."""
    if name is None:
        return nullcontext(OpLog())
    from kernbench.cli.op_log_file import op_log_file

    return op_log_file(name)


def _announce(seconds: float) -> None:
    click.echo(f"data pass: about {seconds:,.0f} s", err=True)


def _run(one: OneRun, op_log: OpLog, activity: Activity | None = None) -> BenchResult:
    """Run it, with a line of progress on a terminal. An exception of the bench becomes a KernBench error."""
    spec, bar = one.spec, ProgressLine()
    options = replace(one.options, op_log=op_log, activity=activity)
    if bar.wanted:
        options = replace(options, progress=lambda now_ns: bar.show(f"run {spec.name}: {format_ns(now_ns)} simulated"))
    try:
        return run_bench(spec.run, one.graph, options, name=spec.name, params=one.params)
    except KernBenchError:
        raise
    except (Exception, SystemExit) as error:
        raise bench_failed(spec.name, spec.run, error) from error
    finally:
        bar.clear()
