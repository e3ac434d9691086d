"""From a block of elements to runs of bytes, and from runs to what a DMA engine is asked for.

A block is an address and a shape, and maybe strides, a mask, or rows given by their numbers. Its *lanes* are its
elements in row-major order; a lane that is masked out touches no byte. Lanes that lie end to end in memory are one
*run*. Runs of one length at one distance are one request, as a descriptor with a stride says it; anything else is one
request per run. Pure: no clock, no memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.commands import DmaRequest, Segment
from kernbench.common.dtypes import DType
from kernbench.common.errors import KernBenchError

Offsets = NDArray[np.int64]
Mask = NDArray[np.bool_]
Translate = Callable[[int, int], Sequence[Segment]]


class Run(NamedTuple):
    """Bytes that lie end to end: where, counted from the block's address, and where among the block's lanes."""

    offset: int
    nbytes: int
    lane_offset: int  # in bytes of the block as a dense tensor


@dataclass(frozen=True, eq=False)
class Lanes:
    """Which bytes a block touches, as runs in the order of its lanes. Blocks of one form share it, wherever they lie,
    and with it what depends on nothing else.
    """

    shape: tuple[int, ...]
    dtype: DType
    runs: tuple[Run, ...]
    strides_bytes: tuple[int, ...] | None = None  # of all axes, where no lane is masked out

    @cached_property
    def nbytes(self) -> int:
        """Of the block as a dense tensor."""
        return prod(self.shape) * self.dtype.itemsize

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first byte touched, and the end; nothing for no lanes."""
        if not self.runs:
            return 0, 0
        return min(run.offset for run in self.runs), max(run.offset + run.nbytes for run in self.runs)

    @cached_property
    def touched_bytes(self) -> int:
        """All runs together."""
        return sum([run.nbytes for run in self.runs])

    @cached_property
    def lane_offsets(self) -> tuple[int, ...]:
        return tuple([run.lane_offset for run in self.runs])

    @cached_property
    def requests(self) -> tuple[tuple[int, int], ...]:
        """Runs cut into requests, (first, end) each."""
        return tuple(_requests(self.runs))


class Block(NamedTuple):
    """Lanes and where they lie: physical segments, each with its place among the lanes, and the requests they make."""

    lanes: Lanes
    segments: tuple[Segment, ...]
    lane_offsets: tuple[int, ...]
    requests: tuple[DmaRequest, ...]
    strided_from: int | None = None  # physical address of the first lane, where strides hold there too

    @property
    def is_whole(self) -> bool:
        """Whether its segments, one after the other, are all of its lanes: none is masked out."""
        return self.lanes.touched_bytes == self.lanes.nbytes


@lru_cache(maxsize=1024)
def dense(shape: tuple[int, ...], dtype: DType) -> Lanes:
    """A block whose lanes lie end to end."""
    nbytes = prod(shape) * dtype.itemsize
    return Lanes(shape, dtype, (Run(0, nbytes, 0),) if nbytes else ())


def strided(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType, mask: Mask | None) -> Lanes:
    """A block whose element (i, j, ...) is i * strides[0] + j * strides[1] + ... elements behind its first."""
    if mask is None:
        return _of_strides(shape, strides, dtype)
    return of_offsets(_offsets(shape, tuple(stride * dtype.itemsize for stride in strides)), dtype, mask)


@lru_cache(maxsize=1024)
def _of_strides(shape: tuple[int, ...], strides: tuple[int, ...], dtype: DType) -> Lanes:
    """Nothing masked out: axes whose elements lie end to end are runs as a whole, so only runs are counted."""
    strides_bytes = tuple(stride * dtype.itemsize for stride in strides)
    nbytes, outer = dtype.itemsize, len(shape)
    while outer and (strides_bytes[outer - 1] == nbytes or shape[outer - 1] == 1):
        outer -= 1
        nbytes *= shape[outer]
    starts = _offsets(shape[:outer], strides_bytes[:outer]).reshape(-1)
    if not starts.size or not nbytes:
        return Lanes(shape, dtype, ())
    first = np.concatenate(([0], np.flatnonzero(np.diff(starts) != nbytes) + 1))
    counts = np.diff(np.concatenate((first, [starts.size])))
    runs = tuple(
        Run(offset, count * nbytes, at * nbytes)
        for offset, count, at in zip(starts[first].tolist(), counts.tolist(), first.tolist(), strict=True)
    )
    return Lanes(shape, dtype, runs, strides_bytes)


