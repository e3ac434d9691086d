"""Causes that lie in the DMA transfers on a path: their distance, their size, and the memory channels that they use.

A transfer is compared with the same bytes from the PE's own HBM slice. One of several runs of bytes (a strided load, a
gather) takes a whole burst of a memory channel for each run, however short; and it takes longer still if its runs lie
in few channels. A saved run counts both as latency, since no other transfer is involved; a run that was not saved
counts the latter as queueing (`live_routes.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from kernbench.common.ids import Place
from kernbench.common.units import counted, format_bytes, format_ns
from kernbench.report.explain.classes import ISSUE, LATENCY, QUEUE, TRANSFER
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.finding import DISTANCE, MEMORY, SMALL_TRANSFERS, Finding
from kernbench.report.explain.hints import own_memory
from kernbench.report.explain.loads import MEMORY_PORTS, Loads
from kernbench.report.explain.path import RunData
from kernbench.report.explain.path_text import lines_of, requesters_at
from kernbench.report.runs.access_times import AccessTime, AccessTimes, burst_ns
from kernbench.report.runs.op_table import ATOMIC
from kernbench.report.runs.parts import TILE, RunOps, SavedPlace

REMOTE: Final = ("ucie", "pcie", "io", "sip link")  # classes of links that leave a die
FEW = 8  # fewer small transfers are no pattern
ROUNDING_NS = 1.0  # per transfer: a short last flit, a burst that begins elsewhere


@dataclass(slots=True)
class MovedOnPath:
    """A DMA transfer on the path: its time there by class."""

    row: int
    pe: str
    parts: dict[str, float]
    own: AccessTime | None  # the same PE's access to its own slice
    requests: int = 1  # that it is issued as
    runs: int = 1  # contiguous runs of bytes
    bursts_ns: float = 0.0  # how much longer its bursts take than its bytes, over all channels
    conflict_ns: float = 0.0  # how much longer its runs take since they lie in few channels


class Pieces:
    """Requests and contiguous runs of transfers. Ops that are alike are looked up once, since reading one is slow."""

    def __init__(self, ops: RunOps) -> None:
        self._ops = ops
        self._found: dict[object, tuple[int, int]] = {}

    def of(self, row: int) -> tuple[int, int]:
        """How many requests a transfer is, and how many runs of bytes."""
        ops = self._ops
        if ops.name[row].startswith(TILE):
            return 1, 1
        key = (int(ops.line[row]), int(ops.nbytes[row]), float(ops.latency_ns[row]), ops.route.of(row).tobytes())
        if key not in self._found:
            self._found[key] = ops.pieces(row)
        return self._found[key]


class TransferCauses:
    """The DMA transfers on the path of an explanation, in order of time, and the causes that they show."""

    def __init__(self, explanation: Explanation) -> None:
        self._explanation = explanation
        self._run = explanation.run
        self._times = AccessTimes(explanation.run.graph)
        self._pieces = Pieces(explanation.run.ops)
        self.pes = [lane.component.rpartition(".")[0] if lane.pe >= 0 else "" for lane in self._run.lanes]

    @cached_property
    def moved(self) -> dict[int, MovedOnPath]:
        """By row, in order of time."""
        found: dict[int, MovedOnPath] = {}
        lanes, ops = self._run.lanes, self._run.ops
        for segment in self._explanation.path:
            if segment.op < 0 or segment.lane < 0 or lanes[segment.lane].kind not in "RW" or segment.cls == ISSUE:
                continue
            row = int(ops.row_of[segment.op])
            moved = found.get(row)
            if moved is None:
                pe = self.pes[segment.lane]
                moved = found[row] = MovedOnPath(row, pe, {}, self._times.own_slice(pe) if pe else None)
            moved.parts[segment.cls] = moved.parts.get(segment.cls, 0.0) + segment.ns
        for moved in found.values():
            self._look_at_runs(moved)
        return found

    def memory_of(self, row: int) -> str:
        return memory_of(self._run, row)

    @cached_property
    def leave_cube(self) -> NDArray[np.bool_]:
        """A mask: whether the transfer of each row leaves its die."""
        route = self._run.ops.route
        remote = np.array([place.link_class in REMOTE for place in self._run.places], bool)
        rows = np.repeat(np.arange(len(self._run.ops)), np.diff(route.starts))
        return np.bincount(rows, remote[route.values.astype(np.int64)], len(self._run.ops)) > 0

    def own_slice(self, pe: str) -> AccessTime | None:
        return self._times.own_slice(pe)

    def longer_than_own_ns(self, moved: MovedOnPath) -> float:
        """How much longer the bytes of a transfer take than over the path to the PE's own slice."""
        if moved.own is None:
            return 0.0
        nbytes = int(self._run.ops.nbytes[moved.row])
        return max(0.0, moved.parts.get(TRANSFER, 0.0) - nbytes / moved.own.gbs)

    def later_than_own_ns(self, row: int) -> float:
        """How much longer the latency of a transfer within its cube is than that of the PE's own slice."""
        moved = self.moved.get(row)
        if moved is None or moved.own is None or self._is_remote(moved) or moved.runs > 1:
            return 0.0
        return max(0.0, moved.parts.get(LATENCY, 0.0) - moved.own.latency_ns)

    def _look_at_runs(self, moved: MovedOnPath) -> None:
        memory = self.memory_of(moved.row)
        access = self._times.of(moved.pe, memory) if moved.pe and memory else None
        late_ns = moved.parts.get(LATENCY, 0.0) + moved.parts.get(QUEUE, 0.0)
        if access is None or late_ns <= access.latency_ns + ROUNDING_NS:
            return
        moved.requests, moved.runs = self._pieces.of(moved.row)
        if moved.runs < 2:
            return
        nbytes = int(self._run.ops.nbytes[moved.row])
        moved.bursts_ns = max(0.0, burst_ns(self._run.graph, memory, nbytes, moved.runs) - nbytes / access.gbs)
        waited = moved.parts.get(LATENCY, 0.0)
        if self._requesters(memory) == 1:  # its own flits queued behind each other
            waited += moved.parts.get(QUEUE, 0.0)
        moved.bursts_ns = min(moved.bursts_ns, max(0.0, waited - moved.requests * access.latency_ns))
        conflict_ns = waited - moved.requests * access.latency_ns - moved.bursts_ns
        moved.conflict_ns = conflict_ns if conflict_ns > moved.requests * ROUNDING_NS else 0.0

    def _requesters(self, memory: str) -> int:
        if memory not in self._counts:
            self._counts[memory] = len(requesters_at(self._explanation, memory))
        return self._counts[memory]

    @cached_property
    def _counts(self) -> dict[str, int]:
        return {}

    def _is_remote(self, moved: MovedOnPath) -> bool:
        places = self._run.places
        return any(places[int(place)].link_class in REMOTE for place in self._run.ops.route.of(moved.row))

    def _far_die(self, moved: MovedOnPath) -> str:
        """The die of a transfer's memory. Of one that accesses several memories, the one with the longest latency."""
        memories = sorted(memories_of(self._run, moved.row))
        times = {memory: self._times.of(moved.pe, memory) for memory in memories}
        farthest = max(memories, key=lambda memory: getattr(times[memory], "latency_ns", 0.0), default="")
        return _die_of(farthest or self.memory_of(moved.row))

    # ---- causes

    def distance(self) -> Iterator[Finding]:
        """What transfers across dies take longer than the same bytes from the PE's own memory."""
        gain, queued, groups = 0.0, 0.0, dict[tuple[str, str, str], list[MovedOnPath]]()
        for moved in self.moved.values():
            if moved.own is None or not self._is_remote(moved) or Place.of(self._far_die(moved)).cube < 0:
                continue  # a stack is as near to a tensor wherever that lies
            gain += max(0.0, moved.parts.get(LATENCY, 0.0) - moved.own.latency_ns) + self.longer_than_own_ns(moved)
            queued += moved.parts.get(QUEUE, 0.0)
            tensor = next(iter(self._run.ops.tensors.of(moved.row)), "")
            groups.setdefault((moved.pe.rpartition(".")[0], self._far_die(moved), str(tensor)), []).append(moved)
        if not groups:
            return
        (home, where, tensor), most = max(groups.items(), key=lambda item: len(item[1]))
        kind = "reads" if sum(self._run.ops.kind[moved.row] == "R" for moved in most) * 2 > len(most) else "writes"
        link = "UCIe"
        if home.partition(".")[0] != where.partition(".")[0]:
            passed = {self._run.places[int(place)].link_class for place in self._run.ops.route.of(most[0].row)}
            link = "links between SIPs" if "sip link" in passed else "PCIe"
        cross = f"crosses {link}" if len(most) == 1 else f"cross {link}"
        moves = counted(len(most), kind.removesuffix("s"))
        what = (
            f"Distance: {moves} of {home} on the critical path {cross} to {where}; transfers that "
            f"leave their cube take {format_ns(gain)} longer than from "
            f"{own_memory(self._run.graph.spec)}."
        )
        brief = f"Distance: {moves} {cross} to {where}"
        hint = self._placement(tensor, kind, home, where)
        yield Finding(DISTANCE, gain, what, hint, LATENCY, brief=brief, with_ns=queued)

    def _placement(self, tensor: str, kind: str, home: str, where: str) -> str:
        """Where a tensor should be: it depends on how many cubes use it, and on whether it is written."""
        name = f"`{tensor}`" if tensor else "the tensor"
        pes, is_written = self._users(tensor)
        cubes = {pe.rpartition(".")[0] for pe in pes}
        if len(cubes) < 2:
            there = Place.of(where)
            if there.sip != Place.of(home).sip:
                return f"place {name} in {home}, or run the kernel on sip:{there.sip}, where it lies"
            run_there = f"run the kernel where it lies (target_cubes=({there.cube},))"
            if Place.of(home).cube == 0:  # where a tensor lies without a policy
                return f"place {name} in {home}, as a tensor without DPPolicy is, or {run_there}"
            return f"{run_there}, or split {name} over cubes so that {home} holds what it reads"
        if kind == "reads" and not is_written:
            first = max(Place.of(pe).pe for pe in pes) + 1  # a policy takes the first so many
            there = Place.of(where)
            has = self._run.graph.spec.cube_of(there.sip, there.cube).n_pes
            copies = f", num_pes={first}" if first < has else ""
            return (
                f'keep a copy of {name} in each cube that reads it (DPPolicy(cube="replicate"{copies})), or let each '
                "PE read the part that lies in its own cube"
            )
        return f"place {name} so that each PE reads and writes the part that lies in its own cube"

    def _users(self, tensor: str) -> tuple[set[str], bool]:
        """The PEs that access a tensor in the scope, and whether one of them writes it."""
        ops, scope = self._run.ops, self._explanation.scope
        rows = np.repeat(np.arange(len(ops)), np.diff(ops.tensors.starts))[ops.tensors.values == tensor]
        rows = rows[(ops.t_end[rows] > scope.begin_ns) & (ops.t_start[rows] < scope.end_ns)]
        lanes = {int(lane) for lane in np.unique(ops.lane[rows]) if self.pes[int(lane)]}
        return {self.pes[lane] for lane in lanes}, any(self._run.lanes[lane].kind == "W" for lane in lanes)

    def small_transfers(self) -> Iterator[Finding]:
        """The latency of transfers whose bytes take less than half as long, if they were one; and what short
        runs cost: a burst each, and channels that are used more often than others. Whatever their size, the bytes take
        as long as at the most loaded place.
        """
        ops = self._run.ops
        small = [moved for moved in self.moved.values() if self._is_small(moved)]
        requests = sum(moved.requests for moved in small)
        if max(requests, sum(moved.runs for moved in small)) < FEW:
            return
        latency = sum(self._own_latency(moved) for moved in small) * (1 - 1 / requests)
        gathers = [moved for moved in small if moved.bursts_ns]
        bursts = sum(moved.bursts_ns + moved.conflict_ns for moved in gathers)
        chosen = {int(ops.id[moved.row]) for moved in small}
        lines = lines_of(self._explanation, [one for one in self._explanation.path if one.op in chosen])
        if bursts > latency:
            sizes = sorted(int(ops.nbytes[moved.row]) // moved.runs for moved in gathers)
            runs = sum(moved.runs for moved in gathers)
            brief = f"Small transfers: {runs:,} runs of {format_bytes(sizes[len(sizes) // 2])}"
            burst = format_bytes(self._run.graph.spec.cube.hbm_burst_bytes)
            what = (
                f"Small transfers: {len(gathers):,} on the critical path gather {runs:,} runs of "
                f"{format_bytes(sizes[len(sizes) // 2])}, each of which takes a burst of {burst}{lines}."
            )
            hint = "load whole rows and select in TCM, or store the tensor so that what is read together is contiguous"
        else:
            sizes = sorted(int(ops.nbytes[moved.row]) // moved.requests for moved in small)
            brief = f"Small transfers: {requests:,} of {format_bytes(sizes[len(sizes) // 2])}"
            what = f"{brief} on the critical path, whose latency is longer than their bytes take{lines}."
            hint = "load larger blocks: several rows, or a whole tile, per tl.load"
            if sum(ops.kind[moved.row] == "W" for moved in small) * 2 > len(small):
                hint = "store larger blocks: collect several rows, or a whole tile, per tl.store"
        most = self._explanation.scope.total_ns - Loads(self._run, self._explanation.scope).most(())
        yield Finding(SMALL_TRANSFERS, min(latency + bursts, most), what, hint, LATENCY, brief=brief)

    def _is_small(self, moved: MovedOnPath) -> bool:
        if moved.own is None:
            return False
        each = int(self._run.ops.nbytes[moved.row]) / moved.requests
        latency_ns = max(self._own_latency(moved) / moved.requests, moved.own.latency_ns)
        return each / moved.own.gbs * 2 < latency_ns or moved.bursts_ns > moved.own.latency_ns

    def _own_latency(self, moved: MovedOnPath) -> float:
        """The latency of a transfer, without bursts and channel conflicts; of one that leaves its cube, that of the
        PE's own slice: the rest is distance.
        """
        latency = moved.parts.get(LATENCY, 0.0)
        if moved.own is None:
            return latency
        if self._is_remote(moved) or moved.bursts_ns or moved.conflict_ns:
            return min(latency, moved.requests * moved.own.latency_ns)
        return latency

    def few_channels(self) -> Iterator[Finding]:
        """Transfers whose runs of bytes lie in few channels of their memory."""
        slow = [moved for moved in self.moved.values() if moved.conflict_ns]
        if not slow:
            return
        ops, spec = self._run.ops, self._run.graph.spec.cube
        gain = sum(moved.conflict_ns for moved in slow)
        chosen = {int(ops.id[moved.row]) for moved in slow}
        segments = [one for one in self._explanation.path if one.op in chosen and one.cls in (LATENCY, QUEUE)]
        cls = QUEUE if sum(one.ns for one in segments if one.cls == QUEUE) * 2 > gain else LATENCY
        what = (
            f"Few channels: the runs of bytes of {len(slow):,} transfers on the critical path lie in few of the "
            f"{spec.hbm_channels_per_pe} channels of their memory, and take {format_ns(gain)} longer "
            f"than over all of them{lines_of(self._explanation, segments)}."
        )
        burst = format_bytes(spec.hbm_burst_bytes)
        hint = f"change the distance between rows, so that they begin in different channels: pad each by {burst}"
        brief = f"Few channels: {counted(len(slow), 'transfer')} in few of {spec.hbm_channels_per_pe}"
        yield Finding(MEMORY, gain, what, hint, cls, "hbm channel", brief=brief)


def route_of(run: RunData, row: int) -> list[SavedPlace]:
    """The links of an op's route, in order; of an atomic, whose reply comes back over them, those to its memory."""
    links = [run.places[int(place)] for place in run.ops.route.of(row)]
    if not run.ops.name[row].startswith(ATOMIC):
        return links
    passed = set[tuple[str, str]]()
    there = []
    for link in links:
        passed.add((link.src, link.dst))
        if (link.dst, link.src) not in passed:
            there.append(link)
    return there


def memory_of(run: RunData, row: int) -> str:
    """The memory of a DMA transfer: where its route begins for a read, ends for a write; empty if not known."""
    route = route_of(run, row)
    if not route:
        return ""
    return route[0].src if run.ops.kind[row] == "R" else route[-1].dst


def memories_of(run: RunData, row: int) -> list[str]:
    """The memories that a DMA transfer accesses; none for other ops."""
    kind = run.ops.kind[row]
    if kind not in "RW":
        return []
    at_memory = [link for link in route_of(run, row) if link.link_class in MEMORY_PORTS]
    return list(dict.fromkeys(link.src if kind == "R" else link.dst for link in at_memory))


def _die_of(memory: str) -> str:
    return memory.partition(".hbm_ctrl")[0].partition(".sram")[0]
