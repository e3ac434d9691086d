"""Shares of work of the PEs of a launch: what even shares would gain.

Two things are uneven: PEs that work have more or less of it, and PEs that return at once have none. The last PE's share
counts as far as it ended later than the average; there the latency of a transfer is the average one, so that a PE that
is far from its data has no more work. PEs without work could take over their part of the others' work; there transfers
that leave their cube have the latency of the PE's own HBM slice, and small ones none: distance and small transfers are
causes of their own.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from kernbench.common.array_types import Floats
from kernbench.common.units import format_ns
from kernbench.report.explain.path import RunData
from kernbench.report.explain.transfer_causes import TransferCauses
from kernbench.report.runs.parts import SavedLaunch


class Shares:
    """The work of each PE of a launch."""

    def __init__(self, run: RunData, launch: SavedLaunch, transfers: TransferCauses) -> None:
        self._launch, self._transfers = launch, transfers
        self._ops = ops = run.ops
        rows = np.flatnonzero((ops.launch == launch.index) & ops.is_work & ~ops.kind.are("C"))
        names = {pe.name: at for at, pe in enumerate(launch.pes)}
        of_lane = np.array([names.get(pe, -1) for pe in transfers.pes], np.int64)
        which = of_lane[ops.lane[rows]]
        self._rows, self._which = rows[which >= 0], which[which >= 0]

    @property
    def gain_ns(self) -> float:
        """How much sooner the launch would end with even shares."""
        return self._uneven_ns + self._idle_ns

    @property
    def what(self) -> str:
        """The larger of the two in a sentence."""
        names, work = [pe.name for pe in self._launch.pes], self._work
        if self._idle_ns > self._uneven_ns:
            busy = np.flatnonzero(work)
            who = f"{names[int(busy[0])]} does" if len(busy) == 1 else f"{len(busy):,} PEs do"
            return f"Imbalance: {self._all - len(busy):,} of {self._all:,} PEs have no work; {who} all of it."
        last, ends = self._last, self._ends
        others = float((work.sum() - work[last]) / (len(work) - 1))
        slack = float(ends[last] - np.delete(ends, last).max())
        after = f"; it ends {format_ns(slack)} after the others" if slack > 0 else ""
        return f"Imbalance: {names[last]} has {work[last] / others:.1f} times the busy time of the others{after}."

    @property
    def brief(self) -> str:
        """`what` in one clause."""
        return self.what.partition("; ")[0].partition(" of the others")[0]

    @property
    def hint(self) -> str:
        if self._idle_ns > self._uneven_ns:
            return f"divide the work over all {self._all:,} PEs: by tl.program_id, or each PE its own part (x.local)"
        return "divide the rows evenly over the PEs, or let PEs take blocks from a shared counter"

    @cached_property
    def _uneven_ns(self) -> float:
        """Of the last PE, what it has more than the average PE that works."""
        work, ends = self._work, self._ends
        busy = work > 0
        if busy.sum() < 2:
            return 0.0
        more, later = work[self._last] - work[busy].mean(), ends[self._last] - ends[busy].mean()
        return max(0.0, float(min(more, later)))

    @cached_property
    def _idle_ns(self) -> float:
        """Of an average PE that works, what PEs without work could take over."""
        busy = int((self._work > 0).sum())
        if (
            busy in (0, self._all) or self._launch.called_at
        ):  # how tensor operations and collectives use PEs is not the program's choice
            return 0.0
        return float(self._movable.sum()) / busy * (1 - busy / self._all)

    @property
    def _all(self) -> int:
        return len(self._launch.pes) + self._launch.idle_pes

    @cached_property
    def _ends(self) -> Floats:
        return np.array([pe.end_ns for pe in self._launch.pes])

    @cached_property
    def _last(self) -> int:
        return int(np.argmax(self._ends))

    @cached_property
    def _work(self) -> Floats:
        """By PE; every transfer has the average latency."""
        latency = self._ops.latency_ns[self._rows]
        return self._sums(np.where(latency > 0, latency[latency > 0].mean() if (latency > 0).any() else 0.0, 0.0))

    @cached_property
    def _movable(self) -> Floats:
        """By PE; transfers that leave their cube have the latency of the PE's own slice, and small ones none."""
        ops, rows = self._ops, self._rows
        own = [self._transfers.own_slice(pe.name) for pe in self._launch.pes]
        most = np.array([np.inf if one is None else one.latency_ns for one in own])[self._which]
        gbs = np.array([np.inf if one is None else one.gbs for one in own])[self._which]
        latency = ops.latency_ns[rows]
        latency = np.where(self._transfers.leave_cube[rows], np.minimum(latency, most), latency)
        return self._sums(np.where(ops.nbytes[rows] / gbs * 2 < most, 0.0, latency))

    def _sums(self, latency_ns: Floats) -> Floats:
        ops, rows = self._ops, self._rows
        spent = ops.t_end[rows] - ops.t_start[rows] - ops.queue_ns[rows] - ops.latency_ns[rows] + latency_ns
        sums = np.bincount(self._which, spent, len(self._launch.pes))
        return np.minimum(sums, [pe.end_ns - pe.start_ns for pe in self._launch.pes])
