"""What would bound a run if a component were free: what the critical path says, and what machine to run to find out.

A component is free when it takes no time: its overhead is 0, its bandwidth the largest that a description may give, its
channels as many. The critical path gives a bound beforehand: without the component at most its share of the path can go,
as long as the order of ops stays the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kernbench.common.errors import UsageError
from kernbench.report.explain.classes import COMMUNICATION, CREDIT, HOST, ISSUE, LATENCY, LAUNCH, TRANSFER
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.path import Piece

FAST_GBS = 1e6  # the most that a description may say
FAST_PER_NS = 1e9
_PE = "cube.pe_template.components"

Matches = Callable[[Piece, str, str], bool]  # piece, part of the PE whose lane it is on, class of the link


@dataclass(frozen=True)
class Target:
    """A component that can be made free: values of the machine, and which pieces of a path it may have a part in."""

    settings: Mapping[str, float]
    matches: Matches


def _lane(*parts: str) -> Matches:
    return lambda piece, part, link: part in parts and piece.cls not in (ISSUE, CREDIT)


def _links(*classes: str) -> Matches:
    """Queueing at such links, and what any transfer may spend on them."""
    return lambda piece, part, link: link in classes or (piece.place < 0 and piece.cls in (LATENCY, TRANSFER, HOST))


def _of(*classes: str) -> Matches:
    return lambda piece, part, link: piece.cls in classes


TARGETS: Mapping[str, Target] = {
    "pe_dma": Target(
        {
            "cube.links.pe_dma_to_router_bw_gbs": FAST_GBS,
            f"{_PE}.pe_dma.attrs.overhead_ns": 0.0,
            f"{_PE}.pe_dma.attrs.outstanding": 1024,
        },
        lambda piece, part, link: part == "pe_dma" or link == "pe port",
    ),
    "pe_gemm": Target(
        {f"{_PE}.pe_gemm.attrs.overhead_ns": 0.0, f"{_PE}.pe_gemm.attrs.macs_per_ns": FAST_PER_NS}, _lane("pe_gemm")
    ),
    "pe_math": Target(
        {f"{_PE}.pe_math.attrs.overhead_ns": 0.0, f"{_PE}.pe_math.attrs.lanes_per_ns": FAST_PER_NS}, _lane("pe_math")
    ),
    "pe_fetch_store": Target(
        {
            f"{_PE}.pe_fetch_store.attrs.overhead_ns": 0.0,
            "cube.pe_template.links.tcm_read_bw_gbs": FAST_GBS,
            "cube.pe_template.links.tcm_write_bw_gbs": FAST_GBS,
        },
        _lane("pe_fetch_store"),
    ),
    "pe_ipcq": Target(
        {
            f"{_PE}.pe_ipcq.attrs.{name}": value
            for kind in ("tcm", "sram", "hbm")
            for name, value in ((f"{kind}_gbs", FAST_PER_NS), (f"{kind}_ns", 0.0))
        }
        | {f"{_PE}.pe_ipcq.attrs.{name}": 0.0 for name in ("overhead_ns", "wake_ns")},
        lambda piece, part, link: part == "pe_ipcq" and piece.cls in (COMMUNICATION, LATENCY, CREDIT),
    ),
    "pe_scheduler": Target({f"{_PE}.pe_scheduler.attrs.overhead_ns": 0.0}, _of(ISSUE)),
    "pe_cpu": Target(
        {f"{_PE}.pe_cpu.attrs.overhead_ns": 0.0, f"{_PE}.pe_cpu.attrs.clock_ghz": 1000.0}, _of(ISSUE, LAUNCH)
    ),
    "hbm": Target({"cube.memory_map.hbm_channel_bw_gbs": FAST_GBS}, _links("hbm channel", "hbm port")),
    "router": Target(
        {"cube.links.router_bw_gbs": FAST_GBS, "cube.components.router.attrs.overhead_ns": 0.0},
        lambda piece, part, link: (
            link == "router" or (piece.place < 0 and piece.cls in (LATENCY, TRANSFER, LAUNCH, HOST))
        ),
    ),
    "sram": Target(
        {"cube.links.sram_to_router_bw_gbs": FAST_GBS, "cube.components.sram.attrs.overhead_ns": 0.0},
        _links("sram port"),
    ),
    "ucie": Target(
        {
            "cube.ucie.per_connection_bw_gbs": FAST_GBS / 8,
            "cube.components.ucie.attrs.overhead_ns": 0.0,
            "sip.links.cube_to_cube.bw_gbs": FAST_GBS,
            "io_chiplet.components.io_ucie.attrs.overhead_ns": 0.0,
            "io_chiplet.links.per_connection_bw_gbs": FAST_GBS / 8,
        },
        lambda piece, part, link: (
            link == "ucie" or (piece.place < 0 and piece.cls in (LATENCY, TRANSFER, LAUNCH, HOST))
        ),
    ),
    "pcie": Target(
        {
            "system.links.host_to_switch.bw_gbs": FAST_GBS,
            "system.links.io_ep_to_switch.bw_gbs": FAST_GBS,
            "system.switch.attrs.overhead_ns": 0.0,
            "io_chiplet.components.pcie_ep.attrs.overhead_ns": 0.0,
            "io_chiplet.links.pcie_ep_to_noc_bw_gbs": FAST_GBS,
        },
        lambda piece, part, link: (
            link in ("pcie", "io") or piece.cls in (LAUNCH, HOST) or (part == "pe_ipcq" and piece.cls == LATENCY)
        ),
    ),
    "launch": Target(
        {
            "io_chiplet.components.io_cpu.attrs.overhead_ns": 0.0,
            "cube.components.m_cpu.attrs.overhead_ns": 0.0,
            f"{_PE}.pe_cpu.attrs.overhead_ns": 0.0,
        },
        _of(LAUNCH, HOST),
    ),
}


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A component that is free. `at_best_ns` is the scope without what the component may have a part in."""

    name: str
    settings: Mapping[str, float]
    path_ns: float
    total_ns: float

    @property
    def at_best_ns(self) -> float:
        return self.total_ns - self.path_ns

    @property
    def share(self) -> float:
        return self.path_ns / self.total_ns if self.total_ns else 0.0


def what_if(explanation: Explanation, pattern: str) -> WhatIf:
    """What the path says of components whose names match; raises UsageError when none does."""
    names = [name for name in TARGETS if fnmatchcase(name, pattern)]
    if not names:
        raise UsageError(
            f"no component '{pattern}' to make free", where="--what-if", hint=f"use one of {', '.join(TARGETS)}, or a *"
        )
    run = explanation.run
    ns = 0.0
    for piece in explanation.path:
        part = run.lanes[piece.lane].component.rpartition(".")[2] if piece.lane >= 0 else ""
        link = run.places[piece.place].link_class if piece.place >= 0 else ""
        if any(TARGETS[name].matches(piece, part, link) for name in names):
            ns += piece.ns
    settings = {key: value for name in names for key, value in TARGETS[name].settings.items()}
    return WhatIf(" and ".join(names), settings, ns, explanation.scope.total_ns)
