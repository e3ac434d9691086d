"""The explanation of a run: its critical path by class, lane, link, line and launch, and the idle time of lanes.

Every table sums to the time of the scope, exactly. All of it is derived from a saved run, or from one that has just
ended; nothing is simulated here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from kernbench.common.errors import UsageError
from kernbench.report.explain.accounting import LaneUse, by_lane_kind, lane_accounts
from kernbench.report.explain.calls import calls_of
from kernbench.report.explain.classes import CLASSES, WAITED_FOR
from kernbench.report.explain.path import PathScope, PathSegment, RunData, critical_path, scope_of
from kernbench.report.runs.layout import KINDS

OUTSIDE = "outside kernels"


@dataclass(eq=False)
class Explanation:
    """One scope of a run."""

    run: RunData
    scope: PathScope

    @cached_property
    def path(self) -> list[PathSegment]:
        return critical_path(self.run, self.scope)

    @cached_property
    def accounts(self) -> list[LaneUse]:
        return lane_accounts(self.run, self.scope)

    @property
    def lane_kinds(self) -> dict[str, dict[str, float]]:
        """Busy and idle time, summed over the lanes of each kind."""
        return by_lane_kind(self.accounts)

    # ---- the path, by ...

    @cached_property
    def by_class(self) -> dict[str, float]:
        found = self._sums(lambda segment: segment.cls)
        return {cls: found[cls] for cls in CLASSES if cls in found}

    @cached_property
    def by_lane(self) -> dict[str, float]:
        """By kind of lane: `DMA read`; time without an op is `between ops`, `launch` or `host`."""

        def lane_of(segment: PathSegment) -> str:
            if segment.lane >= 0 and segment.cls not in ("issue", "credit"):
                return KINDS[self.run.lanes[segment.lane].kind]
            return "between ops" if segment.cls in ("issue", "credit") else segment.cls

        return self._sums(lane_of)

    @cached_property
    def by_link(self) -> dict[str, float]:
        """Queueing by class of link, the rest under `not queued`."""
        places = self.run.places
        return self._sums(lambda segment: places[segment.place].link_class if segment.place >= 0 else "not queued")

    @cached_property
    def by_place(self) -> dict[str, float]:
        """Queueing by link and channel."""
        places = self.run.places
        return self._sums(lambda segment: places[segment.place].name if segment.place >= 0 else "not queued")

    @cached_property
    def by_line(self) -> dict[str, float]:
        """By kernel line: `softmax.py:12`."""
        lines = self.run.lines
        return self._sums(lambda segment: lines[segment.line].name if segment.line >= 0 else OUTSIDE)

    @cached_property
    def by_launch(self) -> dict[str, float]:
        launches = self.run.launches
        many = len(launches) > 1
        return self._sums(
            lambda segment: (
                f"{segment.launch}: {launches[segment.launch].name}"
                if many and segment.launch >= 0
                else launches[segment.launch].name
                if segment.launch >= 0
                else OUTSIDE
            )
        )

    @cached_property
    def calls(self) -> dict[str, list[int]]:
        """The launches of the scope by the program's line that made them, where that is known."""
        return calls_of(self.run, self.scope.launch)

    @cached_property
    def by_wait(self) -> dict[str, float]:
        """By what the next op on the path waited for: `data: DMA read`."""

        def wait_of(segment: PathSegment) -> str:
            if segment.place >= 0:
                return f"queue: {self.run.places[segment.place].link_class}"
            if not segment.via:
                return "the end"
            what = WAITED_FOR[segment.via]
            return f"{what}: {KINDS[self.run.lanes[segment.lane].kind]}" if segment.lane >= 0 else what

        return self._sums(wait_of)

    def share(self, ns: float) -> float:
        return ns / self.scope.total_ns if self.scope.total_ns else 0.0

    def _sums(self, key_of: Callable[[PathSegment], str]) -> dict[str, float]:
        sums: dict[str, float] = {}
        for segment in self.path:
            key = key_of(segment)
            sums[key] = sums.get(key, 0.0) + segment.ns
        return dict(sorted(sums.items(), key=lambda item: (-item[1], item[0])))


def explain(run: RunData, launch: int | None = None) -> Explanation:
    """Explain a run, or one of its launches; raises UsageError when it has no such launch."""
    if launch is not None and not 0 <= launch < len(run.launches):
        raise UsageError(
            f"the run has no launch {launch}", where=f"--launch {launch}", hint=f"it has {len(run.launches)}, from 0 on"
        )
    return Explanation(run, scope_of(run, launch))
