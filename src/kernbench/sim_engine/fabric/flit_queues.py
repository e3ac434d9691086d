"""Flits that meet, moved by a compiled loop (`compiled_loop.py`): many times faster than one Python event each.

It takes over where a run has many such flits and numba is installed (extra `fast`). Times are the same bit for bit. The
state of links is shared: `Links` then lies in arrays that both sides read and write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.sim_engine.fabric import compiled_loop as loop
from kernbench.sim_engine.fabric.agenda import INFINITY, Agenda
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import IN_SERIES, LastFlit
from kernbench.sim_engine.fabric.progressions import Pace, Times
from kernbench.sim_engine.fabric.transfers import Transfer

MOST_TOLD = 4096  # ends and written flits that one call tells
NODES, QUEUES, TRANSFERS, CROSSINGS = 1 << 14, 1 << 10, 1 << 10, 1 << 12  # room to begin with

Floats = NDArray[np.float64]


class FlitQueues:
    """Plain flits of one engine: those of transfers that nobody watches, over links without delay rules."""

    def __init__(self, links: Links) -> None:
        count = len(links.free)
        self._links = count
        self._link_ns = np.array([links.free, links.worst, links.worst_at])
        self._users = np.array(links.users, np.int64)
        links.free, links.worst, links.worst_at = (_shared(row) for row in self._link_ns)
        links.users = _shared(self._users)
        self._counts = np.zeros(7, np.int64)
        self._node_ns, self._node_ints = np.empty(0), np.empty((0, 4), np.int32)
        self._heap_ns, self._heap_ints = np.empty(0), np.empty((0, 2), np.int64)
        self._queues = np.full((count, 3), -1, np.int64)
        self._counts[loop.FREE_NODE] = self._counts[loop.FREE_QUEUE] = -1
        self._more_nodes(NODES)
        self._more_queues(QUEUES)
        self._transfers = np.zeros((TRANSFERS, 4), np.int32)
        self._under_way: list[Transfer | None] = []
        self._free_places: list[int] = []
        self._places: dict[int, int] = {}  # of transfers, by their number
        self._crossing_ints, self._crossing_ns = np.zeros((CROSSINGS, 2), np.int32), np.zeros((CROSSINGS, 3))
        self._crossings = 0
        self._firsts: dict[LastFlit, int] = {}
        self._end_ns, self._end_ints = np.empty(MOST_TOLD), np.empty((MOST_TOLD, 2), np.int32)
        self._write_ns, self._write_ints = np.empty(MOST_TOLD), np.empty((MOST_TOLD, 3), np.int32)
        self.next_ns = INFINITY  # when the next flit is ready for a link,
        self.next_order = 0  # and its place among what happens then

    # ---- flits come

    def add(self, transfer: Transfer, hop: int, index: int, stop: int, source: Times) -> None:
        """Flits `index` to `stop` of a transfer are ready for `hop` as `source` says."""
        self._add(transfer, hop, index, _all_times(source, index, stop))

    def take_from(self, agenda: Agenda[Any]) -> None:
        """The flits that are in an agenda by themselves go on here: those that follow one another, in one queue."""
        waiting: dict[tuple[int, int], list[tuple[float, int, Transfer]]] = {}
        for time, _, flit, transfer, crossing in agenda:
            if crossing.link >= 0:
                waiting.setdefault((transfer.seq, transfer.hop_of(crossing)), []).append((time, flit, transfer))
        agenda.keep(lambda event: event[4].link < 0)
        for (_, hop), flits in waiting.items():
            flits.sort(key=itemgetter(0, 1))
            start = 0
            for at in range(1, len(flits) + 1):  # those in between may be in a schedule
                if at == len(flits) or flits[at][1] != flits[at - 1][1] + 1:
                    self.add_at(flits[start][2], hop, flits[start][1], [time for time, _, _ in flits[start:at]])
                    start = at

    def add_at(self, transfer: Transfer, hop: int, index: int, times: list[float]) -> None:
        """Flits from `index` on are ready for `hop` at these times."""
        self._add(transfer, hop, index, np.array(times))

    def _add(self, transfer: Transfer, hop: int, index: int, times: Floats) -> None:
        order = transfer.links[hop - 1] if hop else transfer.order
        if self._counts[loop.FREE_NODES] < len(times):
            self._more_nodes(max(len(times), len(self._node_ns)))
        if self._counts[loop.FREE_QUEUE] < 0:
            self._more_queues(len(self._queues))
        loop.add(
            times, order, self._place_of(transfer), index, hop,
            self._node_ns, self._node_ints, self._queues, self._heap_ns, self._heap_ints, self._counts,
        )  # fmt: skip
        self._look_ahead()

    def _place_of(self, transfer: Transfer) -> int:
        """The row of a transfer, made for its first flits."""
        place = self._places.get(transfer.seq)
        if place is not None:
            return place
        if self._free_places:
            place = self._free_places.pop()
            self._under_way[place] = transfer
        else:
            place = len(self._under_way)
            self._under_way.append(transfer)
            if place == len(self._transfers):
                self._transfers = np.concatenate([self._transfers, np.zeros_like(self._transfers)])
        self._places[transfer.seq] = place
        self._transfers[place] = (
            self._first_crossing(transfer), transfer.hops, transfer.last, transfer.sink is not None
        )  # fmt: skip
        return place

    def _first_crossing(self, transfer: Transfer) -> int:
        """Where the crossings of transfers like this one begin."""
        last_flit = transfer.last_flit
        assert last_flit is not None
        first = self._firsts.get(last_flit)
        if first is None:
            first = self._firsts[last_flit] = self._crossings
            self._crossings += transfer.hops
            while self._crossings > len(self._crossing_ints):
                self._crossing_ints = np.concatenate([self._crossing_ints, np.zeros_like(self._crossing_ints)])
                self._crossing_ns = np.concatenate([self._crossing_ns, np.zeros_like(self._crossing_ns)])
            rows = zip(transfer.crossings, transfer.last_crossings, strict=True)
            for at, (whole, last) in enumerate(rows, first):
                self._crossing_ints[at] = whole.link, bool(whole.special & IN_SERIES)
                self._crossing_ns[at] = whole.occupy_ns, last.occupy_ns, whole.tail_ns
        return first

    # ---- flits go on

    def move(
        self, until: float, other_ns: float, other_order: float, ended: Callable[[Transfer, float, int], None]
    ) -> int:
        """Move flits up to `until`, or to what happens at `other_ns`; returns how many steps that took.

        Written flits are handed to their memories, and `ended` is told of every last flit and when it arrives.
        """
        counts = self._counts
        loop.move(
            until, other_ns, other_order, self._node_ns, self._node_ints, self._queues, self._heap_ns, self._heap_ints,
            self._transfers, self._crossing_ints, self._crossing_ns, self._link_ns, self._users,
            self._end_ns, self._end_ints, self._write_ns, self._write_ints, counts,
        )  # fmt: skip
        self._look_ahead()
        ends, writes, events = counts[loop.ENDS :].tolist()
        if writes:
            self._hand_over(writes, min(until, other_ns, self.next_ns))
        if ends:
            rows = zip(self._end_ns[:ends].tolist(), self._end_ints[:ends].tolist(), strict=True)
            for time, (link, place) in rows:
                transfer = self._leave(place)
                ended(transfer, time, link)
        return int(events)

    def _hand_over(self, writes: int, now: float) -> None:
        """Flits on their way into memories. Who is not among them arrives after `now`."""
        rows = zip(self._write_ns[:writes].tolist(), self._write_ints[:writes].tolist(), strict=True)
        under_way = self._under_way
        for time, (link, flit, place) in rows:
            transfer = under_way[place]
            assert transfer is not None
            group = transfer.sink
            assert group is not None
            group.pending.append((time, link, flit, transfer))
            if len(group.pending) > group.most_pending:
                group.flush(now)

    def _leave(self, place: int) -> Transfer:
        transfer = self._under_way[place]
        assert transfer is not None
        self._under_way[place] = None
        self._free_places.append(place)
        del self._places[transfer.seq]
        return transfer

    def _look_ahead(self) -> None:
        if self._counts[loop.HEAPED]:
            self.next_ns, self.next_order = float(self._heap_ns[0]), int(self._heap_ints[0, 0])
        else:
            self.next_ns = INFINITY

    # ---- for `whereabouts.py`

    def flits_of(self, transfer: Transfer) -> Iterator[tuple[int, int, float]]:
        """Hop, index and time of every flit of a transfer."""
        place = self._places.get(transfer.seq)
        if place is not None:
            rows = loop.find(place, self._node_ns, self._node_ints, self._queues, self._heap_ints, self._counts)
            for hop, flit, time in rows.tolist():
                yield int(hop), int(flit), time

    def forget(self, transfer: Transfer) -> None:
        """A transfer is no longer moved flit by flit."""
        place = self._places.get(transfer.seq)
        if place is not None:
            loop.remove(
                place, self._node_ns, self._node_ints, self._queues, self._heap_ns, self._heap_ints, self._counts,
                self._links,
            )  # fmt: skip
            self._leave(place)
            self._look_ahead()

    # ---- room

    def _more_nodes(self, count: int) -> None:
        before = len(self._node_ns)
        self._node_ns = np.concatenate([self._node_ns, np.zeros(count)])
        more = np.zeros((count, 4), np.int32)
        more[:, loop.NEXT] = np.arange(before + 1, before + count + 1)
        more[-1, loop.NEXT] = self._counts[loop.FREE_NODE]
        self._node_ints = np.concatenate([self._node_ints, more])
        self._counts[loop.FREE_NODE] = before
        self._counts[loop.FREE_NODES] += count

    def _more_queues(self, count: int) -> None:
        before = len(self._queues)
        more = np.full((count, 3), -1, np.int64)
        more[:, loop.TAIL] = np.arange(before + 1, before + count + 1)
        more[-1, loop.TAIL] = self._counts[loop.FREE_QUEUE]
        self._queues = np.concatenate([self._queues, more])
        self._counts[loop.FREE_QUEUE] = before
        room = len(self._queues) - len(self._heap_ns)
        self._heap_ns = np.concatenate([self._heap_ns, np.zeros(room)])
        self._heap_ints = np.concatenate([self._heap_ints, np.zeros((room, 2), np.int64)])


def _shared(row: NDArray[Any]) -> Any:
    """An array as a sequence of plain numbers, which is quicker to index."""
    return row.data


def _all_times(source: Times, index: int, stop: int) -> Floats:
    """When flits are ready, one by one."""
    if not isinstance(source, Pace):
        return np.concatenate([first + np.arange(count) * spacing for first, spacing, count in source])
    places = np.arange(index, stop)
    rounds, channels = np.divmod(places, len(source.firsts))
    times: Floats = np.asarray(source.firsts)[channels] + rounds * source.burst_ns
    behind = source.firsts[-1] + (rounds - 1) * source.burst_ns
    times = np.where(rounds > 0, np.maximum(times, behind), times)
    if source.end is not None and stop == source.flits:
        times[-1] = source.end
    return times
