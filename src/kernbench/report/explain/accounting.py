"""The time of lanes in a scope: busy (work, latency, queue) and idle, by what the next op waited for.

Idle time before an op is attributed to what released the op; idle time after the last op is `done`. For each lane the
parts sum to the scope. These sums must not be added to those of the critical path: the idle time of one lane usually
overlaps the work of another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.common.array_types import Floats
from kernbench.report.explain.path import PathScope, RunData
from kernbench.report.runs.layout import KINDS
from kernbench.report.runs.parts import Ints, RunOps, SavedLane

BUSY = ("work", "latency", "queue")
DONE = "done"


@dataclass(frozen=True, slots=True)
class LaneUse:
    """One lane in a scope: ns by part."""

    lane: SavedLane
    parts: dict[str, float]

    @property
    def total_ns(self) -> float:
        return sum(self.parts.values())


def lane_accounts(run: RunData, scope: PathScope) -> list[LaneUse]:
    """Every engine lane with ops in the scope; spans and the host are left out."""
    found = []
    for lane in run.lanes:
        if lane.kind not in "SH":
            parts = _parts(run.ops, lane, scope, run)
            if parts is not None:
                found.append(LaneUse(lane, parts))
    return found


def by_lane_kind(accounts: list[LaneUse]) -> dict[str, dict[str, float]]:
    """The sums of the accounts over the lanes of each kind, such as `DMA read`."""
    sums: dict[str, dict[str, float]] = {}
    for use in accounts:
        own = sums.setdefault(KINDS[use.lane.kind], {})
        for part, ns in use.parts.items():
            own[part] = own.get(part, 0.0) + ns
    return {kind: sums[kind] for kind in KINDS.values() if kind in sums}


def _parts(ops: RunOps, lane: SavedLane, scope: PathScope, run: RunData) -> dict[str, float] | None:
    rows = np.arange(lane.first, lane.stop)
    start = np.clip(ops.t_start[rows], scope.begin_ns, scope.end_ns)
    end = np.clip(ops.t_end[rows], scope.begin_ns, scope.end_ns)
    inside = (ops.t_end[rows] > scope.begin_ns) & (ops.t_start[rows] < scope.end_ns)
    if not inside.any():
        return None
    rows, start, end = rows[inside], start[inside], end[inside]
    before = np.concatenate(([scope.begin_ns], end[:-1]))
    parts = dict.fromkeys(BUSY, 0.0)
    lasted = end - start
    queue = np.minimum(ops.queue_ns[rows], lasted) if lane.kind != "C" else np.zeros(len(rows))
    latency = np.minimum(ops.latency_ns[rows], lasted - queue)
    parts["queue"], parts["latency"] = float(queue.sum()), float(latency.sum())
    parts["work"] = float((lasted - queue - latency).sum())
    idle = start - before
    parts.update(_idle_by_cause(ops, run, rows[idle > 0], idle[idle > 0]))
    parts[DONE] = scope.end_ns - float(end[-1])
    return parts


def _idle_by_cause(ops: RunOps, run: RunData, rows: Ints, idle: Floats) -> dict[str, float]:
    """Idle time by what released the op after it, such as `data from DMA read`, in order of appearance."""
    kinds = list(KINDS)
    kind_of_lane = np.array([kinds.index(lane.kind) for lane in run.lanes], np.int64)
    by = ops.released_by[rows]
    is_op = by >= 0
    kind = np.full(len(rows), -1, np.int64)
    kind[is_op] = kind_of_lane[ops.lane[ops.row_of[by[is_op]]]]
    causes, first, which = np.unique(
        ops.release.codes[rows] * (len(kinds) + 1) + kind + 1, return_index=True, return_inverse=True
    )
    sums = np.bincount(which, idle, minlength=len(causes))
    found = {}
    for n in np.argsort(first, kind="stable"):
        release, number = divmod(int(causes[n]), len(kinds) + 1)
        name = ops.release.words[release]
        found[f"{name} from {KINDS[kinds[number - 1]]}" if number else name] = float(sums[n])
    return found
