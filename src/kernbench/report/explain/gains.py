"""What of a critical path would be gone if components took no time, piece by piece, if it stayed the path.

Pieces that are alike (class, length, place, engine, route, bytes) are looked at once: a path of twenty thousand pieces
has some dozens of kinds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kernbench.report.explain.classes import CREDIT, HOST, ISSUE, LATENCY, LAUNCH, QUEUE, TRANSFER
from kernbench.report.explain.launch_legs import LaunchLegs
from kernbench.report.explain.path import Piece
from kernbench.report.runs.parts import Place
from kernbench.report.runs.saved_run import SavedRun


@dataclass(frozen=True)
class Target:
    """A component that can be made free: values of the machine, and where on a path it has a share."""

    settings: Mapping[str, float]
    engine: str = ""  # whose ops take no time
    links: tuple[str, ...] = ()  # classes of links that take none
    nodes: tuple[str, ...] = ()  # kinds of nodes that delay nobody
    classes: tuple[str, ...] = ()  # classes of time that are gone
    overlaps: bool = False  # whether transfers hide each other's latency
    commands: bool = False  # whether it is on the way of the host's commands


class Gains:
    """A path, and what it would lose without a component."""

    def __init__(self, run: SavedRun, path: Iterable[Piece]) -> None:
        self._run = run
        self._legs = LaunchLegs(run.graph)
        self._alike: dict[object, tuple[Piece, int]] = {}
        for piece in path:
            key = self._key(piece)
            first, times = self._alike.get(key, (piece, 0))
            self._alike[key] = (first, times + 1)

    def of(self, targets: Sequence[Target]) -> float:
        """What would be gone without all of `targets`."""
        return sum(
            times * min(piece.ns, sum(_gain_ns(self._run, piece, target, self._legs) for target in targets))
            for piece, times in self._alike.values()
        )

    def _key(self, piece: Piece) -> object:
        if piece.op < 0 or piece.cls == QUEUE:
            return piece.cls, piece.ns, piece.place, piece.launch
        run, row = self._run, int(self._run.ops.row_of[piece.op])
        part = run.lanes[piece.lane].component.rpartition(".")[2] if piece.lane >= 0 else ""
        return piece.cls, piece.ns, part, int(run.ops.nbytes[row]), run.ops.route.of(row).tobytes()


def _gain_ns(run: SavedRun, piece: Piece, target: Target, legs: LaunchLegs) -> float:
    """What of a piece would be gone."""
    if piece.cls == QUEUE:
        return piece.ns if run.places[piece.place].link_class in target.links else 0.0
    if piece.cls == LAUNCH:
        return legs.delay_ns(run.launches[piece.launch], target.nodes) if target.nodes and piece.launch >= 0 else 0.0
    if piece.cls in target.classes:
        return piece.ns
    if piece.lane < 0 or piece.cls in (ISSUE, CREDIT):
        return 0.0
    component = run.lanes[piece.lane].component
    part = component.rpartition(".")[2]
    if part == target.engine:
        return _notice_ns(run, piece, component) if piece.cls == LATENCY else piece.ns
    if piece.cls == TRANSFER:
        return _transfer_gain_ns(run, piece, target)
    if piece.cls == LATENCY:
        if part == "pe_ipcq":  # a message: one way, and its bytes follow each other over all links
            return _latency_gain_ns(run, piece, target, 1) + _legs_gain_ns(run, piece, target)
        later = _legs_gain_ns(run, piece, target) - _transfer_gain_ns(run, piece, target)  # legs behind the slowest
        return piece.ns if target.overlaps else _latency_gain_ns(run, piece, target, 2) + max(later, 0.0)
    if piece.cls == HOST:
        if not len(run.ops.route.of(int(run.ops.row_of[piece.op]))):  # a mapping: commands only
            return piece.ns if target.commands else 0.0
        return _transfer_gain_ns(run, piece, target) + _latency_gain_ns(run, piece, target, 2)
    return 0.0


def _notice_ns(run: SavedRun, piece: Piece, component: str) -> float:
    """What a receiver adds to the way of a message: writing the slot, and waking up."""
    attrs = run.graph.nodes[component].attrs
    nbytes = int(run.ops.nbytes[run.ops.row_of[piece.op]])
    return nbytes / float(attrs["tcm_gbs"]) + float(attrs["wake_ns"])


def _latency_gain_ns(run: SavedRun, piece: Piece, target: Target, ways: int) -> float:
    """What nodes on an op's route add, on each of its `ways`; and once a flit's time on its links, and a burst's."""
    spec, nodes = run.graph.spec, run.graph.nodes
    route = [run.places[int(place)] for place in run.ops.route.of(int(run.ops.row_of[piece.op]))]
    delays = sum(nodes[link.dst].overhead_ns for link in route if nodes[link.dst].kind in target.nodes)
    first = sum(spec.system.flit_bytes / link.gbs for link in route if link.link_class in target.links)
    if "hbm channel" in target.links and any(link.link_class == "hbm port" for link in route):
        first += spec.system.flit_bytes / spec.cube.memory_map.hbm_channel_bw_gbs
    return ways * delays + first


def _transfer_gain_ns(run: SavedRun, piece: Piece, target: Target) -> float:
    """How much sooner its bytes would be over the narrowest of the other links."""
    row = int(run.ops.row_of[piece.op])
    return _gain_on_ns(
        run, [run.places[int(place)] for place in run.ops.route.of(row)], int(run.ops.nbytes[row]), target
    )


def _legs_gain_ns(run: SavedRun, piece: Piece, target: Target) -> float:
    """The same where bytes stop on their way, as between SIPs at the PCIe endpoints: they are sent on from there."""
    row = int(run.ops.row_of[piece.op])
    legs: list[list[Place]] = [[]]
    for place in run.ops.route.of(row):
        link = run.places[int(place)]
        if run.graph.nodes[link.src].kind == "pcie_ep":
            legs.append([])
        legs[-1].append(link)
    return sum(_gain_on_ns(run, leg, int(run.ops.nbytes[row]), target) for leg in legs)


def _gain_on_ns(run: SavedRun, links: Sequence[Place], nbytes: int, target: Target) -> float:
    memory = run.graph.spec.cube.memory_map
    rates = [(link.link_class, link.gbs) for link in links]
    if any(link.link_class == "hbm port" for link in links):
        rates.append(("hbm channel", (memory.hbm_channels_per_pe or 1) * memory.hbm_channel_bw_gbs))
    others = [gbs for link_class, gbs in rates if link_class not in target.links]
    if not rates:
        return 0.0
    return nbytes / min(gbs for _, gbs in rates) - (nbytes / min(others) if others else 0.0)
