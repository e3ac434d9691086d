"""The parts of a saved run as its readers use them: columns of ops, lanes, launches, places, activity, sources.

Columns are numpy arrays in the order of `ops.parquet` (lane, start, id); `RunOps.row_of` maps an op's id to its row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Floats
from kernbench.report.runs.layout import KINDS

TILE: Final = "TileToken/"  # begins the names of a composite's ops
Ints = NDArray[np.integer[Any]]  # 32 or 64 bits, as stored


@dataclass(frozen=True, eq=False)
class Words:
    """A column of few distinct strings: `words[codes[row]]`."""

    codes: Ints
    words: tuple[str, ...]

    def __getitem__(self, row: int | np.integer[Any]) -> str:
        return self.words[int(self.codes[row])]

    def are(self, *wanted: str) -> NDArray[np.bool_]:
        """A mask: whether each row is one of these words."""
        codes = [code for code, word in enumerate(self.words) if word in wanted]
        return np.isin(self.codes, codes)


class Lists(NamedTuple):
    """A column of lists: that of a row is `values[starts[row]:starts[row + 1]]`."""

    starts: Ints
    values: NDArray[Any]

    def of(self, row: int) -> NDArray[Any]:
        return self.values[int(self.starts[row]) : int(self.starts[row + 1])]


@dataclass(frozen=True, eq=False)
class RunOps:
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
    route: Lists
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
        """The other fields of the op log."""
        text = self._params[int(row)]
        return dict(json.loads(text if isinstance(text, str) else text.as_py()))

    def pieces(self, row: int) -> tuple[int, int]:
        """How many requests a transfer is, and how many contiguous runs of bytes."""
        return pieces_of(self.params(row))

    def label(self, row: int) -> str:
        """An op as slices are labelled: `load k`, `exp`."""
        name = self.name[row].rpartition("/")[2].lower()
        word = {"dma_read": "load", "dma_write": "store"}.get(name, name)
        tensors = self.tensors.of(row)
        return f"{word} {tensors[0]}" if len(tensors) else word

    @cached_property
    def is_work(self) -> NDArray[np.bool_]:
        """A mask: whether each row is work of an engine, not a span or a host request."""
        return ~self.kind.are("S", "H")


def pieces_of(params: Mapping[str, Any]) -> tuple[int, int]:
    """Requests and runs of bytes, from the other fields of a transfer."""
    requests = int(params.get("requests", 1))
    return requests, int(params.get("runs", requests))


@dataclass(frozen=True, slots=True)
class SavedLane:
    """A lane of an engine, port or channel: its ops never overlap. Its rows of `ops` are `first` to `stop`."""

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
    """A launch: from the host's request to its completion, and the part of each PE that took time."""

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
    idle_pes: int = 0  # PEs whose kernel returned at once; runs that are saved by older versions do not have it
    called_at: str = ""  # of a tensor operation or a collective: `file:line  source` of the program

    @property
    def total_ns(self) -> float:
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class SavedPlace:
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
class SavedActivity:
    """Activity of places over time, in `bins` bins of `bin_ns` from time 0. Sums over bins are the places' totals."""

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
    """A source file of a kernel, as it was when the run was saved. `text` is None if it could not be read."""

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
