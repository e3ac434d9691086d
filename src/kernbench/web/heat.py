"""The heat map: for every drawn link, memory channel and block, utilisation and queue over time.

Utilisation is bytes / (bandwidth x bin); of a block or a link that represents several, their bytes over their
bandwidths, and `peak` is its busiest single link. Queue is the mean number of flits that waited for flits of other ops:
the sum over the links that a block or drawn link represents. Bins are those of the run folder, merged so that there are
512 at most. Values are sent as 0 to 255 of `scale`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Floats
from kernbench.common.errors import UsageError
from kernbench.common.ids import Place
from kernbench.report.runs.parts import Ints, SavedActivity, SavedPlace
from kernbench.web.machine_map import TRAY, Json, link_id, owner_of
from kernbench.web.run_view import LETTERS, RunView
from kernbench.web.tiles import Arrays

MOST_BINS = 512
SPARK_BINS = 256  # of the sparklines beside a link's figures
_IDLE = 0


@dataclass(slots=True)
class _Row:
    """A coloured item: `link`, `channel` or `block`."""

    id: str
    kind: str
    places: list[SavedPlace] = field(default_factory=list)
    gbs: float = 0.0


class _Window(NamedTuple):
    """Activity in a window: the sums of a place in a merged bin. Sorted by place, bin."""

    place: Ints
    bin: Ints
    nbytes: Floats
    contended_ns: Floats


def heat(view: RunView, root: str, t0: float, t1: float, bins: int) -> tuple[Json, Arrays]:
    """All rows of a level from `t0` to `t1`, in at most `bins` bins."""
    activity = view.run.activity
    rows = _rows(view, root)
    first, merged, count = _bin_range(view, t0, t1, min(bins, MOST_BINS))
    width = activity.bin_ns * merged
    util, queue, peak = _sums(view, rows, first, merged, count)
    scale = {"util": 1.0, "queue": float(queue.max(initial=0.0)) or 1.0, "peak": 1.0}
    pes, doing = _pe_kinds(view, root, first, merged, count)
    header: Json = {
        "schema": 1,
        "root": root,
        "t0": first * activity.bin_ns,
        "bin_ns": width,
        "bins": count,
        "rows": [{"id": row.id, "kind": row.kind, "gbs": row.gbs, "count": len(row.places)} for row in rows],
        "scale": scale,
        "pes": pes,
        "kinds": LETTERS,
        "mean": _hbm_mean(view, first, merged, count),
    }
    return header, {
        "util": _bytes(util, 1.0),
        "queue": _bytes(queue, scale["queue"]),
        "peak": _bytes(peak, 1.0),
        "doing": doing,
    }


def _sums(view: RunView, rows: list[_Row], first: int, merged: int, count: int) -> tuple[Floats, Floats, Floats]:
    """Utilisation, queue and the busiest single link of each row in each bin, from the entries of its places."""
    activity, size = view.run.activity, (len(rows), count)
    used = view.keep("window", (first, merged, count), 4, lambda: _in_window(activity, first, merged, count))
    width = activity.bin_ns * merged
    row = np.array([n for n, one in enumerate(rows) for _ in one.places], np.int64)
    place = np.array([place.index for one in rows for place in one.places], np.int64)
    gbs = np.array([place.gbs or np.inf for one in rows for place in one.places])
    starts = np.searchsorted(used.place, place)
    lengths = np.searchsorted(used.place, place, side="right") - starts
    # The entries of all places, one place after the other.
    entry = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths) + np.arange(lengths.sum())
    cell = np.repeat(row, lengths) * count + used.bin[entry]
    nbytes, waited = (np.bincount(cell, sums[entry], len(rows) * count) for sums in (used.nbytes, used.contended_ns))
    peak = np.zeros(len(rows) * count)
    np.maximum.at(peak, cell, used.nbytes[entry] / (np.repeat(gbs, lengths) * width))
    total_gbs = np.array([one.gbs or np.inf for one in rows])[:, np.newaxis]
    return nbytes.reshape(size) / (total_gbs * width), waited.reshape(size) / width, peak.reshape(size)


def _in_window(activity: SavedActivity, first: int, merged: int, count: int) -> _Window:
    """The entries of a window, one for each place and merged bin, in order of place and bin."""
    inside = (activity.bin >= first) & (activity.bin < first + merged * count)
    place, bins = activity.place[inside].astype(np.int64), (activity.bin[inside] - first) // merged
    key = place * count + bins
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    if not len(starts):
        return _Window(place, bins, np.zeros(0), np.zeros(0))
    nbytes, waited = (np.add.reduceat(column[inside], starts) for column in (activity.nbytes, activity.contended_ns))
    return _Window(place[starts], bins[starts], nbytes, waited)


def totals_of_link(view: RunView, drawn: str, t0: float, t1: float) -> Json:
    """A link, channel or block in a window: exact sums, and its utilisation and queue over the whole run."""
    places = places_of(view, drawn)
    activity = view.run.activity
    gbs = sum(place.gbs for place in places)
    lo, hi = int(t0 // activity.bin_ns), min(-int(-t1 // activity.bin_ns), activity.bins)
    nbytes, waited = (
        sum((activity.of(place.index, metric) for place in places), np.zeros(activity.bins))
        for metric in ("nbytes", "contended_ns")
    )
    first, merged, count = _bin_range(view, 0.0, view.t_end, SPARK_BINS)
    width = merged * activity.bin_ns
    inside = max((hi - lo) * activity.bin_ns, activity.bin_ns)
    return {
        "id": drawn,
        "places": [place.name for place in places[:8]],
        "count": len(places),
        "gbs": gbs,
        "nbytes": float(nbytes[lo:hi].sum()),
        "wait_ns": float(waited[lo:hi].sum()),
        "util": float(nbytes[lo:hi].sum()) / (gbs * inside) if gbs else 0.0,
        "queue": float(waited[lo:hi].sum()) / inside,
        "bin_ns": width,
        "spark_util": [round(x, 4) for x in (_merged(nbytes, first, merged, count) / ((gbs or 1.0) * width)).tolist()],
        "spark_queue": [round(x, 4) for x in (_merged(waited, first, merged, count) / width).tolist()],
    }


def places_of(view: RunView, drawn: str) -> list[SavedPlace]:
    """The links and channels that `A>B`, `CTRL#3` or the name of a node represents; a block represents all links inside
    it.
    """
    src, is_link, dst = drawn.partition(">")
    if is_link:
        return [p for p in view.run.places if p.kind == "link" and _in(p.src, src) and _in(p.dst, dst)]
    node, is_channel, number = drawn.partition("#")
    if is_channel:
        return [p for p in view.run.places if p.kind == "channel" and p.src == node and str(p.channel) == number]
    own = [p for p in view.run.places if p.kind == "channel" and p.src == node]
    return own or [p for p in view.run.places if p.kind == "link" and (_in(p.src, node) or _in(p.dst, node))]


def _in(node: str, block: str) -> bool:
    return node == block or node.startswith(f"{block}.")


def _rows(view: RunView, root: str) -> list[_Row]:
    """The coloured items of this level that carried bytes."""
    owners = {node.id for node in view.machine.boxes(root)}
    composite = {node.id for node in view.machine.boxes(root) if node.kind in ("sip", "cube")}
    drawn = {link_id(edge): link for link in view.machine.links(root) for edge in link.members}
    found: dict[str, _Row] = {}

    def add(name: str, kind: str, place: SavedPlace, gbs: float) -> None:
        row = found.setdefault(name, _Row(name, kind))
        row.places.append(place)
        row.gbs += gbs

    for place in view.run.places:
        link = drawn.get(f"{place.src}>{place.dst}") if place.kind == "link" else None
        if link is not None:
            add(link.id, "link", place, 0.0)
            found[link.id].gbs = link.gbs or 0.0
            continue
        owner = owner_of(place.src, owners)
        if owner is None:
            continue
        if owner in composite:
            if place.kind == "channel" or owner_of(place.dst, owners) == owner:
                add(owner, "block", place, place.gbs)
        elif place.kind == "channel":
            add(f"{place.src}#{place.channel}", "channel", place, place.gbs)
            add(place.src, "node", place, place.gbs)
    return list(found.values())


def _bin_range(view: RunView, t0: float, t1: float, most: int) -> tuple[int, int, int]:
    """The first bin, the number of bins merged into one, and the resulting number."""
    activity = view.run.activity
    if not (0 <= t0 < t1 and most > 0):
        raise UsageError(f"no time from {t0} to {t1} ns", hint="ask for a window inside the run")
    first = int(t0 // activity.bin_ns)
    stop = max(first + 1, min(-int(-t1 // activity.bin_ns), activity.bins))
    merged = max(1, -(-(stop - first) // most))
    return first, merged, -(-(stop - first) // merged)


def _merged(values: Floats, first: int, merged: int, count: int) -> Floats:
    window = values[first : first + merged * count]
    padded = np.zeros(merged * count)
    padded[: len(window)] = window
    sums: Floats = padded.reshape(count, merged).sum(axis=1)
    return sums


def _bytes(values: Floats, scale: float) -> NDArray[np.uint8]:
    """0 to 255 of `scale`; positive values are at least 1."""
    clipped = np.clip(np.rint(255 * values / scale), 0, 255)
    return np.where(values > 0, np.maximum(clipped, 1), 0).astype(np.uint8)


def _hbm_mean(view: RunView, first: int, merged: int, count: int) -> list[float]:
    """Mean utilisation of the HBM channels that were used: the line above the slider."""

    def make() -> list[float]:
        channels = [place for place in view.run.places if place.kind == "channel"]
        channels = channels or [place for place in view.run.places if place.kind == "link"]
        activity = view.run.activity
        used = np.isin(activity.place, [place.index for place in channels])
        sums: Floats = np.bincount(activity.bin[used], activity.nbytes[used], activity.bins).astype(np.float64)
        gbs = sum(place.gbs for place in channels) or 1.0
        total = _merged(sums, first, merged, count) / (gbs * merged * activity.bin_ns)
        return [round(float(x), 4) for x in total]

    return view.keep("hbm", (first, merged, count), 16, make)


def _pe_kinds(view: RunView, root: str, first: int, merged: int, count: int) -> tuple[list[str], NDArray[np.uint8]]:
    """For the PEs of a cube: in each bin the kind that kept it busy longest, plus one; 0 where it was idle."""
    at = Place.of(root)
    if root == TRAY or at.cube < 0:
        return [], np.zeros((0, count), np.uint8)
    width = view.run.activity.bin_ns * merged
    edges: Floats = (first * view.run.activity.bin_ns + np.arange(count + 1) * width).astype(np.float64)
    lanes = [
        lane
        for lane in view.run.lanes
        if (lane.sip, lane.cube) == (at.sip, at.cube) and lane.pe >= 0 and lane.kind not in "SH"
    ]
    pes = sorted({lane.pe for lane in lanes})
    doing = np.zeros((len(pes), count), np.uint8)
    for n, pe in enumerate(pes):
        busy = np.zeros((len(LETTERS), count))
        for lane in lanes:
            if lane.pe == pe:
                busy[LETTERS.index(lane.kind)] += np.diff(view.busy_until(lane.index, edges))
        doing[n] = np.where(busy.sum(axis=0) > 0, busy.argmax(axis=0) + 1, _IDLE)
    return [f"sip{at.sip}.cube{at.cube}.pe{pe}" for pe in pes], doing
