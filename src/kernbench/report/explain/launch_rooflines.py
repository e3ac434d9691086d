"""Every launch of a saved run on the roofline: flops per byte of memory and GFLOP/s, with the peaks of its own PEs and
of the memories that it accessed. The figures are those of `report.roofline`, as far as a run folder has what they need:
without links, and with the PEs that had work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kernbench.common.channel_traffic import NO_TRAFFIC, ChannelTraffic
from kernbench.common.ids import memory_kind
from kernbench.report.explain.tensor_use import TensorMemoryUse, tensor_uses
from kernbench.report.memory_times import memory_times
from kernbench.report.roofline import cubes_of_pes, peak_of
from kernbench.report.runs.saved_run import SavedRun
from kernbench.topology.graph import TopologyGraph


@dataclass(frozen=True, slots=True)
class LaunchRoofline:
    """A launch; intensity and rates are 0 if it moved or computed nothing."""

    index: int
    name: str
    intensity: float  # flops per byte
    gflops: float
    peak_gflops: float
    peak_gbs: float
    share: float  # the least time of its work on engines, ports and memories over its time; links are not counted
    bound: str  # compute or memory


def launch_rooflines(run: SavedRun) -> list[LaunchRoofline]:
    """The rooflines of all launches that ran on a PE."""
    found = []
    graph = run.graph
    for launch in run.launches:
        if not launch.pes:
            continue
        exec_ns = max(pe.end_ns for pe in launch.pes) - min(pe.start_ns for pe in launch.pes)
        uses = [use for tensor in tensor_uses(run, launch.index) for use in tensor.memories.items()]
        read = sum(use.read - use.read_by_own for _, use in uses)  # over the ports of DMAs
        written = sum(use.written - use.written_by_own for _, use in uses)
        times = _memory_times(graph, uses, launch.bytes_hbm)
        nbytes = launch.bytes_hbm + sum(use.read + use.written for memory, use in uses if memory_kind(memory) != "hbm")
        cubes = cubes_of_pes(launch.pes)
        peak = peak_of(graph.spec, cubes)
        ports_gbs = graph.spec.sum_at(cubes, lambda cube: cube.links.pe_dma_to_router_bw_gbs)
        memory_ns = max(*times.values(), read / ports_gbs, written / ports_gbs)
        compute_ns = sum(pe.compute_ns for pe in launch.pes) / (len(launch.pes) + launch.idle_pes)
        found.append(
            LaunchRoofline(
                launch.index,
                launch.name,
                launch.flops / nbytes if nbytes else 0.0,
                launch.flops / exec_ns if exec_ns else 0.0,
                peak.gflops,
                nbytes / memory_ns if memory_ns else peak.gbs,
                max(compute_ns, memory_ns) / exec_ns if exec_ns else 0.0,
                "compute" if compute_ns >= memory_ns else "memory",
            )
        )
    return found


def _memory_times(
    graph: TopologyGraph, uses: Sequence[tuple[str, TensorMemoryUse]], bytes_hbm: int
) -> dict[str, float]:
    """The least time at each kind of memory. Bytes in whole bursts are known for all slices together."""
    moved: dict[str, ChannelTraffic] = {}
    for memory, use in uses:
        if memory_kind(memory) != "tcm" or graph.spec.cube.home.space == "tcm":
            more = ChannelTraffic(use.read + use.written, use.read, use.written)
            moved[memory] = moved.get(memory, NO_TRAFFIC).plus(more)
    slices = [memory for memory in moved if memory_kind(memory) == "hbm"]
    for memory in slices:
        moved[memory] = ChannelTraffic(bytes_hbm if memory == slices[0] else 0)
    return memory_times(graph, moved)
