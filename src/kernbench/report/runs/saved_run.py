"""A saved run, as everything that looks at runs reads it: typed columns, lanes, launches, places, activity, sources.

`open_run` looks at the manifest and the sizes of files only; each file is read when it is first asked for. Columns are
numpy arrays in the order of `ops.parquet` (lane, start, id); `Ops.row_of` leads from an op's id to its row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.report.runs.files import SAVE_AGAIN, read_json, read_manifest, read_table
from kernbench.report.runs.layout import (
    ACTIVITY,
    ACTIVITY_COLUMNS,
    KINDS,
    LANE_COLUMNS,
    LANES,
    LAUNCHES,
    MACHINE,
    OP_COLUMNS,
    OPS,
    PLACE_COLUMNS,
    PLACES,
    SOURCES,
)
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.spec import MachineSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Words(NamedTuple):
    """A column of few different words: `words[codes[row]]`."""

    codes: Ints
    words: tuple[str, ...]

    def __getitem__(self, row: Any) -> str:  # type: ignore[override]  # a column is asked by row
        return self.words[int(self.codes[row])]

    def are(self, *wanted: str) -> NDArray[np.bool_]:
        """Of every row, whether it is one of these words."""
        codes = [code for code, word in enumerate(self.words) if word in wanted]
        return np.isin(self.codes, codes)


class Lists(NamedTuple):
    """A column of lists: that of a row is `values[starts[row]:starts[row + 1]]`."""

    starts: Ints
    values: NDArray[Any]

    def of(self, row: int) -> NDArray[Any]:
        return self.values[int(self.starts[row]) : int(self.starts[row + 1])]


@dataclass(frozen=True, eq=False)
class Ops:
    """All ops, a column each. See `layout.OP_COLUMNS`."""

    id: Ints
    lane: Ints
    launch: Ints
    kind: Words
    name: Words
    t_asked: Floats
    t_ready: Floats
    t_start: Floats
    t_end: Floats
    line: Ints
    nbytes: Ints
    flops: Ints
    release: Words
    released_by: Ints
    transfer_ns: Floats
    latency_ns: Floats
    queue_ns: Floats
    wait_places: Lists
    wait_ns: Lists
    deps: Lists
    tensors: Lists
    _params: Any

    def __len__(self) -> int:
        return len(self.id)

    @cached_property
    def row_of(self) -> Ints:
        """By id: the row of an op."""
        rows = np.empty(len(self.id), np.int64)
        rows[self.id] = np.arange(len(self.id))
        return rows

    def params(self, row: int) -> dict[str, Any]:
        """What else the op log says of an op."""
        return dict(json.loads(self._params[int(row)].as_py()))

    @cached_property
    def is_work(self) -> NDArray[np.bool_]:
        """Of every row, whether it is work of an engine: spans are not, nor is the host."""
        return ~self.kind.are("S", "H")


@dataclass(frozen=True, slots=True)
class Lane:
    """One engine, port or channel at a time: its slices never overlap. `ops` rows are `first` to `stop`."""

    index: int
    name: str
    component: str
    port: str
    slot: int
    kind: str
    sip: int
    cube: int
    pe: int
    ops: int
    busy_ns: float
    first: int
    stop: int

    @property
    def kind_name(self) -> str:
        """`DMA read`."""
        return KINDS[self.kind]


@dataclass(frozen=True, slots=True)
class PeRun:
    """One PE's part of a launch."""

    sip: int
    cube: int
    pe: int
    start_ns: float
    end_ns: float
    dma_ns: float
    compute_ns: float

    @property
    def name(self) -> str:
        return f"sip{self.sip}.cube{self.cube}.pe{self.pe}"


@dataclass(frozen=True, slots=True)
class SavedLaunch:
    """A launch: when the host asked for it and had its completion, and each PE's part."""

    index: int
    name: str
    kernel: str
    stream: str
    sips: tuple[int, ...]
    start_ns: float
    end_ns: float
    flops: int
    bytes_hbm: int
    pes: tuple[PeRun, ...]

    @property
    def total_ns(self) -> float:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class Place:
    """A directed link, or a memory channel (`dst` is empty, `channel` its number)."""

    index: int
    kind: str
    src: str
    dst: str
    channel: int
    link_class: str
    gbs: float
    nbytes: float
    wait_ns: float
    contended_ns: float

    @property
    def name(self) -> str:
        """`a -> b`, or `sip0.cube0.hbm_ctrl.pe0 channel 3`."""
        return f"{self.src} -> {self.dst}" if self.kind == "link" else f"{self.src} channel {self.channel}"


