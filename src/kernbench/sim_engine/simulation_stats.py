"""How a simulation was done, as far as results do not show it: what was replayed, what was simulated, and why.

Every decision about a launch or a composite is noted here. A later note about the same launch replaces an earlier one:
a replay that was interrupted is a launch that was simulated.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from kernbench.common.messages import RequestId

REPLAYED = "replayed"
RECORDED = "recorded"  # simulated, once, for those that come after it
INTERRUPTED = "interrupted by another access"
OFF = "this fast path is off"
NOT_REPEATABLE = "the kernel is not @repeatable"


@dataclass
class ComputerTime:
    """How long a part of a run has taken on the computer that simulates."""

    wall_s: float = 0.0
    cpu_s: float = 0.0  # of this process and of workers that have ended


class LaunchStats:
    """Launches of kernels, or of collectives: one on each SIP."""

    def __init__(self) -> None:
        self._how: dict[RequestId, str] = {}

    def note(self, launch: RequestId, how: str) -> None:
        """`how` is REPLAYED, RECORDED, or why it is simulated in full."""
        self._how[launch] = how

    @property
    def reused(self) -> int:
        return sum(how == REPLAYED for how in self._how.values())

    @property
    def simulated(self) -> int:
        return len(self._how) - self.reused

    @property
    def recorded(self) -> int:
        return sum(how == RECORDED for how in self._how.values())

    @property
    def given_up(self) -> dict[str, int]:
        """By reason: launches that were simulated and not recorded, in order of their first."""
        return dict(Counter(how for how in self._how.values() if how not in (REPLAYED, RECORDED)))

    def as_json(self) -> dict[str, object]:
        return {
            "simulated": self.simulated,
            "recorded": self.recorded,
            "reused": self.reused,
            "given_up": self.given_up,
        }


@dataclass
class CompositeStats:
    """Composites of kernels that were not replayed. Those that were are part of their launch."""

    one_event: int = 0
    given_up: Counter[str] = field(default_factory=Counter)  # by reason: those that went tile by tile
    why_not: str = ""  # all of them, uncounted

    def as_json(self) -> dict[str, object]:
        return {"one_event": self.one_event, "given_up": dict(self.given_up), "why_not": self.why_not or None}


@dataclass(eq=False)
class SimulationStats:
    """What one engine has to say. `compiled` and `workers` are filled where they are decided."""

    launches: LaunchStats = field(default_factory=LaunchStats)
    collectives: LaunchStats = field(default_factory=LaunchStats)
    composites: CompositeStats = field(default_factory=CompositeStats)
    workers: int = 0  # processes that were started
    no_workers: str = "no launch took long enough"
    is_compiled: bool = False  # whether a compiled loop has moved flits
    not_compiled: str = ""
    phases: dict[str, ComputerTime] = field(default_factory=dict)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count what happens in here to a phase."""
        wall_s, cpu_s = time.perf_counter(), _cpu_s()
        try:
            yield
        finally:
            phase = self.phases.setdefault(name, ComputerTime())
            phase.wall_s += time.perf_counter() - wall_s
            phase.cpu_s += _cpu_s() - cpu_s

    def as_json(self) -> dict[str, object]:
        """As `kernbench run --stats --json` prints it."""
        return {
            "launches": self.launches.as_json(),
            "collectives": self.collectives.as_json(),
            "composites": self.composites.as_json(),
            "compiled": {"used": self.is_compiled, "why_not": None if self.is_compiled else self.not_compiled},
            "workers": {"started": self.workers, "why_not": None if self.workers else self.no_workers},
            "seconds": {name: {"wall": each.wall_s, "cpu": each.cpu_s} for name, each in self.phases.items()},
        }


def _cpu_s() -> float:
    """CPU time of this process and of those of its children that have ended."""
    return sum(os.times()[:4])
