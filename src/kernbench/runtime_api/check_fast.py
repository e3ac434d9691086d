"""Check mode: a program is run as usual and a second time with all fast paths off, and the two runs must agree.

With `each`, it is also run with one fast path off at a time (and those that depend on it, `sim_engine/fast_paths.py`).
A fast path is guilty if the difference disappears without it, or if disabling it exposes a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kernbench.runtime_api.observation import Observation, RunDifference, first_difference
from kernbench.sim_engine.fast_paths import NAMES, NONE, FastPaths
from kernbench.sim_engine.op_log import OpLog

CheckFast = bool | Literal["each"]
RunWith = Callable[[FastPaths, OpLog | None], Observation]  # runs the program and returns what was observed


@dataclass(eq=False)
class FastCheck:
    """The result. `without` has, by fast path, the difference that remains when only that one is off."""

    difference: RunDifference | None
    without: Mapping[str, RunDifference | None] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return self.difference is None and not any(self.without.values())

    @property
    def guilty(self) -> tuple[str, ...]:
        """Fast paths without which the difference disappears. Empty if there is no difference, or if disabling no
        single one removes it; `trains` is listed only if no fast path that depends on it is guilty.
        """
        if self.difference is None:
            return ()
        found = [name for name, left in self.without.items() if left is None]
        return tuple(name for name in found if name != "trains" or len(found) == 1)

    def as_json(self) -> dict[str, object]:
        return {
            "ok": self.ok,
            "difference": None if self.difference is None else self.difference.as_json(),
            "without": {name: None if left is None else left.as_json() for name, left in self.without.items()},
            "guilty": list(self.guilty),
        }

    def as_text(self) -> str:
        """A few lines for a reader."""
        lines = []
        if self.difference is not None:
            lines += ["with all fast paths off the run is another one", *_indented(self.difference)]
        for name, left in self.without.items():
            lines.append(f"without {name}: {'the same' if left is None else 'another one'} as with all of them off")
            if left is not None and self.difference is None:
                lines += _indented(left)
        if self.guilty:
            lines.append(f"the difference comes from: {', '.join(self.guilty)}")
        return "\n".join(lines) or "times, op log, counters and numbers are the same with all fast paths off"


def check_fast(first: Observation, paths: FastPaths, run: RunWith, *, each: bool = False) -> FastCheck:
    """Compare the observation of a run that used `paths` with runs that do not use them."""
    exact = run(NONE, None)
    check = FastCheck(first_difference(exact, first))
    if each:
        left = {name: first_difference(exact, run(paths.without(name), None)) for name in NAMES if getattr(paths, name)}
        check = FastCheck(check.difference, left)
    if check.difference is not None and check.difference.op is not None:
        check.difference = replace(check.difference, line=_line_of(check.difference.op, run))
    return check


def _line_of(op: int, run: RunWith) -> str | None:
    """The kernel line that issued an op. This takes another run: lines are known only if every kernel is executed."""
    log = OpLog(lines=True)
    run(NONE, log)
    record = next((record for at, (_, record) in enumerate(log.items()) if at == op), None)
    return None if record is None or "line" not in record.params else str(record.params["line"])


def _indented(difference: RunDifference) -> list[str]:
    return [f"  {line}" for line in str(difference).splitlines()]
