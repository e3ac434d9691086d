"""The largest causes of waiting on a critical path, by kernel line."""

from __future__ import annotations

from dataclasses import dataclass

from kernbench.common.units import format_ns
from kernbench.report.explain.classes import CREDIT, HOST, ISSUE, LATENCY, LAUNCH, QUEUE
from kernbench.report.explain.explanation import OUTSIDE, Explanation
from kernbench.report.explain.path import PathSegment

STALLS_SHOWN = 5
WAITS = (LATENCY, ISSUE, CREDIT, LAUNCH, HOST)


@dataclass(frozen=True, slots=True)
class Stall:
    """A cause of waiting on one kernel line: its time, and one op as an example."""

    ns: float
    share: float
    text: str
    op: int


def stalls_of(explanation: Explanation) -> list[Stall]:
    """The largest causes of waiting on the critical path."""
    groups: dict[tuple[str, str, int], list[PathSegment]] = {}
    for segment in explanation.path:
        if segment.cls in WAITS or segment.cls == QUEUE:
            link_class = explanation.run.places[segment.place].link_class if segment.place >= 0 else ""
            groups.setdefault((segment.cls, link_class, segment.line), []).append(segment)
    found = []
    for (cls, link_class, line), segments in groups.items():
        ns = sum(segment.ns for segment in segments)
        longest = max(segments, key=lambda segment: (segment.ns, -segment.op))
        found.append(Stall(ns, explanation.share(ns), _stall(explanation, cls, link_class, line, segments), longest.op))
    return sorted(found, key=lambda stall: (-stall.ns, stall.text))[:STALLS_SHOWN]


def _stall(explanation: Explanation, cls: str, link_class: str, line: int, segments: list[PathSegment]) -> str:
    run = explanation.run
    ns = format_ns(sum(segment.ns for segment in segments))
    where = f" in {run.lines[line].name}" if line >= 0 else f" {OUTSIDE}"
    ops = len(dict.fromkeys(segment.op for segment in segments if segment.op >= 0))
    times = "" if ops < 2 else f" by {ops:,} ops"
    if cls == QUEUE:
        at = run.places[max(segments, key=lambda segment: segment.ns).place].name
        return f"{ns} were spent{times}{where} queueing at {link_class} places, longest at {at}"
    if cls == LATENCY:
        return f"{ns} of latency were paid{times}{where}: wires, routers and channels, without contention"
    if cls == ISSUE:
        return f"{ns} passed{times}{where} between the end of an op and the start of the next: scheduler and CPU"
    if cls == CREDIT:
        return f"{ns} were spent{times}{where} waiting for room in a receiver's ring"
    if cls == LAUNCH:
        return f"{ns} passed between the host and the PEs, before kernels began and after they ended"
    return f"{ns} were the host's{times}: writing, reading and mapping tensors"
