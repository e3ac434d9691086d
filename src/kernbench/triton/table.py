"""The launches of Triton kernels as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernbench.common.units import format_ns
from kernbench.report.roofline import roofline_of
from kernbench.runtime_api.launches import Launch
from kernbench.topology.graph import TopologyGraph
from kernbench.triton.simulation import Simulation, TritonLaunch

_HEADS = ("kernel", "grid", "configuration", "simulated", "limited by", "% of roofline", "index ops")


def launches_as_text(launches: Sequence[TritonLaunch], graph: TopologyGraph) -> str:
    """One row for each launch; launches that are equal in all of it are one row with their number."""
    rows: dict[tuple[str, ...], int] = {}
    for each in launches:
        roofline = roofline_of(each.launch, graph)
        row = (
            each.kernel,
            "x".join(map(str, _trimmed(each.grid))),
            ", ".join(f"{name}={value}" for name, value in _shown(each).items()) or "-",
            format_ns(each.ns),
            roofline.limited_by,
            f"{100 * roofline.bound_ns / roofline.exec_ns:.1f}" if roofline.exec_ns else "-",
            f"{each.index_ops:,}",
        )
        rows[row] = rows.get(row, 0) + 1
    shown = [_HEADS, *((f"{row[0]} ({times} times)" if times > 1 else row[0], *row[1:]) for row, times in rows.items())]
    widths = [max(len(row[at]) for row in shown) for at in range(len(_HEADS))]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in shown
    )


def launches_as_json(data: dict[str, Any], launches: Sequence[Launch], simulation: Simulation) -> dict[str, Any]:
    """A run's JSON with what is Triton's of its launches, and the tables of autotuning. A launch that failed, and whose
    error the program caught, is one of the run's `launches` without that.
    """
    known = {each.launch: each for each in simulation.launches}
    for row, launch in zip(data["launches"], launches, strict=True):
        each = known.get(launch)
        if each is None:
            continue
        row |= {
            "kernel": each.kernel, "grid": list(each.grid), "config": each.config, "schedule": each.schedule,
            "ns": each.ns, "index_ops": each.index_ops,
        }  # fmt: skip
    return data | {"autotune": [table.as_json() for table in simulation.benchmarks.tables]}


def _shown(launch: TritonLaunch) -> dict[str, object]:
    """The configuration, and the schedule where it is not the usual one."""
    return launch.config if launch.schedule == "static" else {**launch.config, "schedule": launch.schedule}


def _trimmed(grid: tuple[int, int, int]) -> tuple[int, ...]:
    """A grid without sizes of 1 at its end."""
    sizes = list(grid)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return tuple(sizes)
