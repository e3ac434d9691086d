"""Converts the records of a run to the columns of `ops.parquet` and `lanes.parquet`."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np

from kernbench.common.ids import Place
from kernbench.common.units import on_grid
from kernbench.report.runs.layout import LANE_COLUMNS, OP_COLUMNS
from kernbench.topology.spec import MachineSpec

# Letter and port by op kind, for parts that are not builtin.
_BY_KIND = {"gemm": ("G", "gemm"), "math": ("M", "math"), "memory": ("F", "memory"), "communication": ("C", "message")}
_PORTS = {
    "DMA_READ": ("R", "read"),
    "dma_read": ("R", "read"),
    "DMA_WRITE": ("W", "write"),
    "dma_write": ("W", "write"),
    "FETCH": ("F", "fetch"),
    "STORE": ("F", "store"),
    "ipcq_send": ("C", "send"),
    "ipcq_recv": ("C", "recv"),
    "composite_gemm": ("S", "span"),
    "composite_math": ("S", "span"),
    "host_write": ("H", "write"),
    "host_read": ("H", "read"),
    "mmu_map": ("H", "map"),
    "mmu_unmap": ("H", "map"),
    "baaw_install": ("H", "map"),
    "baaw_remove": ("H", "map"),
}
_PORT_ORDER = ("span", "read", "write", "fetch", "store", "gemm", "math", "memory", "send", "recv", "message", "map")
ATOMIC = "atomic_"  # with which the names of atomics begin
_ADDRESSES = ("src_addr", "dst_addr", "address")


def lane_of(op_kind: str, op_name: str) -> tuple[str, str]:
    """Letter and port of an op."""
    name = op_name.removeprefix("TileToken/")
    if name.startswith(ATOMIC):
        return "W", "write"
    return _PORTS.get(name) or _BY_KIND.get(op_kind, ("F", op_kind))


@dataclass(frozen=True)
class LoggedTensorRange:
    """The address range of a tensor of a launch, as its kernel addresses it."""

    name: str
    begin: int
    end: int


@dataclass(frozen=True)
class LaunchPart:
    """A PE's part of a launch: the ops of that PE and stream that were issued from `start_ns` on."""

    start_ns: float
    launch: int


@dataclass
class LaunchIndex:
    """Finds the launch of an op, and names of tensors by address."""

    parts: dict[tuple[str, str], list[LaunchPart]] = field(default_factory=dict)  # by PE and stream, in order of start
    tensors: dict[int, list[LoggedTensorRange]] = field(default_factory=dict)  # by launch
    called_at: dict[int, str] = field(default_factory=dict)  # by launch of a tensor operation: the program's line

    def launch_of(self, pe: str, stream: str, asked_ns: float) -> int:
        parts = self.parts.get((pe, stream), [])
        at = bisect_right(parts, asked_ns, key=lambda part: part.start_ns) - 1
        return parts[at].launch if at >= 0 else -1

    def tensors_at(self, launch: int, params: Mapping[str, Any]) -> list[str]:
        found = []
        for key in _ADDRESSES:
            address = params.get(key)
            if isinstance(address, int):
                found += [t.name for t in self.tensors.get(launch, ()) if t.begin <= address < t.end]
        return found


@dataclass
class KernelLines:
    """Kernel lines and their files, numbered in order of appearance."""

    files: dict[str, int] = field(default_factory=dict)
    lines: dict[tuple[int, int], int] = field(default_factory=dict)

    def number(self, where: str) -> int:
        file, _, line = where.rpartition(":")
        if not line.isdigit():
            return -1
        at = self.files.setdefault(file, len(self.files))
        return self.lines.setdefault((at, int(line)), len(self.lines))


@dataclass(frozen=True)
class ServiceSplit:
    """The time of an op that moves bytes, split into parts, and its queueing by place: (place, ns)."""

    transfer_ns: float
    latency_ns: float
    queue_ns: float
    waits: tuple[tuple[int, float], ...]
    route: tuple[int, ...]  # links passed


_NONE = ServiceSplit(0.0, 0.0, 0.0, (), ())


def received(spec: MachineSpec, lasted_ns: float, nbytes: int) -> ServiceSplit:
    """A receive: reading the bytes from their slots is its work, the rest is waiting for chunks after the first."""
    slot_gbs = spec.cube.pe_template.components.pe_ipcq.number_attr("tcm_gbs")
    work_ns = min(on_grid(nbytes / slot_gbs), lasted_ns)
    return ServiceSplit(work_ns, lasted_ns - work_ns, 0.0, (), ())


