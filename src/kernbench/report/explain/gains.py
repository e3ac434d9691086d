"""Estimates how much shorter a critical path would be if components took no time, segment by segment.

Segments that are alike (class, length, place, engine, route, bytes) are evaluated once: a path of twenty thousand
segments has some dozens of kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import NamedTuple

from kernbench.report.explain.classes import COMMUNICATION, CREDIT, HOST, ISSUE, LATENCY, LAUNCH, QUEUE, TRANSFER, WORK
from kernbench.report.explain.launch_delays import LaunchDelays
from kernbench.report.explain.loads import CHANNEL_LINKS, Loads
from kernbench.report.explain.path import PathScope, PathSegment
from kernbench.report.explain.transfer_causes import ROUNDING_NS, Pieces, memories_of, memory_of, route_of
from kernbench.report.link_classes import link_class
from kernbench.report.runs.access_times import AccessTimes, access_gbs, channels_at_once
from kernbench.report.runs.parts import TILE, SavedPlace
from kernbench.report.runs.saved_run import SavedRun

BARRIER, SEND = "barrier", "ipcq_send"  # names of ops
LANE = "lane"  # the release of an op that waited for its engine


@dataclass(frozen=True)
class FreedComponent:
    """A component that can be made free: values of the machine, and its contributions to a path."""

    settings: Mapping[str, float]
    engine: str = ""  # its ops take no time
    links: tuple[str, ...] = ()  # classes of links that take no time
    nodes: tuple[str, ...] = ()  # kinds of nodes with zero latency
    classes: tuple[str, ...] = ()  # classes of time that vanish
    overlaps: bool = False  # whether a transfer that waits for the engine overlaps the latency of the one before it


class _GainStep(NamedTuple):
    """A segment of a path, and what decides its gain beside it."""

    segment: PathSegment
    could_overlap: bool
    flight_ns: float  # of a send: the rest of its message's flight, if it is the next segment


class Gains:
    """A path, and how much shorter it would be without some components."""

    def __init__(self, run: SavedRun, scope: PathScope, path: Iterable[PathSegment]) -> None:
        self._run = run
        self._total_ns = scope.total_ns
        self._delays = LaunchDelays(run.graph)
        self._is_one_launch = scope.launch >= 0
        self._loads = Loads(run, scope)
        self._times = AccessTimes(run.graph)
        self._pieces = Pieces(run.ops)
        self._alike: dict[object, tuple[_GainStep, int]] = {}
        segments = list(path)
        for segment, after in zip_longest(segments, segments[1:]):
            is_sent = after is not None and after.op == segment.op and after.cls == LATENCY and self._is_send(segment)
            step = _GainStep(segment, self._could_overlap(segment, after), after.ns if is_sent and after else 0.0)
            key = (step.could_overlap, step.flight_ns, self._key(segment))
            first, times = self._alike.get(key, (step, 0))
            self._alike[key] = (first, times + 1)

    def of(self, targets: Sequence[FreedComponent]) -> float:
        """The gain without all of `targets`: on each segment, as far as the most loaded place that is left allows."""
        gain = sum(
            times * min(step.segment.ns, sum(self._gain_ns(step, target) for target in targets))
            for step, times in self._alike.values()
        )
        launch_ns = sum(
            times * max(0.0, step.segment.ns - sum(self._gain_ns(step, target) for target in targets))
            for step, times in self._alike.values()
            if step.segment.cls == LAUNCH and (self._is_one_launch or len(self._run.launches) == 1)
        )
        least = launch_ns + self._loads.most({name for target in targets for name in target.links})
        return min(gain, max(0.0, self._total_ns - least))

    def _gain_ns(self, step: _GainStep, target: FreedComponent) -> float:
        segment, could_overlap = step.segment, step.could_overlap
        if segment.op >= 0 and self._run.ops.name[int(self._run.ops.row_of[segment.op])] == BARRIER:
            return self._barrier_gain_ns(segment, target)
        if target.overlaps and could_overlap and segment.cls == LATENCY:
            return segment.ns
        if segment.cls == QUEUE:
            return segment.ns * (1.0 - self._loads.queue_left(segment, target.links)) if target.links else 0.0
        gain = _gain_ns(self._run, segment, target, self._delays, self._times)
        if self._is_send(segment) and self._leaves_its_sip(segment):
            # It ends when its last byte has left the SIP: what the message gains and the rest of its flight has not.
            return gain + max(0.0, _message_gain_ns(self._run, segment, target, self._times) - step.flight_ns)
        if segment.cls == LATENCY and "hbm channel" in target.links:
            gain += self._runs_ns(segment)
        if gain and segment.cls in WORK and target.engine:
            return gain * (1.0 - self._loads.engine_left(segment, target.engine))
        return gain

    def _barrier_gain_ns(self, segment: PathSegment, target: FreedComponent) -> float:
        """The gain on a barrier: commands between PEs and the CPUs above them."""
        if segment.cls == ISSUE:
            return _gain_ns(self._run, segment, target, self._delays, self._times)
        pe = self._run.lanes[segment.lane].component.rpartition(".")[0]
        return self._delays.barrier_ns(self._run.launches[segment.launch], pe, target.nodes) if target.nodes else 0.0

    def _is_send(self, segment: PathSegment) -> bool:
        is_op = segment.cls == COMMUNICATION and segment.op >= 0
        return is_op and self._run.ops.name[int(self._run.ops.row_of[segment.op])] == SEND

    def _leaves_its_sip(self, segment: PathSegment) -> bool:
        route = self._run.ops.route.of(int(self._run.ops.row_of[segment.op]))
        return any(self._run.places[int(place)].link_class in ("pcie", "sip link") for place in route)

    def _runs_ns(self, segment: PathSegment) -> float:
        """What a transfer of several runs of bytes takes longer than its requests: bursts, and channels used twice."""
        run, row = self._run, int(self._run.ops.row_of[segment.op])
        if segment.lane < 0 or run.lanes[segment.lane].kind not in "RW" or run.ops.name[row].startswith(TILE):
            return 0.0
        access = self._times.of(run.lanes[segment.lane].component.rpartition(".")[0], memory_of(run, row))
        if access is None or segment.ns <= access.latency_ns + ROUNDING_NS:
            return 0.0
        requests, runs = self._pieces.of(row)
        return max(0.0, segment.ns - requests * access.latency_ns) if runs > 1 else 0.0

    def _could_overlap(self, segment: PathSegment, after: PathSegment | None) -> bool:
        """Whether more transfers under way would hide the latency of a transfer: the next op on the path waited for the
        engine, or is the next transfer of the same tile.
        """
        if segment.via == LANE:
            return True
        is_tile = segment.op >= 0 and self._run.ops.name[int(self._run.ops.row_of[segment.op])].startswith(TILE)
        return is_tile and after is not None and after.lane == segment.lane

    def _key(self, segment: PathSegment) -> object:
        if segment.op < 0 or segment.cls == QUEUE:
            route = b"" if segment.op < 0 else self._run.ops.route.of(int(self._run.ops.row_of[segment.op])).tobytes()
            return segment.cls, segment.ns, segment.place, segment.launch, route
        run, row = self._run, int(self._run.ops.row_of[segment.op])
        part = run.lanes[segment.lane].component if segment.lane >= 0 else ""
        is_tile = run.ops.name[row].startswith(TILE)
        launch = segment.launch if run.ops.name[row] == BARRIER else -1
        return segment.cls, segment.ns, part, is_tile, launch, int(run.ops.nbytes[row]), run.ops.route.of(row).tobytes()


def _gain_ns(
    run: SavedRun, segment: PathSegment, target: FreedComponent, delays: LaunchDelays, times: AccessTimes
) -> float:
    """The gain on one segment."""
    if segment.cls == LAUNCH:
        return (
            delays.delay_ns(run.launches[segment.launch], target.nodes) if target.nodes and segment.launch >= 0 else 0.0
        )
    if segment.cls == COMMUNICATION and segment.op >= 0 and run.ops.name[int(run.ops.row_of[segment.op])] == SEND:
        # It ends when its last byte has left over the PE's port; that time is in the flight of the message, too.
        return run.graph.nodes[run.lanes[segment.lane].component].overhead_ns if target.engine == "pe_ipcq" else 0.0
    if segment.cls in target.classes:
        return segment.ns
    if segment.lane < 0 or segment.cls in (ISSUE, CREDIT):
        return 0.0
    component = run.lanes[segment.lane].component
    part = component.rpartition(".")[2]
    if part == target.engine:
        return _notice_ns(run, segment, component) if segment.cls == LATENCY else segment.ns
    if segment.cls == TRANSFER:
        return _transfer_gain_ns(run, segment, target)
    if segment.cls == LATENCY:
        if part == "pe_ipcq":  # a message: one direction, and its bytes are pipelined over all links
            return _message_gain_ns(run, segment, target, times)
        later = _stored_gain_ns(run, segment, target) - _transfer_gain_ns(
            run, segment, target
        )  # links after the slowest
        if target.overlaps:
            return run.graph.nodes[component].overhead_ns
        return _latency_gain_ns(run, segment, target, 2, times) + max(later, 0.0)
    if segment.cls == HOST:
        if not len(run.ops.route.of(int(run.ops.row_of[segment.op]))):  # a mapping: a command, and its answer
            return 2 * delays.delay_ns(run.launches[0], target.nodes) if target.nodes and run.launches else 0.0
        return _transfer_gain_ns(run, segment, target) + _latency_gain_ns(run, segment, target, 2, times)
    return 0.0


def _message_gain_ns(run: SavedRun, segment: PathSegment, target: FreedComponent, times: AccessTimes) -> float:
    return _latency_gain_ns(run, segment, target, 1, times) + _stored_gain_ns(run, segment, target)


def _notice_ns(run: SavedRun, segment: PathSegment, component: str) -> float:
    """The time that a receiver adds to a message: writing the slot, and waking up."""
    attrs = run.graph.nodes[component].attrs
    nbytes = int(run.ops.nbytes[run.ops.row_of[segment.op]])
    return nbytes / float(attrs["tcm_gbs"]) + float(attrs["wake_ns"])


def _latency_gain_ns(
    run: SavedRun, segment: PathSegment, target: FreedComponent, directions: int, times: AccessTimes
) -> float:
    """The latency of nodes on an op's route, once per direction; plus a flit's time on its links, and a burst's. An
    access to several memories is as late as the farthest of them.
    """
    row = int(run.ops.row_of[segment.op])
    nbytes = int(run.ops.nbytes[row])
    route = _of_one_request(run, route_of(run, row))
    pe = run.lanes[segment.lane].component.rpartition(".")[0]
    accesses = [times.of(pe, memory) for memory in memories_of(run, row)]
    if len(accesses) < 2:
        hops = [_Hop(link.dst, _port_class(run, link), link.gbs) for link in route]
        return _delays_ns(run, hops, nbytes, target, directions)
    before = [
        (one.latency_ns, _delays_ns(run, _hops(run, one.path), nbytes, target, directions))
        for one in accesses
        if one is not None
    ]
    longest = max((latency for latency, _ in before), default=0.0)
    return longest - max((latency - gain for latency, gain in before), default=0.0)


def _of_one_request(run: SavedRun, route: Sequence[SavedPlace]) -> list[SavedPlace]:
    """The links that one request passes: where channels have routers, a route has those of all channels."""
    if channels_at_once(run.graph) == 1:
        return list(route)
    first = {link.link_class: link for link in reversed(route) if link.link_class in CHANNEL_LINKS}
    return [link for link in route if first.get(link.link_class, link) is link]


class _Hop(NamedTuple):
    """A link of a route: where it leads, its class and its bandwidth."""

    dst: str
    link_class: str
    gbs: float


def _hops(run: SavedRun, path: Sequence[str]) -> list[_Hop]:
    edges = [run.graph.edge(src, dst) for src, dst in pairwise(path)]
    return [_Hop(edge.dst, link_class(edge.kind), edge.bw_gbs or 0.0) for edge in edges]


def _delays_ns(run: SavedRun, hops: Sequence[_Hop], nbytes: int, target: FreedComponent, directions: int) -> float:
    spec, nodes = run.graph.spec, run.graph.nodes
    delays = sum(nodes[hop.dst].overhead_ns for hop in hops if nodes[hop.dst].kind in target.nodes)
    first_bytes = min(spec.system.flit_bytes, nbytes)
    first = sum(first_bytes / hop.gbs for hop in hops if hop.link_class in target.links and hop.gbs)
    ports = [hop for hop in hops if hop.link_class == "hbm port"]
    if "hbm channel" in target.links and ports:
        first += spec.system.flit_bytes / run.graph.cube_at(ports[0].dst).hbm_channel_peak_gbs
    return directions * delays + first


def _transfer_gain_ns(run: SavedRun, segment: PathSegment, target: FreedComponent) -> float:
    """The gain in transfer time: over the narrowest link, minus over the narrowest of the other links."""
    row = int(run.ops.row_of[segment.op])
    return _gain_on_ns(
        run, [run.places[int(place)] for place in run.ops.route.of(row)], int(run.ops.nbytes[row]), target
    )


def _stored_gain_ns(run: SavedRun, segment: PathSegment, target: FreedComponent) -> float:
    """The gain in transfer time, summed over the segments of a route that is cut at store-and-forward nodes."""
    row = int(run.ops.row_of[segment.op])
    delays: list[list[SavedPlace]] = [[]]
    for place in run.ops.route.of(row):
        link = run.places[int(place)]
        if run.graph.nodes[link.src].kind in ("pcie_ep", "sip_port"):
            delays.append([])
        delays[-1].append(link)
    return sum(_gain_on_ns(run, hop_links, int(run.ops.nbytes[row]), target) for hop_links in delays)


def _gain_on_ns(run: SavedRun, links: Sequence[SavedPlace], nbytes: int, target: FreedComponent) -> float:
    rates = [(_port_class(run, link), access_gbs(run.graph, link)) for link in links]
    for memory in (run.graph.cube_at(link.src) for link in links if link.link_class == "hbm port"):
        rates.append(("hbm channel", memory.hbm_channels_per_pe * memory.hbm_channel_peak_gbs))
    others = [gbs for link_class, gbs in rates if link_class not in target.links]
    if not rates:
        return 0.0
    return nbytes / min(gbs for _, gbs in rates) - (nbytes / min(others) if others else 0.0)


def _port_class(run: SavedRun, link: SavedPlace) -> str:
    """The class of a link; those between an IO chiplet's NoC and its PHYs are part of a UCIe port, as in a cube."""
    ends = (run.graph.nodes[link.src].kind, run.graph.nodes[link.dst].kind)
    return "ucie" if "io_ucie_conn" in ends else link.link_class
