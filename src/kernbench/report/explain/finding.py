"""A cause of lost time on a critical path, and the names of all causes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernbench.report.explain.classes import CREDIT, HOST, ISSUE, LATENCY, LAUNCH

DISTANCE: Final = "distance"
IMBALANCE: Final = "imbalance"
CHAIN: Final = "chain"
OVERLAP: Final = "overlap"
SMALL_TRANSFERS: Final = "small_transfers"
MEMORY: Final = "memory"
LINK: Final = "link"
MESSAGES: Final = "messages"
COMPUTE: Final = "compute"

CAUSES: Final = (
    DISTANCE, IMBALANCE, CHAIN, OVERLAP, SMALL_TRANSFERS, MEMORY, LINK, LAUNCH, COMPUTE, MESSAGES, LATENCY, ISSUE,
    CREDIT, HOST,
)  # fmt: skip
STRUCTURE: Final = frozenset({IMBALANCE, CHAIN, OVERLAP})  # causes that leave engines idle, and are no waits themselves


@dataclass(frozen=True, slots=True)
class Finding:
    """A cause on a path. `what` describes it in one or two sentences, `hint` is what to change in the program."""

    cause: str
    gain_ns: float
    what: str
    hint: str
    cls: str  # the class of time that it shows as
    link_class: str = ""  # of queueing
    with_ns: float = (
        0.0  # other waits of the same transfers that the same change avoids; they do not count in the ranking
    )
    brief: str = ""  # `what` in one clause, where its first sentence is long
