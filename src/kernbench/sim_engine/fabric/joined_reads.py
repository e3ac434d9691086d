"""Reads that depart together as one transfer: the rows of a block that one request asks for (`loop_reads.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple

from kernbench.common.declared_state import Derived
from kernbench.sim_engine.fabric.routes import LastFlit, Route
from kernbench.sim_engine.fabric.transfers import Transfer


class JoinedRead(NamedTuple):
    """One of them: the route by which its bytes come back, from which address, and when the request is there.
    `granules` and `seq` are as for `Fabric.inject`.
    """

    route: Route
    nbytes: int
    at_ns: float
    address: int
    granules: int
    seq: int


AsSingle = Callable[[JoinedRead, "JoinedReads"], Transfer]  # makes a transfer of one of them, to be sent


class JoinedReads(Transfer):
    """All of them, done when the last one is."""

    DERIVED: ClassVar[Derived] = (*Transfer.DERIVED, "_parts", "_then", "as_single", "in_loop", "last_flits", "number")

    __slots__ = ("_parts", "_then", "as_single", "in_loop", "last_flits", "number")

    def __init__(
        self, reads: list[JoinedRead], then: Callable[[Transfer], None], tag: object, as_single: AsSingle
    ) -> None:
        first = reads[0]
        super().__init__(first.seq, first.route, sum(read.nbytes for read in reads), first.at_ns, self.part_done, tag)
        self.in_loop: dict[int, JoinedRead] = {}  # of those that the loop moves, by their place there
        self.last_flits: dict[int, LastFlit] = {}
        self.number = -1  # of all of them, there
        self.as_single = as_single
        self._then = then
        self._parts = 0  # not done: what the loop moves is one, a read that is a transfer of its own is another

    def add_part(self) -> None:
        self._parts += 1

    def drop_part(self) -> None:
        """A part was over before, and others are not."""
        self._parts -= 1

    def part_done(self, transfer: Transfer) -> None:
        """A part is done; the last one is the end of all."""
        self._parts -= 1
        if not self._parts:
            self._then(transfer)
