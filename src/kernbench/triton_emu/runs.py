"""Finding runs: which bytes some lanes touch, as few stretches as can be. Pure functions on numpy arrays.

A *lane run* is a stretch of lanes that lie end to end in memory in the order of the lanes: what is copied in one go. A
*covered run* is a stretch of touched bytes, whichever lanes touch them and however often: what a DMA engine asks for.
Runs of one length whose starts are one distance apart form a *strided group*, which one descriptor describes.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Ints


class LaneRuns(NamedTuple):
    """Runs in the order of their lanes: where each starts, how long it is, and its place among the lanes, in bytes."""

    starts: Ints
    lengths: Ints
    lane_starts: Ints


class CoveredRuns(NamedTuple):
    """Disjoint runs in ascending order, no two of which touch."""

    starts: Ints
    lengths: Ints


def lane_runs(offsets: Ints, itemsize: int, mask: NDArray[np.bool_] | None = None) -> LaneRuns:
    """The runs of elements of `itemsize` bytes that start at `offsets`, as far as `mask` lets them through."""
    flat = offsets.reshape(-1)
    if mask is None:
        lanes = np.arange(flat.size, dtype=np.int64)
    else:
        lanes = np.flatnonzero(mask.reshape(-1)).astype(np.int64)
        flat = flat[lanes]
    if not flat.size:
        return LaneRuns(flat, flat, flat)
    first = np.concatenate(([0], np.flatnonzero((np.diff(flat) != itemsize) | (np.diff(lanes) != 1)) + 1))
    counts = np.diff(np.concatenate((first, [flat.size])))
    return LaneRuns(flat[first], counts * itemsize, lanes[first] * itemsize)


def covered_runs(starts: Ints, lengths: Ints) -> CoveredRuns:
    """Every byte of some runs once, in ascending order, as maximal runs."""
    if not starts.size:
        return CoveredRuns(starts, lengths)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(starts[order] + lengths[order])
    first = np.concatenate(([0], np.flatnonzero(starts[1:] > ends[:-1]) + 1))
    last = np.concatenate((first[1:], [starts.size])) - 1
    return CoveredRuns(starts[first], ends[last] - starts[first])


def strided_groups(lengths: Ints, starts: Ints, *more: Ints, apart: Ints | None = None) -> list[tuple[int, int]]:
    """Runs cut into groups, (first, end) each, from the first run on: as many as have one length and follow one another
    at one distance, of `starts` and of `more` alike. Two runs of one length are always a group. A distance is at
    least the length: a group goes on in ascending order and touches no byte twice. Runs that differ in `apart` are in
    no group together.
    """
    count = len(starts)
    if count < 2:
        return [(0, 1)] if count else []
    steps = [np.diff(column) for column in (starts, *more)]
    joins = (np.diff(lengths) == 0) & (steps[0] >= lengths[1:])  # run i and the next one
    if apart is not None:
        joins &= np.diff(apart) == 0
    goes_on = joins[1:] & joins[:-1]  # and the one after that, at the same distance
    for step in steps:
        goes_on &= step[1:] == step[:-1]
    stops = np.concatenate((np.flatnonzero(~goes_on) + 1, [count - 1]))
    until = np.repeat(stops, np.diff(np.concatenate(([0], stops)))).tolist()  # by pair: the last run of its group
    pairs = joins.tolist()
    found: list[tuple[int, int]] = []
    first = 0
    while first < count:
        end = until[first] + 1 if first < count - 1 and pairs[first] else first + 1
        found.append((first, end))
        first = end
    return found
