"""A run folder of any size, made without simulating: lanes that repeat load, product, math, store on every PE.

For tests of speed. Times are such that everything can be worked out by hand: PE p starts at p ns, and each round takes
40 ns: a load of 20 ns (8 of them queueing), a product of 8, math of 6, a store of 4, and 2 ns of issue.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa

from kernbench.report.runs.digests import sealed
from kernbench.report.runs.files import arrow, write_table
from kernbench.report.runs.layout import (
    ACTIVITY,
    ACTIVITY_COLUMNS,
    KIND,
    LANE_COLUMNS,
    LANES,
    LAUNCHES,
    MACHINE,
    MANIFEST,
    OP_COLUMNS,
    OPS,
    PLACE_COLUMNS,
    PLACES,
    SCHEMA,
    SOURCES,
)
from kernbench.topology import load_topology

ROUND_NS = 40.0
STEPS = (  # kind, name, component, port, start in the round, end, line
    ("R", "dma_read", "pe_dma", "read", 0.0, 20.0, 0),
    ("G", "gemm_f16", "pe_gemm", "gemm", 20.0, 28.0, 1),
    ("M", "exp", "pe_math", "math", 28.0, 34.0, 2),
    ("W", "dma_write", "pe_dma", "write", 34.0, 38.0, 3),
)
TEXT = "def kernel(x, y, tl):\n    a = tl.load(x)\n    b = tl.dot(a, a)\n    c = tl.exp(b)\n    tl.store(y, c)\n"


def write_generated_run(folder: Path, pes: int, rounds: int) -> int:
    """Write the folder; returns how many ops it has. PEs are those of the first cubes of SIP 0, eight in each."""
    folder.mkdir(parents=True)
    n = pes * rounds * len(STEPS)
    pe, step, turn = (a.ravel() for a in np.meshgrid(np.arange(pes), np.arange(4), np.arange(rounds), indexing="ij"))
    start = pe + turn * ROUND_NS + np.array([s[4] for s in STEPS])[step]
    end = pe + turn * ROUND_NS + np.array([s[5] for s in STEPS])[step]
    ids = (turn * pes + pe) * 4 + step  # causes have smaller ids
    released = np.where((step == 0) & (turn == 0), -1, np.where(step == 0, ids - 4 * pes + 3, ids - 1))
    release = np.where(released < 0, "launch", np.where(step == 0, "program", "data"))
    is_load = step == 0
    waits = np.concatenate(([0], np.cumsum(is_load)))
    deps = np.concatenate(([0], np.cumsum(released >= 0)))
    table = {
        "id": ids, "lane": (pe * 4 + step).astype(np.int32), "launch": np.zeros(n, np.int32),
        "kind": np.array([s[0] for s in STEPS])[step], "name": np.array([s[1] for s in STEPS])[step],
        "t_asked": start, "t_ready": start, "t_start": start, "t_end": end,
        "line": np.array([s[6] for s in STEPS], np.int32)[step],
        "nbytes": np.where(is_load, 2048, np.where(step == 3, 512, 0)), "flops": np.where(step == 1, 65536, 0),
        "release": release, "released_by": released,
        "transfer_ns": np.where(is_load, 8.0, np.where(step == 3, 2.0, 0.0)),
        "latency_ns": np.where(is_load, 4.0, np.where(step == 3, 2.0, 0.0)), "queue_ns": np.where(is_load, 8.0, 0.0),
        "wait_places": pa.ListArray.from_arrays(pa.array(waits, pa.int32()), pa.array((pe % 8)[is_load], pa.int32())),
        "wait_ns": pa.ListArray.from_arrays(pa.array(waits, pa.int32()), pa.array(np.full(int(is_load.sum()), 8.0))),
        "route": pa.ListArray.from_arrays(pa.array(waits, pa.int32()), pa.array((pe % 8 + 8)[is_load], pa.int32())),
        "deps": pa.ListArray.from_arrays(pa.array(deps, pa.int32()), pa.array(released[released >= 0])),
        "tensors": pa.ListArray.from_arrays(pa.array(waits, pa.int32()), pa.array(["x"] * int(is_load.sum()))),
        "params": pa.array(["{}"] * n),
    }  # fmt: skip
    write_table(folder / OPS, table, OP_COLUMNS)
    total = pes - 1 + rounds * ROUND_NS
    lanes = [
        {"name": f"sip0.cube{p // 8}.pe{p % 8}.{s[2]}.{s[3]}", "component": f"sip0.cube{p // 8}.pe{p % 8}.{s[2]}",
         "port": s[3], "slot": 0, "kind": s[0], "sip": 0, "cube": p // 8, "pe": p % 8, "ops": rounds,
         "busy_ns": rounds * (s[5] - s[4])}
        for p in range(pes) for s in STEPS
    ]  # fmt: skip
    write_table(folder / LANES, _columns(lanes), LANE_COLUMNS)
    _write_places(folder, total, pes)
    one = {"start_ns": 0.0, "end_ns": total, "dma_ns": 1.0, "compute_ns": 1.0}
    parts = [
        {"sip": 0, "cube": p // 8, "pe": p % 8, **one, "start_ns": float(p), "end_ns": p + rounds * ROUND_NS - 2.0}
        for p in range(pes)
    ]
    launch = {"name": "kernel", "kernel": "kernel", "stream": "compute", "sips": [0], "start_ns": 0.0,
              "end_ns": total, "flops": 1, "bytes_hbm": 1, "pes": parts}  # fmt: skip
    (folder / LAUNCHES).write_text(json.dumps([launch]))
    sources = {"files": [{"name": "kernel.py", "text": TEXT}], "lines": [[0, 2], [0, 3], [0, 4], [0, 5]]}
    (folder / SOURCES).write_text(json.dumps(sources))
    (folder / MACHINE).write_text(json.dumps(load_topology().spec.model_dump(mode="json")))
    manifest = {
        "schema": SCHEMA, "kind": KIND, "version": "0", "hash": f"{pes:04x}{rounds:08x}" + "0" * 52, "command": [],
        "created": "", "identifier": "generated", "bench": "generated", "title": f"generated {n:,} slices",
        "params": {}, "device": "sip:0", "devices": [0], "machine": "default", "machine_hash": "0" * 16,
        "total_ns": total, "kernels_ns": total, "verified": "verified", "ok": True, "launches": 1, "ops": n,
        "bin_ns": _bin_ns(total), "bins": int(total // _bin_ns(total)) + 1,
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(sealed(manifest, folder, arrow())))
    return n


def _bin_ns(total: float) -> float:
    return float(2 ** max(0, int(np.ceil(np.log2(total / 4096)))))


def _write_places(folder: Path, total: float, pes: int) -> None:
    """Eight HBM channels of cube 0, each half busy all the time."""
    width, count = _bin_ns(total), min(pes, 8)
    bins = int(total // width) + 1
    each = width * 32.0 / 2
    places = [
        {"kind": "channel", "src": f"sip0.cube0.hbm_ctrl.pe{p}", "dst": "", "channel": 0, "link_class": "hbm channel",
         "gbs": 32.0, "nbytes": each * bins, "wait_ns": 8.0 * bins, "contended_ns": 8.0 * bins}
        for p in range(count)
    ] + [
        {"kind": "link", "src": f"sip0.cube0.hbm_ctrl.pe{p}", "dst": f"sip0.cube0.noc.r{p // 4}c{p % 2}", "channel": -1,
         "link_class": "hbm port", "gbs": 256.0, "nbytes": 0.0, "wait_ns": 0.0, "contended_ns": 0.0}
        for p in range(count)
    ]  # fmt: skip
    write_table(folder / PLACES, _columns(places), PLACE_COLUMNS)
    activity = {
        "place": np.repeat(np.arange(count, dtype=np.int32), bins),
        "bin": np.tile(np.arange(bins, dtype=np.int32), count),
        "nbytes": np.full(count * bins, each), "wait_ns": np.full(count * bins, 8.0),
        "contended_ns": np.full(count * bins, 8.0),
    }  # fmt: skip
    write_table(folder / ACTIVITY, activity, ACTIVITY_COLUMNS)


def _columns(rows: list[dict[str, object]]) -> dict[str, list[object]]:
    return {name: [row[name] for row in rows] for name in rows[0]}
