"""Coefficients of energy, power, area and cost: from the machine description if it sets one, else the shipped value.

A coefficient that the description leaves null takes the value of `coefficients.yaml`, which names a public source and a
range for each. A coefficient that neither defines is None, and the energy report lists it as not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from kernbench.topology.spec import MachineSpec
from kernbench.topology.yaml_marks import shipped_yaml

OWN = "the machine's description"


class Coefficient(NamedTuple):
    """A value, the range that its sources support, the process node it holds for, and the source."""

    key: str
    value: float
    low: float
    high: float
    node: str
    how: str
    source: str


@cache
def shipped_coefficients() -> Mapping[str, Coefficient]:
    """Every shipped coefficient, by its key in a machine description."""
    entries: Any = shipped_yaml("kernbench.topology", "coefficients.yaml").plain()
    return {entry["key"]: Coefficient(**entry) for entry in entries}


def coefficient_of(spec: MachineSpec, key: str) -> Coefficient | None:
    """One coefficient of a machine by its key, such as `energy.pj_per_mac.f16`; None if it is undefined."""
    found: object = spec
    for name in key.split("."):
        found = found.get(name) if isinstance(found, Mapping) else getattr(found, name)
    if found is None:
        return shipped_coefficients().get(key)
    assert isinstance(found, int | float)
    return Coefficient(key, float(found), float(found), float(found), "", "", OWN)
