"""The fields of a fidelity fact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["exact", "approximated", "ignored"]
ErrorDirection = Literal["none", "optimistic", "pessimistic", "either"]


@dataclass(frozen=True, slots=True)
class Fact:
    """One property of hardware and how the model treats it."""

    topic: str
    hardware: str
    model: str
    kind: Kind
    error: ErrorDirection
    matters: str  # for which workloads
