"""Conditions on the points of a sweep: `machine:cube.ucie.n_connections * 128 <= 512`.

Both sides are products of numbers, parameters and `machine:KEY`. A key that a point does not set has the value of the
machine. Points that break a condition are left out of the sweep.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from kernbench.common.errors import UsageError
from kernbench.sweep.points import MACHINE, JsonValue, Point

COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
}
_SIGN = re.compile("|".join(COMPARE))
EXAMPLE = "machine:cube.ucie.n_connections * 128 <= 512"


@dataclass(frozen=True, slots=True)
class Condition:
    """A comparison of two products."""

    text: str
    left: tuple[str, ...]
    sign: str
    right: tuple[str, ...]

    def holds(self, point: Point, machine: Mapping[str, JsonValue]) -> bool:
        """Whether a point satisfies it; raises UsageError for a name that has no number there."""
        sides = (prod(self._number(term, point, machine) for term in side) for side in (self.left, self.right))
        return COMPARE[self.sign](*sides)

    def _number(self, term: str, point: Point, machine: Mapping[str, JsonValue]) -> float:
        value = _value(term, point, machine)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UsageError(
                f"'{term}' has no number at a point of the sweep",
                where=f"--where '{self.text}'",
                hint=f"use parameters and machine:KEY with numbers, e.g. {EXAMPLE}",
            )
        return value


def read_condition(text: str) -> Condition:
    """A condition from its text; raises UsageError."""
    parts = _SIGN.split(text)
    sign = _SIGN.search(text)
    sides = [tuple(term.strip() for term in part.split("*")) for part in parts]
    if sign is None or len(parts) != 2 or not all(term for side in sides for term in side):
        raise UsageError(f"'{text[:80]}' is no condition", where="--where", hint=f"write for example {EXAMPLE}")
    return Condition(text, sides[0], sign[0], sides[1])


def _value(term: str, point: Point, machine: Mapping[str, JsonValue]) -> JsonValue:
    try:
        return float(term)
    except ValueError:
        pass
    if not term.startswith(MACHINE):
        return point.params.get(term)
    key = term.removeprefix(MACHINE)
    if key in point.machine:
        return point.machine[key]
    found: JsonValue = dict(machine)
    for part in key.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found
