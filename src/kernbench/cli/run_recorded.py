"""Runs a bench once, with its op log in memory, in a Parquet file, or in a run folder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from kernbench.cli.options import given_words
from kernbench.cli.run_request import BINS, OneRun, RunArguments
from kernbench.cli.terminal import ProgressLine
from kernbench.common.errors import KernBenchError, UsageError
from kernbench.common.units import format_ns
from kernbench.runtime_api.bench_failure import bench_failed
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import devices_of, run_bench
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.op_log import OpLog


def run_recorded(one: OneRun, given: RunArguments) -> BenchResult:
    """Run it with its log in memory, in a file, or in a run folder."""
    devices_of(one.options.device, one.graph.spec.n_sips)  # errors are reported before a file is created
    if given.save is None:
        with _op_log(given.oplog) as log:
            return _run(one, op_log=log)
    if given.oplog is not None:
        raise UsageError("--save and --oplog together", hint="leave --oplog out: a saved run has ops.parquet")
    return _save(given.save, given.bins or BINS, one, given.settings_of_bench)


def _save(name: str, bins: int, one: OneRun, settings_of_bench: Sequence[str]) -> BenchResult:
    """Run and write the run folder."""
    from kernbench.report.runs.save import About, run_folder

    with run_folder(name, most_bins=bins) as folder:
        result = _run(one, op_log=folder.log, activity=folder.activity)
        names = (setting.partition("=")[0].strip().replace("-", "_") for setting in settings_of_bench)
        chosen = list(dict.fromkeys(names))
        command = given_words()
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
