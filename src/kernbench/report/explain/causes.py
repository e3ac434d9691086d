"""Causes of lost time on a critical path, each with an estimate of what avoiding it would gain.

A cause is a property of the program or of its placement, not a class of time: tensors that lie far away, uneven shares
of work, PEs that run one after the other, loads that are not overlapped with compute, transfers that are too small, a
memory or a link where requests meet, launches, messages. The gain is the part of the path that the cause owns:

- distance: what transfers across dies took longer than the same bytes from the PE's own HBM slice;
- imbalance: how much more work than the average PE the last PE did, as far as it ended later than the average; the
  latency of a transfer counts as the average one, so that a PE that is far from its data has no more work;
- chain: work of other PEs on the path of a launch whose PEs wait for each other's messages;
- overlap: the lesser of compute and of DMA between the first and the last compute op on the path of a PE;
- small transfers: the latency of transfers whose bytes take less than half as long, if they were merged into one;
- memory, link: queueing; a queue on the way to a memory where several PEs queue belongs to the memory;
- launch: the latency of all launches but one; messages: that of all messages on the path but one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from kernbench.common.units import format_bytes, format_ns
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
)
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.path import PathSegment
from kernbench.report.explain.path_text import lines_of, queueing_at, sizes_of
from kernbench.report.runs.access_times import AccessTime, AccessTimes
from kernbench.report.runs.parts import SavedLaunch

DISTANCE: Final = "distance"
IMBALANCE: Final = "imbalance"
CHAIN: Final = "chain"
OVERLAP: Final = "overlap"
SMALL_TRANSFERS: Final = "small_transfers"
MEMORY: Final = "memory"
LINK: Final = "link"
MESSAGES: Final = "messages"
COMPUTE: Final = "compute"

CAUSES: Final = (
    DISTANCE, IMBALANCE, CHAIN, OVERLAP, SMALL_TRANSFERS, MEMORY, LINK, LAUNCH, COMPUTE, MESSAGES, LATENCY, ISSUE,
    CREDIT, HOST,
)  # fmt: skip
STRUCTURE: Final = frozenset({IMBALANCE, CHAIN, OVERLAP})  # causes that leave engines idle, and are no waits themselves
REMOTE: Final = ("ucie", "pcie", "io")  # classes of links that leave a die
AT_MEMORY: Final = ("hbm channel", "hbm port", "channel router", "sram port")
COMPUTED: Final = (GEMM, MATH, FETCH_STORE)
FEW = 8  # fewer small transfers are no pattern


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause on a path. `what` describes it in one or two sentences, `hint` is what to change in the program."""

    cause: str
    gain_ns: float
    what: str
    hint: str
    cls: str  # the class of time that it shows as
    link_class: str = ""  # of queueing


@dataclass(slots=True)
class _Moved:
    """A DMA transfer on the path: its time there by class."""

    row: int
    pe: str
    launch: int
    parts: dict[str, float]
    own: AccessTime | None  # the same PE's access to its own slice