def op_columns(
    chunks: Iterator[Mapping[str, Sequence[Any]]],
    launches: LaunchIndex,
    lines: KernelLines,
    split_of: Callable[[int, str, float, int], ServiceSplit | None],
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Columns of ops and of lanes. `chunks` are the raw log's columns in order of id; `split_of` is called with an op's
    id, port, duration and bytes.
    """
    rows: dict[str, list[Any]] = {name: [] for name in OP_COLUMNS}
    groups: dict[tuple[str, str], list[int]] = {}
    kinds: dict[tuple[str, str], str] = {}
    for chunk in chunks:
        _add_rows(chunk, rows, groups, kinds, launches, lines, split_of)
    lane_columns = _put_on_lanes(rows, groups, kinds)
    order = np.lexsort((rows["id"], rows["t_start"], rows["lane"])) if rows["id"] else np.empty(0, np.int64)
    columns: dict[str, Any] = {}
    for name, kind in OP_COLUMNS.items():
        if kind in ("int32", "int64", "float64"):
            columns[name] = np.asarray(rows[name], kind)[order]
        else:
            column = rows[name]
            columns[name] = [column[at] for at in order]
    return columns, lane_columns


def _add_rows(
    chunk: Mapping[str, Sequence[Any]],
    rows: dict[str, list[Any]],
    groups: dict[tuple[str, str], list[int]],
    kinds: dict[tuple[str, str], str],
    launches: LaunchIndex,
    lines: KernelLines,
    split_of: Callable[[int, str, float, int], ServiceSplit | None],
) -> None:
    base = len(rows["id"])
    for at, number in enumerate(chunk["id"]):
        component, op_kind, name = chunk["component_id"][at], chunk["op_kind"][at], chunk["op_name"][at]
        params = chunk["params"][at]
        params = json.loads(params) if isinstance(params, str) else dict(params)
        letter, port = lane_of(op_kind, name)
        group = (component, port)
        groups.setdefault(group, []).append(base + at)
        kinds.setdefault(group, letter)
        pe = component.rpartition(".")[0]
        is_host = op_kind == "host"
        launch = -1 if is_host else launches.launch_of(pe, chunk["stream"][at], chunk["t_asked"][at])
        start, end = chunk["t_start"][at], chunk["t_end"][at]
        nbytes = params.get("nbytes", 0) if letter in "RWFCH" else 0
        split = split_of(number, port, end - start, nbytes) or _NONE
        line = params.pop("line", None)
        if line is not None:  # an operation of the host's own has the program's line, not that of its kernel
            line = launches.called_at.get(launch, line)
        tensor = params.get("tensor")
        by = chunk["released_by"][at]
        values = {
            "id": number,
            "launch": launch,
            "kind": letter,
            "name": name,
            "t_asked": chunk["t_asked"][at],
            "t_ready": chunk["t_ready"][at],
            "t_start": start,
            "t_end": end,
            "line": -1 if line is None else lines.number(line),
            "nbytes": nbytes,
            "flops": chunk["flops"][at],
            "release": chunk["release"][at],
            "released_by": -1 if by is None else by,
            "transfer_ns": split.transfer_ns,
            "latency_ns": split.latency_ns,
            "queue_ns": split.queue_ns,
            "wait_places": [place for place, _ in split.waits],
            "wait_ns": [ns for _, ns in split.waits],
            "route": list(split.route),
            "deps": chunk["dependency_ids"][at],
            "tensors": [tensor] if tensor else launches.tensors_at(launch, params),
            "params": json.dumps(params),
        }
        for key, value in values.items():
            rows[key].append(value)
        rows["lane"].append(0)


def _put_on_lanes(
    rows: dict[str, list[Any]], groups: dict[tuple[str, str], list[int]], kinds: dict[tuple[str, str], str]
) -> dict[str, list[Any]]:
    """Assign a lane to every op: the lowest slot of its port that is free at its start."""
    starts, ends, ids = rows["t_start"], rows["t_end"], rows["id"]
    lanes: dict[str, list[Any]] = {name: [] for name in LANE_COLUMNS}
    for component, port in sorted(groups, key=_lane_order):
        free: list[int] = []
        taken: list[tuple[float, int]] = []  # until when, slot
        base, slots = len(lanes["name"]), 0
        place = Place.of(component)
        for row in sorted(groups[component, port], key=lambda row: (starts[row], ends[row], ids[row])):
            while taken and taken[0][0] <= starts[row]:
                heappush(free, heappop(taken)[1])
            if free:
                slot = heappop(free)
            else:
                slot, slots = slots, slots + 1
                name = f"{component}.{port}" + (f"#{slot}" if slot else "")
                found = (name, component, port, slot, kinds[component, port], place.sip, place.cube, place.pe, 0, 0.0)
                for key, value in zip(LANE_COLUMNS, found, strict=True):
                    lanes[key].append(value)
            heappush(taken, (ends[row], slot))
            rows["lane"][row] = base + slot
            lanes["ops"][base + slot] += 1
            lanes["busy_ns"][base + slot] += ends[row] - starts[row]
    return lanes


def _lane_order(group: tuple[str, str]) -> tuple[Any, ...]:
    component, port = group
    place = Place.of(component)
    at = _PORT_ORDER.index(port) if port in _PORT_ORDER else len(_PORT_ORDER)
    return place.sip, place.cube, place.pe, at, component, port
