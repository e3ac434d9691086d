"""Which PEs ended a launch: whether the critical path is one of several equal ones, or others have time to spare.

Where eight PEs do the same and end together, making one of them faster gains nothing; where one ends last, all that
matters is on its path until the next one is as late.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.common.units import format_ns
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.path import Piece, critical_path, last_pes

MOST_PIECES = 200_000  # of all paths that are compared


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a launch. Equal paths have the same pieces at the same times."""

    pe: str  # whose path it is
    pes: int  # of the launch
    together: int  # PEs that ended last, at the same time
    equal: int | None  # paths of these; None where they are too long to compare
    slack_ns: float | None  # how much earlier the next one ended; None where there is none

    @property
    def sentence(self) -> str:
        if self.together > 1:
            equal = {None: "", self.together: ", on equal paths"}.get(
                self.equal, f", {self.equal} of them on equal paths"
            )
            return f"{self.together} of {self.pes} PEs end last, at the same time{equal}; shown is that of {self.pe}."
        if self.slack_ns is None:
            return f"It is the path of {self.pe}, the only PE."
        return f"{self.pe} alone ends last; the next of {self.pes} PEs ends {format_ns(self.slack_ns)} earlier."

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
    if len(explanation.path) * len(last) <= MOST_PIECES:
        ours = _shape(explanation.path)
        equal = 1 + sum(_shape(critical_path(run, scope, pe)) == ours for pe in last[1:])
    return Finish(last[0].name, len(launch.pes), len(last), equal, slack)


def _shape(path: list[Piece]) -> list[tuple[str, float]]:
    return [(piece.cls, piece.t0) for piece in path]
