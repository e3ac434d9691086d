"""Machines side by side: keys that differ, totals and rooflines with area, power and price, warnings about bottlenecks.

A total is a number, or a range where coefficients have one. The ridge is where a kernel stops being bound by memory:
peak flops over peak bytes of HBM that the PEs' ports can take.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kernbench.components.builtin.product_cost import peak_macs
from kernbench.report.feasible import Feasibility, feasibility_of
from kernbench.report.machine_facts import machine_facts_of
from kernbench.report.memory_times import home_name
from kernbench.report.ranges import FigureRange
from kernbench.report.roofline import peak_of
from kernbench.report.silicon import area_of, cube_dies_of
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.machine_hash import machine_hash
from kernbench.topology.spec import MachineSpec

Total = float | FigureRange
TYPES = "cube_types"


@dataclass(frozen=True, slots=True)
class MachineColumn:
    """One machine of a comparison."""

    name: str
    graph: TopologyGraph
    totals: Mapping[str, Total]
    warnings: tuple[str, ...]
    infeasible: tuple[str, ...]

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "machine": self.graph.spec.system.name,
            "machine_hash": machine_hash(self.graph.spec),
            "totals": {
                label: total.as_json() if isinstance(total, FigureRange) else total
                for label, total in self.totals.items()
            },
            "warnings": list(self.warnings),
            "infeasible": list(self.infeasible),
        }


def column_of(name: str, graph: TopologyGraph) -> MachineColumn:
    """The column of a machine: figures that follow from its description, without a run."""
    limits = feasibility_of(graph)
    warnings = (*machine_facts_of(graph).warnings, *limits.warnings, *_bottlenecks(graph.spec, limits))
    return MachineColumn(name, graph, _totals(graph, limits), warnings, limits.infeasible)


def _totals(graph: TopologyGraph, limits: Feasibility) -> dict[str, Total]:
    spec = graph.spec
    peak = peak_of(spec)
    largest = max(cube_dies_of(graph), key=lambda die: die.area_mm2.value)
    hbm_gb, sram_mb = _memory(spec)
    return {
        "SIPs": float(spec.n_sips),
        "cubes": float(spec.n_cubes),
        "PEs": float(spec.n_pes),
        "peak TFLOP/s, f16": peak.gflops / 1e3,
        "memory TB/s": peak.gbs / 1e3,  # of HBM, or of SRAM where tensors lie in it
        "ridge, flop/byte": peak_ridge(spec),
        "HBM GB": hbm_gb,
        "far memory GB": float(spec.system.far_gb),
        "SRAM MB": sram_mb,
        "TCM MB": spec.sum_over_cubes(lambda cube: cube.n_pes * cube.memory_map.tcm_mb_per_pe),
        "die to die GB/s": spec.sip.links.cube_to_cube.bw_gbs,
        "SIP to switch GB/s": spec.system.links.io_ep_to_switch.bw_gbs,
        "largest die with cubes, mm2": largest.area_mm2,
        "edge of it for PHYs, %": largest.edge_share * 100,
        "all dies, mm2": area_of(graph).counted,
        "static W": limits.static_w,
        "price, USD": limits.price.total_usd,
        "yield of a cube, %": limits.price.yields[largest.name] * 100,
    }


def _memory(spec: MachineSpec) -> tuple[float, float]:
    """GB of HBM and MB of SRAM; what is described as HBM may stand for SRAM."""
    hbm_gb = float(spec.sum_over_cubes(lambda cube: cube.hbm_gb))
    sram_mb = spec.sum_over_cubes(lambda cube: cube.memory_map.sram_mb_per_cube)
    return (0.0, sram_mb + 1024 * hbm_gb) if spec.area.hbm_is_sram else (hbm_gb, sram_mb)


def _bottlenecks(spec: MachineSpec, limits: Feasibility) -> Iterator[str]:
    """What limits a machine before any workload: dies that do not hold their blocks, narrow links, little TCM."""
    for die in limits.dies:
        if die.area_mm2.value > die.geometry_mm2:
            yield (
                f"the blocks of a {die.name} need {die.area_mm2.value:,.0f} mm2 ({die.area_mm2.low:,.0f} to "
                f"{die.area_mm2.high:,.0f}), and it is drawn with {die.geometry_mm2:,.0f}: distances are too short"
            )
    cube_gbs = spec.cube.n_pes * spec.cube.home.read_gbs(spec.cube)
    next_gbs = spec.sip.links.cube_to_cube.bw_gbs
    if spec.sip.n_cubes > 1 and next_gbs < cube_gbs / 8:
        yield (
            f"a cube has {cube_gbs:,.0f} GB/s of {home_name(spec)} and {next_gbs:,.0f} GB/s to the next: "
            "what is not in its own comes at less than an eighth of the rate"
        )
    parts = spec.cube.pe_template.components
    flops_per_byte = 2 * peak_macs(parts.pe_gemm) / spec.cube.pe_template.links.tcm_read_bw_gbs
    elements = spec.cube.tcm_allocatable_bytes / 2
    reach = (elements / 3) ** 0.5 / 2  # of t x t tiles, three of which fit: 2 t**3 flops for 2 t**2 elements of 2 bytes
    if spec.cube.has_hbm and peak_ridge(spec) > reach:
        yield (
            f"the ridge is {peak_ridge(spec):,.0f} flop/byte, and square tiles of f16 in TCM reach {reach:,.0f}: "
            f"products are bound by {home_name(spec)} unless PEs share what they read"
        )
    if flops_per_byte > 64:
        yield (
            f"a PE computes {flops_per_byte:,.0f} flops per byte that its TCM reads "
            "(cube.pe_template.links.tcm_read_bw_gbs): tiles of few rows are bound by TCM"
        )


def peak_ridge(spec: MachineSpec) -> float:
    """Flops per byte of HBM at which a machine is balanced."""
    peak = peak_of(spec)
    return peak.gflops / peak.gbs if peak.gbs else math.inf


def differences(columns: Sequence[MachineColumn]) -> dict[str, list[object]]:
    """Keys of descriptions whose values are not the same on all machines, with those values; the name is left out, and
    so are keys of types of cubes that are as `cube` has them on every machine.
    """
    flats = [dict(_flat(column.graph.spec.model_dump(mode="json"))) for column in columns]
    keys = list(dict.fromkeys(key for flat in flats for key in flat))
    return {
        key: [flat.get(key) for flat in flats]
        for key in keys
        if key != "system.name"
        and any(flat.get(key) != flats[0].get(key) for flat in flats)
        and not all(_is_inherited(key, flat) for flat in flats)
    }


def _is_inherited(key: str, flat: Mapping[str, object]) -> bool:
    """Whether a machine does not have a key of a type of cubes, or has it as `cube` does."""
    types, _, rest = key.partition(".")
    return types == TYPES and flat.get(key) in (None, flat.get(f"cube.{rest.partition('.')[2]}"))


def _flat(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _flat(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, tree
