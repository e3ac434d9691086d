"""Lanes over time, in an amount of data that does not depend on the number of ops: tiles and group rows.

A tile is 1024 bins of 2^k ns. A slice of three bins or longer is sent individually, so there are at most 343 in a tile
of a lane. Shorter ones are cut at bin edges and summed: the busy share of a bin, its largest kind, and whether one of
them is marked. Group rows are means over lanes, from each lane's busy time at the bin edges.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Floats
from kernbench.common.errors import UsageError
from kernbench.web.run_view import LETTERS, RunView

BINS = 1024
WHOLE = 3  # bins: a slice of that length is sent individually
NAMED = 16  # bins: a slice of that length is sent with its name
MOST_LANES = 64
MOST_TILES = 4
ON_PATH, MARKED = 1, 2

Arrays = dict[str, NDArray[Any]]
_SLICES = {"start": "f4", "dur": "f4", "id": "u4", "kind": "u1", "flags": "u1", "queue": "u1", "latency": "u1",
           "text": "u2", "wait": "f4"}  # fmt: skip
_BINNED = {"index": "u2", "busy": "u1", "bkind": "u1", "bflags": "u1"}


def tiles(
    view: RunView, k: int, numbers: Sequence[int], lanes: Sequence[int], flags: NDArray[np.uint8]
) -> tuple[dict[str, object], Arrays]:
    """The tiles `numbers` of some lanes, in order, lane by lane; `flags` has an entry for every row of ops."""
    if not -12 <= k <= 30 or len(lanes) > MOST_LANES or len(numbers) > MOST_TILES:
        raise UsageError(
            f"tiles of 2^{k} ns, {len(numbers)} of them for {len(lanes)} lanes, are not served",
            hint=f"ask for k from -12 to 30, up to {MOST_TILES} tiles and {MOST_LANES} lanes",
        )
    known = len(view.run.lanes)
    if any(not 0 <= lane < known for lane in lanes):
        raise UsageError(f"the run has lanes 0 to {known - 1}", hint="ask for those")
    texts: dict[str, int] = {"": 0}
    parts: list[Arrays] = []
    counts = []
    for lane in lanes:
        for number in numbers:
            part = _tile(view, k, number, lane, flags, texts)
            parts.append(part)
            counts.append([len(part["start"]), len(part["index"])])
    dtypes = {**_SLICES, **_BINNED}
    arrays = {
        name: np.concatenate([part[name] for part in parts]) if parts else np.zeros(0, dtype)
        for name, dtype in dtypes.items()
    }
    header = {"schema": 1, "k": k, "tiles": list(numbers), "lanes": list(lanes), "counts": counts, "texts": list(texts)}
    return header, {name: array.astype(dtypes[name], copy=False) for name, array in arrays.items()}


def _tile(view: RunView, k: int, number: int, lane: int, flags: NDArray[np.uint8], texts: dict[str, int]) -> Arrays:
    width = 2.0**k
    begin = number * BINS * width
    end = begin + BINS * width
    ops, found = view.run.ops, view.run.lanes[lane]
    starts, ends = ops.t_start[found.first : found.stop], ops.t_end[found.first : found.stop]
    first = found.first + int(np.searchsorted(ends, begin, side="right"))
    stop = found.first + int(np.searchsorted(starts, end, side="left"))
    rows = np.arange(first, max(stop, first))
    lasts = ops.t_end[rows] - ops.t_start[rows]
    is_whole = lasts >= WHOLE * width
    whole = rows[is_whole]
    part: Arrays = {
        "start": ops.t_start[whole] - begin,
        "dur": lasts[is_whole],
        "id": ops.id[whole],
        "kind": view.kinds[whole],
        "flags": flags[whole],
        "wait": ops.t_start[whole] - ops.t_asked[whole],
        "queue": np.rint(255 * np.clip(ops.queue_ns[whole] / lasts[is_whole], 0.0, 1.0)),
        "latency": np.rint(255 * np.clip(ops.latency_ns[whole] / lasts[is_whole], 0.0, 1.0)),
        "text": np.array(
            [texts.setdefault(view.run.ops.label(int(row)), len(texts)) if last >= NAMED * width else 0
             for row, last in zip(whole, lasts[is_whole], strict=True)], np.uint16
        ),
    }  # fmt: skip
    part.update(_bins(view, rows[~is_whole], begin, width, flags))
    return part


def _bins(view: RunView, rows: NDArray[np.int64], begin: float, width: float, flags: NDArray[np.uint8]) -> Arrays:
    """Short slices, cut at bin edges: a slice intersects at most four bins."""
    ops = view.run.ops
    starts, ends = ops.t_start[rows], ops.t_end[rows]
    first = np.floor((starts - begin) / width).astype(np.int64)
    kinds, marks = view.kinds[rows].astype(np.int64), flags[rows]
    present = np.unique(kinds)
    busy = np.zeros((len(present), BINS))
    flagged = np.zeros((2, BINS), bool)
    for step in range(WHOLE + 1):
        at = first + step
        low, high = begin + at * width, begin + (at + 1) * width
        inside = np.minimum(ends, high) - np.maximum(starts, low)
        good = (inside > 0) & (at >= 0) & (at < BINS)
        if step == 0:
            good |= (starts == ends) & (at >= 0) & (at < BINS)
        for n, kind in enumerate(present):
            mine = good & (kinds == kind)
            busy[n] += np.bincount(at[mine], inside[mine], minlength=BINS)
        for n, flag in enumerate((ON_PATH, MARKED)):
            flagged[n, at[good & ((marks & flag) != 0)]] = True
    total = busy.sum(axis=0) if len(present) else np.zeros(BINS)
    index = np.flatnonzero(total > 0)
    share = np.clip(np.rint(255 * total[index] / width), 1, 255)
    most = present[busy[:, index].argmax(axis=0)] if len(present) else np.zeros(0, np.int64)
    return {
        "index": index,
        "busy": share,
        "bkind": most,
        "bflags": flagged[0, index] * ON_PATH + flagged[1, index] * MARKED,
    }


def group_rows(
    view: RunView, groups: Sequence[Sequence[int]], t0: float, t1: float, bins: int
) -> tuple[dict[str, object], Arrays]:
    """For groups of lanes: how busy their engines were in each bin, by kind, as a mean over the lanes of the kind."""
    if not (0 < bins <= 4096 and t1 > t0):
        raise UsageError(f"{bins} bins from {t0} to {t1} ns are not served", hint="ask for 1 to 4096 bins of a window")
    edges = np.linspace(t0, t1, bins + 1)
    shares = np.zeros((len(groups), len(LETTERS), bins), np.uint8)
    for n, members in enumerate(groups):
        shares[n] = _rounded_share(view, members, edges)
    header = {"schema": 1, "t0": t0, "t1": t1, "bins": bins, "kinds": LETTERS}
    return header, {"busy": shares}


def _rounded_share(view: RunView, members: Sequence[int], edges: Floats) -> NDArray[np.uint8]:
    def make() -> NDArray[np.uint8]:
        total = np.zeros((len(LETTERS), len(edges) - 1))
        count = np.zeros(len(LETTERS))
        for lane in members:
            kind = LETTERS.index(view.run.lanes[lane].kind)
            total[kind] += np.diff(view.busy_until(lane, edges))
            count[kind] += 1
        mean = total / np.maximum(count, 1)[:, None] / np.diff(edges)
        return np.where(total > 0, np.clip(np.rint(255 * mean), 1, 255), 0).astype(np.uint8)

    return view.keep("group", (tuple(members), float(edges[0]), float(edges[-1]), len(edges)), 1024, make)
