"""The totals of a machine as text: aligned columns with units. The layout may change; `--json` is for programs."""

from __future__ import annotations

from collections.abc import Mapping

from kernbench.common.units import format_bytes
from kernbench.report.machine_facts import MachineFacts
from kernbench.report.worst_paths import WorstPath
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec
from kernbench.topology.switches import levels_from_top


def machine_facts_as_text(summary: MachineFacts, spec: MachineSpec) -> str:
    """The totals in aligned columns."""
    counts, memory, gbs = summary.counts, summary.memory, summary.bandwidth_gbs
    grid = spec.sip.cube_mesh
    lines = [f"machine {summary.name}", "", "Counts"]
    lines += _rows(
        [
            ("SIPs", f"{counts['sips']}", _joined_by(spec)),
            ("cubes", f"{counts['cubes']}", f"{grid.w} x {grid.h} per SIP"),
            ("PEs", f"{counts['pes']}", f"{spec.cube.n_pes} per cube"),
            ("routers", f"{counts['routers']}", f"{counts['routers'] // counts['cubes']} per cube"),
            ("IO chiplets", f"{counts['io_chiplets']}", f"{len(spec.sip.io_chiplets)} per SIP"),
            ("HBM pseudo channels", f"{counts['hbm_pseudo_channels']}", _channels(spec)),
            ("nodes", f"{counts['nodes']}", ""),
            ("links", f"{counts['links']}", "both directions counted as one"),
        ]
    )
    lines += [*_type_lines(summary.types), *_changed_lines(summary.changed)]
    lines += ["", *_memory_lines(memory), "", *_bandwidth_lines(gbs), "", *_path_lines(summary.worst_paths)]
    return "\n".join(lines)


def _channels(spec: MachineSpec) -> str:
    stacks = spec.sip.hbm_stacks
    if not spec.cube.has_hbm:
        return f"no HBM: tensors lie in {spec.cube.home.name}"
    if stacks is None:
        return f"{spec.cube.hbm_channels_per_pe} per PE"
    shared = "all PEs of a SIP" if stacks.shared_by == "sip" else "the PEs of a cube"
    return f"{stacks.channels} per stack, {len(stacks.places)} stacks per SIP, shared by {shared}"


def _type_lines(types: Mapping[str, Mapping[str, float]]) -> list[str]:
    """One row for each type of cube; nothing where all cubes are alike."""
    if not types:
        return []
    heads = ["Types of cubes", "cubes", "MAC/ns per PE", "HBM", "HBM GB/s", "SRAM", "TCM per PE"]
    rows = [
        [
            name,
            f"{of['cubes']:g}",
            f"{of['macs_per_ns_per_pe']:,.10g}",
            format_bytes(int(of["hbm_bytes"])),
            f"{of['hbm_gbs']:,.10g}",
            format_bytes(int(of["sram_bytes"])),
            format_bytes(int(of["tcm_bytes_per_pe"])),
        ]
        for name, of in types.items()
    ]
    return ["", *_table(heads, rows)]


