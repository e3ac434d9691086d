"""How fast memory moves the tiles of an operand, in closed form, for the model of the pipeline.

A tile that is one run of bytes moves at the rate of its path. Where each row is a run of its own, a request takes as
long as its busiest channel: rows that lie a multiple of a round over the channels apart are all on the same ones, and a
burst of which a row needs a part pays for the granules that are touched. Requests in flight at the same time:
`flight_model.py`. Not modelled: rows of edge tiles, which are narrower, and where the tensor itself begins among the
channels.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from kernbench.common.array_types import Floats, Ints
from kernbench.common.commands import ROW_MAJOR, Operand
from kernbench.common.composite_use import PathTiming
from kernbench.common.dtypes import dtype_of
from kernbench.components.builtin.tiling import as_matrix

MOST_PLACES = 4  # of tiles within a burst that are looked at


class TilePath(NamedTuple):
    """The path to an operand's memory, as its tiles have it: rates are one number, or one for each tile size."""

    latency_ns: float
    gbs: float | Floats  # of a tile that is alone
    shared_gbs: float | Floats  # of many that overlap
    memory: str
    round_bytes: int
    round_ns: float


def tile_path(operand: Operand, path: PathTiming, height: Ints, width: Ints) -> TilePath:
    """The path of an operand whose tiles have so many rows and columns, whole ones."""
    alone: float | Floats = path.gbs
    shared: float | Floats = path.gbs
    if operand.layout == ROW_MAJOR and path.burst_bytes:
        alone, shared = _row_gbs(operand, path, height, width)
    return TilePath(path.latency_ns, alone, shared, path.memory, path.round_bytes, path.round_ns)


def _row_gbs(operand: Operand, path: PathTiming, height: Ints, width: Ints) -> tuple[Floats, Floats]:
    """Of a tile that is alone, whose latency has the time of one burst, and of tiles that overlap on its channels."""
    stride, tall, row_bytes = tile_in_memory(operand, height, width)
    pairs, which = np.unique(np.stack((tall, row_bytes)), axis=1, return_inverse=True)
    found = np.empty((2, pairs.shape[1]))
    for at, (rows, part) in enumerate(pairs.T.tolist()):
        busiest_ns = _busiest_ns(path, *_runs(rows, part, stride), stride)
        found[:, at] = rows * part / np.maximum((busiest_ns - path.round_ns, busiest_ns), rows * part / path.gbs)
    alone, shared = found[:, which.ravel()]
    return alone, shared


def tile_in_memory(operand: Operand, height: Ints, width: Ints) -> tuple[int, Ints, Ints]:
    """Bytes from row to row of an operand as it lies in memory; of tiles, how many rows, and bytes of each."""
    (rows, cols), itemsize = as_matrix(operand.shape), dtype_of(operand.dtype).itemsize
    height, width = np.minimum(height, rows), np.minimum(width, cols)
    if operand.transposed:
        cols, height, width = rows, width, height
    return cols * itemsize, height, width * itemsize


def _runs(rows: int, row_bytes: int, stride: int) -> tuple[int, int]:
    """How many runs, and bytes of each: whole rows lie end to end."""
    return (1, rows * row_bytes) if row_bytes == stride else (rows, row_bytes)


def channel_times(
    operand: Operand, path: PathTiming, stride: int, tall: Ints, row_bytes: Ints
) -> tuple[Floats, Ints, Ints]:
    """How long each channel takes for a tile that begins on the first one, by size and by place within a burst; which
    size each tile has, and how many places. A memory without channels counts as one.
    """
    pairs, which = np.unique(np.stack((tall, row_bytes)), axis=1, return_inverse=True)
    channels = path.round_bytes // path.burst_bytes if path.burst_bytes else 1
    found, places = np.zeros((pairs.shape[1], MOST_PLACES, channels)), np.ones(pairs.shape[1], np.int64)
    for at, (rows, part) in enumerate(pairs.T.tolist()):
        if not path.burst_bytes:
            found[at] = rows * part / path.gbs
            continue
        count, each = _runs(rows, part, stride) if operand.layout == ROW_MAJOR else (1, rows * part)
        places[at] = _places(path, count, each)
        for place in range(places[at]):
            found[at, place] = _tile_ns(path, count, each, stride, place * each % path.burst_bytes)
    return found, which.ravel(), places[which.ravel()]


def occupied_ns(path: TilePath, requests: Ints, nbytes: Ints) -> Floats:
    """How long requests of equal size occupy a memory's channels, or its path."""
    rounds_ns = requests * np.ceil(nbytes / requests / path.round_bytes) * path.round_ns
    return np.asarray(np.maximum(rounds_ns, nbytes / path.shared_gbs))


@lru_cache(maxsize=4096)
def _busiest_ns(path: PathTiming, rows: int, row_bytes: int, stride: int) -> float:
    """How long the busiest channel takes for a tile: over tiles side by side, on average."""
    places = _places(path, rows, row_bytes)
    return sum(float(_tile_ns(path, rows, row_bytes, stride, at * row_bytes).max()) for at in range(places)) / places


def _places(path: PathTiming, rows: int, row_bytes: int) -> int:
    """Of tiles side by side within a burst."""
    return min(path.burst_bytes // gcd(row_bytes, path.burst_bytes), MOST_PLACES) if rows > 1 else 1


def _tile_ns(path: PathTiming, rows: int, row_bytes: int, stride: int, first: int) -> Floats:
    """How long each channel takes for a tile whose first row is so many bytes from the begin of a round."""
    period = path.round_bytes // gcd(stride, path.round_bytes)  # rows after which channels repeat
    whole, rest = divmod(rows, period)
    busy = _channels_ns(path, rest, row_bytes, stride, first)
    if whole:
        busy = busy + whole * _channels_ns(path, period, row_bytes, stride, first)
    return busy


def _channels_ns(path: PathTiming, rows: int, row_bytes: int, stride: int, first: int) -> Floats:
    """How long each channel takes for some rows, the first of which is so many bytes from the begin of a round."""
    channels = path.round_bytes // path.burst_bytes
    rounds, part = divmod(row_bytes, path.round_bytes)
    busy = np.full(channels, rows * rounds * path.round_ns)
    if not rows or not part:
        return busy
    size = path.granule_bytes or path.burst_bytes
    starts = first + np.arange(rows) * stride
    ends = starts + part - 1
    touched = (starts // size)[:, None] + np.arange(-(-part // size) + 1)
    granules = np.unique(touched[touched <= (ends // size)[:, None]])
    bursts, counts = np.unique(granules * size // path.burst_bytes, return_counts=True)
    per_burst = path.burst_bytes // size
    short_ns = np.maximum(counts * path.round_ns / per_burst, path.open_ns)
    times = np.where(counts == per_burst, path.round_ns, short_ns)
    return np.asarray(busy + np.bincount(bursts % channels, times, channels))
