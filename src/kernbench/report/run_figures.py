"""The figures of a run: performance and bound of each launch, busiest links. `run_summary.py` prints them.

The busiest links are given for each launch, and for the whole run including host transfers. `kernels_ns`, here, in
saved runs, sweeps and evaluations, is how long at least one PE ran a kernel: from the first PE's start to the last end
of every launch, and launches that overlap count once. Latencies of host requests and replies are not included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernbench.common.frozen import frozen
from kernbench.report.energy import RunEnergy, energy_of
from kernbench.report.feasible import Feasibility, feasibility_of
from kernbench.report.roofline import Peak, Roofline, peak_of, roofline_of
from kernbench.report.silicon import Area, area_of
from kernbench.report.tiles import TileUse, tiles_of
from kernbench.runtime_api.bench_result import BenchResult
from kernbench.runtime_api.launches import Launch

BUSIEST = 5
FITS = "fits"  # key of a figure that a bench may return


@frozen
class LinkUse:
    """One link over the whole run."""

    src: str
    dst: str
    nbytes: int
    busy_ns: float
    share: float  # of the run
    longest_queue_ns: float

    def as_json(self) -> dict[str, object]:
        return {
            "src": self.src,
            "dst": self.dst,
            "nbytes": self.nbytes,
            "busy_ns": self.busy_ns,
            "share": self.share,
            "longest_queue_ns": self.longest_queue_ns,
        }


@frozen
class RunTotals:
    """All launches of a run together."""

    flops: int
    bytes_hbm: int  # moved, in whole bursts
    bytes_hbm_requested: int
    bytes_sent: int = 0  # in messages
    bytes_far: int = 0  # to and from far memory, in whole bursts

    def as_json(self) -> dict[str, int]:
        return {
            "flops": self.flops,
            "bytes_hbm": self.bytes_hbm,
            "bytes_hbm_requested": self.bytes_hbm_requested,
            "bytes_sent": self.bytes_sent,
            **({"bytes_far": self.bytes_far} if self.bytes_far else {}),
        }


@frozen
class RunFigures:
    """The figures of a run, in addition to its result."""

    result: BenchResult
    machine: str
    params: Mapping[str, object]
    launches: tuple[tuple[Launch, Roofline], ...]
    kernels_ns: float
    totals: RunTotals
    peak: Peak  # of the whole machine, for reads
    n_pes: int
    links: tuple[LinkUse, ...]
    energy: RunEnergy
    area: Area
    feasibility: Feasibility
    tiles: tuple[tuple[TileUse, ...], ...] = ()  # of each launch's composites


def figures_of(result: BenchResult, params: Mapping[str, object] | None = None) -> RunFigures:
    """The figures of a finished run."""
    spec, energy = result.engine.graph.spec, energy_of(result)
    return RunFigures(
        result=result,
        machine=spec.system.name,
        params=dict(params or {}),
        launches=tuple((launch, roofline_of(launch, result.engine.graph)) for launch in result.launches),
        kernels_ns=kernels_ns_of(result.launches),
        totals=_totals(result.launches),
        peak=peak_of(spec),
        n_pes=spec.n_pes,
        links=_busiest_links(result),
        energy=energy,
        area=area_of(result.engine.graph),
        feasibility=feasibility_of(result.engine.graph, energy, tuple(result.launches)),
        tiles=tuple(tiles_of(launch, result.engine.graph) for launch in result.launches),
    )


def _totals(launches: Sequence[Launch]) -> RunTotals:
    return RunTotals(
        sum(launch.flops for launch in launches),
        sum(launch.bytes_hbm for launch in launches),
        sum(launch.bytes_hbm_requested for launch in launches),
        sum(launch.bytes_sent for launch in launches),
        sum(launch.bytes_far for launch in launches),
    )


def kernels_ns_of(launches: Sequence[Launch]) -> float:
    """How long at least one PE ran a kernel."""
    return _covered_ns([launch.exec_span for launch in launches])


def _covered_ns(spans: list[tuple[float, float]]) -> float:
    """The length of the union of spans."""
    covered, until = 0.0, 0.0
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered


def busiest_links(launch: Launch) -> list[tuple[tuple[str, str], float]]:
    """The links that were busy longest during a launch, on its SIPs."""
    return sorted(launch.links.items(), key=lambda item: -item[1])[:BUSIEST]


def _busiest_links(result: BenchResult) -> tuple[LinkUse, ...]:
    counters = list(result.engine.link_counters().items())
    counters.sort(key=lambda item: -item[1].busy_ns)  # stable: ties stay in order of the network
    total_ns = result.total_ns
    return tuple(
        LinkUse(
            str(src),
            str(dst),
            used.nbytes,
            used.busy_ns,
            used.busy_ns / total_ns if total_ns else 0.0,
            used.longest_queue_ns,
        )
        for (src, dst), used in counters[:BUSIEST]
    )


def rows_of(result: BenchResult) -> list[dict[str, object]]:
    """The rows that a bench returned, if it returned a list of rows."""
    found = [row for returned in result.returned if isinstance(returned, list) for row in returned]
    return found if all(isinstance(row, dict) for row in found) else []


def fits_of(result: BenchResult) -> bool | None:
    """Whether the workload fits the memory of the machine; None if the bench does not report it. A bench reports it in
    a row whose figure is `fits`, or in a mapping with that key.
    """
    stated = [row["value"] for row in rows_of(result) if row.get("figure") == FITS and "value" in row]
    stated += [returned[FITS] for returned in result.returned if isinstance(returned, Mapping) and FITS in returned]
    return all(stated) if stated else None


def warnings_of(result: BenchResult) -> list[str]:
    """Warnings that a reader of the figures must see first."""
    if fits_of(result) is not False:
        return []
    sizes = {row["figure"]: row["value"] for row in rows_of(result) if row.get("unit") == "GB"}
    listed = ", ".join(f"{name} {value:.4g} GB" for name, value in sizes.items() if isinstance(value, int | float))
    return [f"what was run does not fit the machine's memory: its times are of no machine that could run it ({listed})"]


def run_as_json(figures: RunFigures) -> dict[str, object]:
    """The content of `kernbench run --json`."""
    result = figures.result
    data = result.as_json()
    data["launches"] = [
        {
            **launch.as_json(),
            "pes": len(launch.pes),
            "links": [{"src": src, "dst": dst, "busy_ns": busy_ns} for (src, dst), busy_ns in busiest_links(launch)],
            "roofline": roofline.as_json(),
            "tiles": [use.as_json() for use in tiles],
            "energy": energy.as_json(),
        }
        for (launch, roofline), tiles, energy in zip(
            figures.launches, figures.tiles, figures.energy.launches, strict=True
        )
    ]
    data |= {
        "machine": figures.machine,
        "devices": [f"sip:{device}" for device in result.devices],
        "params": dict(figures.params),
        "kernels_ns": figures.kernels_ns,
        "totals": figures.totals.as_json(),
        "peak": figures.peak.as_json(),
        "links": [link.as_json() for link in figures.links],
        "energy": figures.energy.as_json(),
        "area": figures.area.as_json(),
        "feasibility": figures.feasibility.as_json(),
    }
    rows = rows_of(result)
    if rows:
        data["rows"] = rows
    fits = fits_of(result)
    if fits is not None:
        data |= {FITS: fits, "warnings": warnings_of(result)}
    if result.ops:
        data["ops"] = {"compared": len(result.ops), "wrong": [check.as_json() for check in result.ops if not check.ok]}
    if not result.completion.ok:
        data["error"] = {"code": result.completion.error_code, "message": result.completion.error_message}
    return data