@dataclass(frozen=True, eq=False)
class Activity:
    """What places did over time, in `bins` bins of `bin_ns` from time 0. Sums over bins are the places' totals."""

    bin_ns: float
    bins: int
    place: Ints
    bin: Ints
    nbytes: Floats
    wait_ns: Floats
    contended_ns: Floats

    def of(self, place: int, metric: str = "nbytes") -> Floats:
        """One place over time: `nbytes`, `wait_ns` or `contended_ns` of every bin."""
        first, stop = np.searchsorted(self.place, [place, place + 1])
        found = np.zeros(self.bins)
        column: Floats = getattr(self, metric)
        found[self.bin[first:stop]] = column[first:stop]
        return found


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of the user's, as it was when the run was saved. `text` is None where it could not be read."""

    index: int
    name: str
    text: str | None

    @property
    def lines(self) -> list[str]:
        return [] if self.text is None else self.text.splitlines()


@dataclass(frozen=True, slots=True)
class SourceLine:
    """A line that issued ops. `number` counts from 1."""

    index: int
    file: SourceFile
    number: int

    @property
    def text(self) -> str:
        lines = self.file.lines
        return lines[self.number - 1].strip() if 0 < self.number <= len(lines) else ""

    @property
    def name(self) -> str:
        """`flash_attention.py:42`."""
        return f"{self.file.name}:{self.number}"


@dataclass(frozen=True)
class Manifest:
    """What a run is: see docs/adr/0031."""

    version: str
    hash: str
    command: tuple[str, ...]
    created: str
    identifier: str
    bench: str
    title: str
    params: Mapping[str, Any]
    device: str
    devices: tuple[int, ...]
    machine: str
    machine_hash: str
    total_ns: float
    kernels_ns: float
    verified: str  # verified, not compared, or wrong
    ok: bool
    launches: int
    ops: int
    bin_ns: float
    bins: int
    files: Mapping[str, int]
    raw: Mapping[str, Any]


