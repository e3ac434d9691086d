"""From what was seen on links and channels to the columns of `places.parquet` and `activity.parquet`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernbench.report.runs.layout import PLACE_COLUMNS
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.topology.graph import UCIE_KINDS, EdgeKind

HBM_CHANNEL = "hbm channel"
_CLASSES = {
    EdgeKind.PE_INTERNAL: "pe internal",
    EdgeKind.PE_TO_ROUTER: "pe port",
    EdgeKind.ROUTER_MESH: "router",
    EdgeKind.ROUTER_TO_HBM: "hbm port",
    EdgeKind.ROUTER_TO_SRAM: "sram port",
    EdgeKind.COMMAND: "command",
    EdgeKind.IO_INTERNAL: "io",
    EdgeKind.PCIE: "pcie",
}


def link_class(kind: EdgeKind) -> str:
    """What people call a link of a kind."""
    return "ucie" if kind in UCIE_KINDS else _CLASSES[kind]


def place_columns(engine: GraphEngine, activity: Activity, used: Sequence[int]) -> dict[str, list[Any]]:
    """A row for each place that carried bytes."""
    network, graph = engine.fabric.network, engine.graph
    columns: dict[str, list[Any]] = {name: [] for name in PLACE_COLUMNS}
    for place in used:
        track = activity.tracks[place]
        if activity.is_link(place):
            src, dst = (str(network.names[node]) for node in network.link_ends[place])
            row: tuple[Any, ...] = ("link", src, dst, -1, link_class(graph.edge(src, dst).kind), network.bw_gbs[place])
        else:
            node, channel = activity.channel_at(place)
            _, burst_bytes, burst_ns, _ = network.channel_specs[node]
            row = ("channel", str(network.names[node]), "", channel, HBM_CHANNEL, burst_bytes / burst_ns)
        waits = (sum(track.waits(which, activity.bin_ns)) for which in (0, 1))
        for name, value in zip(PLACE_COLUMNS, (*row, sum(track.nbytes), *waits), strict=True):
            columns[name].append(value)
    return columns


def activity_columns(activity: Activity, used: Sequence[int]) -> dict[str, Any]:
    """A row for each place and bin in which something happened."""
    parts: list[list[np.ndarray[Any, Any]]] = [[], [], [], [], []]
    for row, place in enumerate(used):
        track = activity.tracks[place]
        metrics = [track.nbytes, track.waits(0, activity.bin_ns), track.waits(1, activity.bin_ns)]
        bins = max(map(len, metrics))
        dense = [np.pad(np.asarray(metric), (0, bins - len(metric))) for metric in metrics]
        at = np.flatnonzero((dense[0] != 0) | (dense[1] != 0))
        for part, values in zip(parts, (np.full(len(at), row), at, *(metric[at] for metric in dense)), strict=True):
            part.append(values)
    kinds = ("int32", "int32", "float64", "float64", "float64")
    names = ("place", "bin", "nbytes", "wait_ns", "contended_ns")
    return {
        name: np.concatenate(part).astype(kind) if part else np.empty(0, kind)
        for name, part, kind in zip(names, parts, kinds, strict=True)
    }
