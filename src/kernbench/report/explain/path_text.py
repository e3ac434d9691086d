"""Phrases about segments of a critical path: their kernel lines, the places of queueing, the sizes of transfers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kernbench.common.units import format_bytes
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.path import PathSegment


def lines_of(explanation: Explanation, segments: Iterable[PathSegment]) -> str:
    """`, most of it for softmax.py:12`: the lines with the largest shares; empty if none is known."""
    sums: dict[int, float] = {}
    total = 0.0
    for segment in segments:
        total += segment.ns
        if segment.line >= 0:
            sums[segment.line] = sums.get(segment.line, 0.0) + segment.ns
    best = [line for line, ns in sorted(sums.items(), key=lambda item: (-item[1], item[0])) if ns >= total / 4][:2]
    if not best:
        return ""
    lines = explanation.run.lines
    return ", most of it for " + " and ".join(lines[line].name.removeprefix("kernbench/") for line in best)


def queueing_at(explanation: Explanation, segments: Sequence[PathSegment], one: str) -> str:
    """The place that has most of the queueing, and the number of requesters there; `one` names a single one."""
    by_spot: dict[str, float] = {}
    places = explanation.run.places
    for segment in segments:
        place = places[segment.place]
        spot = f"{place.src} -> {place.dst}" if place.dst else place.src
        by_spot[spot] = by_spot.get(spot, 0.0) + segment.ns
    spot = max(by_spot, key=lambda name: by_spot[name])
    requesters = len(requesters_at(explanation, spot))
    met = f"{requesters} requesters meet" if requesters > 1 else f"requests of {one} meet"
    if by_spot[spot] * 2 >= sum(by_spot.values()):
        return f"{met[0].upper()}{met[1:]} at {spot}."
    return f"It is spread over {len(by_spot)} places, most of it at {spot}, where {met}."


def requesters_at(explanation: Explanation, spot: str) -> list[str]:
    """The PEs, or hosts, whose bytes passed a link or a node in the scope."""
    run, scope = explanation.run, explanation.scope
    ops = run.ops
    links = [place for place in run.places if place.kind == "link"]
    wanted = [link.index for link in links if spot in (link.name, link.src, link.dst)]
    rows = np.repeat(np.arange(len(ops)), np.diff(ops.route.starts))
    rows = rows[np.isin(ops.route.values, wanted)]
    rows = rows[(ops.t_end[rows] > scope.begin_ns) & (ops.t_start[rows] < scope.end_ns)]
    return list(dict.fromkeys(run.lanes[int(lane)].component.rpartition(".")[0] for lane in np.unique(ops.lane[rows])))


def sizes_of(explanation: Explanation, segments: Iterable[PathSegment], what: str) -> str:
    """How many transfers or messages follow each other, and how large they are."""
    ops = explanation.run.ops
    rows = [int(ops.row_of[op]) for op in dict.fromkeys(segment.op for segment in segments) if op >= 0]
    if not rows:
        return ""
    sizes = [int(ops.nbytes[row]) for row in rows]
    each = format_bytes(sorted(sizes)[len(sizes) // 2])
    typically = "" if min(sizes) == max(sizes) else "typically "
    return f"{len(rows):,} {what} of {typically}{each} follow each other."
