"""The result of a run: whether it is right, how long it took, and what it says as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from kernbench.common.messages import Completion
from kernbench.common.race import Race
from kernbench.runtime_api.check_fast import FastCheck
from kernbench.runtime_api.launches import Launch
from kernbench.sim_engine.data_executor import DataCheck
from kernbench.sim_engine.engine import GraphEngine
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.simulation_stats import SimulationStats

JSON_SCHEMA = 1


@dataclass(eq=False)
class BenchResult:
    """The result of a run. `ok` is whether everything completed, every check passed, no race was found and fast paths
    changed nothing.
    """

    bench: str
    completion: Completion
    total_ns: float
    devices: tuple[int, ...]
    launches: list[Launch] = field(repr=False)
    data: list[DataCheck]
    ops: list[DataCheck] = field(repr=False)  # every intermediate op, with `debug_ops`
    returned: list[object] = field(repr=False)  # what the bench returned, by device; one item for the whole tray
    engine: GraphEngine = field(repr=False)

    backend: str = "numpy"  # what computed the tensors, where anything did
    backend_device: str = "cpu"
    races: list[Race] = field(default_factory=list)  # with `check_races`: each pair of lines once
    fast_check: FastCheck | None = None  # with `check_fast`

    @property
    def ok(self) -> bool:
        is_same = self.fast_check is None or self.fast_check.ok
        return self.completion.ok and all(check.ok for check in (*self.data, *self.ops)) and not self.races and is_same

    @property
    def op_log(self) -> OpLog | None:
        return self.engine.log

    @property
    def simulation(self) -> SimulationStats:
        """What was replayed, what was simulated and why, and the wall-clock time of each phase."""
        return self.engine.simulation_stats()

    def as_json(self) -> dict[str, object]:
        """The run as `kernbench run --json` prints it."""
        return {
            "schema": JSON_SCHEMA,
            "command": "run",
            "bench": self.bench,
            "ok": self.ok,
            "total_ns": self.total_ns,
            "launches": [launch.as_json() for launch in self.launches],
            "data": [check.as_json() for check in self.data],
            "backend": {"name": self.backend, "device": self.backend_device},
            **({} if self.engine.races is None else {"races": [race.as_json() for race in self.races]}),
            **({} if self.fast_check is None else {"fast_check": self.fast_check.as_json()}),
        }
