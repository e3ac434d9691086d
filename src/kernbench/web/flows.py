"""Messages between PEs as flows of the timeline; messages that are close on screen form one bundle.

A collective has a message for each pair of PEs and step: drawn one by one they hide the lanes. Messages from one row to
another whose ends are within some pixels of each other are sent as one flow with their number; zoomed in, or with the
PEs of a cube opened, a bundle splits into its messages. So a response is bounded for any collective.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Ints
from kernbench.common.errors import UsageError
from kernbench.web.machine_map import Json
from kernbench.web.op_view import brief, selected_rows
from kernbench.web.run_view import RunView

BUNDLE_PX = 12  # messages whose ends are about that close are bundled
WANTED_BUNDLES = 48  # with more, the distance is doubled
MAX_BUNDLES = 200  # in an answer
MOST_LINKS = 400
MOST_NAMED = 8


@dataclass(frozen=True)
class MessageFlows:
    """Every message of a run: rows of its send and receive, departure and arrival."""

    sent: Ints
    received: Ints
    left: NDArray[np.float64]
    arrived: NDArray[np.float64]

    def only(self, chosen: NDArray[np.bool_]) -> MessageFlows:
        return MessageFlows(self.sent[chosen], self.received[chosen], self.left[chosen], self.arrived[chosen])

    def __len__(self) -> int:
        return len(self.sent)


def messages(view: RunView) -> MessageFlows:
    """All messages of a run, computed once."""

    def make() -> MessageFlows:
        ops, lanes = view.run.ops, view.run.lanes
        rows = [np.arange(lane.first, lane.stop) for lane in lanes if lane.port == "recv"]
        receives = np.concatenate(rows) if rows else np.zeros(0, np.int64)
        lengths = ops.deps.starts[receives + 1] - ops.deps.starts[receives]
        firsts = np.repeat(ops.deps.starts[receives] - (np.cumsum(lengths) - lengths), lengths)
        sent = ops.row_of[ops.deps.values[firsts + np.arange(int(lengths.sum()))].astype(np.int64)]
        received = np.repeat(receives, lengths)
        is_send = np.array([lane.port == "send" for lane in lanes], bool)[ops.lane[sent]]
        sent, received = sent[is_send], received[is_send]
        left = ops.t_end[sent]
        # A receive may begin with the first chunk, before the send of the last has ended: flows go forward.
        return MessageFlows(sent, received, left, np.maximum(left, ops.t_start[received]))

    return view.keep("messages", "all", 1, make)


def selected_messages(view: RunView, selection: str | None) -> MessageFlows:
    """The messages that a selection sent or received; all without a selection."""
    every = messages(view)
    if not selection:
        return every
    chosen = selected_rows(view, selection)
    return every.only(chosen[every.sent] | chosen[every.received])


def flows(view: RunView, t0: float, t1: float, px: int, selection: str | None, closed: frozenset[str]) -> Json:
    """Bundles of messages that intersect a window of `px` pixels; the PEs of `closed` cubes are drawn as one row."""
    if not 0 < px <= 8192:
        raise UsageError(f"flows of {px} px are not served", hint="ask for px from 1 to 8192")
    some = selected_messages(view, selection)
    some = some.only((some.left < t1) & (some.arrived > t0))
    step = 2.0 ** ceil(log2((t1 - t0) / px * BUNDLE_PX))  # a power of two, so that bundles stay while the window moves
    row_of, lanes = _rows(view, closed), view.run.ops.lane
    ends = row_of[lanes[some.sent]], row_of[lanes[some.received]]
    bundle, counts = _bundled(some, ends, step)
    while len(counts) > WANTED_BUNDLES and step < t1 - t0:
        step *= 2
        bundle, counts = _bundled(some, ends, step)
    middle = np.bincount(bundle, some.left + some.arrived, minlength=len(counts)) / np.maximum(2 * counts, 1)
    far = np.abs(middle - (t0 + t1) / 2)
    drawn = sorted(range(len(counts)), key=lambda n: (-counts[n], far[n], n))[:MAX_BUNDLES]
    return {
        "schema": 1, "t0": t0, "t1": t1, "step": step, "count": len(some),
        "rest": len(some) - int(counts[drawn].sum()) if drawn else 0,
        "bundles": [_bundle(view, some.only(bundle == n)) for n in drawn],
    }  # fmt: skip


def _bundled(some: MessageFlows, ends: tuple[Ints, Ints], step: float) -> tuple[Ints, Ints]:
    """The bundle of every message, and the size of each bundle."""
    times = (np.floor(time / step).astype(np.int64) for time in (some.left, some.arrived))
    _, bundle, counts = np.unique(np.stack([*ends, *times]), axis=1, return_inverse=True, return_counts=True)
    return bundle.ravel(), counts


def _bundle(view: RunView, some: MessageFlows) -> Json:
    ops = view.run.ops
    longest = int(np.argmax(some.arrived - some.left))
    return {
        "from": int(ops.lane[some.sent[0]]),
        "to": int(ops.lane[some.received[0]]),
        "t0": float(some.left.mean()),
        "t1": float(some.arrived.mean()),
        "count": len(some),
        "nbytes": int(ops.nbytes[some.sent].sum()),
        "op": int(ops.id[some.received[longest]]),
    }


def _rows(view: RunView, closed: frozenset[str]) -> Ints:
    """The row in which each lane is drawn: that of its PE, or of its cube if that is closed."""
    numbers: dict[str, int] = {}
    found = []
    for lane in view.run.lanes:
        cube = f"sip{lane.sip}.cube{lane.cube}"
        found.append(numbers.setdefault(cube if cube in closed else f"{cube}.pe{lane.pe}", len(numbers)))
    return np.array(found, np.int64)


def message_totals(view: RunView, selection: str) -> Json | None:
    """Totals of the messages of a selection, their links, and the slowest messages."""
    some = selected_messages(view, selection)
    if not len(some):
        return None
    ops, flight = view.run.ops, some.arrived - some.left
    slowest = np.argsort(-flight, kind="stable")[:MOST_NAMED]
    return {
        "count": len(some),
        "nbytes": int(ops.nbytes[some.sent].sum()),
        "mean_ns": float(flight.mean()),
        "max_ns": float(flight.max()),
        "slowest": [
            {"sent": brief(view, int(some.sent[n])), "received": brief(view, int(some.received[n])),
             "from": view.run.lanes[int(ops.lane[some.sent[n]])].component,
             "to": view.run.lanes[int(ops.lane[some.received[n]])].component, "ns": float(flight[n])}
            for n in slowest
        ],
        "links": _links(view, some),
    }  # fmt: skip


def _links(view: RunView, some: MessageFlows) -> list[list[str]]:
    """The links that most messages pass."""
    route = view.run.ops.route
    sends = np.zeros(len(view.run.ops), bool)
    sends[some.sent] = True
    counts = np.bincount(route.values[np.repeat(sends, np.diff(route.starts))].astype(np.int64), minlength=1)
    passed = [(-int(counts[n]), int(n)) for n in np.flatnonzero(counts)]
    links = [(count, n) for count, n in passed if view.run.places[n].kind == "link"]  # a route has channels too
    found = [view.run.places[n] for _, n in sorted(links)[:MOST_LINKS]]
    return [[place.src, place.dst] for place in found]
