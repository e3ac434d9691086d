"""Replay: credits that are under way when all kernels of a launch have ended. No kernel waits for them, but slots of
rings are not free before they arrive; between SIPs they are later than the answer that the host gets. They are control
messages, so nothing delays them: a recording has their times of arrival, and a replay schedules them for these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Communicator, Credit
from kernbench.components.builtin.pe_ipcq import PeIpcqComponent
from kernbench.sim_engine.machine import Machine


class LateCredit(NamedTuple):
    """A credit for the sender's side of a direction: when it arrives, from the launch's begin, and its receive, as
    `Credit` has it.
    """

    sender: PeKey
    direction: str
    at_ns: float
    by: int


class LateCredits:
    """Credits that are under way now to some PEs of a machine, recorded as they arrive."""

    def __init__(self, machine: Machine, keys: Iterable[PeKey], communicator: Communicator, begin_ns: float) -> None:
        self.arrived: list[LateCredit] = []
        self._machine, self._begin_ns = machine, begin_ns
        for queue in (queue_so_far(machine, key) for key in keys):
            if queue is not None and queue.awaits_credits(communicator):
                queue.credit_observers.append(partial(self._note, queue.key))

    def _note(self, sender: PeKey, direction: str, credit: Credit) -> None:
        self.arrived.append(LateCredit(sender, direction, self._machine.env.now - self._begin_ns, credit.by))


def expect_late(machine: Machine, communicator: Communicator, late: Sequence[LateCredit]) -> None:
    """Let credits be under way that arrive at times of the machine."""
    by_ring: dict[tuple[PeKey, str], list[LateCredit]] = {}
    for credit in late:
        by_ring.setdefault((credit.sender, credit.direction), []).append(credit)
    for (sender, direction), credits in by_ring.items():
        queue = machine.component(machine.resolver.find_pe_part(*sender, "pe_ipcq"))
        assert isinstance(queue, PeIpcqComponent)
        queue.expect_credits(communicator, direction, [(credit.at_ns, credit.by) for credit in credits])


def queue_so_far(machine: Machine, key: PeKey) -> PeIpcqComponent | None:
    """The PE_IPCQ of a PE, if it has been created yet."""
    found = machine.component_so_far(machine.resolver.find_pe_part(*key, "pe_ipcq"))
    return found if isinstance(found, PeIpcqComponent) else None
