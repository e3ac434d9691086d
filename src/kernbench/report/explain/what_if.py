"""What-if estimates: how much faster a run would be if a component were free, and the machine that measures it.

A free component takes no time: its overhead is 0 and its bandwidth and channels are the largest that a description may
set. The gain is estimated along the critical path, and counts only what the component owns: its part of the latency of
transfers that pass it, the time that transfers take longer than over the next narrowest link, the time of its own ops,
its nodes on the path of a launch, a mapping or a barrier; queueing, less what the next most loaded place of the path
keeps; engines of a composite, less what the next busiest one needs (`loads.py`). An access to several memories is as
late as the farthest one. A send ends when its bytes have left the PE, which the message's flight contains.

The estimate is not a bound. A new run gains less if another path becomes critical, and more if ops delayed by the
component also delayed others elsewhere, which the path attributes to those.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from pathlib import Path
from typing import Final

from kernbench.common.errors import UsageError
from kernbench.report.explain.classes import COMMUNICATION, CREDIT, ISSUE
from kernbench.report.explain.explanation import Explanation
from kernbench.report.explain.gains import FreedComponent, Gains
from kernbench.report.runs.saved_run import SavedRun
from kernbench.topology.attrs import ARRAY_FACTORS
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import machine_hash
from kernbench.topology.spec import MachineSpec

FAST_GBS = 1e6  # the largest value that a description may set
FAST_PER_NS = 1e9
FAST_GHZ = 1000.0
SIP_LINK: Final = "sip_link"
FAR: Final = "far_memory"
_PE = "cube.pe_template.components"


SWITCH_KEY = "system.switch.attrs.overhead_ns"
HBM_KEY = "cube.memory_map.hbm_channel_bw_gbs"
TARGETS: Mapping[str, FreedComponent] = {
    "pe_dma": FreedComponent(
        {
            "cube.links.pe_dma_to_router_bw_gbs": FAST_GBS,
            f"{_PE}.pe_dma.attrs.overhead_ns": 0.0,
            f"{_PE}.pe_dma.attrs.outstanding": 1024,
        },
        links=("pe port",),
        overlaps=True,
    ),
    "pe_gemm": FreedComponent(
        {
            f"{_PE}.pe_gemm.attrs.overhead_ns": 0.0,
            f"{_PE}.pe_gemm.attrs.macs_per_ns": FAST_PER_NS,
            f"{_PE}.pe_gemm.attrs.clock_ghz": FAST_GHZ,
        },
        engine="pe_gemm",
    ),
    "pe_math": FreedComponent(
        {
            f"{_PE}.pe_math.attrs.overhead_ns": 0.0,
            f"{_PE}.pe_math.attrs.lanes_per_ns": FAST_PER_NS,
            f"{_PE}.pe_math.attrs.clock_ghz": FAST_GHZ,
        },
        engine="pe_math",
    ),
    "pe_fetch_store": FreedComponent(
        {
            f"{_PE}.pe_fetch_store.attrs.overhead_ns": 0.0,
            "cube.pe_template.links.tcm_read_bw_gbs": FAST_GBS,
            "cube.pe_template.links.tcm_write_bw_gbs": FAST_GBS,
        },
        engine="pe_fetch_store",
    ),
    "pe_ipcq": FreedComponent(
        {
            f"{_PE}.pe_ipcq.attrs.{name}": value
            for kind in ("tcm", "sram", "hbm")
            for name, value in ((f"{kind}_gbs", FAST_PER_NS), (f"{kind}_ns", 0.0))
        }
        | {f"{_PE}.pe_ipcq.attrs.{name}": 0.0 for name in ("overhead_ns", "wake_ns")},
        engine="pe_ipcq",
        classes=(COMMUNICATION, CREDIT),
    ),
    "pe_scheduler": FreedComponent({f"{_PE}.pe_scheduler.attrs.overhead_ns": 0.0}, classes=(ISSUE,)),
    "pe_cpu": FreedComponent(
        {f"{_PE}.pe_cpu.attrs.overhead_ns": 0.0, f"{_PE}.pe_cpu.attrs.clock_ghz": FAST_GHZ},
        nodes=("pe_cpu",),
    ),
    "hbm": FreedComponent({HBM_KEY: FAST_GBS}, links=("hbm channel", "hbm port"), nodes=("hbm_ctrl",)),
    "router": FreedComponent(
        {"cube.links.router_bw_gbs": FAST_GBS, "cube.components.router.attrs.overhead_ns": 0.0},
        links=("router", "channel router"),
        nodes=("noc_router",),
    ),
    "sram": FreedComponent(
        {"cube.links.sram_to_router_bw_gbs": FAST_GBS, "cube.components.sram.attrs.overhead_ns": 0.0},
        links=("sram port",),
        nodes=("sram",),
    ),
    "ucie": FreedComponent(
        {
            "cube.ucie.per_connection_bw_gbs": FAST_GBS / 8,
            "cube.components.ucie.attrs.overhead_ns": 0.0,
            "sip.links.cube_to_cube.bw_gbs": FAST_GBS,
            "io_chiplet.components.io_ucie.attrs.overhead_ns": 0.0,
            "io_chiplet.links.per_connection_bw_gbs": FAST_GBS / 8,
        },
        links=("ucie",),
        nodes=("ucie", "ucie_conn", "io_ucie", "io_ucie_conn"),
    ),
    "pcie": FreedComponent(
        {
            "system.links.host_to_switch.bw_gbs": FAST_GBS,
            "system.links.io_ep_to_switch.bw_gbs": FAST_GBS,
            SWITCH_KEY: 0.0,
            "io_chiplet.components.pcie_ep.attrs.overhead_ns": 0.0,
            "io_chiplet.links.pcie_ep_to_noc_bw_gbs": FAST_GBS,
        },
        links=("pcie", "io"),
        nodes=("switch", "pcie_ep"),
    ),
    SIP_LINK: FreedComponent(
        {
            "system.sips.links.bw_gbs": FAST_GBS,
            "system.sips.links.port.attrs.overhead_ns": 0.0,
            "system.sips.links.port_to_noc_bw_gbs": FAST_GBS,
        },
        links=("sip link",),
        nodes=("sip_port",),
    ),
    FAR: FreedComponent(
        {
            "system.far_memory.bw_gbs": FAST_GBS,
            "system.far_memory.channel_bw_gbs": FAST_GBS,
            "system.far_memory.overhead_ns": 0.0,
        },
        links=("far link",),
        nodes=("far_memory",),
    ),
    "launch": FreedComponent(
        {
            "io_chiplet.components.io_cpu.attrs.overhead_ns": 0.0,
            "cube.components.m_cpu.attrs.overhead_ns": 0.0,
            f"{_PE}.pe_cpu.attrs.overhead_ns": 0.0,
        },
        nodes=("io_cpu", "m_cpu", "pe_cpu"),
    ),
}


def free_folder(run: Path) -> Path:
    """The folder beside a run that has its measurements: `RUN-free`."""
    whole = run.resolve()
    return whole.with_name(f"{whole.name}-free")


def targets_of(spec: MachineSpec) -> list[str]:
    """The components of a machine that can be made free: few have direct links between SIPs, or far memory."""
    system = spec.system
    absent = {name for name, part in ((SIP_LINK, system.sips.links), (FAR, system.far_memory)) if part is None}
    return [name for name in TARGETS if name not in absent]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A free component. `gain_ns` is the estimated gain along this path."""

    name: str
    settings: Mapping[str, float]
    gain_ns: float
    total_ns: float

    @property
    def estimated_ns(self) -> float:
        return self.total_ns - self.gain_ns

    @property
    def share(self) -> float:
        return self.gain_ns / self.total_ns if self.total_ns else 0.0


