"""Memory as a PE sees it: latency by distance and size, bandwidth by number of issuers, and where the time goes.

`distance` points are one transfer on an idle machine, by PE 0 of cube 0 of SIP 0, to an HBM slice at growing distance.
`contention` points are the same transfer by several PEs at once. Peaks are those of the machine: of a path its
narrowest link, of several flows their max-min fair shares of the links they take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from typing import Annotated, Literal, NamedTuple

from kernbench.benches._collectives import sizes_between
from kernbench.benches._numbers import Size
from kernbench.benches.registry import evaluation_bench
from kernbench.common.ids import PeKey
from kernbench.common.messages import PeDmaMsg
from kernbench.common.units import KIB, MIB, format_bytes
from kernbench.evaluation.contract import Evaluation, Row, Rows, Setting, curve, number, text, values_of, where
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.probes.breakdown import LABELS, Breakdown
from kernbench.probes.cases import AccessDirection, ProbeCase
from kernbench.probes.measure import measure_on
from kernbench.report.charts import BarPanel, Bars, Chart, Line, LinePanel, reference_line
from kernbench.report.references import reference
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.paths import path_between
from kernbench.topology.graph import TopologyGraph

DIRECTIONS: tuple[AccessDirection, ...] = ("read", "write")
CONTENTION_BYTES = 64 * KIB
PUBLISHED_BYTES = 16 * KIB  # of the transfer to another SIP whose time is published
WIDE = 8.0  # the largest bandwidth over the least, from where an axis is logarithmic
MOST_TICKS = 6  # of an axis that has one for each point
ISSUER: PeKey = (0, 0, 0)
TransferStudy = Literal["distance", "contention"]


# ------------------------------------------------------------------------------------------------------------- places


def places_of(machine: TopologyGraph) -> dict[str, PeKey]:
    """HBM slices at growing distance from the issuer, by name; those that the machine has."""
    spec, mesh = machine.spec, machine.spec.sip.cube_mesh
    near = [(0, 0, pe) for pe in range(1, spec.cube.n_pes)]
    next_cubes = [cube for cube, there in ((1, mesh.w > 1), (mesh.w, mesh.h > 1)) if there]
    beside = [(0, cube, pe) for cube in next_cubes for pe in range(spec.cube.n_pes)]
    others = [(0, cube, pe) for cube in range(1, spec.sip.n_cubes) for pe in range(spec.cube.n_pes)]
    far = partial(distance_mm, machine)
    found: dict[str, PeKey] = {"same PE": ISSUER}
    if near:
        found |= {"same cube, nearest": min(near, key=far), "same cube, farthest": max(near, key=far)}
    if beside:
        found |= {"next cube, nearest": min(beside, key=far), "next cube, farthest": max(beside, key=far)}
    if len(others) > len(beside):
        found["far cube"] = max(others, key=far)
    if spec.n_sips > 1:
        found["other SIP"] = (1, 0, 0)
    return found


def distance_mm(machine: TopologyGraph, place: PeKey) -> float:
    """From the issuer to the slice of a PE, along the path that its bytes take."""
    return path_between(machine, ISSUER, place)[1]


class IssuerScenario(NamedTuple):
    """Several PEs at once: what it is called in a figure, and which pairs of issuer and slice, at most."""

    title: str
    pairs: Callable[[TopologyGraph], list[tuple[PeKey, PeKey]]]


def _cube(machine: TopologyGraph) -> list[PeKey]:
    return [(0, 0, pe) for pe in range(machine.spec.cube.n_pes)]


def _sip(machine: TopologyGraph) -> list[PeKey]:
    return [(0, cube, pe) for cube in range(machine.spec.sip.n_cubes) for pe in range(machine.spec.cube.n_pes)]


SCENARIOS: dict[str, IssuerScenario] = {
    "one-slice": IssuerScenario("PEs of a cube, one HBM slice", lambda m: [(pe, ISSUER) for pe in _cube(m)]),
    "own-slice": IssuerScenario("PEs of a SIP, each its own slice", lambda m: [(pe, pe) for pe in _sip(m)]),
    "sip_hotspot_pe0": IssuerScenario("PEs of a SIP, the slice of PE 0", lambda m: [(pe, ISSUER) for pe in _sip(m)]),
    "next-cube": IssuerScenario(
        "PEs of a cube, same PEs of the next cube",
        lambda m: [(pe, (0, 1, pe[2])) for pe in _cube(m)] if m.spec.sip.n_cubes > 1 else [],
    ),
    "other-sip": IssuerScenario(
        "PEs of a cube, same PEs of the other SIP",
        lambda m: [(pe, (1, 0, pe[2])) for pe in _cube(m)] if m.spec.n_sips > 1 else [],
    ),
}


# ------------------------------------------------------------------------------------------------------------- points


def points(
    machine: TopologyGraph,
    *,
    min_bytes: Annotated[Size, "first size"] = 256,
    max_bytes: Annotated[Size, "last size"] = MIB,
    factor: Annotated[Size, "from one size to the next"] = 4,
) -> list[Setting]:
    sizes = sizes_between(min_bytes, max_bytes, factor)
    found: list[Setting] = [
        {"part": "distance", "place": place, "direction": direction, "size_bytes": nbytes}
        for place in places_of(machine)
        for direction in DIRECTIONS
        for nbytes in sizes
    ]
    for name, scenario in SCENARIOS.items():
        most = len(scenario.pairs(machine))
        counts = [n for n in (1, 2, 3, 4, 8, 16, 32, 64, 128, 256) if n < most] + [most] * (most > 0)
        found += [
            {"part": "contention", "place": name, "direction": direction, "size_bytes": nbytes, "issuers": n}
            for direction in DIRECTIONS
            for nbytes in [min(CONTENTION_BYTES, max_bytes)]
            for n in counts
        ]
    return found


def point(
    torch: RuntimeContext,
    *,
    part: TransferStudy,
    place: str,
    direction: AccessDirection,
    size_bytes: int,
    issuers: int = 1,
) -> Mapping[str, float]:
    machine = torch.engine.graph
    if part == "distance":
        pairs = [(ISSUER, places_of(machine)[place])]
    else:
        pairs = SCENARIOS[place].pairs(machine)[:issuers]
    shares_a_slice = len(dict.fromkeys(slice_ for _, slice_ in pairs)) < len(pairs)
    requests = tuple(
        _request(machine, pe, slice_, size_bytes, direction, at if shares_a_slice else 0)
        for at, (pe, slice_) in enumerate(pairs)
    )
    result = measure_on(torch.engine, ProbeCase(place, "pe-dma", direction, requests))
    far = {"distance_mm": distance_mm(machine, pairs[0][1])} if part == "distance" else {}
    return {
        "latency_ns": result.total_ns,
        "formula_ns": result.prediction.formula_ns,
        "effective_gbs": result.effective_gbs,
        "path_peak_gbs": result.prediction.bottleneck_gbs,
        "aggregate_peak_gbs": result.aggregate_peak_gbs,
        **far,
        **result.breakdown.parts(),
    }


def _request(
    machine: TopologyGraph, pe: PeKey, slice_: PeKey, nbytes: int, direction: AccessDirection, at: int
) -> PeDmaMsg:
    """The transfer of a PE; those to one slice lie next to each other."""
    cube = machine.spec.cube
    step = -(-nbytes // cube.hbm_burst_bytes) * cube.hbm_burst_bytes
    address = PhysAddr.pe_hbm_addr(*slice_, at * step, cube.hbm_slice_bytes, machine.spec.address_layout).encode()
    return PeDmaMsg(
        src_sip=pe[0], src_cube=pe[1], src_pe=pe[2], dst_pa=address, nbytes=nbytes, is_write=direction == "write"
    )


# ------------------------------------------------------------------------------------------------------------ figures


def figures(rows: Rows, machine: TopologyGraph) -> list[Chart]:
    lone, many = where(rows, part="distance"), where(rows, part="contention")
    charts = [_latency(lone), _path_bandwidth(lone), _breakdown(lone)]
    if many:
        charts += [_aggregate(many), _contention_breakdown(many)]
    return charts


def _by_place(rows: Rows, direction: str, y: str) -> tuple[Line, ...]:
    names = [str(name) for name in values_of(rows, "place")]
    return tuple(Line(name, curve(where(rows, place=name, direction=direction), "size_bytes", y)) for name in names)


def _latency(rows: Rows) -> Chart:
    published = reference("records-other-sip")
    mark = Line(published.title, ((PUBLISHED_BYTES, published.value),), "limit")
    panels = tuple(
        LinePanel(
            "transfer size (bytes)",
            "latency (ns)",
            (*_by_place(rows, direction, "latency_ns"), *((mark,) if direction == "write" else ())),
            direction + "s",
            log="xy",
            x_unit="bytes",
        )
        for direction in DIRECTIONS
    )
    return Chart(
        "latency-by-distance",
        "Latency of a PE's DMA grows with the way to the HBM slice; the bytes' own time takes over in large transfers",
        "One transfer on an idle machine, from PE 0 of cube 0 to an HBM slice at each distance: reads until the last "
        "byte is in TCM, writes until the acknowledgement is back. Nearest and farthest are by length of the path.",
        panels,
        height_in=3.2,
        references=(published,),
    )


def _path_bandwidth(rows: Rows) -> Chart:
    shares = [{**row, "share": 100 * number(row, "effective_gbs") / number(row, "path_peak_gbs")} for row in rows]
    copy = reference("h100-hbm-copy")
    panels = tuple(
        LinePanel(
            "transfer size (bytes)",
            "of the path's narrowest link (%)",
            (*lines, reference_line(copy, lines)),
            direction + "s",
            log="x",
            x_unit="bytes",
            y_unit="percent",
            from_zero=True,
        )
        for direction in DIRECTIONS
        for lines in [_by_place(shares, direction, "share")]
    )
    return Chart(
        "path-bandwidth",
        "How much of a path's bandwidth one transfer reaches: large transfers hide the latency, near ones sooner",
        "Bytes over latency of one transfer on an idle machine, as a share of the narrowest link on its path. The "
        "reference is of memory alone: what refresh and row misses cost a real one is in this model only where the "
        "machine's description has an efficiency below 1.",
        panels,
        height_in=3.2,
        references=(copy,),
    )


PARTS = [part.name for part in fields(Breakdown)]


def _stack(rows: Sequence[Row], names: Sequence[str], title: str, used: Sequence[str], x_label: str = "") -> BarPanel:
    bars = tuple(Bars(LABELS[part], tuple(number(row, part) for row in rows)) for part in used)
    return BarPanel("latency (ns)", tuple(names), bars, title, stacked=True, with_values=True, x_label=x_label)


def _used(rows: Rows) -> list[str]:
    """The parts of the machine that any of the transfers spends time in."""
    return [part for part in PARTS if any(number(row, part) > 0 for row in rows)]


def _breakdown(rows: Rows) -> Chart:
    sizes = sorted(number(row, "size_bytes") for row in where(rows, place="same PE", direction="read"))
    shown = [sizes[0], sizes[len(sizes) // 2]]
    panels = []
    for size in dict.fromkeys(shown):
        some = where(rows, direction="read", size_bytes=int(size))
        panels.append(
            _stack(some, [text(row, "place") for row in some], f"reads of {format_bytes(int(size))}", _used(rows))
        )
    return Chart(
        "latency-breakdown",
        "Where the time of a read goes: small ones pay nodes and wires, large ones pay for their bytes",
        "The latency of one read on an idle machine by part of the machine, from the nodes and links on its path, "
        "there and back; the parts add up to the simulated time exactly.",
        tuple(panels),
        height_in=3.6,
    )


def _aggregate(rows: Rows) -> Chart:
    panels = []
    for name in [str(value) for value in values_of(rows, "place")]:
        some = where(rows, place=name)
        lines = [Line(f"{way}s", curve(where(some, direction=way), "issuers", "effective_gbs")) for way in DIRECTIONS]
        peak = curve(where(some, direction="read"), "issuers", "aggregate_peak_gbs")
        lines.append(Line("fair-share peak of the links taken (reads)", peak, "theory"))
        panels.append(
            LinePanel(
                "PEs that transfer at once",
                "aggregate bandwidth (GB/s)",
                tuple(lines),
                SCENARIOS[name].title,
                log="xy" if peak[-1][1] > WIDE * peak[0][1] else "x",
                from_zero=True,
                every_x=len(peak) <= MOST_TICKS,
            )
        )
    size = format_bytes(int(number(rows[0], "size_bytes")))
    return Chart(
        "aggregate-bandwidth",
        "Bandwidth of several PEs together grows with their number until the links they share are full",
        f"Every PE moves {size}; all bytes over the time of the last one to finish. The peak is the sum of max-min "
        "fair shares of the links that the flows take, from the machine's bandwidths.",
        tuple(panels),
        height_in=2.6,
    )


def _contention_breakdown(rows: Rows) -> Chart:
    panels = []
    shown = [where(rows, place=name, direction="read") for name in ("one-slice", "next-cube")]
    used = _used([row for some in shown for row in some])
    for some in shown:
        if some:
            counts = [f"{number(row, 'issuers'):g}" for row in some]
            title = SCENARIOS[text(some[0], "place")].title
            panels.append(_stack(some, counts, title, used, "PEs that read at once"))
    return Chart(
        "contention-breakdown",
        "What sharing costs: the last PE to finish waits for the others' bytes",
        "The time of the PE that finishes last, by part of the machine; contention is what it took beyond its time on "
        "an idle machine. The axis counts PEs that read at once.",
        tuple(panels),
        height_in=3.0,
    )


def seconds(setting: Setting) -> float:
    issuers = setting.get("issuers", 1)
    return 0.15 + 0.002 * (issuers if isinstance(issuers, int) else 1)


EVALUATION = evaluation_bench(
    name="pe-dma-perf",
    description="Evaluation: latency and bandwidth of a PE's DMA by distance, size and number of issuers.",
    evaluation=Evaluation(
        points, point, figures, seconds, ("cut-through", "HBM timing", "bank conflicts", "finite buffers", "routing")
    ),
)
