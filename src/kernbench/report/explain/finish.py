"""The PEs that finish a launch: whether several critical paths are equal, or the other PEs have slack.

If eight PEs do the same work and finish together, making one of them faster gains nothing; if one finishes last, a gain
on its path counts until the next PE is the last.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.common.units import format_ns
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.path import PathSegment, critical_path, last_pes

MOST_SEGMENTS = 200_000  # total over all compared paths


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a launch. Equal paths have the same segments at the same times."""

    pe: str  # the PE whose path is shown
    pes: int  # of the launch that took time
    together: int  # PEs that ended last, at the same time
    equal: int | None  # equal paths among these; None if they are too long to compare
    slack_ns: float | None  # how much earlier the next PE ended; None if there is none
    idle: int = 0  # further PEs of the launch, whose kernel returned at once

    @property
    def sentence(self) -> str:
        if self.together > 1:
            equal = {None: "", self.together: ", on equal paths"}.get(
                self.equal, f", {self.equal} of them on equal paths"
            )
            return f"{self.together} of {self.pes} PEs end last, at the same time{equal}; shown is that of {self.pe}."
        if self.slack_ns is None:
            only = f"the only PE of {self.idle + 1:,} that has work" if self.idle else "the only PE"
            return f"It is the path of {self.pe}, {only}."
        return f"Only {self.pe} ends last; the next of {self.pes} PEs ends {format_ns(self.slack_ns)} earlier."

    def as_json(self) -> dict[str, object]:
        return {
            "pe": self.pe,
            "pes": self.pes,
            "together": self.together,
            "equal": self.equal,
            "slack_ns": self.slack_ns,
            "sentence": self.sentence,
        }


def finish_of(explanation: Explanation) -> Finish | None:
    """How the launch of a scope ended; None for a scope that is not one launch."""
    run, scope = explanation.run, explanation.scope
    if scope.launch < 0:
        return None
    launch = run.launches[scope.launch]
    last = last_pes(launch, scope.end_ns)
    if not last:
        return None
    earlier = [pe.end_ns for pe in launch.pes if pe.end_ns < last[0].end_ns]
    slack = last[0].end_ns - max(earlier) if earlier else None
    equal = None
    if len(explanation.path) * len(last) <= MOST_SEGMENTS:
        ours = _shape(explanation.path)
        equal = 1 + sum(_shape(critical_path(run, scope, pe)) == ours for pe in last[1:])
    return Finish(last[0].name, len(launch.pes), len(last), equal, slack, launch.idle_pes)


def _shape(path: list[PathSegment]) -> list[tuple[str, float]]:
    return [(segment.cls, segment.t0) for segment in path]
