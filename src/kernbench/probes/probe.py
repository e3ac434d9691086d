"""Measures transfers between places of a machine, uncontended and under load, and checks them against the formula.

Each case runs on its own engine, so that cases do not interfere. `run_probe` returns plain frozen data;
`as_json` and `as_text` render it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernbench.common.errors import UsageError
from kernbench.common.nearest import nearest
from kernbench.common.units import KIB, MIB, format_bytes
from kernbench.probes.cases import CHANNEL_FAMILIES, HOST_FAMILIES, ProbeCase, cases_of
from kernbench.probes.checks import run_checks
from kernbench.probes.findings import Check, Findings
from kernbench.probes.measure import CaseResult, SweepPoint, measure, measure_sizes
from kernbench.probes.route import TracedRoute, trace_route
from kernbench.topology.graph import TopologyGraph

DEFAULT_BYTES = 32 * KIB
MAX_BYTES = 64 * MIB
SWEEP_SIZES = (4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 1 * MIB)
ALL = "all"
NAMED = 4  # cases in a note

ProbeProgress = Callable[[int, int, str], None]  # steps done, total steps, next step


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The result of a probe. `notes` are for information; `routes` are present if `detail` was set."""

    topology: str
    nbytes: int
    cases: tuple[CaseResult, ...]
    sweep: tuple[SweepPoint, ...]
    checks: tuple[Check, ...]
    notes: tuple[str, ...]
    routes: tuple[TracedRoute, ...] = ()

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def run_probe(
    graph: TopologyGraph,
    case: str | Sequence[str] | None = ALL,
    nbytes: int = DEFAULT_BYTES,
    sweep: bool = True,
    *,
    detail: bool = False,
    progress: ProbeProgress | None = None,
) -> ProbeReport:
    """Measure a case, several, or all; raises UsageError for a case that the machine does not have or a wrong size."""
    _check_size(nbytes)
    names = [ALL] if case is None else [case] if isinstance(case, str) else case
    chosen = list({one.name: one for name in names for one in _chosen(graph, name, nbytes)}.values())
    traced = chosen if detail else []
    report_step = _StepReporter(progress, len(chosen) + len(traced) + 1)
    results: list[CaseResult] = []
    points: list[SweepPoint] = []
    for one in chosen:
        report_step(one.name)
        if sweep and one.category != "contention":
            result, more = measure_sizes(graph, one, SWEEP_SIZES)
            points += more
        else:
            result = measure(graph, one)
        results.append(result)
    routes: list[TracedRoute] = []
    for one in traced:
        report_step(f"{one.name} hop by hop")
        routes.append(trace_route(graph, one))
    report_step("checks")
    checks = run_checks(Findings(graph, results, points))
    return ProbeReport(
        graph.spec.system.name, nbytes, tuple(results), tuple(points), checks, _notes(graph, results, nbytes),
        tuple(routes),
    )  # fmt: skip


class _StepReporter:
    """Counts the steps of a probe and reports each to `progress`."""

    def __init__(self, progress: ProbeProgress | None, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0

    def __call__(self, what: str) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total, what)
        self._done += 1


def _check_size(nbytes: int) -> None:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 1 <= nbytes <= MAX_BYTES:
        raise UsageError(f"a transfer of {nbytes!r} bytes", hint=f"give 1 byte to {format_bytes(MAX_BYTES)}")


def _chosen(graph: TopologyGraph, case: str, nbytes: int) -> list[ProbeCase]:
    there = cases_of(graph, nbytes)
    if case == ALL:
        return list(there)
    found = [one for one in there if one.name == case]
    if found:
        return found
    if case in [one.name for one in cases_of(graph, 1)]:
        raise UsageError(f"{format_bytes(nbytes)} do not fit the memory of '{case}'", hint="probe with fewer bytes")
    names = [ALL, *(one.name for one in there)]
    near = nearest(case.lower(), names)
    suggestion = f"; did you mean '{near}'?" if near else ""
    listed = [name for name in names if not name.endswith("-write")]
    raise UsageError(
        f"this machine has no probe case '{case[:80]}'{suggestion}",
        hint=f"use one of {', '.join(listed)}; those of PEs have a twin that ends in -write",
    )


def _notes(graph: TopologyGraph, results: Sequence[CaseResult], nbytes: int) -> tuple[str, ...]:
    by_name = {result.name: result for result in results}
    connections = (_connections_used(graph, result) for result in results)
    notes = (*_other_sizes(results, nbytes), _narrowest_links(by_name), *connections)
    return tuple(note for note in notes if note)


def _other_sizes(results: Sequence[CaseResult], nbytes: int) -> Iterator[str]:
    """What the transfers of cases have that are not of the size asked for, and why."""
    names: dict[tuple[int, str], list[str]] = {}
    for result in results:
        if result.nbytes == nbytes:
            continue
        if result.case.most_bytes == result.nbytes:
            why = "one block of a stack (sip.hbm_stacks.interleave_bytes)"
        elif result.case.family in CHANNEL_FAMILIES:
            why = "one burst of a channel"
        else:
            why = "what the memory has room for"
        names.setdefault((result.nbytes, why), []).append(result.name)
    for (size, why), cases in names.items():
        more = f" and {len(cases) - NAMED} more" if len(cases) > NAMED else ""
        yield f"{format_bytes(size)} per transfer, {why}: {', '.join(cases[:NAMED])}{more}"


def _narrowest_links(by_name: Mapping[str, CaseResult]) -> str | None:
    """The narrowest link of a local and of a remote path."""
    local = by_name.get("pe-local-hbm")
    there = [
        f"{tier} {by_name[name].prediction.bottleneck_gbs:g} GB/s"
        for tier, name in (("other cube", "pe-cross-cube-hbm-best"), ("other SIP", "pe-cross-sip-hbm"))
        if name in by_name
    ]
    if local is None or not there:
        return None
    return f"narrowest link of a path: local {local.prediction.bottleneck_gbs:g} GB/s, {', '.join(there)}"


def _connections_used(graph: TopologyGraph, result: CaseResult) -> str | None:
    """The number of IO chiplet connections that the transfers of a host case use."""
    if result.case.family not in HOST_FAMILIES:
        return None
    passed = dict.fromkeys(node for outcome in result.outcomes for node in outcome.path)
    kinds = [graph.node(node).kind for node in passed]
    there = kinds.count("io_ucie") * graph.spec.io_chiplet.n_connections
    used = kinds.count("io_ucie_conn")
    return (
        f"{result.name}: over {used} of {there} connections of IO chiplets, {result.aggregate_peak_gbs:g} GB/s together"
    )