def what_ifs(run: SavedRun, explanation: Explanation, patterns: Iterable[str]) -> list[WhatIf]:
    """For each pattern, the estimate for the components that it matches; raises UsageError if one matches none."""
    gains = Gains(run, explanation.scope, explanation.path)
    found, there = [], targets_of(run.graph.spec)
    for pattern in patterns:
        names = [name for name in there if fnmatchcase(name, pattern)]
        if not names:
            raise UsageError(
                f"no component '{pattern}' to make free",
                where="--what-if",
                hint=f"use one of {', '.join(there)}, or a *",
            )
        chosen = [TARGETS[name] for name in names]
        settings = {key: value for target in chosen for key, value in target.settings.items()}
        if run.graph.spec.sip.hbm_stacks is not None and settings.pop(HBM_KEY, None) is not None:
            settings |= {f"sip.hbm_stacks.{key}": FAST_GBS for key in ("channel_bw_gbs", "link_bw_gbs")}
        settings |= _of_switch_levels(run.graph.spec, settings) | _peak_of_arrays(run.graph.spec, settings)
        found.append(WhatIf(" and ".join(names), settings, gains.of(chosen), explanation.scope.total_ns))
    return found


def _of_switch_levels(spec: MachineSpec, settings: Mapping[str, float]) -> dict[str, float]:
    """Where the switch at the top is free, so are those below it."""
    if SWITCH_KEY not in settings:
        return {}
    levels = spec.system.switch_levels
    links = {f"system.switch_levels.{name}.bw_gbs": FAST_GBS for name in levels}
    own = [name for name, level in levels.items() if level.switch is not None]
    return links | {f"system.switch_levels.{name}.switch.attrs.overhead_ns": 0.0 for name in own}


def _peak_of_arrays(spec: MachineSpec, settings: Mapping[str, float]) -> dict[str, float]:
    """The peak of systolic arrays follows from their size and the clock that they are given."""
    gemm, key = spec.cube.pe_template.components.pe_gemm, f"{_PE}.pe_gemm.attrs.macs_per_ns"
    factors = ARRAY_FACTORS.get(gemm.impl, ())
    if not factors or key not in settings:
        return {}
    return {key: prod(gemm.number_attr(name) for name in factors if name != "clock_ghz") * FAST_GHZ}


def machine_with(run: SavedRun, settings: Mapping[str, float]) -> str:
    """The hash of a run's machine with some values changed; a run of the same bench on it is the measurement."""
    return machine_hash(load_spec(run.graph.spec, settings))