class SavedRun:
    """A run folder. Raises UsageError, which says what is damaged, when a file is read that cannot be."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        raw = read_manifest(self.path)
        try:
            named = {name: raw[name] for name in Manifest.__dataclass_fields__ if name != "raw"}
            named["command"], named["devices"] = tuple(raw["command"]), tuple(raw["devices"])
            self.manifest = Manifest(raw=raw, **named)
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"the saved run is damaged: its manifest lacks {error}", where=str(self.path), hint=SAVE_AGAIN
            ) from error

    def __repr__(self) -> str:
        return f"<SavedRun {self.id}: {self.name}, {self.total_ns} ns>"

    @property
    def id(self) -> str:
        """The first 12 hex digits of the content's hash."""
        return self.manifest.hash[:12]

    @property
    def name(self) -> str:
        return self.manifest.title

    @property
    def total_ns(self) -> float:
        return self.manifest.total_ns

    @cached_property
    def ops(self) -> Ops:
        table = read_table(self.path, OPS, OP_COLUMNS)
        columns: dict[str, Any] = {}
        for name, kind in OP_COLUMNS.items():
            column = _joined(table.column(name))
            if name == "params":
                columns["_params"] = column
            elif kind == "string":
                columns[name] = _words(column)
            elif kind.startswith("list"):
                columns[name] = _lists(column)
            else:
                columns[name] = _numbers(column, kind)
        return Ops(**columns)

    @cached_property
    def lanes(self) -> tuple[Lane, ...]:
        rows = self._rows(LANES, LANE_COLUMNS)
        firsts = np.searchsorted(self.ops.lane, np.arange(len(rows) + 1))
        return tuple(Lane(index=i, first=int(firsts[i]), stop=int(firsts[i + 1]), **row) for i, row in enumerate(rows))

    @cached_property
    def launches(self) -> tuple[SavedLaunch, ...]:
        rows = read_json(self.path, LAUNCHES)
        with self._damage(LAUNCHES):
            return tuple(
                SavedLaunch(
                    **{**row, "index": i, "sips": tuple(row["sips"]), "pes": tuple(PeRun(**pe) for pe in row["pes"])}
                )
                for i, row in enumerate(rows)
            )

    @cached_property
    def places(self) -> tuple[Place, ...]:
        return tuple(Place(index=i, **row) for i, row in enumerate(self._rows(PLACES, PLACE_COLUMNS)))

    @cached_property
    def activity(self) -> Activity:
        table = read_table(self.path, ACTIVITY, ACTIVITY_COLUMNS)
        columns = {name: _numbers(_joined(table.column(name)), kind) for name, kind in ACTIVITY_COLUMNS.items()}
        return Activity(self.manifest.bin_ns, self.manifest.bins, **columns)

    @cached_property
    def _source_data(self) -> tuple[tuple[SourceFile, ...], tuple[SourceLine, ...]]:
        data = read_json(self.path, SOURCES)
        with self._damage(SOURCES):
            files = tuple(SourceFile(i, str(row["name"]), row["text"]) for i, row in enumerate(data["files"]))
            lines = tuple(SourceLine(i, files[file], int(number)) for i, (file, number) in enumerate(data["lines"]))
            return files, lines

    @property
    def sources(self) -> tuple[SourceFile, ...]:
        """Files of the kernels."""
        return self._source_data[0]

    @property
    def lines(self) -> tuple[SourceLine, ...]:
        """Lines that issued ops, by the number that `Ops.line` has."""
        return self._source_data[1]

    @cached_property
    def graph(self) -> TopologyGraph:
        """The machine, compiled."""
        data = read_json(self.path, MACHINE)
        try:
            return load_topology(MachineSpec.model_validate(data))
        except (KernBenchError, ValueError) as error:
            raise UsageError(
                f"the machine of the saved run cannot be built: {str(error).splitlines()[0]}",
                where=str(self.path / MACHINE),
                hint=SAVE_AGAIN,
            ) from error

    def _rows(self, name: str, columns: Mapping[str, str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_table(self.path, name, columns).to_pylist()
        return rows

    def _damage(self, name: str) -> _Damage:
        return _Damage(self.path, name)


class _Damage:
    """Turns what a damaged JSON file makes of a reader into an error that says so."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, KeyError | TypeError | ValueError | IndexError):
            raise UsageError(
                f"the saved run is damaged: {self._name} lacks {error}", where=str(self._path), hint=SAVE_AGAIN
            ) from error


def open_run(path: str | Path) -> SavedRun:
    """A run that `kernbench run --save` wrote; raises UsageError for a folder that is none, damaged or newer."""
    return SavedRun(path)


def find_runs(folder: str | Path) -> Iterator[Path]:
    """The run folders at and below a folder, in order of name; folders of runs are not looked into."""
    root = Path(folder)
    if not root.is_dir():
        raise UsageError("there is no such folder", where=str(folder), hint="name a folder with saved runs in it")
    pending = [root]
    while pending:
        at = pending.pop()
        if (at / "manifest.json").is_file():
            yield at
            continue
        below = [child for child in at.iterdir() if child.is_dir() and not child.name.startswith(".")]
        pending += sorted(below, reverse=True)


# ---- from Arrow


def _joined(column: Any) -> Any:
    """A column as one array."""
    if column.num_chunks == 1:
        return column.chunk(0)
    from pyarrow import array

    return array([], column.type) if column.num_chunks == 0 else column.combine_chunks()


def _numbers(column: Any, kind: str) -> NDArray[Any]:
    found: NDArray[Any] = column.to_numpy(zero_copy_only=False)
    return found.astype(np.float64 if kind == "float64" else np.int64, copy=False)


def _words(column: Any) -> Words:
    encoded = column.dictionary_encode() if not hasattr(column, "dictionary") else column
    codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return Words(codes, tuple(encoded.dictionary.to_pylist()))


def _lists(column: Any) -> Lists:
    starts = column.offsets.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    values = column.values.to_numpy(zero_copy_only=False)
    return Lists(starts, values)
