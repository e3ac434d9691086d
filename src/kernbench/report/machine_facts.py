"""Totals of a machine: counts, memories, bandwidths and longest paths; `machine_facts_text.py` prints them.

A bisection bandwidth is that of the narrower of the two straight cuts through the middle, in one direction; a machine
of one part has none. All bandwidths are those of one direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kernbench.components.builtin.product_cost import peak_macs
from kernbench.report.worst_paths import WorstPath, worst_paths
from kernbench.topology.cube_types import changed_keys
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.mesh import Mesh, build_mesh
from kernbench.topology.ports import resolve_chiplets, wrap_links
from kernbench.topology.sip_links import neighbours
from kernbench.topology.spec import MachineSpec
from kernbench.topology.spec_far import FarMemorySpec

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Figures by name: counts, bytes, and bytes per ns (None if the machine has no such link)."""

    name: str
    counts: Mapping[str, int]
    memory: Mapping[str, int]
    bandwidth_gbs: Mapping[str, float | None]
    worst_paths: tuple[WorstPath, ...]
    warnings: tuple[str, ...] = ()  # bandwidth that cannot be used
    types: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # figures of one cube of each type
    changed: Mapping[str, Mapping[str, tuple[Any, Any]]] = field(default_factory=dict)  # type -> key -> of cube, own


def machine_facts_of(graph: TopologyGraph) -> MachineFacts:
    """The totals of a machine."""
    spec, mesh = graph.spec, build_mesh(graph.spec.cube)
    gbs = _bandwidth_gbs(spec, mesh)
    warnings = tuple(_unreachable(spec))
    paths, types = worst_paths(graph), _types(spec)
    counts, memory, changed = _counts(graph, mesh), _memory(spec), changed_keys(spec)
    return MachineFacts(spec.system.name, counts, memory, gbs, paths, warnings, types, changed)


def _types(spec: MachineSpec) -> dict[str, dict[str, float]]:
    """By type of cube, where there are several: how many there are, and what one of them has. All
    other figures per cube are those of `cube`.
    """
    if not spec.cube_types:
        return {}
    found = {}
    for name, count in spec.type_counts().items():
        cube = spec.cube_types[name] if name else spec.cube
        found[name or "cube"] = {
            "cubes": count,
            "macs_per_ns_per_pe": peak_macs(cube.pe_template.components.pe_gemm),
            "hbm_bytes": cube.hbm_bytes,
            "hbm_gbs": cube.n_pes * cube.hbm_link_bw_gbs,
            "sram_bytes": cube.sram_bytes,
            "tcm_bytes_per_pe": cube.tcm_bytes,
        }
    return found


def _unreachable(spec: MachineSpec) -> Iterator[str]:
    """Bandwidth of a memory or a link that the links leading to it cannot supply."""
    cube, hbm = spec.cube, spec.cube.hbm_link_bw_gbs
    paths = {
        "cube.links.pe_dma_to_router_bw_gbs": (cube.links.pe_dma_to_router_bw_gbs, "a PE's DMA port carries"),
        "cube.links.router_bw_gbs": (cube.links.router_bw_gbs, "from other PEs a link between routers carries"),
    }
    source = "HBM stacks give each PE" if cube.has_stacks else "an HBM slice gives"
    for key, (gbs, carries) in paths.items():
        if gbs < hbm:
            yield (
                f"{source} {hbm:,.10g} GB/s, and {carries} {gbs:,.10g} GB/s each way ({key}): what only "
                f"reads or only writes has no more than that"
            )
    stacks = spec.sip.hbm_stacks
    if stacks is not None and stacks.links * stacks.link_bw_gbs < stacks.channels * stacks.channel_bw_gbs:
        yield (
            f"an HBM stack gives {stacks.channels * stacks.channel_bw_gbs:,.10g} GB/s, and its links carry "
            f"{stacks.links * stacks.link_bw_gbs:,.10g} GB/s each way (sip.hbm_stacks.link_bw_gbs)"
        )
    far = spec.system.far_memory
    if far is not None and far_link_gbs(far) < far.gbs:
        yield (
            f"far memory gives {far.gbs:,.10g} GB/s, and its link carries {far_link_gbs(far):,.10g} GB/s each way "
            f"(system.far_memory.bw_gbs)"
        )
    link, ports = spec.sip.links.cube_to_cube.bw_gbs, cube.ucie.n_connections * cube.ucie.per_connection_bw_gbs
    if link > ports:
        yield (
            f"the link between two cubes has {link:,.10g} GB/s, and the {cube.ucie.n_connections} connections at its "
            f"ends bring {ports:,.10g} GB/s (cube.ucie)"
        )


