"""Run one point: the machine, the bench, a row. All errors of a point, except the death of its process, are in its row.
A machine over a limit that needs no run (`limits`: area, edge, price, static power) is not simulated.

A machine once compiled is kept for the next points that have the same; the last few of them.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.report.energy import energy_of
from kernbench.report.feasible import Feasibility, feasibility_of
from kernbench.report.roofline import roofline_of
from kernbench.report.run_answer import ANSWER
from kernbench.report.run_figures import kernels_ns_of
from kernbench.report.silicon import area_of
from kernbench.runtime_api.bench_failure import bench_failed
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.sweep.capacity import reason_of
from kernbench.sweep.context import SweepContext
from kernbench.sweep.cost import default_cost
from kernbench.sweep.points import JsonValue, Point
from kernbench.sweep.rows import SweepRow, failed_row
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.machine_hash import machine_hash

MACHINES_KEPT = 4


@dataclass(frozen=True, slots=True)
class PointTask:
    """A point to run, and its number in the sweep."""

    number: int
    point: Point


@dataclass(frozen=True, slots=True)
class PointOutcome:
    """The row of a task, and its wall-clock time, which is for progress output only: rows do not contain it."""

    task: PointTask
    row: SweepRow
    run_s: float


@dataclass(frozen=True, slots=True)
class _PricedMachine:
    graph: TopologyGraph
    digest: str
    cost: float
    limits: Feasibility  # without a run


class PointRunner:
    """Runs points of one sweep in this process; raises UsageError when its function cannot be found."""

    def __init__(self, context: SweepContext) -> None:
        self._context = context
        self._fn = context.target.load()
        self._cost = context.cost.load() if context.cost is not None else default_cost
        self._machines: OrderedDict[str, _PricedMachine] = OrderedDict()

    def run(self, task: PointTask) -> PointOutcome:
        began = time.perf_counter()
        row = self._row(task)
        return PointOutcome(task, row, time.perf_counter() - began)

    def _row(self, task: PointTask) -> SweepRow:
        point, known = task.point, {}
        try:
            machine = self._machine(point)
            known = {"machine_hash": machine.digest, "cost": machine.cost}
            if machine.limits.infeasible:
                return _not_simulated(task, machine)
            return _row_of(self._run(point, machine), task, machine)
        except KernBenchError as error:
            return not_run(point, error, task.number, **known)
        except MemoryError:
            return failed_row(point, "out of memory", task.number, **known)

    def _run(self, point: Point, machine: _PricedMachine) -> BenchResult:
        context = self._context
        options = RunOptions(device=context.device, verify_data=context.verify_data, threads=1)
        try:
            return run_bench(self._fn, machine.graph, options, name=context.title, params=point.params)
        except (KernBenchError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise bench_failed(context.title, self._fn, error) from error

    def _machine(self, point: Point) -> _PricedMachine:
        key = point.machine_key
        if key not in self._machines:
            graph = load_topology(self._context.machine, point.machine)
            digest, cost = machine_hash(graph.spec), self._cost_of(graph)
            self._machines[key] = _PricedMachine(graph, digest, cost, feasibility_of(graph))
            while len(self._machines) > MACHINES_KEPT:
                self._machines.popitem(last=False)
        self._machines.move_to_end(key)
        return self._machines[key]

    def _cost_of(self, graph: TopologyGraph) -> float:
        try:
            cost = self._cost(graph.spec)
        except (KernBenchError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise bench_failed("cost model", self._cost, error) from error
        if isinstance(cost, bool) or not isinstance(cost, int | float) or not isfinite(cost):
            raise UsageError(f"the cost model returned {cost!r}", hint="return a number")
        return float(cost)


def not_run(point: Point, error: KernBenchError, number: int, **known: Any) -> SweepRow:
    """The row of a point with an error: it failed, or its work does not fit the machine."""
    reason = reason_of(error)
    if reason is not None:
        known |= {"fits": False, "infeasible": f"memory: {reason}"}
    return failed_row(point, str(error), number, **known)


def _not_simulated(task: PointTask, machine: _PricedMachine) -> SweepRow:
    """The row of a machine that is over a limit: figures of the machine, and the reasons."""
    reasons = "; ".join(machine.limits.infeasible)
    return failed_row(
        task.point,
        f"not simulated: {reasons}",
        task.number,
        machine_hash=machine.digest,
        cost=machine.cost,
        infeasible=reasons,
        **_machine_figures(machine.graph, machine.limits),
    )


def _machine_figures(graph: TopologyGraph, limits: Feasibility) -> dict[str, Any]:
    area, usd = area_of(graph).counted, limits.price.total_usd
    return {
        "area_mm2": area.value,
        "area_low_mm2": area.low,
        "area_high_mm2": area.high,
        "static_w": limits.static_w.value,
        "cost_usd": usd.value,
        "cost_low_usd": usd.low,
        "cost_high_usd": usd.high,
        "warnings": "; ".join(limits.warnings) or None,
    }


def _row_of(result: BenchResult, task: PointTask, machine: _PricedMachine) -> SweepRow:
    launches = result.launches
    rooflines = [roofline_of(launch, machine.graph) for launch in launches]
    exec_ns = sum(roofline.exec_ns for roofline in rooflines)
    bound_ns = {"compute": 0.0, "memory": 0.0, "link": 0.0, "neither": 0.0}
    for roofline in rooflines:
        bound_ns[roofline.bound] += roofline.bound_ns
    energy = energy_of(result)
    limits = feasibility_of(machine.graph, energy, tuple(launches))
    returned = result.returned[0] if result.returned else None
    fits = _fits(returned)
    reasons = [*([] if fits else [_does_not_fit(returned)]), *_stated(returned), *limits.infeasible]
    return SweepRow(
        point=task.number,
        params=dict(task.point.params),
        machine=dict(task.point.machine),
        machine_hash=machine.digest,
        ok=result.ok,
        total_ns=result.total_ns,
        kernels_ns=kernels_ns_of(launches),
        launches=len(launches),
        flops=sum(launch.flops for launch in launches),
        bytes_hbm=sum(launch.bytes_hbm for launch in launches),
        bytes_hbm_requested=sum(launch.bytes_hbm_requested for launch in launches),
        bound=max(bound_ns, key=lambda name: bound_ns[name]) if any(bound_ns.values()) else "neither",
        roofline_share=sum(bound_ns.values()) / exec_ns if exec_ns else 0.0,
        energy_j=energy.run.total_j,
        energy_low_j=energy.run.low_j,
        energy_high_j=energy.run.high_j,
        sip_w=limits.sip_w.value,
        sip_low_w=limits.sip_w.low,
        sip_high_w=limits.sip_w.high,
        cost=machine.cost,
        returned=_numbers(returned),
        wrong=any(not check.ok for check in result.data),
        fits=fits,
        infeasible="; ".join(reasons) or None,
        error=_why_not(result),
        table=_table(returned),
        **_machine_figures(machine.graph, limits),
    )


def _why_not(result: BenchResult) -> str | None:
    """The reason why a completed run is not ok; None if it is."""
    if not result.completion.ok:
        return str(result.completion.error_message)
    wrong = [check for check in result.data if not check.ok]
    if not wrong:
        return None
    first = wrong[0]
    more = f" (and {len(wrong) - 1} more tensors)" if len(wrong) > 1 else ""
    return f"tensor '{first.tensor}' is wrong: {first.reason or f'largest error {first.max_abs_err:g}'}{more}"


def _fits(returned: object) -> bool:
    """Whether the bench does not say `fits: False` (or 0), in what it returned by name or in a row of its table."""
    named = _mappings(returned)
    stated = [row.get("fits") for row in named] + [row.get("value") for row in named if row.get("figure") == "fits"]
    return all(value is None or bool(_scalar(value)) for value in stated)


def _does_not_fit(returned: object) -> str:
    """With the sizes, where the bench states them as `llm-layer` does."""
    sizes = {row.get("figure"): row.get("value") for row in _mappings(returned)}
    needed, there = (sizes.get(f"memory {name} per SIP") for name in ("needed", "there"))
    if not isinstance(needed, int | float) or not isinstance(there, int | float):
        return "memory: the model does not fit"
    return f"memory: the model needs {needed:,.4g} GB per SIP, which has {there:,.4g} GB"


def _stated(returned: object) -> list[str]:
    """Reasons that the bench states in rows whose figure is `infeasible`."""
    return [str(row.get("value")) for row in _mappings(returned) if row.get("figure") == "infeasible"]


def _mappings(returned: object) -> list[Mapping[str, object]]:
    rows = returned if isinstance(returned, list | tuple) else [returned]
    return [row for row in rows if isinstance(row, Mapping)]


def _numbers(returned: object) -> dict[str, float]:
    """The finite numbers of a mapping that a bench returned; of several devices, the first one's."""
    if not isinstance(returned, Mapping):
        return {}
    found: dict[str, float] = {}
    for name, value in returned.items():
        plain = _scalar(value)
        if isinstance(plain, int | float) and not isinstance(plain, bool) and isfinite(plain):
            found[str(name)] = plain
    return found


def _table(returned: object) -> tuple[dict[str, JsonValue], ...]:
    """The rows that a bench returned; of several devices, the first one's. What is no number is text. Answers in words
    are those of a run.
    """
    if not isinstance(returned, list | tuple) or not all(isinstance(row, Mapping) for row in returned):
        return ()
    return tuple({str(name): _cell(value) for name, value in row.items()} for row in returned if ANSWER not in row)


def _cell(value: object) -> JsonValue:
    plain = _scalar(value)
    if plain is None or isinstance(plain, bool | int | str):
        return plain
    return (plain if isfinite(plain) else None) if isinstance(plain, float) else str(plain)


def _scalar(value: object) -> object:
    """A number of numpy's as one of Python's."""
    item = getattr(value, "item", None)
    return item() if item is not None and getattr(value, "shape", None) == () else value
