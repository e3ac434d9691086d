"""How full the memories of a run are over time, from its ops.

TCM of a PE: bytes of results that are live: from the start of the op that makes them to the end of the last op that
uses them. Blocks that a kernel holds without using them again are not counted, so that it is a lower bound of what is
allocated. SRAM and HBM of a cube: bytes that kernels have accessed so far; an access is known by its address, since the
rows of a tile do not lie together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from kernbench.common.array_types import Floats
from kernbench.common.dtypes import dtype_of
from kernbench.common.ids import memory_kind
from kernbench.report.explain.tensor_use import memories_of
from kernbench.report.runs.saved_run import SavedRun

MOST_OPS: Final = 100_000
_ADDRESSES: Final = ("address", "src_addr", "dst_addr")  # of a read the source, of a write the destination


@dataclass(frozen=True)
class MemoryOccupancy:
    """The largest number of bytes in each bin of a window, by PE (TCM) and by cube (SRAM, HBM)."""

    t0: float
    t1: float
    tcm: Mapping[str, list[float]]
    sram: Mapping[str, list[float]]
    hbm: Mapping[str, list[float]]


def occupancy(run: SavedRun, t0: float, t1: float, bins: int) -> MemoryOccupancy | None:
    """The occupancy of all memories that the run used; None for a run of too many ops."""
    if len(run.ops) > MOST_OPS:
        return None
    words = run.ops.all_params()
    params = [json.loads(word) for word in words.words]
    of_row = [params[code] for code in words.codes.tolist()]
    shared = _touched(run, of_row)
    return MemoryOccupancy(
        t0,
        t1,
        _binned(_live(run, of_row), t0, t1, bins),
        _binned({name: steps for (kind, name), steps in shared.items() if kind == "sram"}, t0, t1, bins),
        _binned({name: steps for (kind, name), steps in shared.items() if kind == "hbm"}, t0, t1, bins),
    )


ByteChanges = list[tuple[float, int]]  # time, change in bytes


def _live(run: SavedRun, params: list[dict[str, Any]]) -> dict[str, ByteChanges]:
    """By PE: results in TCM, from their op's start to the end of the last op that uses them."""
    ops = run.ops
    last = ops.t_end.copy()
    for row in range(len(ops)):
        for dep in ops.deps.of(row):
            of = int(ops.row_of[int(dep)])
            last[of] = max(last[of], ops.t_end[row])
    found: dict[str, ByteChanges] = {}
    for row in np.flatnonzero(ops.kind.are("R", "G", "M")).tolist():
        nbytes = int(ops.nbytes[row]) if ops.kind[row] == "R" else _result_bytes(params[row])
        lane = run.lanes[int(ops.lane[row])]
        if nbytes and lane.pe >= 0:
            steps = found.setdefault(f"sip{lane.sip}.cube{lane.cube}.pe{lane.pe}", [])
            steps += [(float(ops.t_start[row]), nbytes), (float(last[row]), -nbytes)]
    return found


def _result_bytes(params: Mapping[str, Any]) -> int:
    shape, dtype = params.get("shape_out"), params.get("dtype_out") or params.get("dtype")
    if not isinstance(shape, list) or not isinstance(dtype, str) or params.get("dst_space") != "tcm":
        return 0
    return int(prod(shape)) * dtype_of(dtype).itemsize


def _touched(run: SavedRun, params: list[dict[str, Any]]) -> dict[tuple[str, str], ByteChanges]:
    """By kind of memory and cube: bytes when they are accessed for the first time."""
    ops = run.ops
    known: dict[tuple[str, str, int], int] = {}  # bytes of the largest access at an address
    found: dict[tuple[str, str], ByteChanges] = {}
    rows = np.flatnonzero(ops.kind.are("R", "W"))
    for row in rows[np.argsort(ops.t_start[rows], kind="stable")].tolist():
        is_read = ops.kind[row] == "R"
        names = _ADDRESSES[:2] if is_read else (_ADDRESSES[0], _ADDRESSES[2])
        address = next((params[row][name] for name in names if isinstance(params[row].get(name), int)), None)
        memories = memories_of(run.places, ops.route.of(row), is_read) if len(ops.route.of(row)) else []
        if address is None or not memories:
            continue
        part = int(ops.nbytes[row]) // len(memories)
        for number, memory in enumerate(memories):
            begin = address + number * part
            key = (memory_kind(memory), ".".join(memory.split(".")[:2]))
            new = part - known.get((*key, begin), 0)
            if new > 0:
                known[*key, begin] = part
                found.setdefault(key, []).append((float(ops.t_start[row]), new))
    return found


def _binned(by_name: Mapping[str, ByteChanges], t0: float, t1: float, bins: int) -> dict[str, list[float]]:
    return {name: _peaks(by_name[name], t0, t1, bins) for name in sorted(by_name)}


def _peaks(steps: ByteChanges, t0: float, t1: float, bins: int) -> list[float]:
    """The largest value in each bin of a value that changes in steps; at one time, what ends is taken off first."""
    steps = sorted(steps)
    times = np.array([time for time, _ in steps])
    levels: Floats = np.concatenate(([0.0], np.cumsum([change for _, change in steps], dtype=np.float64)))
    edges = np.linspace(t0, t1, bins + 1)
    begin = np.searchsorted(times, edges[:-1], side="right")
    end = np.searchsorted(times, edges[1:], side="left")
    return [float(levels[first : max(first, stop) + 1].max()) for first, stop in zip(begin, end, strict=True)]
