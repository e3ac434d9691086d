"""A saved run as tables for SQL: ops, launches, links, tensors and the critical path. Times are ns, sizes bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from kernbench.report.explain.headline import main_scope
from kernbench.report.explain.tensor_use import tensor_uses
from kernbench.report.runs.layout import KINDS, PLACE_COLUMNS
from kernbench.report.runs.parts import Lists, Words
from kernbench.report.runs.saved_run import SavedRun

Column = tuple[str, Any]  # type of Arrow, values


def run_tables(run: SavedRun) -> dict[str, Any]:
    """Tables of Arrow by name."""
    import pyarrow as arrow

    found = {}
    for name, columns in TABLES.items():
        arrays = {
            column: arrow.array(values, _arrow_type(arrow, kind)) for column, (kind, values) in columns(run).items()
        }
        found[name] = arrow.table(arrays)
    return found


def _arrow_type(arrow: Any, kind: str) -> Any:
    inner = kind.removeprefix("list<").removesuffix(">")
    return arrow.list_(arrow.type_for_alias(inner)) if inner != kind else arrow.type_for_alias(kind)


def _ops(run: SavedRun) -> dict[str, Column]:
    ops = run.ops
    lanes = ops.lane.tolist()

    def of_lane(name: str) -> list[Any]:
        values = [getattr(lane, name) for lane in run.lanes]
        return [values[lane] for lane in lanes]

    lines = [line.name for line in run.lines]
    return {
        "id": ("int64", ops.id),
        "launch": ("int32", ops.launch),
        "sip": ("int32", of_lane("sip")),
        "cube": ("int32", of_lane("cube")),
        "pe": ("int32", of_lane("pe")),
        "component": ("string", of_lane("component")),
        "lane": ("string", of_lane("name")),
        "kind": ("string", [KINDS[kind] for kind in _words(ops.kind)]),
        "name": ("string", _words(ops.name)),
        "t_asked": ("float64", ops.t_asked),
        "t_ready": ("float64", ops.t_ready),
        "t_start": ("float64", ops.t_start),
        "t_end": ("float64", ops.t_end),
        "ns": ("float64", ops.t_end - ops.t_start),
        "transfer_ns": ("float64", ops.transfer_ns),
        "latency_ns": ("float64", ops.latency_ns),
        "queue_ns": ("float64", ops.queue_ns),
        "nbytes": ("int64", ops.nbytes),
        "flops": ("int64", ops.flops),
        "line": ("string", [lines[line] if line >= 0 else None for line in ops.line.tolist()]),
        "release": ("string", _words(ops.release)),
        "released_by": ("int64", [op if op >= 0 else None for op in ops.released_by.tolist()]),
        "tensors": ("list<string>", _lists(ops.tensors)),
        "route": ("list<int32>", _lists(ops.route)),
        "deps": ("list<int64>", _lists(ops.deps)),
    }


def _launches(run: SavedRun) -> dict[str, Column]:
    names = {"name": "string", "kernel": "string", "stream": "string", "start_ns": "float64", "end_ns": "float64"}
    return {
        "id": ("int32", [launch.index for launch in run.launches]),
        **_attributes(run.launches, names),
        "ns": ("float64", [launch.total_ns for launch in run.launches]),
        **_attributes(run.launches, {"flops": "int64", "bytes_hbm": "int64"}),
        "pes": ("int32", [len(launch.pes) for launch in run.launches]),
        **_attributes(run.launches, {"idle_pes": "int32"}),
        "sips": ("list<int32>", [list(launch.sips) for launch in run.launches]),
        **_attributes(run.launches, {"called_at": "string"}),
    }


def _links(run: SavedRun) -> dict[str, Column]:
    return {"id": ("int32", [place.index for place in run.places]), **_attributes(run.places, PLACE_COLUMNS)}


def _tensors(run: SavedRun) -> dict[str, Column]:
    uses = tensor_uses(run)
    return {
        "name": ("string", [use.name for use in uses]),
        "memories": ("list<string>", [list(use.memories) for use in uses]),
        "cubes": ("list<string>", [use.cubes for use in uses]),
        "readers": ("list<string>", [list(use.readers) for use in uses]),
        "writers": ("list<string>", [list(use.writers) for use in uses]),
        "read_bytes": ("int64", [sum(use.readers.values()) for use in uses]),
        "written_bytes": ("int64", [sum(use.writers.values()) for use in uses]),
        **_attributes(uses, {"home_bytes": "int64", "remote_bytes": "int64", "byte_hops": "int64"}),
    }


def _path(run: SavedRun) -> dict[str, Column]:
    segments = main_scope(run).path
    return {
        "op": ("int64", [segment.op if segment.op >= 0 else None for segment in segments]),
        "launch": ("int32", [segment.launch for segment in segments]),
        "t_start": ("float64", [segment.t0 for segment in segments]),
        "t_end": ("float64", [segment.t1 for segment in segments]),
        "ns": ("float64", [segment.ns for segment in segments]),
        "class": ("string", [segment.cls for segment in segments]),
        "link": ("int32", [segment.place if segment.place >= 0 else None for segment in segments]),
    }


TABLES: Final[Mapping[str, Callable[[SavedRun], dict[str, Column]]]] = {
    "ops": _ops,
    "launches": _launches,
    "links": _links,
    "tensors": _tensors,
    "path": _path,
}


def _attributes(items: Sequence[object], kinds: Mapping[str, str]) -> dict[str, Column]:
    return {name: (kind, [getattr(item, name) for item in items]) for name, kind in kinds.items()}


def _words(column: Words) -> Iterable[str]:
    return [column.words[code] for code in column.codes.tolist()]


def _lists(column: Lists) -> list[list[Any]]:
    return [part.tolist() for part in np.split(column.values, column.starts[1:-1])] if len(column.starts) > 1 else []