class PathCauses:
    """All causes on the path of an explanation."""

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        self._run = explanation.run
        self._path = explanation.path
        self._times = AccessTimes(explanation.run.graph)

    def findings(self) -> list[Finding]:
        """Those with a gain, the largest first; equal ones in the order of `CAUSES`."""
        looks: tuple[Callable[[], Iterator[Finding]], ...] = (
            self._distance, self._imbalance, self._chain, self._overlap, self._small_transfers, self._queues,
            self._launches, self._messages, self._issue,
        )  # fmt: skip
        found = [finding for look in looks for finding in look() if finding.gain_ns > 0.0]
        return sorted(found, key=lambda finding: (-finding.gain_ns, CAUSES.index(finding.cause)))

    # ---- the path

    @cached_property
    def _pes(self) -> list[str]:
        """By lane: the PE, or an empty name."""
        return [lane.component.rpartition(".")[0] if lane.pe >= 0 else "" for lane in self._run.lanes]

    @cached_property
    def _moved(self) -> list[_Moved]:
        """The DMA transfers on the path, in order of time."""
        found: dict[int, _Moved] = {}
        lanes, ops = self._run.lanes, self._run.ops
        for segment in self._path:
            if segment.op < 0 or segment.lane < 0 or lanes[segment.lane].kind not in "RW" or segment.cls == ISSUE:
                continue
            row = int(ops.row_of[segment.op])
            moved = found.get(row)
            if moved is None:
                pe = self._pes[segment.lane]
                moved = found[row] = _Moved(row, pe, segment.launch, {}, self._times.own_slice(pe) if pe else None)
            moved.parts[segment.cls] = moved.parts.get(segment.cls, 0.0) + segment.ns
        return list(found.values())

    def _memory_of(self, row: int) -> str:
        """The memory of a DMA transfer: where its route begins for a read, ends for a write; empty if not known."""
        route = self._run.ops.route.of(row)
        if not len(route):
            return ""
        places = self._run.places
        return places[int(route[0])].src if self._run.ops.kind[row] == "R" else places[int(route[-1])].dst

    # ---- causes

    def _distance(self) -> Iterator[Finding]:
        places, ops = self._run.places, self._run.ops
        gain, groups = 0.0, dict[tuple[str, str], list[_Moved]]()
        for moved in self._moved:
            classes = {places[int(place)].link_class for place in ops.route.of(moved.row)}
            far = next((cls for cls in REMOTE if cls in classes), None)
            if far is None or moved.own is None:
                continue
            nbytes = int(ops.nbytes[moved.row])
            longer = max(0.0, moved.parts.get(LATENCY, 0.0) - moved.own.latency_ns)
            longer += max(0.0, moved.parts.get(TRANSFER, 0.0) - nbytes / moved.own.gbs)
            gain += longer
            tensor = next(iter(ops.tensors.of(moved.row)), "")
            key = (self._memory_of(moved.row).partition(".hbm_ctrl")[0].partition(".sram")[0], str(tensor))
            groups.setdefault(key, []).append(moved)
        if not groups:
            return
        (where, tensor), most = max(groups.items(), key=lambda item: len(item[1]))
        reads = sum(self._run.ops.kind[moved.row] == "R" for moved in most)
        kind = "reads" if reads * 2 > len(most) else "writes"
        home = most[0].pe.rpartition(".")[0]
        link = "PCIe" if most[0].pe.partition(".")[0] != where.partition(".")[0] else "UCIe"
        what = (
            f"Distance: {len(most):,} {kind} on the critical path cross {link} from {home} to {where}; transfers that "
            f"leave their cube take {format_ns(gain)} longer than from the PE's own HBM slice."
        )
        name = f"`{tensor}`" if tensor else "the tensor"
        yield Finding(DISTANCE, gain, what, f"place {name} in {home}, or run the kernel where it lies", LATENCY)

    def _imbalance(self) -> Iterator[Finding]:
        best: tuple[float, str] | None = None
        gain = 0.0
        on_path = dict.fromkeys(segment.launch for segment in self._path if segment.launch >= 0)
        for launch in on_path:
            found = self._uneven(self._run.launches[launch])
            if found is not None:
                gain += found[0]
                best = max(best or found, found)
        if best is not None:
            hint = "divide the rows evenly over the PEs, or let PEs take blocks from a shared counter"
            yield Finding(IMBALANCE, gain, best[1], hint, MATH)

    def _uneven(self, launch: SavedLaunch) -> tuple[float, str] | None:
        """How much sooner a launch would end with even shares, and a sentence."""
        if len(launch.pes) < 2:
            return None
        ops = self._run.ops
        rows = np.flatnonzero((ops.launch == launch.index) & ops.is_work & ~ops.kind.are("C"))
        names = {name: at for at, name in enumerate(pe.name for pe in launch.pes)}
        of_lane = np.array([names.get(pe, -1) for pe in self._pes], np.int64)
        which = of_lane[ops.lane[rows]]
        rows, which = rows[which >= 0], which[which >= 0]
        latency = ops.latency_ns[rows]
        spent_ns = ops.t_end[rows] - ops.t_start[rows] - ops.queue_ns[rows] - latency
        spent_ns[latency > 0] += latency[latency > 0].mean() if (latency > 0).any() else 0.0  # near and far alike
        spent = np.bincount(which, spent_ns, len(launch.pes))
        work = np.minimum(spent, [pe.end_ns - pe.start_ns for pe in launch.pes])
        ends = np.array([pe.end_ns for pe in launch.pes])
        last = int(np.argmax(ends))
        gain = min(float(work[last] - work.mean()), float(ends[last] - ends.mean()))
        others = float((work.sum() - work[last]) / (len(work) - 1))
        if gain <= 0.0:
            return None
        slack = float(ends[last] - np.delete(ends, last).max())
        times = f"{work[last] / others:.1f} times" if others else "all of"
        after = f"; it ends {format_ns(slack)} after the others" if slack > 0 else ""
        return gain, f"Imbalance: {launch.pes[last].name} has {times} the work of the others{after}."

    def _chain(self) -> Iterator[Finding]:
        work: dict[int, dict[str, float]] = {}
        handed: set[int] = set()
        for segment in self._path:
            if segment.lane < 0 or segment.launch < 0 or not self._pes[segment.lane]:
                continue
            if segment.via == "message":
                handed.add(segment.launch)
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
        what = (
            f"Chain: {len(pes)} PEs run one after another through messages: the path goes through the work of "
            f"{pes[0]} before that of {pes[-1]}."
        )
        hint = "do the work that needs no message before the receive, and let messages carry only results"
        yield Finding(CHAIN, sum(gains.values()), what, hint, COMMUNICATION)

    def _overlap(self) -> Iterator[Finding]:
        """DMA and compute that alternate on the path of a PE."""
        by_pe: dict[tuple[int, str], list[PathSegment]] = {}
        for segment in self._path:
            if segment.lane >= 0 and self._pes[segment.lane]:
                by_pe.setdefault((segment.launch, self._pes[segment.lane]), []).append(segment)
        gain, worst = 0.0, (0.0, "", list[PathSegment]())
        for (_, pe), segments in by_pe.items():
            computed = [at for at, segment in enumerate(segments) if segment.cls in COMPUTED]
            if not computed:
                continue
            between = [
                segment
                for segment in segments[computed[0] : computed[-1]]
                if self._run.lanes[segment.lane].kind in "RW" and segment.cls in (TRANSFER, LATENCY)
            ]
            mine = min(sum(segment.ns for segment in between), sum(segments[at].ns for at in computed))
            gain += mine
            worst = max(worst, (mine, pe, between), key=lambda found: found[0])
        if gain:
            moved = worst[2]
            count = len({segment.op for segment in moved})
            what = (
                f"Missing overlap: on {worst[1]}, {count:,} transfers and compute alternate instead of running "
                f"concurrently{lines_of(self._explanation, moved)}."
            )
            hint = (
                "double-buffer: start the next load with tl.load_async before computing, or use a composite, which "
                "overlaps tiles"
            )
            yield Finding(OVERLAP, gain, what, hint, TRANSFER)

    def _small_transfers(self) -> Iterator[Finding]:
        ops = self._run.ops
        small = [
            moved
            for moved in self._moved
            if moved.own is not None and int(ops.nbytes[moved.row]) / moved.own.gbs * 2 < moved.own.latency_ns
        ]
        if len(small) < FEW:
            return
        latency = sum(self._own_latency(moved) for moved in small)
        sizes = sorted(int(ops.nbytes[moved.row]) for moved in small)
        chosen = {int(ops.id[moved.row]) for moved in small}
        segments = [segment for segment in self._path if segment.op in chosen]
        what = (
            f"Small transfers: {len(small):,} of {format_bytes(sizes[len(sizes) // 2])} on the critical path, whose "
            f"latency is longer than their bytes take{lines_of(self._explanation, segments)}."
        )
        hint = "load larger blocks: several rows, or a whole tile, per tl.load"
        yield Finding(SMALL_TRANSFERS, latency * (1 - 1 / len(small)), what, hint, LATENCY)

    def _own_latency(self, moved: _Moved) -> float:
        """The latency of a transfer; of one that leaves its cube, that of the PE's own slice: the rest is distance."""
        places, own = self._run.places, moved.own
        classes = {places[int(place)].link_class for place in self._run.ops.route.of(moved.row)}
        latency = moved.parts.get(LATENCY, 0.0)
        return min(latency, own.latency_ns) if own is not None and classes.intersection(REMOTE) else latency

    def _queues(self) -> Iterator[Finding]:
        """Queueing at memories, and at each class of links."""
        run = self._run
        queues = [segment for segment in self._path if segment.cls == QUEUE and segment.lane >= 0]
        hot = self._hot_memories(queues)
        by: dict[str, list[PathSegment]] = {}
        for segment in queues:
            link_class = run.places[segment.place].link_class
            if self._memory_of(int(run.ops.row_of[segment.op])) in hot:
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
                what = f"Hot memory: queueing is {share:.1%} of the critical path{lines}. {where}"
                hint = "spread the tensors over more HBM slices, or let PEs read different parts at a time"
                yield Finding(MEMORY, ns, what, hint, QUEUE, at)
            else:
                what = f"Hot link: queueing at {link_class} links is {share:.1%} of the critical path{lines}. {where}"
                yield Finding(LINK, ns, what, HINTS[link_class], QUEUE, link_class)

    def _hot_memories(self, queues: list[PathSegment]) -> set[str]:
        """Memories where a third or more of the queueing on the way to them takes place."""
        there: dict[str, float] = {}
        total: dict[str, float] = {}
        for segment in queues:
            memory = self._memory_of(int(self._run.ops.row_of[segment.op]))
            total[memory] = total.get(memory, 0.0) + segment.ns
            if self._run.places[segment.place].link_class in AT_MEMORY:
                there[memory] = there.get(memory, 0.0) + segment.ns
        return {memory for memory, ns in there.items() if 3 * ns >= total[memory]}

    def _launches(self) -> Iterator[Finding]:
        count = len(self._launches_in_scope())
        if count < 2:  # a single launch cannot be avoided
            return
        ns = sum(segment.ns for segment in self._path if segment.cls == LAUNCH)
        share = self._explanation.share(ns)
        what = f"Launches: {count:,} launches take {share:.1%} of the critical path to start and end."
        hint = "do more work per launch, or launch with wait=False so that launches overlap"
        yield Finding(LAUNCH, ns * (1 - 1 / count), what, hint, LAUNCH)

    def _messages(self) -> Iterator[Finding]:
        lanes = self._run.lanes
        sent = [
            s for s in self._path if s.lane >= 0 and lanes[s.lane].kind == "C" and s.cls in (LATENCY, COMMUNICATION)
        ]
        credits = sum(segment.ns for segment in self._path if segment.cls == CREDIT)
        if credits:
            share = self._explanation.share(credits)
            what = f"Waiting for room in the receiver's ring is {share:.1%} of the critical path."
            yield Finding(CREDIT, credits, what, HINTS[CREDIT], CREDIT)
        count = len({segment.op for segment in sent})
        if not count:
            return
        ns = sum(segment.ns for segment in sent)
        what = (
            f"Messages: their latency is {self._explanation.share(ns):.1%} of the critical path"
            f"{lines_of(self._explanation, sent)}. {sizes_of(self._explanation, sent, 'messages')}"
        )
        yield Finding(MESSAGES, ns * (1 - 1 / count), what, HINTS[MESSAGES], LATENCY)

    def _issue(self) -> Iterator[Finding]:
        segments = [segment for segment in self._path if segment.cls == ISSUE]
        if len(segments) > 1:
            ns = sum(segment.ns for segment in segments)
            share = self._explanation.share(ns)
            what = f"Issuing {len(segments):,} commands is {share:.1%} of the critical path."
            yield Finding(ISSUE, ns * (1 - 1 / len(segments)), what, HINTS[ISSUE], ISSUE)

    def _launches_in_scope(self) -> list[SavedLaunch]:
        scope, launches = self._explanation.scope, self._run.launches
        if scope.launch >= 0:
            return [launches[scope.launch]]
        return [one for one in launches if one.end_ns > scope.begin_ns and one.start_ns < scope.end_ns]


