"""A run explained: its critical path by class, lane, link, line and launch, what lanes waited for, the largest stalls.

Every one of these tables sums to the scope's time, exactly. All of it is derived from a saved run, or from one that has
just ended; nothing is simulated here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kernbench.common.errors import UsageError
from kernbench.report.explain.accounting import LaneUse, by_lane_kind, lane_accounts
from kernbench.report.explain.classes import CLASSES, WAITED_FOR, WORK
from kernbench.report.explain.path import Piece, RunData, Scope, critical_path, scope_of
from kernbench.report.runs.layout import KINDS

OUTSIDE = "outside kernels"


@dataclass(eq=False)
class Explanation:
    """One scope of a run."""

    run: RunData
    scope: Scope

    @cached_property
    def path(self) -> list[Piece]:
        return critical_path(self.run, self.scope)

    @cached_property
    def accounts(self) -> list[LaneUse]:
        return lane_accounts(self.run, self.scope)

    @property
    def lane_kinds(self) -> dict[str, dict[str, float]]:
        """Busy and idle time of the lanes of a kind, all together."""
        return by_lane_kind(self.accounts)

    # ---- the path, by ...

    @cached_property
    def by_class(self) -> dict[str, float]:
        found = self._sums(lambda piece: piece.cls)
        return {cls: found[cls] for cls in CLASSES if cls in found}

    @cached_property
    def by_lane(self) -> dict[str, float]:
        """By kind of lane: `DMA read`; what is not an op's is `between ops`, `launch` or `host`."""

        def lane_of(piece: Piece) -> str:
            if piece.lane >= 0 and piece.cls not in ("issue", "credit"):
                return KINDS[self.run.lanes[piece.lane].kind]
            return "between ops" if piece.cls in ("issue", "credit") else piece.cls

        return self._sums(lane_of)

    @cached_property
    def by_link(self) -> dict[str, float]:
        """Queueing by class of link, the rest under `not queued`."""
        places = self.run.places
        return self._sums(lambda piece: places[piece.place].link_class if piece.place >= 0 else "not queued")

    @cached_property
    def by_place(self) -> dict[str, float]:
        """Queueing by link and channel."""
        places = self.run.places
        return self._sums(lambda piece: places[piece.place].name if piece.place >= 0 else "not queued")

    @cached_property
    def by_line(self) -> dict[str, float]:
        """By kernel line: `softmax.py:12`."""
        lines = self.run.lines
        return self._sums(lambda piece: lines[piece.line].name if piece.line >= 0 else OUTSIDE)

    @cached_property
    def by_launch(self) -> dict[str, float]:
        launches = self.run.launches
        many = len(launches) > 1
        return self._sums(
            lambda piece: (
                f"{piece.launch}: {launches[piece.launch].name}"
                if many and piece.launch >= 0
                else launches[piece.launch].name
                if piece.launch >= 0
                else OUTSIDE
            )
        )

    @cached_property
    def by_wait(self) -> dict[str, float]:
        """By what the op behind waited for meanwhile: `data: DMA read`."""

        def wait_of(piece: Piece) -> str:
            if piece.place >= 0:
                return f"queue: {self.run.places[piece.place].link_class}"
            if not piece.via:
                return "the end"
            what = WAITED_FOR[piece.via]
            return f"{what}: {KINDS[self.run.lanes[piece.lane].kind]}" if piece.lane >= 0 else what

        return self._sums(wait_of)

    @cached_property
    def waiting_ns(self) -> float:
        """The part of the path that is not work."""
        return sum(ns for cls, ns in self.by_class.items() if cls not in WORK)

    def share(self, ns: float) -> float:
        return ns / self.scope.total_ns if self.scope.total_ns else 0.0

    def _sums(self, key_of: Callable[[Piece], str]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for piece in self.path:
            key = key_of(piece)
            sums[key] = sums.get(key, 0.0) + piece.ns
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def explain(run: RunData, launch: int | None = None) -> Explanation:
    """Explain a run, or one of its launches; raises UsageError when it has no such launch."""
    if launch is not None and not 0 <= launch < len(run.launches):
        raise UsageError(
            f"the run has no launch {launch}", where=f"--launch {launch}", hint=f"it has {len(run.launches)}, from 0 on"
        )
    return Explanation(run, scope_of(run, launch))
