"""`kernbench compare`: machines side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from kernbench.benches.registry import resolve
from kernbench.cli.compare_text import Latency, comparison_as_text, infeasible_of
from kernbench.cli.options import print_json, stdout_for_json
from kernbench.cli.scenario_file import BENCH, read_scenario
from kernbench.cli.terminal import ProgressLine, painter
from kernbench.common.errors import UsageError
from kernbench.probes.cases import ProbeCase, cases_of
from kernbench.probes.measure import measure
from kernbench.probes.probe import DEFAULT_BYTES
from kernbench.report.compare import MachineColumn, column_of, differences
from kernbench.sweep.request import SweepReport, SweepRequest, run_sweep
from kernbench.sweep.scenario import Scenario
from kernbench.sweep.target import target_of
from kernbench.topology import load_topology
from kernbench.topology.network import NetworkTopology

SCHEMA = 1
PROBES = (
    "pe-local-hbm",
    "pe-cross-half-hbm",
    "pe-cross-cube-hbm-best",
    "pe-cross-cube-hbm-worst",
    "pe-cross-sip-hbm",
    "pe-sram",
    "pe-cross-cube-sram",
    "pe-cross-sip-sram",
    "pe-tcm",
    "pe-same-cube-tcm",
    "pe-cross-cube-tcm",
    "pe-cross-sip-tcm",
    "pe-far",
    "pe-cross-sip-far",
)
TO_SIP = "pe-cross-sip-"
NEAREST, FARTHEST = "pe-stack-nearest", "pe-stack-farthest"
Probes = Mapping[str, Sequence[Latency | None]]  # by case, of each machine


@click.command()
@click.argument("machines", nargs=-1, metavar="A.yaml B.yaml ...")
@click.option(
    "--scenario", metavar="FILE.yaml", default=None, help="Workloads with weights: run all of them on each machine."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Change one value of all machines. May be repeated.",
)
@click.option("--probes/--no-probes", default=True, help="Measure latencies to the nearest and the farthest memories.")
@click.option("--workers", type=click.IntRange(min=1), help="Processes for the workloads.  [default: one per core]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def compare(
    machines: tuple[str, ...],
    scenario: str | None,
    settings: tuple[str, ...],
    probes: bool,
    workers: int | None,
    as_json: bool,
) -> int:
    """Compare machines: keys that differ, rooflines, area, power, price, probes, workloads; warnings about bottlenecks.

    `default` is the shipped machine. Figures with a range have it in brackets.
    """
    if len(machines) < 2:
        raise UsageError(
            f"a comparison needs two machines or more, and has {len(machines)}",
            where="kernbench compare",
            hint="name them, `default` is the shipped one: kernbench compare default B.yaml",
        )
    with stdout_for_json(as_json):
        bench = resolve(BENCH)
        mix = None if scenario is None else read_scenario(scenario, bench)
        columns = [_column(name, label, settings) for name, label in zip(machines, _labels(machines), strict=True)]
        measured = _probes(columns) if probes else {}
        work = [] if mix is None else [_workloads(column, mix, workers) for column in columns]
    if as_json:
        print_json(_as_json(columns, measured, work))
    else:
        click.echo(comparison_as_text(columns, measured, work, painter()))
    return 1 if any(row.has_failed for report in work for row in report.rows) else 0


def _labels(machines: Sequence[str]) -> list[str]:
    """File names without folders, or as they are given where those would be the same; raises UsageError for one machine
    that is named twice.
    """
    twice = next((name for name in machines if machines.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"'{twice}' is named twice", where="kernbench compare", hint="name each machine once")
    stems = [Path(name).stem for name in machines]
    return [stem if stems.count(stem) == 1 else name for name, stem in zip(machines, stems, strict=True)]


def _column(name: str, label: str, settings: Sequence[str]) -> MachineColumn:
    overrides: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"--set takes KEY=VALUE, not '{setting}'", hint="write --set system.sips.count=4")
        overrides[key.strip()] = value
    graph = load_topology(name, overrides)
    if isinstance(graph, NetworkTopology):
        raise UsageError("a plain network has no PEs to compare", where=name, hint="give descriptions of machines")
    return column_of(label, graph)


def _probes(columns: Sequence[MachineColumn]) -> Probes:
    """Latency of a transfer of 32 KiB, or one block of a stack, by case; None where a machine has no such pair of
    places.
    """
    named = _probes_of(columns)
    bar, found = ProgressLine(), {name: list[Latency | None]() for name in (NEAREST, FARTHEST, *named)}
    for column in columns:
        cases = {case.name: case for case in cases_of(column.graph, DEFAULT_BYTES) if case.is_uncontended}
        measured: dict[str, Latency] = {}
        for name, case in cases.items():
            if name in named or _is_read_of_stack(case):
                bar.show(f"{column.name}: {name}")
                result = measure(column.graph, case)
                measured[name] = Latency(result.total_ns, result.nbytes)
        stacks = sorted(measured[name] for name, case in cases.items() if _is_read_of_stack(case))
        measured |= {NEAREST: stacks[0]} if stacks else {}
        measured |= {FARTHEST: stacks[-1]} if len(stacks) > 1 else {}
        for name, row in found.items():
            row.append(measured.get(name))
    bar.clear()
    return {name: row for name, row in found.items() if any(each is not None for each in row)}


def _probes_of(columns: Sequence[MachineColumn]) -> list[str]:
    """The cases that are compared; behind that of another SIP those across each level of switches that there is."""
    levels = dict.fromkeys(level for column in columns for level in column.graph.spec.system.switch_levels)
    found: list[str] = []
    for name in PROBES:
        found.append(name)
        if name.startswith(TO_SIP):
            found += [f"pe-cross-{level}-{name.removeprefix(TO_SIP)}" for level in levels]
    return found


def _is_read_of_stack(case: ProbeCase) -> bool:
    return case.name.startswith("pe-stack-") and case.direction == "read"


def _workloads(column: MachineColumn, mix: Scenario, workers: int | None) -> SweepReport:
    bench, bar = resolve(BENCH), ProgressLine()
    request = SweepRequest(
        target=target_of(bench.run),
        title=bench.name,
        points=[{}],
        topology=column.graph,
        device=bench.device_for(None),
        scenario=mix,
        workers=workers,
        plot=False,
    )
    try:
        return run_sweep(request, lambda now: bar.show(f"{column.name}: {now.done} of {now.total} workloads"))
    finally:
        bar.clear()


def _as_json(columns: Sequence[MachineColumn], probes: Probes, work: Sequence[SweepReport]) -> dict[str, object]:
    data: dict[str, object] = {
        "schema": SCHEMA,
        "command": "compare",
        "machines": [column.as_json() for column in columns],
        "infeasible": {column.name: why for column, why in zip(columns, infeasible_of(columns, work), strict=True)},
        "differences": differences(columns),
        "probes_ns": {name: [each and each.ns for each in row] for name, row in probes.items()},
        "probes_nbytes": {name: [each and each.nbytes for each in row] for name, row in probes.items()},
    }
    if work:
        rows = [{"rows": [row.as_json() for row in each.rows], "figures": _figures(each)} for each in work]
        data["workloads"] = {column.name: each for column, each in zip(columns, rows, strict=True)}
    return data


def _figures(report: SweepReport) -> dict[str, object]:
    """Derived figures by workload, and weighted."""
    mix = report.scenario
    assert mix is not None
    named = [each.name for each in mix.scenario.workloads]
    found: dict[str, object] = {name: row.derived() for name, row in zip(named, report.rows, strict=True)}
    return found | {"weighted": mix.weighted[0].derived()}
