"""The table of sets: a row here and one file is all that a further set takes."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module

from kernbench.common.errors import UsageError
from kernbench.common.nearest import nearest
from kernbench.validation.contract import ValidationSet

SETS = (
    "noc_traces",
    "collectives",
    "matmul_tensix",
    "gpu_operators",
    "memory",
    "arrays",
)  # modules of this package, in the order of the data's folders


def load_set(name: str) -> ValidationSet:
    """The set of that name; raises UsageError where there is none."""
    if name not in SETS:
        near = nearest(name, SETS)
        suggestion = f"; did you mean '{near}'?" if near else ""
        raise UsageError(f"no validation set '{name[:40]}'{suggestion}", hint=f"use some of {', '.join(SETS)}")
    found = import_module(f"kernbench.validation.{name}").SET
    assert isinstance(found, ValidationSet)
    return found


def chosen_sets(names: Sequence[str]) -> list[ValidationSet]:
    """The sets of those names, or all."""
    return [load_set(name) for name in names or SETS]
