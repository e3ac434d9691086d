"""How many transfers of each kind are done, and which of them since some moment.

A kind is a route and the bytes of the last flit. Counts are read before and after a launch, to find what it moved,
on a machine on which tens of thousands of kinds have been seen: counts lie in arrays, which are copied and compared as
a whole.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterator
from typing import NamedTuple

from kernbench.sim_engine.fabric.model import BETWEEN, Network
from kernbench.sim_engine.fabric.routes import LastFlit


class DoneCounts(NamedTuple):
    """Whole flits and transfers of every kind, at some moment."""

    flits: array[int]
    transfers: array[int]


class DoneTransfers(NamedTuple):
    """Transfers of one kind."""

    last_flit: LastFlit
    flits: int  # whole ones
    transfers: int


DoneByKind = dict[LastFlit, tuple[int, int]]  # whole flits and transfers, by kind


class DoneTally:
    """Counts by kind; kinds are numbered as they come."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._numbers: dict[LastFlit, int] = {}
        self.kinds: list[LastFlit] = []
        self._parts: list[Hashable] = []  # of the network, by kind
        self.counts = DoneCounts(array("q"), array("q"))

    def add(self, last_flit: LastFlit, flits: int, transfers: int) -> None:
        number = self._numbers.get(last_flit)
        counts = self.counts
        if number is None:
            self._numbers[last_flit] = len(self.kinds)
            self.kinds.append(last_flit)
            self._parts.append(self._network.part_of(last_flit.route))
            counts.flits.append(flits)
            counts.transfers.append(transfers)
        else:
            counts.flits[number] += flits
            counts.transfers[number] += transfers

    def so_far(self) -> DoneCounts:
        return DoneCounts(self.counts.flits[:], self.counts.transfers[:])

    def all(self) -> Iterator[DoneTransfers]:
        return map(DoneTransfers, self.kinds, *self.counts)

    def since(self, before: DoneCounts, parts: Collection[Hashable] | None = None) -> Iterator[DoneTransfers]:
        """What is done since a moment; of some parts of the network, or of all."""
        import numpy as np  # the fabric itself does without

        had = len(before.transfers)
        now, then = np.frombuffer(self.counts.transfers, np.int64), np.frombuffer(before.transfers, np.int64)
        changed = [*np.flatnonzero(now[:had] != then).tolist(), *range(had, len(self.kinds))]
        wanted = None if parts is None else (*parts, BETWEEN)
        del now, then  # an array with a live view cannot grow
        flits, transfers = self.counts
        for number in changed:
            if wanted is None or self._parts[number] in wanted:
                more = flits[number], transfers[number]
                if number < had:
                    more = more[0] - before.flits[number], more[1] - before.transfers[number]
                yield DoneTransfers(self.kinds[number], *more)
