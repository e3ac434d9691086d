"""The description of a sweep: what to run over what, where, and where to write it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kernbench.sweep.conditions import Condition
from kernbench.sweep.objectives import Objective
from kernbench.sweep.points import Axes, JsonValue
from kernbench.sweep.scenario import Scenario
from kernbench.sweep.search import Search
from kernbench.sweep.target import Target
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.layers import Overrides, Source

AxesMode = Literal["grid", "zip"]
MODES: tuple[AxesMode, ...] = ("grid", "zip")


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRequest:
    """What to run over what, where, and where to write it. `points` are used instead of `axes` when they are given.

    `workers` is 0 for this process alone, None for as many processes as there are cores. `resume_anyway` keeps rows
    that were made with another source of the bench or of the simulator.
    """

    target: Target
    title: str
    axes: Axes = field(default_factory=dict)
    points: Sequence[Mapping[str, JsonValue]] | None = None
    mode: AxesMode = "grid"
    params: Mapping[str, JsonValue] = field(default_factory=dict)
    topology: Source | TopologyGraph = None
    overrides: Overrides | None = None
    device: str = "all"
    verify_data: bool = False
    search: Search | None = None
    objectives: tuple[Objective, ...] = ()
    cost: Target | None = None
    workers: int | None = None
    cluster: str | None = None
    out: Path | None = None
    retry_failed: bool = False
    resume_anyway: bool = False
    point_timeout_s: float | None = None
    plot: bool = True
    scenario: Scenario | None = None
    where: tuple[Condition, ...] = ()
    sensitivity: bool = False
