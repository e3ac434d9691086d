"""Kernels that wait for what never happens: what the report of a deadlock says of each, and the cycle among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RingWait:
    """A direction that a kernel waits in: for a message of `peer` (recv), or for `peer` to take one (send).

    `occupancy` is how many of the ring's slots are taken, as this PE knows.
    """

    op: str  # send or recv
    direction: str
    peer: tuple[int, int, int]
    occupancy: int
    n_slots: int
    failure: str = ""  # of a kernel that used the same communicator

    def __str__(self) -> str:
        sip, cube, pe = self.peer
        to = "to" if self.op == "send" else "from"
        return (
            f"{self.op} {to} {self.direction} (sip{sip}.cube{cube}.pe{pe}), "
            f"{self.occupancy} of {self.n_slots} slots taken" + (f"; {self.failure}" if self.failure else "")
        )


@dataclass(frozen=True, slots=True)
class BlockedKernel:
    """A kernel that waits for what never happens: the PE, the kernel's own line, and what it waits for."""

    sip: int
    cube: int
    pe: int
    kernel: str
    file: str
    line: int
    source: str
    waits_for: str
    rings: tuple[RingWait, ...] = ()  # where it waits for messages or credits

    @property
    def key(self) -> tuple[int, int, int]:
        return self.sip, self.cube, self.pe

    @property
    def where(self) -> str:
        """`file:line  source`."""
        return f"{self.file}:{self.line}" + (f"  {self.source}" if self.source else "")

    def __str__(self) -> str:
        place = f"rank {self.sip} (sip {self.sip}, cube {self.cube}, pe {self.pe})"
        return f"kernel '{self.kernel}' on {place} waits for {self.waits_for}\n    at {self.where}"


def waiting_cycle(blocked: Sequence[BlockedKernel]) -> tuple[tuple[int, int, int], ...]:
    """PEs of which each waits for the next, and the last for the first; the first such cycle, or nothing."""
    waits: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
    for kernel in blocked:  # a PE may run one of each stream
        waits.setdefault(kernel.key, []).extend(ring.peer for ring in kernel.rings)
    finished: dict[tuple[int, int, int], bool] = {}
    for start in waits:
        path: list[tuple[int, int, int]] = []
        stack = [(start, iter(waits[start]))] if start not in finished else []
        while stack:
            pe, peers = stack[-1]
            if not path or path[-1] != pe:
                path.append(pe)
            following = next((peer for peer in peers if peer in waits and not finished.get(peer)), None)
            if following is None:
                finished[path.pop()] = True
                stack.pop()
            elif following in path:
                return tuple(path[path.index(following) :])
            else:
                stack.append((following, iter(waits[following])))
    return ()
