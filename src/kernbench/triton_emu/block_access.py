"""Maps a block of elements to runs of bytes, and runs to requests of the DMA engine.

A block is an address and a shape, and maybe strides, a mask, or rows given by their numbers. Its *lanes* are its
elements in row-major order; a lane that is masked out touches no byte. The bytes touched, each once and in ascending
order, make maximal *runs*: neither the order of lanes nor lanes at one place matter. Runs of one length at one distance
are one request, like a strided descriptor; runs are cut into requests from the lowest address on. Pure functions: no
clock, no memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Ints, Mask
from kernbench.common.commands import DmaRequest, Segment
from kernbench.common.dtypes import DType
from kernbench.common.errors import KernBenchError
from kernbench.policy.placement.shard_grid import ShardGrid
from kernbench.triton_emu.runs import LaneRuns, covered_runs, lane_runs, strided_groups

Offsets = NDArray[np.int64]
Translate = Callable[[int, int], Sequence[Segment]]


class Run(NamedTuple):
    """Bytes that lie end to end: where, counted from the block's address, and where among the block's lanes."""

    offset: int
    nbytes: int
    lane_offset: int  # in bytes of the block as a dense tensor


class Patch(NamedTuple):
    """`rows` runs of `run` bytes, `step` apart in memory from `at` on and `lane_step` apart among the lanes."""

    at: int
    step: int
    lane_offset: int
    lane_step: int
    rows: int
    run: int


@dataclass(frozen=True, eq=False)
class Lanes:
    """Which bytes a block touches, as runs in the order of its lanes. Blocks of one form share it, wherever they lie,
    and with it what depends on nothing else.
    """

    shape: tuple[int, ...]
    dtype: DType
    runs: tuple[Run, ...]
    strides_bytes: tuple[int, ...] | None = None  # of all axes, where no lane is masked out
    is_gather: bool = False  # whether lanes are placed one by one, even if they happen to lie end to end

    @cached_property
    def nbytes(self) -> int:
        """Of the block as a dense tensor."""
        return prod(self.shape) * self.dtype.itemsize

    @cached_property
    def span(self) -> tuple[int, int]:
        """The first byte touched, and the end; an empty range without lanes."""
        if not self.runs:
            return 0, 0
        return min(run.offset for run in self.runs), max(run.offset + run.nbytes for run in self.runs)

    @cached_property
    def touched_bytes(self) -> int:
        """The total of all runs: a byte that two lanes touch counts twice."""
        return sum([run.nbytes for run in self.runs])

    @cached_property
    def cover(self) -> tuple[Segment, ...]:
        """Every byte touched once, as maximal runs in ascending order: (offset, bytes) each."""
        if len(self.runs) == 1:
            return (self.runs[0][:2],)
        starts, lengths, _ = self.columns
        return tuple(_pairs(*covered_runs(starts, lengths)))

    @cached_property
    def requests(self) -> tuple[tuple[int, int], ...]:
        """The cover cut into requests, (first, end) each."""
        if len(self.cover) == 1:
            return ((0, 1),)
        columns = np.array(self.cover, np.int64).reshape(-1, 2)
        return tuple(strided_groups(columns[:, 1], columns[:, 0]))

    @cached_property
    def patches(self) -> tuple[Patch, ...]:
        """The runs, grouped into strided copies."""
        if len(self.runs) == 1:
            offset, nbytes, lane_offset = self.runs[0]
            return (Patch(offset, nbytes, lane_offset, nbytes, 1, nbytes),)
        return _patches(*self.columns)

    @property
    def columns(self) -> LaneRuns:
        """The runs as arrays."""
        columns = np.array(self.runs, np.int64).reshape(-1, 3)
        return LaneRuns(columns[:, 0], columns[:, 1], columns[:, 2])


class Block(NamedTuple):
    """Lanes and where they lie: the physical segments that they touch, each byte once; the requests these make; and
    from which addresses bytes are copied to which lanes.
    """

    lanes: Lanes
    segments: tuple[Segment, ...]
    requests: tuple[DmaRequest, ...]
    patches: tuple[Patch, ...]
    is_in_one_piece: bool = False  # whether its runs are as far apart in physical memory as in their range

    @property
    def is_whole(self) -> bool:
        """Whether no lane is masked out."""
        return self.lanes.touched_bytes == self.lanes.nbytes

    @property
    def pieces(self) -> list[tuple[int, int, int]]:
        """What its lanes touch in the order of the lanes, as (address, bytes, place among the lanes)."""
        return [
            (at + row * step, run, lane + row * lane_step)
            for at, step, lane, lane_step, rows, run in self.patches
            for row in range(rows)
        ]


def _pairs(starts: Ints, lengths: Ints) -> list[Segment]:
    return list(zip(starts.tolist(), lengths.tolist(), strict=True))


def _patches(starts: Ints, lengths: Ints, lane_starts: Ints, apart: Ints | None = None) -> tuple[Patch, ...]:
    at, nbytes, lanes = starts.tolist(), lengths.tolist(), lane_starts.tolist()
    found = []
    for first, end in strided_groups(lengths, starts, lane_starts, apart=apart):
        run = nbytes[first]
        step, lane_step = (
            (at[first + 1] - at[first], lanes[first + 1] - lanes[first]) if end - first > 1 else (run, run)
        )
        found.append(Patch(at[first], step, lanes[first], lane_step, end - first, run))
    return tuple(found)


def _lanes_of(
    shape: tuple[int, ...],
    dtype: DType,
    found: LaneRuns,
    strides: tuple[int, ...] | None = None,
    is_gather: bool = False,
) -> Lanes:
    columns = (column.tolist() for column in found)
    return Lanes(shape, dtype, tuple(map(Run, *columns)), strides, is_gather)


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
    starts = _offsets(shape[:outer], strides_bytes[:outer])
    if not starts.size or not nbytes:
        return Lanes(shape, dtype, ())
    return _lanes_of(shape, dtype, lane_runs(starts, nbytes), strides_bytes, is_gather=True)


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
    """A block whose elements lie at these distances in bytes, where the mask is true."""
    return _lanes_of(offsets.shape, dtype, lane_runs(offsets, dtype.itemsize, mask), is_gather=True)


def on_shards(lanes: Lanes, behind: int, grid: ShardGrid, itemsize: int) -> Lanes | None:
    """The same lanes, counted from the start of a tensor's range instead of from an address that is `behind` bytes
    behind its first element in row-major order. None where a lane lies in two shards. `itemsize` is the tensor's.
    """
    starts, lengths, lane_starts = lanes.columns
    size = lanes.dtype.itemsize
    counts = lengths // size
    steps = (np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)) * size
    at = np.repeat(starts, counts) + steps + behind
    first, last = (grid.places(byte // itemsize) * itemsize + byte % itemsize for byte in (at, at + size - 1))
    if (last - first != size - 1).any():
        return None
    live = (np.repeat(lane_starts, counts) + steps) // size
    offsets, mask = np.zeros(prod(lanes.shape), np.int64), np.zeros(prod(lanes.shape), np.bool_)
    offsets[live], mask[live] = first, True
    return of_offsets(offsets.reshape(lanes.shape), lanes.dtype, mask)


def placed(lanes: Lanes, address: int, translate: Translate) -> Block:
    """Lanes at an address; `translate` says which physical segments stand behind a range."""
    if not lanes.runs:
        return Block(lanes, (), (), ())
    first, end = lanes.span
    try:
        pieces = translate(address + first, end - first)
    except KernBenchError:  # the bytes between runs may belong to no tensor
        return _in_pieces(lanes, address, translate)
    if len(pieces) > 1:
        return _in_pieces(lanes, address, _within(pieces, address + first))
    base = pieces[0][0] - first
    segments = tuple([(base + offset, nbytes) for offset, nbytes in lanes.cover])
    requests = tuple([segments[start:stop] for start, stop in lanes.requests])
    patches = tuple([Patch(base + patch.at, *patch[1:]) for patch in lanes.patches])
    return Block(lanes, segments, requests, patches, True)


def _within(pieces: Sequence[Segment], start: int) -> Translate:
    """How ranges within [start, ...) are translated, whose physical pieces follow one another."""
    ends = list(accumulate((nbytes for _, nbytes in pieces), initial=start))

    def translate(address: int, nbytes: int) -> Sequence[Segment]:
        found: list[Segment] = []
        at = bisect_right(ends, address) - 1
        while nbytes:
            size = min(nbytes, ends[at + 1] - address)
            found.append((pieces[at][0] + address - ends[at], size))
            address, nbytes, at = address + size, nbytes - size, at + 1
        return found

    return translate


def _in_pieces(lanes: Lanes, address: int, translate: Translate) -> Block:
    """Lanes of which runs lie in several memories, or in places of their own."""
    covered = [tuple(translate(address + offset, nbytes)) for offset, nbytes in lanes.cover]
    segments = tuple(segment for found in covered for segment in found)
    requests = [tuple(piece for found in covered[first:end] for piece in found) for first, end in lanes.requests]
    rows: list[tuple[int, int, int, int]] = []
    for offset, size, lane_offset in lanes.runs:
        done = 0
        for pa, nbytes in translate(address + offset, size):
            rows.append((pa, nbytes, lane_offset + done, pa - offset - done))  # the last one distinguishes memories
            done += nbytes
    pas, lengths, lane_starts, memories = np.array(rows, np.int64).reshape(-1, 4).T
    return Block(lanes, segments, tuple(requests), _patches(pas, lengths, lane_starts, memories))