HINTS: Final = {
    "hbm channel": "spread the tensors over more HBM slices, or let PEs read different parts at a time",
    "hbm port": "spread the tensors over more HBM slices, or let PEs read different parts at a time",
    "channel router": "spread the accesses over more HBM channels, or the tensors over more slices",
    "sram port": "use TCM or HBM for what several PEs read at a time",
    "router": "place tensors nearer to the PEs that read them, or spread them over more slices",
    "pe port": "let fewer transfers of the PE overlap, or move fewer bytes",
    "ucie": "keep traffic within its cube, or spread it over more of the cube's sides",
    "io": "send less through the IO chiplet, or use more of them",
    "pcie": "write less from the host, or earlier: tensors that stay on the device need no transfer",
    "command": "launch less often, with more work each",
    "pe internal": "let fewer ops of the PE overlap",
    MESSAGES: "send fewer, larger messages, take an algorithm with fewer steps, or overlap messages with compute",
    CREDIT: "give rings more or larger slots (n_slots, slot_size), or let receivers take messages earlier",
    ISSUE: "give the engines more work per command: larger blocks, or a composite instead of single ops",
    LATENCY: "move more bytes per transfer, or have more under way (tl.load_async, pe_dma outstanding)",
    LAUNCH: "do more work per launch, or launch with wait=False so that launches overlap",
    HOST: "write tensors before they are needed, or let them stay on the device",
    GEMM: "spread the product over more PEs; its engine is the bound",
    MATH: "spread the rows over more PEs, or fuse ops so that fewer pass the lanes",
    FETCH_STORE: "use a composite with larger tiles, so that operands are fetched less often",
    TRANSFER: "read fewer bytes (reuse what is in TCM), or spread them over more PEs and HBM slices",
    COMMUNICATION: "send fewer, larger messages, or overlap them with compute",
}