def _offsets(shape: tuple[int, ...], strides_bytes: tuple[int, ...]) -> Offsets:
    """Of every element, in bytes."""
    offsets = np.zeros(shape, np.int64)
    for axis, (size, stride) in enumerate(zip(shape, strides_bytes, strict=True)):
        steps = np.arange(size, dtype=np.int64) * stride
        offsets += steps.reshape(-1, *(1 for _ in shape[axis + 1 :]))
    return offsets


def of_rows(rows: Offsets, row_bytes: int, shape: tuple[int, ...], dtype: DType, mask: Mask | None) -> Lanes:
    """A block whose row i begins `rows[i]` rows of `row_bytes` behind the address; each row is dense."""
    width = prod(shape[1:])
    columns = np.arange(width, dtype=np.int64) * dtype.itemsize
    offsets = (rows.astype(np.int64)[:, np.newaxis] * row_bytes + columns).reshape(shape)
    return of_offsets(offsets, dtype, mask)


def of_offsets(offsets: Offsets, dtype: DType, mask: Mask | None) -> Lanes:
    """A block whose elements lie at these distances in bytes, as far as the mask lets them through."""
    size = dtype.itemsize
    flat = offsets.reshape(-1)
    lanes = np.arange(flat.size, dtype=np.int64)
    if mask is not None:
        lanes = np.flatnonzero(mask.reshape(-1)).astype(np.int64)
        flat = flat[lanes]
    if not flat.size:
        return Lanes(offsets.shape, dtype, ())
    breaks = np.flatnonzero((np.diff(flat) != size) | (np.diff(lanes) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    counts = np.diff(np.concatenate((starts, [flat.size])))
    runs = tuple(
        Run(offset, count * size, lane * size)
        for offset, count, lane in zip(flat[starts].tolist(), counts.tolist(), lanes[starts].tolist(), strict=True)
    )
    return Lanes(offsets.shape, dtype, runs)


def placed(lanes: Lanes, address: int, translate: Translate) -> Block:
    """Lanes at an address; `translate` says which physical segments stand behind a range."""
    return _in_one_piece(lanes, address, translate) or _in_pieces(lanes, address, translate)


def _in_one_piece(lanes: Lanes, address: int, translate: Translate) -> Block | None:
    """Lanes that lie in physical memory as they lie in their range, as most do; None for others, and where what lies
    between runs belongs to nobody.
    """
    if not lanes.runs:
        return None
    first, end = lanes.span
    try:
        pieces = translate(address + first, end - first)
    except KernBenchError:
        return None
    if len(pieces) != 1:
        return None
    base = pieces[0][0] - first
    segments = tuple([(base + run.offset, run.nbytes) for run in lanes.runs])
    requests = tuple([segments[start:stop] for start, stop in lanes.requests])
    strided_from = segments[0][0] if lanes.strides_bytes is not None and len(segments) > 1 else None
    return Block(lanes, segments, lanes.lane_offsets, requests, strided_from)


def _in_pieces(lanes: Lanes, address: int, translate: Translate) -> Block:
    segments: list[Segment] = []
    lane_offsets: list[int] = []
    pieces_of: list[tuple[Segment, ...]] = []
    for run in lanes.runs:
        pieces = tuple(translate(address + run.offset, run.nbytes))
        pieces_of.append(pieces)
        at = run.lane_offset
        for piece in pieces:
            segments.append(piece)
            lane_offsets.append(at)
            at += piece[1]
    requests = [tuple(piece for at in range(first, end) for piece in pieces_of[at]) for first, end in lanes.requests]
    return Block(lanes, tuple(segments), tuple(lane_offsets), tuple(requests), _strided_from(lanes, segments))


def _strided_from(lanes: Lanes, segments: Sequence[Segment]) -> int | None:
    """Where a block with strides begins in physical memory, if its runs are as far apart there as in their range."""
    if lanes.strides_bytes is None or len(segments) != len(lanes.runs) or len(segments) < 2:
        return None
    first = segments[0][0] - lanes.runs[0].offset
    alike = all(pa - run.offset == first for (pa, _), run in zip(segments, lanes.runs, strict=True))
    return segments[0][0] if alike else None


def _requests(runs: Sequence[Run]) -> list[tuple[int, int]]:
    """Runs cut into requests, (first, end) each: as many as have one length and follow at one distance."""
    found: list[tuple[int, int]] = []
    first = 0
    while first < len(runs):
        end = first + 1
        if end < len(runs):
            step = runs[end].offset - runs[first].offset
            while (
                end < len(runs)
                and step > 0
                and runs[end].nbytes == runs[first].nbytes
                and runs[end].offset - runs[end - 1].offset == step
            ):
                end += 1
        found.append((first, end))
        first = end
    return found
