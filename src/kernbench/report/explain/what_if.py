"""What would bound a run if a component were free: what the critical path says, and what machine to run to find out.

A component is free when it takes no time: its overhead is 0, its bandwidth the largest that a description may give,
its channels as many. The critical path says beforehand what can be gained at best, as long as the order of ops stays
the same: queueing at its links, its share of the latency of transfers that pass it, what transfers take longer because
of it than over the next narrowest link, the time of its own ops, its nodes on the way of a launch. Of mappings, which
have no route, all counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kernbench.common.errors import UsageError
from kernbench.report.explain.classes import COMMUNICATION, CREDIT, HOST, ISSUE, LATENCY, LAUNCH, QUEUE, TRANSFER
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.launch_legs import LaunchLegs
from kernbench.report.explain.path import Piece
from kernbench.report.runs.parts import Place
from kernbench.report.runs.saved_run import SavedRun
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import machine_hash

FAST_GBS = 1e6  # the most that a description may say
FAST_PER_NS = 1e9
_PE = "cube.pe_template.components"


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


TARGETS: Mapping[str, Target] = {
    "pe_dma": Target(
        {
            "cube.links.pe_dma_to_router_bw_gbs": FAST_GBS,
            f"{_PE}.pe_dma.attrs.overhead_ns": 0.0,
            f"{_PE}.pe_dma.attrs.outstanding": 1024,
        },
        links=("pe port",),
        overlaps=True,
    ),
    "pe_gemm": Target(
        {f"{_PE}.pe_gemm.attrs.overhead_ns": 0.0, f"{_PE}.pe_gemm.attrs.macs_per_ns": FAST_PER_NS}, engine="pe_gemm"
    ),
    "pe_math": Target(
        {f"{_PE}.pe_math.attrs.overhead_ns": 0.0, f"{_PE}.pe_math.attrs.lanes_per_ns": FAST_PER_NS}, engine="pe_math"
    ),
    "pe_fetch_store": Target(
        {
            f"{_PE}.pe_fetch_store.attrs.overhead_ns": 0.0,
            "cube.pe_template.links.tcm_read_bw_gbs": FAST_GBS,
            "cube.pe_template.links.tcm_write_bw_gbs": FAST_GBS,
        },
        engine="pe_fetch_store",
    ),
    "pe_ipcq": Target(
        {
            f"{_PE}.pe_ipcq.attrs.{name}": value
            for kind in ("tcm", "sram", "hbm")
            for name, value in ((f"{kind}_gbs", FAST_PER_NS), (f"{kind}_ns", 0.0))
        }
        | {f"{_PE}.pe_ipcq.attrs.{name}": 0.0 for name in ("overhead_ns", "wake_ns")},
        engine="pe_ipcq",
        classes=(COMMUNICATION, CREDIT),
    ),
    "pe_scheduler": Target({f"{_PE}.pe_scheduler.attrs.overhead_ns": 0.0}, classes=(ISSUE,)),
    "pe_cpu": Target(
        {f"{_PE}.pe_cpu.attrs.overhead_ns": 0.0, f"{_PE}.pe_cpu.attrs.clock_ghz": 1000.0},
        nodes=("pe_cpu",),
        classes=(ISSUE,),
        commands=True,
    ),
    "hbm": Target(
        {"cube.memory_map.hbm_channel_bw_gbs": FAST_GBS}, links=("hbm channel", "hbm port"), nodes=("hbm_ctrl",)
    ),
    "router": Target(
        {"cube.links.router_bw_gbs": FAST_GBS, "cube.components.router.attrs.overhead_ns": 0.0},
        links=("router",),
        nodes=("noc_router",),
        commands=True,
    ),
    "sram": Target(
        {"cube.links.sram_to_router_bw_gbs": FAST_GBS, "cube.components.sram.attrs.overhead_ns": 0.0},
        links=("sram port",),
        nodes=("sram",),
    ),
    "ucie": Target(
        {
            "cube.ucie.per_connection_bw_gbs": FAST_GBS / 8,
            "cube.components.ucie.attrs.overhead_ns": 0.0,
            "sip.links.cube_to_cube.bw_gbs": FAST_GBS,
            "io_chiplet.components.io_ucie.attrs.overhead_ns": 0.0,
            "io_chiplet.links.per_connection_bw_gbs": FAST_GBS / 8,
        },
        links=("ucie",),
        nodes=("ucie", "ucie_conn", "io_ucie", "io_ucie_conn"),
        commands=True,
    ),
    "pcie": Target(
        {
            "system.links.host_to_switch.bw_gbs": FAST_GBS,
            "system.links.io_ep_to_switch.bw_gbs": FAST_GBS,
            "system.switch.attrs.overhead_ns": 0.0,
            "io_chiplet.components.pcie_ep.attrs.overhead_ns": 0.0,
            "io_chiplet.links.pcie_ep_to_noc_bw_gbs": FAST_GBS,
        },
        links=("pcie", "io"),
        nodes=("switch", "pcie_ep"),
        commands=True,
    ),
    "launch": Target(
        {
            "io_chiplet.components.io_cpu.attrs.overhead_ns": 0.0,
            "cube.components.m_cpu.attrs.overhead_ns": 0.0,
            f"{_PE}.pe_cpu.attrs.overhead_ns": 0.0,
        },
        commands=True,
        nodes=("io_cpu", "m_cpu", "pe_cpu"),
    ),
}


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A component that is free. `gain_ns` is what the path says can be gained at best."""

    name: str
    settings: Mapping[str, float]
    gain_ns: float
    total_ns: float

    @property
    def at_best_ns(self) -> float:
        return self.total_ns - self.gain_ns

    @property
    def share(self) -> float:
        return self.gain_ns / self.total_ns if self.total_ns else 0.0


def what_if(run: SavedRun, explanation: Explanation, pattern: str) -> WhatIf:
    """What the path says of components whose names match; raises UsageError when none does."""
    names = [name for name in TARGETS if fnmatchcase(name, pattern)]
    if not names:
        raise UsageError(
            f"no component '{pattern}' to make free", where="--what-if", hint=f"use one of {', '.join(TARGETS)}, or a *"
        )
    chosen = [TARGETS[name] for name in names]
    legs = LaunchLegs(run.graph)
    gain = sum(
        min(piece.ns, sum(_gain_ns(run, piece, target, legs) for target in chosen)) for piece in explanation.path
    )
    settings = {key: value for target in chosen for key, value in target.settings.items()}
    return WhatIf(" and ".join(names), settings, gain, explanation.scope.total_ns)


def machine_with(run: SavedRun, settings: Mapping[str, float]) -> str:
    """The hash of a run's machine with some values changed: another run of the same bench there is the measurement."""
    return machine_hash(load_spec(run.graph.spec, settings))


def _gain_ns(run: SavedRun, piece: Piece, target: Target, legs: LaunchLegs) -> float:
    """What of a piece would be gone, at most."""
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
