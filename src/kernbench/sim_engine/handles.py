"""A request under way, and how it ended.

A launch brings back what each of its PEs answered; it failed when one of them did.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import simpy

from kernbench.common.messages import Completion, HostMessage, KernelFailure, PeResult
from kernbench.sim_engine.fabric import Transfer
from kernbench.values.graph import Value

KERNEL_FAILED = "KERNEL_FAILED"


@dataclass(eq=False)
class Handle:
    """A request under way. Ask the engine for its completion."""

    number: int
    request: HostMessage
    entry: str  # the node that serves it
    value: Value | None = field(default=None, repr=False)  # what a write brings, until it is done
    contents: tuple[Value, ...] = field(default=(), repr=False)  # what a read found, as bytes, at each of its addresses
    done: simpy.Process | None = field(default=None, repr=False)
    start_ns: float = 0.0
    end_ns: float | None = None
    path: tuple[str, ...] = ()
    results: tuple[PeResult, ...] = field(default=(), repr=False)  # of the PEs of a launch
    transfers: list[Transfer] | None = field(default=None, repr=False)

    @property
    def is_done(self) -> bool:
        return self.done is not None and self.done.processed

    @property
    def failures(self) -> tuple[KernelFailure, ...]:
        """What went wrong on PEs, in their order."""
        return tuple(result.error for result in self.results if result.error is not None)

    @property
    def completion(self) -> Completion:
        failures = self.failures
        if not failures:
            return Completion(ok=True)
        more = f"\n  and {len(failures) - 1} more PEs" if len(failures) > 1 else ""
        return Completion(ok=False, error_code=KERNEL_FAILED, error_message=f"{failures[0]}{more}")
