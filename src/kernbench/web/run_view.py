"""A saved run for the page: lanes, scopes and machine, each computed on first use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from functools import cached_property
from threading import RLock
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Floats
from kernbench.common.errors import UsageError
from kernbench.common.whole_numbers import whole_number
from kernbench.report.explain.headline import all_launches, main_scope
from kernbench.report.runs.layout import KINDS, OP_COLUMNS
from kernbench.report.runs.saved_run import SavedRun
from kernbench.web.machine_map import Json, MachineMap

Made = TypeVar("Made")
MOST_HELD = 200_000  # ops
LETTERS = "".join(KINDS)  # the number of a kind in binary responses is its index here


class RunView:
    """A run with the data that responses share. Each part is computed once, by the first request."""

    def __init__(self, run: SavedRun) -> None:
        self.run = run
        self.is_held = False
        self._locks: defaultdict[str, RLock] = defaultdict(RLock)
        self._kept: defaultdict[str, dict[object, Any]] = defaultdict(dict)

    def keep(self, kind: str, key: object, most: int, make: Callable[[], Made]) -> Made:
        """The result of `make`, cached by key; of each kind the `most` recently used are kept."""
        with self._locks[kind]:
            own = self._kept[kind]
            if key in own:
                own[key] = own.pop(key)  # the most recent is last
            else:
                made = make()
                while len(own) >= most:
                    del own[next(iter(own))]
                own[key] = made
            found: Made = own[key]
            return found

    @property
    def id(self) -> str:
        return self.run.id

    @property
    def t_end(self) -> float:
        return self.run.total_ns

    @cached_property
    def machine(self) -> MachineMap:
        with self._locks["machine"]:
            return MachineMap(self.run.graph)

    def hold(self) -> None:
        """Read what views of a run show, so that they work when its folder is written again; not of a large run."""
        if self.is_held or len(self.run.ops) > MOST_HELD:
            return
        with self._locks["held"]:
            for name in OP_COLUMNS:
                getattr(self.run.ops, name)
            self.run.ops.hold_pieces()
            _ = self.run.lanes, self.run.launches, self.run.places, self.run.activity, self.run.lines, self.run.graph
            self.is_held = True

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """The number of each op's kind."""
        words = self.run.ops.kind
        numbers = np.array([LETTERS.index(word) for word in words.words] or [0], np.uint8)
        return numbers[words.codes]

    @cached_property
    def busy_before(self) -> Floats:
        """For each row of ops, the sum of all durations before it; lanes are contiguous, so differences are sums."""
        ops = self.run.ops
        return np.concatenate(([0.0], np.cumsum(ops.t_end - ops.t_start)))

    def busy_until(self, lane: int, times: Floats) -> Floats:
        """How long a lane was busy from its beginning to each of `times`: exact, whatever the number of slices."""
        ops, found = self.run.ops, self.run.lanes[lane]
        starts = ops.t_start[found.first : found.stop]
        if not len(starts):
            return np.zeros(len(times))
        at = np.searchsorted(starts, times, side="right") - 1
        row = found.first + np.maximum(at, 0)
        inside = np.minimum(times - ops.t_start[row], ops.t_end[row] - ops.t_start[row])
        busy = self.busy_before[row] - self.busy_before[found.first] + inside
        return np.where(at < 0, 0.0, busy)

    def place_id(self, index: int) -> str:
        """How the page names a place: `A>B` or `CTRL#3`."""
        place = self.run.places[index]
        return f"{place.src}>{place.dst}" if place.kind == "link" else f"{place.src}#{place.channel}"

    def busy_in(self, t0: float, t1: float) -> list[float]:
        """How long each lane was busy in a window."""
        times = np.array([t0, t1])
        return [float(np.diff(self.busy_until(lane.index, times))[0]) for lane in self.run.lanes]

    def scope(self, text: str | None) -> tuple[float, float]:
        """Begin and end of a scope: `run`, `kernels` (from the first launch to the end of the last), `launch:N`."""
        if not text or text == "run":
            return 0.0, self.t_end
        if text == "kernels" and self.run.launches:
            ends = max(launch.end_ns for launch in self.run.launches)
            return min(launch.start_ns for launch in self.run.launches), min(ends, self.t_end)
        name, _, number = text.partition(":")
        index = whole_number(number)
        if name == "launch" and index is not None and index < len(self.run.launches):
            launch = self.run.launches[index]
            return launch.start_ns, min(launch.end_ns, self.t_end)
        raise UsageError(f"no scope '{text[:40]}'", hint="ask for run, kernels, or launch:0 to launch:N")

    def launch_of(self, text: str | None) -> int:
        """The launch that a scope is; -1 for one of all launches."""
        self.scope(text)
        return int((text or "").partition(":")[2] or -1)

    @property
    def main_scope(self) -> str:
        """The main scope, as for `kernbench run`: its launch, or the time from the first launch to the last."""
        return ("run", "launch:0")[len(self.run.launches)] if len(self.run.launches) < 2 else "kernels"

    def _scopes(self) -> list[Json]:
        scopes: list[Json] = [{"id": "run", "name": "whole run", "t0": 0.0, "t1": self.t_end}]
        if len(self.run.launches) > 1:
            t0, t1 = self.scope("kernels")
            scopes.append({"id": "kernels", "name": all_launches(self.run), "t0": t0, "t1": t1})
        for launch in self.run.launches:
            t0, t1 = self.scope(f"launch:{launch.index}")
            called = {"called_at": launch.called_at} if launch.called_at else {}
            scopes.append({"id": f"launch:{launch.index}", "name": launch.name, "t0": t0, "t1": t1, **called})
        return scopes

    def listed(self) -> Json:
        m = self.run.manifest
        return {
            "id": self.id,
            "name": m.title,
            "dir": str(self.run.path),
            "kind": "run",
            "bench": m.bench,
            "device": m.device,
            "machine": m.machine,
            "machine_hash": m.machine_hash,
            "params": dict(m.params),
            "total_ns": m.total_ns,
            "launches_ns": main_scope(self.run).scope.total_ns,
            "launches": m.launches,
            "verified": m.verified,
            "ok": m.ok,
            "error": None,
        }

    def as_json(self) -> Json:
        """Manifest, launches, lanes."""
        run, m = self.run, self.run.manifest
        return {
            **self.listed(),
            "schema": 1,
            "command": list(m.command),
            "version": m.version,
            "kernels_ns": m.kernels_ns,
            "ops": m.ops,
            "bin_ns": m.bin_ns,
            "bins": m.bins,
            "kinds": KINDS,
            "main": self.main_scope,
            "scopes": self._scopes(),
            "lanes": [
                {
                    "i": lane.index,
                    "name": lane.name,
                    "component": lane.component,
                    "port": lane.port,
                    "slot": lane.slot,
                    "kind": lane.kind,
                    "sip": lane.sip,
                    "cube": lane.cube,
                    "pe": lane.pe,
                    "ops": lane.ops,
                    "busy_ns": lane.busy_ns,
                }
                for lane in run.lanes
            ],
            "files": [{"name": file.name, "lines": len(file.lines)} for file in run.sources],
        }