def _changed_lines(types: Mapping[str, Mapping[str, tuple[object, object]]]) -> list[str]:
    """The keys of each type that differ from `cube`, with both values."""
    rows = [
        [name, key, *("-" if value is None else str(value) for value in values)]
        for name, keys in types.items()
        for key, values in keys.items()
    ]
    if not rows:
        return []
    texts = [["", "differs from cube in", "cube", "type"], *rows]
    widths = [max(len(row[at]) for row in texts) for at in range(len(texts[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in texts)
    return ["", *(f"  {line}".rstrip() for line in lines)]


def _memory_lines(memory: Mapping[str, int]) -> list[str]:
    heads = ["Memory", "per PE", "per cube", "per SIP", "total"]
    table: list[tuple[str, list[int | None]]] = [
        ("HBM", [memory[f"hbm_bytes{of}"] for of in ("_per_pe", "_per_cube", "_per_sip", "")]),
        ("SRAM", [None, memory["sram_bytes_per_cube"], None, memory["sram_bytes"]]),
        ("TCM", [memory["tcm_bytes_per_pe"], None, None, memory["tcm_bytes"]]),
    ]
    if "far_bytes" in memory:
        table.append(("far memory", [None, None, memory["far_bytes_per_sip"], memory["far_bytes"]]))
    return _table(heads, [[name, *("-" if n is None else format_bytes(n) for n in sizes)] for name, sizes in table])


def _bandwidth_lines(gbs: Mapping[str, float | None]) -> list[str]:
    names = {
        "hbm_per_pe": "HBM per PE",
        "hbm_per_cube": "HBM per cube",
        "hbm_per_sip": "HBM per SIP",
        "hbm": "HBM total",
        "pe_dma": "PE DMA to router",
        "noc_link": "router to router",
        "sram_port": "SRAM port",
        "tcm_read": "TCM read port",
        "tcm_write": "TCM write port",
        "ucie_port": "cube to cube (UCIe)",
        "io_port": "IO chiplet to cube (UCIe)",
        "pcie_per_sip": "PCIe per SIP",
        "host": "host to switch",
        "far_link": "link to far memory",
        "far_memory": "far memory, both ways together",
        "noc_bisection": "bisection of a cube's mesh",
        "sip_bisection": "bisection of a SIP",
        "tray_bisection": "bisection of the tray",
    }
    known = {key: name for key, name in names.items() if key in gbs}
    rows = [(name, "-" if (value := gbs[key]) is None else f"{value:,.10g}", "") for key, name in known.items()]
    return ["Bandwidth, GB/s, each way", *_rows(rows)]


def _path_lines(paths: tuple[WorstPath, ...]) -> list[str]:
    heads = ["Farthest", "mm", "ns", "hops", "from", "to"]
    rows = [
        [path.name, f"{path.distance_mm:.2f}", f"{path.latency_ns:.2f}", f"{path.hops}", path.src, path.dst]
        for path in paths
    ]
    return [*_table(heads, rows, text_columns=(0, 4, 5)), "  ns is one way for a message of no bytes, uncontended"]


def _joined_by(spec: MachineSpec) -> str:
    """How SIPs are joined."""
    topology = spec.system.sips.topology
    if spec.system.sips.links is None:
        levels = [f"{level.count} {name}" for name, level in reversed(levels_from_top(spec.system))]
        if levels:
            return f"logical {topology}; levels of switches: {', '.join(levels)}, 1 at the top"
        return f"logical {topology}; every SIP is on one switch"
    return f"{topology} of direct links"


def _rows(rows: list[tuple[str, str, str]]) -> list[str]:
    """Name, value, remark."""
    name_w, value_w = (max(len(row[i]) for row in rows) for i in (0, 1))
    return [f"  {name:<{name_w}}  {value:>{value_w}}  {remark}".rstrip() for name, value, remark in rows]


def _table(heads: list[str], rows: list[list[str]], text_columns: tuple[int, ...] = (0,)) -> list[str]:
    """Aligned columns; the first head is the title."""
    body = [heads, *([f"  {row[0]}", *row[1:]] for row in rows)]
    widths = [max(len(row[i]) for row in body) for i in range(len(heads))]
    aligned = (
        [
            f"{cell:<{w}}" if i in text_columns else f"{cell:>{w}}"
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        for row in body
    )
    return ["  ".join(cells).rstrip() for cells in aligned]


def graph_as_text(graph: TopologyGraph) -> str:
    """Every node, then every edge."""
    nodes = [
        [n.id, n.kind, n.impl, f"{n.x_mm:.2f}", f"{n.y_mm:.2f}", f"{n.overhead_ns:g}"] for n in graph.nodes.values()
    ]
    edges = [
        [e.src, e.dst, str(e.kind), "control" if e.bw_gbs is None else f"{e.bw_gbs:g}", f"{e.distance_mm:.2f}"]
        for e in graph.edges
    ]
    lines = _table(["Nodes", "kind", "impl", "x mm", "y mm", "ns"], nodes, text_columns=(0, 1, 2))
    lines += ["", *_table(["Edges from", "to", "kind", "GB/s", "mm"], edges, text_columns=(0, 1, 2))]
    return "\n".join(lines)
