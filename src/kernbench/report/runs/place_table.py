"""Converts the recorded activity of links and channels to the columns of `places.parquet` and `activity.parquet`."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernbench.report.link_classes import link_class
from kernbench.report.runs.layout import PLACE_COLUMNS
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fabric.bins import METRICS, Binned

HBM_CHANNEL = "hbm channel"


def place_columns(engine: GraphEngine, activity: Activity, binned: Binned) -> dict[str, list[Any]]:
    """A row for each place that carried bytes."""
    network, graph = engine.fabric.network, engine.graph
    columns: dict[str, list[Any]] = {name: [] for name in PLACE_COLUMNS}
    used, rows = np.unique(binned.place, return_inverse=True)
    totals = [np.bincount(rows, getattr(binned, metric), len(used)).tolist() for metric in METRICS]
    for place, *sums in zip(used.tolist(), *totals, strict=True):
        if activity.is_link(place):
            src, dst = (str(network.names[node]) for node in network.link_ends[place])
            row: tuple[Any, ...] = ("link", src, dst, -1, link_class(graph.edge(src, dst).kind), network.bw_gbs[place])
        else:
            node, channel = activity.channel_at(place)
            _, burst_bytes, burst_ns, *_ = network.channel_specs[node]
            row = ("channel", str(network.names[node]), "", channel, HBM_CHANNEL, burst_bytes / burst_ns)
        for name, value in zip(PLACE_COLUMNS, (*row, *sums), strict=True):
            columns[name].append(value)
    return columns


def activity_columns(binned: Binned) -> dict[str, Any]:
    """A row for each place and bin with activity."""
    _, rows = np.unique(binned.place, return_inverse=True)
    return {
        "place": rows.astype(np.int32),
        "bin": binned.bin.astype(np.int32),
        **{metric: getattr(binned, metric) for metric in METRICS},
    }
