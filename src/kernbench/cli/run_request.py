"""What `kernbench run` is asked for: the bench or program, the options that apply to it, and the run that follows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from kernbench.benches._params import read_params
from kernbench.benches.registry import BenchSpec, resolve
from kernbench.cli.evaluate import EvaluationOptions, is_evaluated
from kernbench.cli.options import load_machine
from kernbench.cli.run_triton import triton_program
from kernbench.common.errors import UsageError
from kernbench.common.units import parse_ns
from kernbench.runtime_api.bench_runner import WHOLE, RunOptions
from kernbench.topology.graph import TopologyGraph
from kernbench.values.op import BackendName

if TYPE_CHECKING:
    from kernbench.cli.run_triton import Schedule, StoragePlacement
    from kernbench.triton.program_file import ProgramFile

BINS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RunArguments:
    """The options of the command line; those left out are None, False or empty."""

    identifier: str | None
    triton_file: str | None
    schedule: Schedule | None
    placement: StoragePlacement | None
    benchmarks: str | None
    program_args: tuple[str, ...]
    topology: str | None
    settings: tuple[str, ...]
    device: str | None
    settings_of_bench: tuple[str, ...]
    verify_data: bool
    debug_ops: bool
    backend: BackendName
    check_races: bool
    check_fast: Literal["all", "each"] | None
    stats: bool
    mapping_report: str | None
    max_time: str | None
    oplog: str | None
    out: str | None
    redraw: bool
    workers: int | None
    cluster: str | None
    resume_anyway: bool
    save: str | None
    bins: int | None

    def are_of_an_evaluation(self, spec: BenchSpec) -> bool:
        """Whether the bench is to be evaluated; raises UsageError for options that do not apply."""
        of_evaluations = {
            "--out": self.out,
            "--redraw": self.redraw,
            "--workers": self.workers,
            "--cluster": self.cluster,
            "--resume-anyway": self.resume_anyway,
        }
        of_runs = {
            "--verify-data": self.verify_data,
            "--debug-ops": self.debug_ops,
            "--check-races": self.check_races,
            "--check-fast": self.check_fast is not None,
            "--stats": self.stats,
            "--oplog": self.oplog is not None,
            "--save": self.save is not None,
            "--backend": self.backend != "numpy",
            "--max-time": self.max_time is not None,
        }
        return is_evaluated(spec, of_evaluations, of_runs)

    def evaluation(self) -> EvaluationOptions:
        return EvaluationOptions(
            self.topology,
            self.settings,
            self.settings_of_bench,
            self.out,
            self.redraw,
            self.workers,
            self.cluster,
            self.resume_anyway,
        )

    def command(self) -> list[str]:
        """The command that repeats the run of a bench."""
        words = ["kernbench", "run", "--bench", str(self.identifier)]
        words += [] if self.topology is None else ["--topology", self.topology]
        words += [] if self.device is None else ["--device", self.device]
        words += [word for setting in self.settings for word in ("--set", setting)]
        words += [word for setting in self.settings_of_bench for word in ("--param", setting)]
        return [*words, "--verify-data"] if self.verify_data else words


class RunWorkload(NamedTuple):
    """What is run, and the arguments as they apply to it: a program with Triton kernels is a bench on one device."""

    arguments: RunArguments
    spec: BenchSpec
    program: ProgramFile | None


def workload_of(given: RunArguments) -> RunWorkload:
    """The bench or program that is asked for. Raises UsageError where there is none, or options contradict it."""
    if given.bins is not None and given.save is None:
        raise UsageError("--bins without --save", hint="give --save DIR: bins are for the link activity of a saved run")
    if given.triton_file is None:
        _refuse_options_of_programs(given)
        if given.mapping_report is not None:
            reported = f"mapping_report={given.mapping_report}"
            given = replace(given, settings_of_bench=(*given.settings_of_bench, reported))
        if given.identifier is None:
            raise UsageError("nothing to run", hint="give --bench BENCH, or --triton FILE.py")
        return RunWorkload(given, resolve(given.identifier), None)
    if given.identifier is not None:
        raise UsageError("--bench and --triton together", hint="give one of them")
    _refuse_options_of_benches(given)
    program, spec = triton_program(
        given.triton_file, given.program_args, given.schedule, given.placement, given.benchmarks
    )
    return RunWorkload(replace(given, identifier=given.triton_file, device=given.device or "sip:0"), spec, program)


def _refuse_options_of_programs(given: RunArguments) -> None:
    """Raise UsageError for what only a program with Triton kernels takes."""
    options = {"--schedule": given.schedule, "--placement": given.placement, "--benchmarks": given.benchmarks}
    for option, value in options.items():
        if value is not None:
            raise UsageError(f"{option} without --triton", hint="give --triton FILE.py, or leave it out")
    if given.program_args:
        raise UsageError(
            f"unexpected argument '{given.program_args[0]}'", hint="give --bench BENCH, or --triton FILE.py [ARGS]"
        )


def _refuse_options_of_benches(given: RunArguments) -> None:
    """Raise UsageError for what a program with Triton kernels does not take."""
    if given.verify_data or given.debug_ops:
        raise UsageError(
            f"{'--verify-data' if given.verify_data else '--debug-ops'} with --triton",
            hint="leave it out: a Triton program compares its numbers itself, say with torch.testing.assert_close",
        )
    if given.device is not None and given.device.strip().lower() in ("all", WHOLE):
        raise UsageError(
            f"--device {given.device} with --triton: a Triton program runs on one device",
            hint="give --device sip:N, or leave it out",
        )
    if given.mapping_report is not None:
        raise UsageError("--mapping-report with --triton", hint="it is for benches whose layers have a mapping")


class OneRun(NamedTuple):
    """A single run, not an evaluation: `identifier` is the name of the bench as given by the user."""

    identifier: str
    spec: BenchSpec
    graph: TopologyGraph
    options: RunOptions
    params: Mapping[str, object]
    program: Mapping[str, object] | None  # how a program with Triton kernels was started


def one_run(work: RunWorkload) -> OneRun:
    """The run that the arguments describe; raises a KernBenchError for a device, parameter or machine that is wrong."""
    given, spec, program = work
    options = RunOptions(
        device=spec.device_for(given.device),
        verify_data=given.verify_data,
        debug_ops=given.debug_ops,
        check_races=given.check_races,
        check_fast="each" if given.check_fast == "each" else given.check_fast is not None,
        backend=given.backend,
        max_time_ns=_limit_ns(given.max_time),
        announce_data_pass=_announce,
        may_be_idle=program is not None,
    )
    params = read_params(spec.params, given.settings_of_bench, os.environ)
    graph = load_machine(given.topology, given.settings)
    return OneRun(str(given.identifier), spec, graph, options, params, None if program is None else program.started)


def _limit_ns(text: str | None) -> float | None:
    """The time of `--max-time` in ns; raises UsageError if it is not a time."""
    if text is None:
        return None
    limit_ns = parse_ns(text)
    if not limit_ns:
        raise UsageError(f"--max-time is '{text}'", hint="give a time of more than 0: 500ns, 20us, 1ms or 1s")
    return limit_ns


def _announce(seconds: float) -> None:
    click.echo(f"data pass: about {seconds:,.0f} s", err=True)
