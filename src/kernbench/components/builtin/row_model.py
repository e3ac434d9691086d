"""How fast memory moves the tiles of an operand, in closed form, for the model of the pipeline.

A tile that is one run of bytes moves at the rate of its path. Where each row is a run of its own, a request takes as
long as its busiest channel: rows that lie a multiple of a round over the channels apart are all on the same ones, and a
burst of which a row needs a part pays for the granules that are touched. Not modelled: rows of edge tiles, which are
narrower, where the tensor itself begins among the channels, and that operands may lie on different channels: tiles
that overlap are added up as if they did not.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd
from typing import NamedTuple

import numpy as np

from kernbench.common.commands import ROW_MAJOR, Operand
from kernbench.common.composite_use import PathTiming
from kernbench.common.dtypes import dtype_of
from kernbench.components.builtin.engine_cycles import Floats, Ints
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
    (rows, cols), itemsize = as_matrix(operand.shape), dtype_of(operand.dtype).itemsize
    height, width = np.minimum(height, rows), np.minimum(width, cols)
    if operand.transposed:
        rows, cols, height, width = cols, rows, width, height
    pairs, which = np.unique(np.stack((height, width)), axis=1, return_inverse=True)
    found = np.empty((2, pairs.shape[1]))
    for at, (tall, wide) in enumerate(pairs.T.tolist()):
        runs = (1, tall * cols * itemsize) if wide == cols else (tall, wide * itemsize)
        nbytes, busiest_ns = runs[0] * runs[1], _busiest_ns(path, *runs, cols * itemsize)
        found[:, at] = nbytes / np.maximum((busiest_ns - path.round_ns, busiest_ns), nbytes / path.gbs)
    alone, shared = found[:, which.ravel()]
    return alone, shared


def occupied_ns(path: TilePath, requests: Ints, nbytes: Ints) -> Floats:
    """How long requests of equal size occupy a memory's channels, or its path."""
    rounds_ns = requests * np.ceil(nbytes / requests / path.round_bytes) * path.round_ns
    return np.asarray(np.maximum(rounds_ns, nbytes / path.shared_gbs))


@lru_cache(maxsize=4096)
def _busiest_ns(path: PathTiming, rows: int, row_bytes: int, stride: int) -> float:
    """How long the busiest channel takes for a tile: over tiles side by side, on average."""
    places = min(path.burst_bytes // gcd(row_bytes, path.burst_bytes), MOST_PLACES) if rows > 1 else 1
    return sum(_tile_ns(path, rows, row_bytes, stride, at * row_bytes) for at in range(places)) / places


def _tile_ns(path: PathTiming, rows: int, row_bytes: int, stride: int, first: int) -> float:
    period = path.round_bytes // gcd(stride, path.round_bytes)  # rows after which channels repeat
    whole, rest = divmod(rows, period)
    busy = _channels_ns(path, rest, row_bytes, stride, first)
    if whole:
        busy = busy + whole * _channels_ns(path, period, row_bytes, stride, first)
    return float(busy.max())


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
