"""The verdict on a run: the cause that costs most, what it is expected to gain to avoid it, and what to try.

Causes are ranked by their expected gain (`causes.py`). A cause is named if it would gain a tenth of the path or more; a
wait, unlike a cause that leaves engines idle, must also be longer than the largest other class of work, since less work
would gain more. Otherwise the sentence names the largest class of time. The largest class of work is named in any case.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kernbench.common.units import format_ns
from kernbench.report.explain.causes import AT_MEMORY, PathCauses
from kernbench.report.explain.classes import (
    COMMUNICATION,
    CREDIT,
    FETCH_STORE,
    GEMM,
    HOST,
    ISSUE,
    LATENCY,
    LAUNCH,
    MATH,
    QUEUE,
    TRANSFER,
    WORK,
)
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.finding import CAUSES, COMPUTE, LINK, MEMORY, MESSAGES, STRUCTURE, Finding
from kernbench.report.explain.hints import hint_of
from kernbench.report.explain.path import PathSegment
from kernbench.report.explain.path_text import lines_of
from kernbench.report.explain.triton_words import in_words_of_triton
from kernbench.report.runs.parts import TILE

__all__ = ["CAUSES", "Verdict", "verdict_of"]

WORTH_NAMING = 0.10
NAMES: Final = {
    GEMM: "GEMM work",
    MATH: "MATH work",
    FETCH_STORE: "Moving operands between TCM and registers",
    TRANSFER: "Moving bytes",
    COMMUNICATION: "Sending and receiving",
    LATENCY: "Latency of transfers",
    QUEUE: "Queueing",
    ISSUE: "Issuing commands",
    CREDIT: "Waiting for room in the receiver's ring",
    LAUNCH: "Launching",
    HOST: "The host",
}
CAUSE_OF: Final = {
    GEMM: COMPUTE, MATH: COMPUTE, FETCH_STORE: COMPUTE, TRANSFER: MEMORY, COMMUNICATION: MESSAGES, LATENCY: LATENCY,
    QUEUE: LINK, ISSUE: ISSUE, CREDIT: CREDIT, LAUNCH: LAUNCH, HOST: HOST,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """What costs most in a scope. `what` and `hint` make the sentence."""

    cause: str
    cls: str  # the class of time that it shows as
    link_class: str  # of queueing; else empty
    ns: float  # expected gain; of a class of time, how long it is
    share: float  # of the path
    gain: float  # expected, as a fraction of the path; 0 if only more or faster hardware would gain
    what: str
    hint: str
    brief: str  # `what` in one clause, for one line of a terminal

    @property
    def sentence(self) -> str:
        return f"{self.what} Try: {self.hint}."

    def as_json(self, command: str = "") -> dict[str, object]:
        """The documented keys; `command` is what to run next."""
        return {
            "cause": self.cause,
            "share": self.share,
            "gain": self.gain,
            "sentence": self.sentence,
            "command": command,
        }


def verdict_of(explanation: Explanation) -> Verdict:
    """The verdict on a scope."""
    found = _verdict_of(explanation)
    return replace(found, hint=in_words_of_triton(found.hint)) if explanation.run.is_triton else found


def _verdict_of(explanation: Explanation) -> Verdict:
    work = {cls: ns for cls, ns in explanation.by_class.items() if cls in WORK}
    heaviest = max(work, key=lambda cls: work[cls], default="")
    for finding in PathCauses(explanation).findings():
        share = explanation.share(finding.gain_ns)
        if share < WORTH_NAMING:
            break
        other = max((ns for cls, ns in work.items() if cls != finding.cls), default=0.0)
        if finding.cause in STRUCTURE or finding.gain_ns >= other:
            return _named(explanation, finding, heaviest, work.get(heaviest, 0.0))
    return _largest(explanation)


def _named(explanation: Explanation, finding: Finding, heaviest: str, work_ns: float) -> Verdict:
    gain_ns = finding.gain_ns + finding.with_ns
    gain = explanation.share(gain_ns)
    beside = f" {NAMES[heaviest]} is {explanation.share(work_ns):.1%} of the path." if work_ns else ""
    what = f"{finding.what} Avoiding it would gain about {format_ns(gain_ns)} ({gain:.1%}).{beside}"
    brief = f"{finding.brief or _first_clause(finding.what)} ({format_ns(gain_ns)} to gain)"
    return Verdict(finding.cause, finding.cls, finding.link_class, gain_ns, gain, gain, what, finding.hint, brief)


def _first_clause(what: str) -> str:
    return what.partition(". ")[0].partition(", most of it")[0].partition("; ")[0].rstrip(".")


def _largest(explanation: Explanation) -> Verdict:
    """The largest class of time: work, or a wait that no single cause explains."""
    sums = explanation.by_class
    many = len({segment.launch for segment in explanation.path if segment.cls == LAUNCH}) > 1  # one after the other
    named = {cls: ns for cls, ns in sums.items() if cls != LAUNCH or many} or sums
    cls = max(named, key=lambda name: named[name], default=HOST)
    ns = named.get(cls, 0.0)
    segments = [segment for segment in explanation.path if segment.cls == cls]
    share = explanation.share(ns)
    what = f"{NAMES[cls]} is {share:.1%} of the critical path{lines_of(explanation, segments)}."
    link_class = ""
    if cls == QUEUE and segments:
        links: dict[str, float] = {}
        for segment in segments:
            name = explanation.run.places[segment.place].link_class
            links[name] = links.get(name, 0.0) + segment.ns
        link_class = max(links, key=lambda name: links[name])
    spec = explanation.run.graph.spec
    hint = hint_of(link_class or cls, spec)
    if cls == LAUNCH and not many:
        hint = "give the kernel more work: the rest is what any launch takes"
    if cls == TRANSFER and 2 * sum(one.ns for one in segments if _is_tile(explanation, one)) > ns:
        hint = hint_of(TILE, spec)
    cause = MEMORY if link_class in AT_MEMORY else CAUSE_OF[cls]
    return Verdict(cause, cls, link_class, ns, share, 0.0, what, hint, _first_clause(what))


def _is_tile(explanation: Explanation, segment: PathSegment) -> bool:
    ops = explanation.run.ops
    return segment.op >= 0 and ops.name[int(ops.row_of[segment.op])].startswith(TILE)
