"""A run that has just ended, in the form that explanations read, from its op log in memory.

Kernel lines and places of queueing are recorded in saved runs only; here transfers are split by where their tensors
lie (`live_routes.py`). A transfer to memory that is not known counts as latency beyond its bytes over the PE's port.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernbench.common.units import on_grid
from kernbench.report.runs.launch_table import launch_row, launches_of
from kernbench.report.runs.layout import OP_COLUMNS
from kernbench.report.runs.live_routes import LiveRoutes
from kernbench.report.runs.op_table import KernelLines, ServiceSplit, op_columns, received
from kernbench.report.runs.parts import Lists, RunOps, SavedLane, SavedLaunch, SavedPlace, SourceLine, Words
from kernbench.report.runs.saved_run import launch_of_row
from kernbench.runtime_api.bench_result import BenchResult

MOST_OPS = 10_000  # explaining more would take longer than some runs
_MOVED = ("read", "write")


class LiveRun:
    """Implements `explain.path.RunData`."""

    lines: Sequence[SourceLine] = ()

    def __init__(self, result: BenchResult, is_triton: bool) -> None:
        self.is_triton = is_triton
        self.total_ns = result.total_ns
        self.launches: tuple[SavedLaunch, ...] = tuple(
            launch_of_row(i, launch_row(launch)) for i, launch in enumerate(result.launches)
        )
        self.graph = result.engine.graph
        spec = self.graph.spec
        port_gbs = spec.cube.links.pe_dma_to_router_bw_gbs
        chunk = _chunk(result)
        launches = launches_of(result)
        routes = LiveRoutes(result, launches, chunk)

        def split_of(number: int, port: str, lasted_ns: float, nbytes: int) -> ServiceSplit | None:
            if port == "recv":
                return received(spec, lasted_ns, nbytes)
            if port not in _MOVED or chunk["op_kind"][number] == "host":
                return None
            if (split := routes.split(number, lasted_ns, nbytes)) is not None:
                return split
            transfer_ns = min(on_grid(nbytes / port_gbs), lasted_ns)
            return ServiceSplit(transfer_ns, lasted_ns - transfer_ns, 0.0, (), ())

        columns, lanes = op_columns(iter([chunk]), launches, KernelLines(), split_of)
        self.ops = _ops(columns)
        self.places: Sequence[SavedPlace] = tuple(routes.places)
        firsts = np.searchsorted(self.ops.lane, np.arange(len(lanes["name"]) + 1))
        rows = [dict(zip(lanes, row, strict=True)) for row in zip(*lanes.values(), strict=True)]
        self.lanes: tuple[SavedLane, ...] = tuple(
            SavedLane(index=i, first=int(firsts[i]), stop=int(firsts[i + 1]), **row) for i, row in enumerate(rows)
        )


def live_run(result: BenchResult, *, is_triton: bool = False) -> LiveRun | None:
    """A finished run, of a bench or of a Triton program; None if it has too many ops, or its log is not in memory."""
    log = result.op_log
    if log is None or len(log) > MOST_OPS or hasattr(log, "path"):
        return None
    return LiveRun(result, is_triton)


def _chunk(result: BenchResult) -> dict[str, list[Any]]:
    log = result.op_log
    assert log is not None
    names = ("t_start", "t_end", "component_id", "op_kind", "op_name", "params", "dependency_ids")
    causes = ("t_asked", "t_ready", "release", "released_by")
    chunk: dict[str, list[Any]] = {name: [] for name in (*names, *causes, "stream")}
    for record, stream in log.entries():
        for name in (*names, *causes):
            chunk[name].append(getattr(record, name))
        chunk["stream"].append(stream)
    chunk["id"] = list(range(len(chunk["stream"])))
    chunk["flops"] = [0] * len(chunk["stream"])
    return chunk


def _ops(columns: dict[str, Any]) -> RunOps:
    found: dict[str, Any] = {}
    for name, kind in OP_COLUMNS.items():
        column = columns[name]
        if name == "params":
            found["_params"] = column
        elif kind == "string":
            words = dict.fromkeys(column)
            codes = {word: code for code, word in enumerate(words)}
            found[name] = Words(np.asarray([codes[word] for word in column], np.int64), tuple(words))
        elif kind.startswith("list"):
            starts = np.concatenate(([0], np.cumsum([len(row) for row in column], dtype=np.int64)))
            dtype: Any = {"list<float64>": np.float64, "list<string>": object}.get(kind, np.int64)
            found[name] = Lists(starts, np.asarray([item for row in column for item in row], dtype))
        else:
            found[name] = column.astype(np.float64 if kind == "float64" else np.int64)
    return RunOps(**found)