def _counts(graph: TopologyGraph, mesh: Mesh) -> dict[str, int]:
    spec = graph.spec
    return {
        "sips": spec.n_sips,
        "cubes": spec.n_cubes,
        "pes": spec.n_pes,
        "routers": spec.n_cubes * len(mesh.routers),
        "io_chiplets": spec.n_sips * len(spec.sip.io_chiplets),
        "hbm_pseudo_channels": sum(int(n.attrs["num_pcs"]) for n in graph.nodes.values() if n.kind == "hbm_ctrl"),
        "nodes": len(graph.nodes),
        "links": len(graph.edges) // 2,  # every link is two edges
    }


def _memory(spec: MachineSpec) -> dict[str, int]:
    cube, far = spec.cube, spec.system.far_bytes_per_sip
    return {
        "hbm_bytes_per_pe": cube.hbm_slice_bytes,
        "hbm_bytes_per_cube": cube.hbm_bytes,
        "hbm_bytes_per_sip": int(spec.sum_over_cubes(lambda each: each.hbm_bytes, sip=0)),
        "hbm_bytes": int(spec.sum_over_cubes(lambda each: each.hbm_bytes)),
        "sram_bytes_per_cube": cube.sram_bytes,
        "sram_bytes": int(spec.sum_over_cubes(lambda each: each.sram_bytes)),
        "tcm_bytes_per_pe": cube.tcm_bytes,
        "tcm_bytes": int(spec.sum_over_cubes(lambda each: each.n_pes * each.tcm_bytes)),
        **({"far_bytes_per_sip": far, "far_bytes": far * spec.n_sips} if far else {}),
    }


def _bandwidth_gbs(spec: MachineSpec, mesh: Mesh) -> dict[str, float | None]:
    cube, hbm = spec.cube, spec.cube.hbm_link_bw_gbs
    cube_port = cube.ucie.n_connections * cube.ucie.per_connection_bw_gbs  # bandwidth from the mesh to a port
    io = spec.io_chiplet
    pcie = spec.system.links.io_ep_to_switch.bw_gbs * len(spec.sip.io_chiplets)
    far = spec.system.far_memory
    return {
        "hbm_per_pe": hbm,
        "hbm_per_cube": hbm * cube.n_pes,
        "hbm_per_sip": spec.sum_over_cubes(lambda each: each.n_pes * each.hbm_link_bw_gbs, sip=0),
        "hbm": spec.sum_over_cubes(lambda each: each.n_pes * each.hbm_link_bw_gbs),
        "pe_dma": cube.links.pe_dma_to_router_bw_gbs,
        "noc_link": cube.links.router_bw_gbs,
        "sram_port": cube.links.sram_to_router_bw_gbs,
        "tcm_read": cube.pe_template.links.tcm_read_bw_gbs,
        "tcm_write": cube.pe_template.links.tcm_write_bw_gbs,
        "ucie_port": min(spec.sip.links.cube_to_cube.bw_gbs, cube_port),
        "io_port": min(io.phy_bw_gbs, io.n_connections * io.links.per_connection_bw_gbs, cube_port),
        "pcie_per_sip": pcie,
        "host": spec.system.links.host_to_switch.bw_gbs,
        **({"far_link": far_link_gbs(far), "far_memory": far.gbs} if far is not None else {}),
        "noc_bisection": _noc_bisection_gbs(spec, mesh),
        "sip_bisection": _sip_bisection_gbs(spec, cube_port),
        "tray_bisection": _tray_bisection_gbs(spec, pcie),
    }


