"""What bounded a run, in one sentence, and what to try first.

The sentence names the largest of queueing at one class of links, latency, issue, credit, launch and host, if it has 10
% of the critical path or more, with its kernel lines, the place that has half of it, and the number of requesters
there. Otherwise it names the kind of engine that has half of the path, or else the largest class of work. What to try
comes from a table.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernbench.common.units import format_bytes, format_ns
from kernbench.report.explain.classes import CREDIT, HOST, ISSUE, LATENCY, LAUNCH, QUEUE, TRANSFER
from kernbench.report.explain.explanation import OUTSIDE, Explanation
from kernbench.report.explain.path import PathSegment

WORTH_NAMING = 0.10
STALLS_SHOWN = 5
WAITS = (LATENCY, ISSUE, CREDIT, LAUNCH, HOST)

TRY = {
    "hbm channel": "spread the tensors over more HBM slices, or let PEs read different parts at a time",
    "hbm port": "spread the tensors over more HBM slices, or let PEs read different parts at a time",
    "router": "place tensors nearer to the PEs that read them, or spread them over more slices",
    "pe port": "let fewer transfers of the PE overlap, or move fewer bytes",
    "sram port": "use TCM or HBM for what several PEs read at a time",
    "ucie": "keep traffic within its cube, or spread it over more of the cube's sides",
    "io": "send less through the IO chiplet, or use more of them",
    "pcie": "write less from the host, or earlier: tensors that stay on the device need no transfer",
    "command": "launch less often, with more work each",
    "pe internal": "let fewer ops of the PE overlap",
    LATENCY: 'move more bytes per transfer (larger blocks, tile_shape="auto"), or have more under way (load_async, '
    "pe_dma outstanding)",
    ISSUE: "give the engines more work per command: larger blocks, or a composite instead of single ops",
    CREDIT: "give rings more or larger slots (n_slots, slot_size), or let receivers take messages earlier",
    LAUNCH: "do more work per launch, or launch asynchronously so that launches overlap",
    HOST: "write tensors before they are needed, or let them stay on the device",
    "messages": "send fewer, larger messages, take an algorithm with fewer steps, give rings more or larger slots, or "
    "overlap messages with compute",
    "gemm": "spread the product over more PEs; its engine is the bound",
    "math": "spread the rows over more PEs, or fuse ops so that fewer pass the lanes",
    TRANSFER: "read fewer bytes (reuse what is in TCM), or spread them over more PEs and HBM slices",
    "fetch and store": "use a composite with larger tiles, so that operands are fetched less often",
    "communication": "send fewer, larger messages, or overlap them with compute",
}
NAMES = {
    "hbm channel": "HBM queueing",
    "hbm port": "Queueing at the HBM ports",
    "router": "Queueing on router links",
    "pe port": "Queueing at the PEs' own ports",
    "sram port": "Queueing at the SRAM",
    "ucie": "UCIe queueing",
    "io": "Queueing in the IO chiplets",
    "pcie": "PCIe queueing",
    "command": "Queueing of commands",
    "pe internal": "Queueing inside the PE",
    LATENCY: "Latency of transfers",
    ISSUE: "Issuing commands",
    CREDIT: "Waiting for room in the receiver's ring",
    LAUNCH: "Launching",
    HOST: "The host",
    "gemm": "GEMM work",
    "math": "MATH work",
    TRANSFER: "Moving bytes",
    "fetch and store": "Fetching and storing",
    "communication": "Sending and receiving",
}


@dataclass(frozen=True, slots=True)
class Bound:
    """What bounds a scope. `what` and `hint` make the sentence."""

    cls: str
    link_class: str  # of queueing; else empty
    ns: float
    share: float
    what: str
    hint: str

    @property
    def sentence(self) -> str:
        return f"{self.what} Try: {self.hint}."


def bound_of(explanation: Explanation) -> Bound:
    """What bounds a scope."""
    waits: dict[tuple[str, str], list[PathSegment]] = {}
    work: dict[tuple[str, str], list[PathSegment]] = {}
    for segment in explanation.path:
        if segment.cls == QUEUE:
            waits.setdefault((QUEUE, explanation.run.places[segment.place].link_class), []).append(segment)
        else:
            (waits if segment.cls in WAITS else work).setdefault((segment.cls, ""), []).append(segment)
    if waits:
        (cls, link_class), segments = max(waits.items(), key=lambda item: sum(segment.ns for segment in item[1]))
        if explanation.share(sum(segment.ns for segment in segments)) >= WORTH_NAMING or not work:
            return _waiting(explanation, cls, link_class, segments)
    lanes = {name: ns for name, ns in explanation.by_lane.items() if name not in ("between ops", LAUNCH, HOST)}
    lane = max(lanes, key=lambda name: lanes[name], default="")
    (cls, _), segments = max(work.items(), key=lambda item: sum(segment.ns for segment in item[1]))
    ns = sum(segment.ns for segment in segments)
    if lane and explanation.share(lanes[lane]) >= 0.5:
        ns, share = lanes[lane], explanation.share(lanes[lane])
        what = f"Bound by {lane}: {share:.1%} of the critical path{_lines(explanation, segments)}."
    else:
        share = explanation.share(ns)
        what = f"{NAMES[cls]} is {share:.1%} of the critical path{_lines(explanation, segments)}."
    return Bound(cls, "", ns, share, what, TRY[cls])


def _waiting(explanation: Explanation, cls: str, link_class: str, segments: list[PathSegment]) -> Bound:
    ns = sum(segment.ns for segment in segments)
    share = explanation.share(ns)
    name = link_class or cls
    called, hint, more = NAMES[name], TRY[name], ""
    lanes = explanation.run.lanes
    if cls == QUEUE:
        is_host = all(lanes[segment.lane].kind == "H" for segment in segments)
        more = _where(explanation, segments, ns, "the host" if is_host else "one PE")
        hint = TRY["pcie"] if is_host else hint
    elif cls == LATENCY:
        sent = sum(segment.ns for segment in segments if lanes[segment.lane].kind == "C")
        kind = "messages" if sent * 2 > ns else "transfers"
        more = _sizes(explanation, segments, kind)
        hint = TRY.get(kind, hint)
        called = f"Latency{'' if explanation.run.places else ' and queueing'} of {kind}"
    what = f"{called} is {share:.1%} of the critical path{_lines(explanation, segments)}.{more}"
    return Bound(cls, link_class, ns, share, what, hint)


def _where(explanation: Explanation, segments: list[PathSegment], ns: float, one: str) -> str:
    """The place that has half of the queueing, and the number of requesters there; `one` names a single one."""
    by_node: dict[str, float] = {}
    places = explanation.run.places
    for segment in segments:
        spot = _spot(places[segment.place].src, places[segment.place].dst)
        by_node[spot] = by_node.get(spot, 0.0) + segment.ns
    spot = max(by_node, key=lambda name: by_node[name])
    requesters = _requesters(explanation, spot)
    met = f"{requesters} requesters meet" if requesters > 1 else f"requests of {one} meet"
    if by_node[spot] * 2 >= ns:
        return f" {met[0].upper()}{met[1:]} at {spot}."
    return f" It is spread over {len(by_node)} places, most of it at {spot}, where {met}."


def _spot(src: str, dst: str) -> str:
    return f"{src} -> {dst}" if dst else src


def _requesters(explanation: Explanation, spot: str) -> int:
    """The number of PEs, or hosts, whose bytes passed there in the scope."""
    run, scope = explanation.run, explanation.scope
    ops = run.ops
    links = [place for place in run.places if place.kind == "link"]
    wanted = [link.index for link in links if spot in (link.name, link.src, link.dst)]
    rows = np.repeat(np.arange(len(ops)), np.diff(ops.route.starts))
    rows = rows[np.isin(ops.route.values, wanted)]
    rows = rows[(ops.t_end[rows] > scope.begin_ns) & (ops.t_start[rows] < scope.end_ns)]
    return len({run.lanes[int(lane)].component.rpartition(".")[0] for lane in np.unique(ops.lane[rows])})


def _sizes(explanation: Explanation, segments: list[PathSegment], what: str) -> str:
    """How many transfers or messages, and how large they are."""
    ops = explanation.run.ops
    rows = [int(ops.row_of[op]) for op in dict.fromkeys(segment.op for segment in segments) if op >= 0]
    if not rows:
        return ""
    sizes = [int(ops.nbytes[row]) for row in rows]
    each = format_bytes(sorted(sizes)[len(sizes) // 2])
    typically = "" if min(sizes) == max(sizes) else "typically "
    return f" {len(rows):,} {what} of {typically}{each} follow each other."


def _lines(explanation: Explanation, segments: list[PathSegment]) -> str:
    """`, most of it for softmax.py:12`: the lines with the largest shares."""
    sums: dict[int, float] = {}
    for segment in segments:
        if segment.line >= 0:
            sums[segment.line] = sums.get(segment.line, 0.0) + segment.ns
    total = sum(segment.ns for segment in segments)
    best = [line for line, ns in sorted(sums.items(), key=lambda item: (-item[1], item[0])) if ns >= total / 4][:2]
    if not best:
        return ""
    lines = explanation.run.lines
    return ", most of it for " + " and ".join(lines[line].name.removeprefix("kernbench/") for line in best)


# ---- stalls


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
    where = f" in {run.lines[line].name}" if line >= 0 else f", {OUTSIDE}"
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
