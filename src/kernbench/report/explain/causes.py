"""Causes of lost time on a critical path, each with an estimate of what avoiding it would gain.

A cause is a property of the program or of its placement, not a class of time: tensors that lie far away, uneven shares
of work, PEs that run one after the other, loads that are not overlapped with compute, transfers that are too small, a
memory or a link where requests meet, launches, messages. The gain is the part of the path that the cause owns:

- distance: what transfers across dies took longer than the same bytes from the PE's own HBM slice;
- imbalance: how much more work than the average PE the last PE did, and what PEs without work could take over
  (`shares.py`);
- chain: work of other PEs on the path of a launch whose PEs wait for each other's messages;
- overlap: the lesser of compute and of DMA between the first and the last compute op on the path of a PE; half of the
  bytes before and after them, as far as there is compute to hide it;
- small transfers: the latency of transfers whose bytes take less than half as long, if they were merged into one;
- memory, link: queueing; a queue on the way to a memory where several PEs queue belongs to the memory, and so does what
  such a memory is farther away than the PE's own slice;
- launch: the latency of all launches but one; messages: that of all messages on the path but one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from kernbench.common.units import counted, format_ns
from kernbench.report.explain.classes import (
    COMMUNICATION,
    CREDIT,
    FETCH_STORE,
    GEMM,
    ISSUE,
    LATENCY,
    LAUNCH,
    MATH,
    QUEUE,
    TRANSFER,
)
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.finding import (
    CAUSES,
    CHAIN,
    IMBALANCE,
    LINK,
    MEMORY,
    MESSAGES,
    OVERLAP,
    Finding,
)
from kernbench.report.explain.hints import BARRIER, hint_of
from kernbench.report.explain.path import PathSegment
from kernbench.report.explain.path_text import lines_of, queueing_at, sizes_of
from kernbench.report.explain.shares import Shares
from kernbench.report.explain.transfer_causes import TransferCauses
from kernbench.report.runs.access_times import access_gbs

SEND: Final = "ipcq_send"  # the name of an op
FAR_LINK: Final = "far link"
AT_MEMORY: Final = ("hbm channel", "hbm port", "channel router", "sram port", FAR_LINK)
COMPUTED: Final = (GEMM, MATH, FETCH_STORE)


class PathCauses:
    """All causes on the path of an explanation."""

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        self._run = explanation.run
        self._path = explanation.path
        self._transfers = TransferCauses(explanation)
        self._pes = self._transfers.pes  # by lane: the PE, or an empty name

    def findings(self) -> list[Finding]:
        """Those with a gain, the largest first; equal ones in the order of `CAUSES`."""
        looks: tuple[Callable[[], Iterator[Finding]], ...] = (
            self._transfers.distance, self._imbalance, self._chain, self._overlap, self._transfers.small_transfers,
            self._transfers.few_channels, self._queues, self._launches, self._messages, self._issue,
        )  # fmt: skip
        found = [finding for look in looks for finding in look() if finding.gain_ns > 0.0]
        return sorted(found, key=lambda finding: (-finding.gain_ns, CAUSES.index(finding.cause)))

    # ---- causes

    def _imbalance(self) -> Iterator[Finding]:
        on_path = dict.fromkeys(segment.launch for segment in self._path if segment.launch >= 0)
        shares = {launch: Shares(self._run, self._run.launches[launch], self._transfers) for launch in on_path}
        uneven = [one for one in shares.values() if one.gain_ns > 0.0]
        if uneven:
            worst = max(uneven, key=lambda one: one.gain_ns)
            spent = dict.fromkeys(on_path, 0.0)  # launches may overlap: no more than a launch has of the path
            for segment in self._path:
                if segment.launch >= 0:
                    spent[segment.launch] += segment.ns
            gain = sum(min(one.gain_ns, spent[launch]) for launch, one in shares.items() if one.gain_ns > 0.0)
            yield Finding(IMBALANCE, gain, worst.what, worst.hint, MATH, brief=worst.brief)

    def _chain(self) -> Iterator[Finding]:
        work: dict[int, dict[str, float]] = {}
        handed: dict[int, list[str]] = {}  # by launch: the ops that waited for another PE's message
        for before, segment in pairwise((None, *self._path)):
            assert segment is not None
            if segment.lane < 0 or segment.launch < 0 or not self._pes[segment.lane]:
                continue
            if before is not None and before.via == "message":
                handed.setdefault(segment.launch, []).append(self._name_of(segment))
            is_dma = self._run.lanes[segment.lane].kind in "RW"
            if segment.cls in COMPUTED or (is_dma and segment.cls in (TRANSFER, LATENCY)):
                mine = work.setdefault(segment.launch, {})
                pe = self._pes[segment.lane]
                mine[pe] = mine.get(pe, 0.0) + segment.ns
        gains = {launch: sum(mine.values()) - max(mine.values()) for launch, mine in work.items() if launch in handed}
        if not gains:
            return
        longest = max(gains, key=lambda launch: (gains[launch], -launch))
        pes = list(work[longest])
        barriers = handed[longest].count(BARRIER) * 2 > len(handed[longest])
        brief = f"Chain: {len(pes)} PEs run one after another through {'barriers' if barriers else 'messages'}"
        what = f"{brief}: the path goes through the work of {pes[0]} before that of {pes[-1]}."
        hint = "do the work that needs no message before the receive, and let messages carry only results"
        if barriers:
            hint = "let all PEs work between two barriers, and leave out barriers that no data passes"
        yield Finding(CHAIN, sum(gains.values()), what, hint, COMMUNICATION, brief=brief)

    def _hint(self, cause: str) -> str:
        return hint_of(cause, self._run.graph.spec)

    def _name_of(self, segment: PathSegment) -> str:
        return self._run.ops.name[int(self._run.ops.row_of[segment.op])] if segment.op >= 0 else ""

    def _overlap(self) -> Iterator[Finding]:
        """DMA and compute that alternate on the path of a PE, or follow each other: all loads, then all compute."""
        by_pe: dict[tuple[int, str], list[PathSegment]] = {}
        for segment in self._path:
            if segment.lane >= 0 and self._pes[segment.lane]:
                by_pe.setdefault((segment.launch, self._pes[segment.lane]), []).append(segment)
        gain, worst = 0.0, (0.0, "", list[PathSegment](), True)
        for (_, pe), segments in by_pe.items():
            computed = [at for at, segment in enumerate(segments) if segment.cls in COMPUTED]
            if not computed:
                continue
            between = [one for one in segments[computed[0] : computed[-1]] if self._moves(one)]
            around = [one for one in (*segments[: computed[0]], *segments[computed[-1] :]) if self._moves(one)]
            compute_ns = sum(segments[at].ns for at in computed)
            alternating_ns = min(sum(one.ns for one in between), compute_ns)
            bytes_ns = sum(one.ns for one in around if one.cls == TRANSFER)
            divided_ns = min(bytes_ns, compute_ns - alternating_ns) / 2  # in two halves, one beside the other's compute
            gain += alternating_ns + divided_ns
            alternate = alternating_ns >= divided_ns
            mine = (alternating_ns + divided_ns, pe, between if alternate else around, alternate)
            worst = max(worst, mine, key=lambda found: found[0])
        if gain:
            moved = worst[2]
            how = "alternate" if worst[3] else "follow each other"
            brief = f"Missing overlap: {counted(len({segment.op for segment in moved}), 'transfer')} and compute {how}"
            what = f"{brief} on {worst[1]} instead of running concurrently{lines_of(self._explanation, moved)}."
            hint = self._hint(OVERLAP) if worst[3] else f"divide the work into blocks and {self._hint(OVERLAP)}"
            yield Finding(OVERLAP, gain, what, hint, TRANSFER, brief=brief)

    def _moves(self, segment: PathSegment) -> bool:
        return self._run.lanes[segment.lane].kind in "RW" and segment.cls in (TRANSFER, LATENCY)

    def _queues(self) -> Iterator[Finding]:
        """Queueing at memories, and at each class of links."""
        run = self._run
        ops = run.ops
        alone = {row for row, moved in self._transfers.moved.items() if moved.conflict_ns}  # behind their own flits
        queues = [
            one for one in self._path if one.cls == QUEUE and one.lane >= 0 and int(ops.row_of[one.op]) not in alone
        ]
        hot = self._hot_memories(queues)
        by: dict[str, list[PathSegment]] = {}
        for segment in queues:
            link_class = run.places[segment.place].link_class
            if self._transfers.memory_of(int(run.ops.row_of[segment.op])) in hot:
                link_class = MEMORY
            by.setdefault(link_class, []).append(segment)
        for link_class, segments in by.items():
            ns = sum(segment.ns for segment in segments)
            is_host = all(run.lanes[segment.lane].kind == "H" for segment in segments)
            where = queueing_at(self._explanation, segments, "the host" if is_host else "one PE")
            lines = lines_of(self._explanation, segments)
            share = self._explanation.share(ns)
            if link_class == MEMORY:
                at = max(
                    AT_MEMORY, key=lambda cls: sum(s.ns for s in segments if run.places[s.place].link_class == cls)
                )
                far_ns = sum(
                    s.ns for s in segments if self._is_far(self._transfers.memory_of(int(run.ops.row_of[s.op])))
                )
                hint = self._hint(FAR_LINK if 2 * far_ns > ns else at)
                rows = [row for row in self._transfers.moved if self._transfers.memory_of(row) in hot]
                farther_ns = sum(self._transfers.later_than_own_ns(row) for row in rows)
                farther = f", and being farther than the PE's own slice costs {format_ns(farther_ns)}"
                brief = f"Hot memory: queueing is {share:.1%} of the critical path"
                what = f"{brief}{lines}{farther if farther_ns > ns / 10 else ''}. {where}"
                yield Finding(MEMORY, ns + farther_ns, what, hint, QUEUE, at, brief=brief)
            else:
                narrow_ns = self._narrow_ns(segments, link_class)
                narrow = f", and being narrow costs {format_ns(narrow_ns)}" if narrow_ns else ""
                queued = f"queueing at {link_class} links is {share:.1%} of the critical path{lines}"
                what = f"Hot link: {queued}{narrow}. {where}"
                yield Finding(LINK, ns + narrow_ns, what, self._hint(link_class), QUEUE, link_class)

    def _is_far(self, memory: str) -> bool:
        return self._run.graph.nodes[memory].kind == "far_memory"

    def _narrow_ns(self, segments: list[PathSegment], link_class: str) -> float:
        """What the bytes of transfers that queued take longer than from the PE's own slice, where links of this class
        are the narrowest of their path.
        """
        run, total = self._run, 0.0
        for row in dict.fromkeys(int(run.ops.row_of[segment.op]) for segment in segments):
            moved = self._transfers.moved.get(row)
            links = [run.places[int(place)] for place in run.ops.route.of(row)]
            narrowest = min(links, key=lambda link: access_gbs(run.graph, link) or float("inf"), default=None)
            if moved is not None and narrowest is not None and narrowest.link_class == link_class:
                total += self._transfers.longer_than_own_ns(moved)
        return total

    def _hot_memories(self, queues: list[PathSegment]) -> set[str]:
        """Memories where a third or more of the queueing on the way to them takes place."""
        there: dict[str, float] = {}
        total: dict[str, float] = {}
        for segment in queues:
            memory = self._transfers.memory_of(int(self._run.ops.row_of[segment.op]))
            total[memory] = total.get(memory, 0.0) + segment.ns
            if self._run.places[segment.place].link_class in AT_MEMORY:
                there[memory] = there.get(memory, 0.0) + segment.ns
        return {memory for memory, ns in there.items() if 3 * ns >= total[memory]}

    def _launches(self) -> Iterator[Finding]:
        count = len({segment.launch for segment in self._path if segment.cls == LAUNCH})
        if count < 2:  # a single launch cannot be avoided; those of other SIPs at the same time cost nothing
            return
        ns = sum(segment.ns for segment in self._path if segment.cls == LAUNCH)
        share = self._explanation.share(ns)
        what = f"Launches: {count:,} launches take {share:.1%} of the critical path to start and end."
        hint = "do more work per launch, or launch with wait=False so that launches overlap"
        brief = f"Launches: {count:,} take {share:.1%} of the critical path"
        yield Finding(LAUNCH, ns * (1 - 1 / count), what, hint, LAUNCH, brief=brief)

    def _messages(self) -> Iterator[Finding]:
        lanes = self._run.lanes
        sent = [
            s for s in self._path if s.lane >= 0 and lanes[s.lane].kind == "C" and s.cls in (LATENCY, COMMUNICATION)
        ]
        credits = sum(segment.ns for segment in self._path if segment.cls == CREDIT)
        if credits:
            share = self._explanation.share(credits)
            what = f"Waiting for room in the receiver's ring is {share:.1%} of the critical path."
            yield Finding(CREDIT, credits, what, self._hint(CREDIT), CREDIT)
        if not sent:
            return
        ns = sum(segment.ns for segment in sent)
        share, lines = self._explanation.share(ns), lines_of(self._explanation, sent)
        waits = [segment for segment in sent if self._name_of(segment) == BARRIER]
        if sum(segment.ns for segment in waits) * 2 > ns:
            count = len({segment.op for segment in waits})
            what = f"Barriers: the path waits in {count:,} of them for {share:.1%} of its time{lines}."
            yield Finding(MESSAGES, ns * (1 - 1 / count), what, self._hint(BARRIER), COMMUNICATION)
            return
        sends = [segment for segment in sent if self._name_of(segment) == SEND] or sent
        count = len({segment.op for segment in sends})
        sizes = sizes_of(self._explanation, sends, "messages")
        what = f"Messages: their latency is {share:.1%} of the critical path{lines}. {sizes}"
        yield Finding(MESSAGES, ns * (1 - 1 / count), what, self._hint(MESSAGES), LATENCY)

    def _issue(self) -> Iterator[Finding]:
        segments = [segment for segment in self._path if segment.cls == ISSUE]
        if len(segments) > 1:
            ns = sum(segment.ns for segment in segments)
            share = self._explanation.share(ns)
            what = f"Issuing {len(segments):,} commands is {share:.1%} of the critical path."
            yield Finding(ISSUE, ns * (1 - 1 / len(segments)), what, self._hint(ISSUE), ISSUE)
