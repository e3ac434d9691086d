"""A probe's report as text: aligned tables of at most 120 columns, then one line for each check.

`[v] PASS` and `[x] FAIL` are anchors that scripts may match; the rest of the layout may change. Colour is the
caller's choice.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from kernbench.common.units import counted, format_bytes
from kernbench.probes.breakdown import LABELS
from kernbench.probes.cases import CATEGORIES, Category
from kernbench.probes.measure import CaseResult
from kernbench.probes.probe import ProbeReport
from kernbench.probes.route import TracedLeg, TracedRoute
from kernbench.report.paint import Paint, plain

WIDTH = 120

_TITLES: dict[Category, str] = {
    "h2d": "H2D: the host writes device memory",
    "d2h": "D2H: the host reads device memory",
    "pe-dma": "PE DMA: one PE and the HBM of its SIP",
    "pe-sram": "PE SRAM: one PE and its cube's SRAM",
    "pe-tcm": "PE TCM: one PE and the TCM of PEs, its own first",
    "pe-cross-sip-hbm": "Cross SIP: one PE and another SIP's HBM",
    "contention": "Contention: many PEs at once, or the host and many PEs' HBM (terms of the PE that finishes last)",
}


def report_as_text(report: ProbeReport, paint: Paint = plain) -> str:
    """The whole report."""
    others = sum(result.nbytes != report.nbytes for result in report.cases)
    but = f"; another size in {counted(others, 'case')}, see the notes" if others else ""
    lines = [f"machine {report.topology}, {format_bytes(report.nbytes)} per transfer{but}", ""]
    for category in CATEGORIES:
        results = [result for result in report.cases if result.category == category]
        if results:
            table = _contention(results) if category == "contention" else _summary(results)
            lines += [paint(_TITLES[category], "title"), *table, ""]
    if report.sweep:
        lines += [paint("Utilisation of the narrowest link by size, %", "title"), *_sweep(report), ""]
    for route in report.routes:
        lines += [*_route(route, paint), ""]
    lines += [paint("Checks", "title"), *_checks(report, paint)]
    return "\n".join(lines)


# ---- tables


def _table(heads: Sequence[tuple[str, str]], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns under a head and its unit; the first column is text, the others are numbers."""
    body = [*zip(*heads, strict=True), *rows]
    widths = [max(len(row[i]) for row in body) for i in range(len(heads))]
    return ["  " + "  ".join(_cells(row, widths)).rstrip() for row in body]


def _heads(text: str) -> list[tuple[str, str]]:
    """Heads and units from `head/unit head/unit`; a dash stands for a space."""
    pairs = (word.partition("/") for word in text.split())
    return [(head.replace("-", " "), unit) for head, _, unit in pairs]


def _cells(row: Sequence[str], widths: Sequence[int]) -> Iterator[str]:
    for place, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.rjust(width) if place else cell.ljust(width)


def _summary(results: Sequence[CaseResult]) -> list[str]:
    heads = _heads("case total/ns ovhd/ns wire/ns drain/ns flits/ns mem/ns ovhd/% drain/% eff/GB/s peak/GB/s util/%")
    rows = []
    for result in results:
        uncontended = result.prediction
        times = (
            result.total_ns,
            uncontended.overhead_ns,
            uncontended.wire_ns,
            uncontended.drain_ns,
            uncontended.flit_ns,
            uncontended.memory_ns,
        )
        shares = (uncontended.overhead_ns / result.total_ns, uncontended.drain_ns / result.total_ns)
        rows.append(
            [
                result.name,
                *(_ns(ns) for ns in times),
                *(_percent(share) for share in shares),
                f"{result.effective_gbs:.2f}",
                f"{uncontended.bottleneck_gbs:g}",
                _percent(result.utilization),
            ]
        )
    return _table(heads, rows)


def _contention(results: Sequence[CaseResult]) -> list[str]:
    heads = _heads("case PEs makespan/ns eff/GB/s path-peak/GB/s util/% fair-peak/GB/s util/%")
    rows = [
        [
            result.name,
            str(result.issuers),
            _ns(result.total_ns),
            f"{result.effective_gbs:.2f}",
            f"{result.prediction.bottleneck_gbs:g}",
            _percent(result.utilization),
            f"{result.aggregate_peak_gbs:.6g}",
            _percent(result.utilization_aggregate),
        ]
        for result in results
    ]
    parts = [("where the time went", "")] + [(label, "ns") for label in LABELS.values()]
    split = [[result.name, *(_ns(ns) for ns in result.breakdown.parts().values())] for result in results]
    return [*_table(heads, rows), "", *_table(parts, split)]


def _sweep(report: ProbeReport) -> list[str]:
    sizes = sorted({point.nbytes for point in report.sweep})
    rows: dict[str, dict[int, float]] = {}
    for point in report.sweep:
        rows.setdefault(point.name, {})[point.nbytes] = point.utilization
    heads = [("case", "")] + [(format_bytes(size), "") for size in sizes]
    table = _table(
        heads,
        [[name, *(_percent(row[size]) if size in row else "-" for size in sizes)] for name, row in rows.items()],
    )
    return [table[0], *table[2:]]  # the sizes carry their own unit


def _ns(ns: float) -> str:
    return f"{ns:.2f}" if ns < 10_000 else f"{ns:.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


# ---- routes


def _route(route: TracedRoute, paint: Paint) -> Iterator[str]:
    yield paint(f"Route of {route.name}: {route.total_ns:.2f} ns", "title")
    for leg in route.legs:
        what = format_bytes(leg.nbytes) if leg.nbytes else "control"
        yield f"  {what}: {leg.src} -> {leg.dst}, {leg.start_ns:.2f} to {leg.end_ns:.2f} ns"
        if leg.hops:
            yield from ("  " + line for line in _hops(leg))


def _hops(leg: TracedLeg) -> list[str]:
    if not leg.nbytes:
        passed = [[hop.node, _ns(hop.first_arrival_ns), _ns(hop.first_departure_ns)] for hop in leg.hops]
        return _table(_heads("node in/ns out/ns"), passed)
    heads = _heads("node first-in/ns first-out/ns last-in/ns last-out/ns link/GB/s")
    rows = []
    for hop in leg.hops:
        times = (hop.first_arrival_ns, hop.first_departure_ns, hop.last_arrival_ns, hop.last_departure_ns)
        link = "" if hop.link_gbs is None else f"{hop.link_gbs:g}"
        if hop.is_bottleneck:
            link = f"<BN:{link}GB/s>"
        rows.append([hop.node, *(_ns(ns) for ns in times), link])
    return _table(heads, rows)


# ---- checks


def _checks(report: ProbeReport, paint: Paint) -> Iterator[str]:
    for check in report.checks:
        anchor = paint("[v] PASS", "pass") if check.ok else paint("[x] FAIL", "fail")
        first, *rest = textwrap.wrap(f"{check.name}: {check.detail}", WIDTH - 11, break_on_hyphens=False)
        yield f"  {anchor} {first}"
        yield from (f"           {line}" for line in rest)
    for note in report.notes:
        first, *rest = textwrap.wrap(note, WIDTH - 6, break_on_hyphens=False)
        yield f"  [i] {first}"
        yield from (f"      {line}" for line in rest)
