"""`simulate`: a block of host code whose Triton launches run on a machine, and what they took."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.common.plain_json import plain_json
from kernbench.report.run_figures import RunFigures, figures_of, run_as_json
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import RunOptions, RunSession
from kernbench.sim_engine.op_log import OpLog
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.layers import Overrides, Source
from kernbench.triton.benchmarks import TuningTable
from kernbench.triton.placement import StoragePlacement
from kernbench.triton.simulation import Schedule, Simulation, TritonLaunch
from kernbench.triton.table import launches_as_json, launches_as_text


class SimulatedRun:
    """What a `simulate` block is given. Launches are there as soon as they are made, the rest when the block ends."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._result: BenchResult | None = None

    @property
    def launches(self) -> list[TritonLaunch]:
        """The launches so far, in order."""
        return self._simulation.launches

    @property
    def autotuned(self) -> list[TuningTable]:
        """The configurations that were tried, one table for each key of each autotuned kernel."""
        return self._simulation.benchmarks.tables

    @property
    def result(self) -> BenchResult:
        """The run, as `kernbench.run` returns it; raises UsageError inside the block."""
        if self._result is None:
            raise UsageError("the run is not over", hint="read it after the `with` block")
        return self._result

    @property
    def total_ns(self) -> float:
        return self.result.total_ns

    @property
    def figures(self) -> RunFigures:
        return figures_of(self.result)

    def table(self) -> str:
        """The launches: kernel, grid, configuration, simulated time, bound, share of the roofline."""
        return launches_as_text(self.launches, self.result.engine.graph)

    def as_json(self) -> dict[str, Any]:
        """The run as `kernbench run --triton --json` prints it."""
        found = launches_as_json(run_as_json(self.figures), self.result.launches, self._simulation)
        data: dict[str, Any] = plain_json(found)
        return data


@contextmanager
def simulate(
    machine: Source | TopologyGraph = None,
    overrides: Overrides | None = None,
    *,
    schedule: Schedule = "static",
    placement: StoragePlacement = "auto",
    cycles_per_op: int = 0,
    check_races: bool = False,
    save: str | None = None,
    name: str = "triton",
    params: Mapping[str, object] | None = None,
) -> Iterator[SimulatedRun]:
    """Run the Triton launches of a block on a machine: a file, a mapping, a compiled machine, or None for the shipped
    one; `overrides` changes single values.

    `schedule` is "static" (contiguous shares of the grid) or "dynamic" (a queue), `placement` "auto", "slabs",
    "interleave" or "replicate"; a launch may give both as keywords. `cycles_per_op` is what an operation on index data
    costs. `save` writes a run folder. Raises LaunchError, with the kernel's line, when a kernel fails.
    """
    if isinstance(cycles_per_op, bool) or not isinstance(cycles_per_op, int) or cycles_per_op < 0:
        raise UsageError(f"cycles_per_op is {cycles_per_op!r}", hint="give a whole number of cycles, 0 or more")
    graph = machine if isinstance(machine, TopologyGraph) else load_topology(machine, overrides)
    with ExitStack() as stack:
        folder = None
        if save is not None:
            from kernbench.report.runs.save import run_folder

            folder = stack.enter_context(run_folder(save))
        options = RunOptions(
            device="sip:0",
            op_log=OpLog() if folder is None else folder.log,
            activity=None if folder is None else folder.activity,
            check_races=check_races,
            may_be_idle=True,
        )
        session = RunSession(graph, options, name)
        try:
            simulation = Simulation(session.torch, schedule=schedule, placement=placement, cycles_per_op=cycles_per_op)
            run = SimulatedRun(simulation)
            with simulation:
                yield run
            run._result = session.finish([])
        except BaseException:
            session.abandon()
            raise
        if folder is not None:
            from kernbench.report.runs.save import About

            folder.write(run.result, About([*sys.argv], name, name, params or {}, "sip:0", program={"file": None}))
        session.close()