def far_link_gbs(far: FarMemorySpec) -> float:
    """What the link to far memory carries each way, less what packets take."""
    return far.bw_gbs if far.framing is None else far.bw_gbs * far.framing.efficiency


def _tray_bisection_gbs(spec: MachineSpec, pcie_gbs: float) -> float | None:
    """Between the lower and the upper half of the SIPs, each way: over the switch, or over direct links."""
    sips = spec.system.sips
    half = sips.count // 2
    if sips.links is None:
        if sips.count == 1:
            return None
        halved = [each.count // 2 * each.bw_gbs for each in spec.system.switch_levels.values() if each.count % 2 == 0]
        return min([half * pcie_gbs, *halved])
    return sips.links.bw_gbs * sum(count for a, b, count in neighbours(sips) if a < half <= b)


def _noc_bisection_gbs(spec: MachineSpec, mesh: Mesh) -> float | None:
    """Mesh links across the vertical or horizontal middle of the die; None if no link crosses it."""
    cuts = []
    for axis, middle in ((0, mesh.w_mm / 2), (1, mesh.h_mm / 2)):
        ends = [(mesh.position(a)[axis], mesh.position(b)[axis]) for a, b, _ in mesh.links()]
        crossing = sum(1 for low, high in ends if low < middle <= high)
        if crossing:
            cuts.append(crossing)
    return min(cuts) * spec.cube.links.router_bw_gbs if cuts else None


def _sip_bisection_gbs(spec: MachineSpec, cube_port: float) -> float | None:
    """Links between cubes across the middle, with those that close rows or columns."""
    w, h = spec.sip.cube_mesh.w, spec.sip.cube_mesh.h
    seam_gbs = min(spec.sip.links.cube_to_cube.bw_gbs, cube_port)
    closed = [link.axis for link in wrap_links(spec.sip, resolve_chiplets(spec.sip, 0.0))]
    cuts = []
    if w > 1:
        cuts.append(h * seam_gbs + closed.count("x") * min(spec.wrap_link("x")[0], cube_port))
    if h > 1:
        cuts.append(w * seam_gbs + closed.count("y") * min(spec.wrap_link("y")[0], cube_port))
    return min(cuts) if cuts else None


# --------------------------------------------------------------------------------------------------------------- JSON


def machine_facts_as_json(summary: MachineFacts) -> dict[str, object]:
    """The content of `kernbench topology --json`."""
    paths = [
        {
            "name": path.name,
            "src": path.src,
            "dst": path.dst,
            "distance_mm": path.distance_mm,
            "latency_ns": path.latency_ns,
            "hops": path.hops,
            "path": list(path.path),
        }
        for path in summary.worst_paths
    ]
    return {
        "schema": SCHEMA,
        "command": "topology",
        "name": summary.name,
        "counts": dict(summary.counts),
        "memory": dict(summary.memory),
        "bandwidth_gbs": dict(summary.bandwidth_gbs),
        "worst_paths": paths,
        "warnings": list(summary.warnings),
        **({"cube_types": {name: dict(type_) for name, type_ in summary.types.items()}} if summary.types else {}),
        **({"cube_type_keys": {name: dict(keys) for name, keys in summary.changed.items()}} if summary.types else {}),
    }


def graph_as_json(graph: TopologyGraph) -> dict[str, object]:
    """Every node and every edge."""
    return {
        "nodes": [
            {"id": n.id, "kind": n.kind, "impl": n.impl, "x_mm": n.x_mm, "y_mm": n.y_mm, "attrs": dict(n.attrs)}
            for n in graph.nodes.values()
        ],
        "edges": [
            {"src": e.src, "dst": e.dst, "kind": str(e.kind), "bw_gbs": e.bw_gbs, "distance_mm": e.distance_mm}
            for e in graph.edges
        ],
    }
