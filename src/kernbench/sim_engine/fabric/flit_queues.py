"""Flits that contend, moved by a compiled loop (`compiled_loop.py`): many times faster than one Python event each.

It takes over where a run has many such flits and numba is installed (extra `fast`). Times are the same bit for bit. The
state of links is shared: `Links` then lies in arrays that both sides read and write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernbench.common.array_types import Floats
from kernbench.common.declared_state import aside, incomparable, set_aside
from kernbench.sim_engine.fabric import compiled_loop, loop_queues, loop_state
from kernbench.sim_engine.fabric.agenda import INFINITY, Agenda
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.joined_reads import JoinedReads
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.progressions import Pace, Times, each_time
from kernbench.sim_engine.fabric.routes import IN_SERIES, LastFlit
from kernbench.sim_engine.fabric.transfers import INJECTED, Transfer

NODES, QUEUES, TRANSFERS, TRAVERSALS, JOINED = 1 << 14, 1 << 10, 1 << 10, 1 << 12, 1 << 6  # room to begin with
FEW = 32  # flits whose times are not worth a calculation with arrays


class FlitQueues:
    """Plain flits of one engine: those of transfers that are not traced, over links without delay rules."""

    STATE = incomparable("_clock", "_counts", "_free_places", "_places", "_state", "_under_way")
    DERIVED = ("_firsts", "_traversals", "addresses")
    SET_ASIDE = (aside("next_ns", lambda queues: INFINITY),)

    def __init__(self, links: Links, groups: Mapping[int, ChannelGroup]) -> None:
        count, memories, channels = len(links.free), len(groups), sum(group.channels for group in groups.values())
        link_ns, link_ints = np.zeros((count, 4)), np.full((count + memories, 4), -1, np.int32)
        link_ns[:, loop_state.FREE], link_ns[:, loop_state.WORST] = links.free, links.worst
        link_ns[:, loop_state.WORST_AT], link_ints[:count, loop_state.USERS] = links.worst_at, links.users
        links.free, links.worst, links.worst_at, _ = (_shared(column) for column in link_ns.T)
        links.users = _shared(link_ints[:count, loop_state.USERS])
        state = loop_state.LoopState(
            node_ns=np.empty(0),
            node_order=np.empty(0, np.int64),
            node_ints=np.empty((0, 4), np.int32),
            queues=np.full((count, 3), -1, np.int64),
            head_ns=np.full(count, INFINITY),
            near=np.empty(count, np.int32),
            far=np.empty(count, np.int32),
            touched=np.empty(count + memories, np.int32),
            quick_ns=np.empty(2 * TRANSFERS),
            transfers=np.zeros((TRANSFERS, 4), np.int32),
            traversal_ints=np.zeros((TRAVERSALS, 2), np.int32),
            traversal_ns=np.zeros((TRAVERSALS, 4)),
            link_ns=link_ns,
            link_ints=link_ints,
            end_ns=np.empty(TRANSFERS),
            end_ints=np.empty((TRANSFERS, 2), np.int32),
            write_ns=np.empty(0),
            write_ints=np.empty((0, 3), np.int32),
            counts=np.zeros(10, np.int64),
            clock=np.array([INFINITY, INFINITY, 0.0, INFINITY, INFINITY]),
            read_ints=np.full((TRANSFERS, 6), -1, np.int64),
            read_ns=np.zeros((TRANSFERS, 2)),
            joined_ints=np.zeros((JOINED, 3), np.int64),
            joined_ns=np.zeros(JOINED),
            group_ints=np.array(_groups_in_order(groups), np.int64).reshape(memories, 3),
            burst_ns=np.array([group.burst_ns for group in groups.values()], np.float64),
            channel_ns=np.zeros((3, channels)),
            granules=np.zeros(channels, np.int64),
        )
        self._use(state)
        self._counts, self._clock = self._state.counts, self._state.clock
        self._counts[loop_state.FREE_NODE] = self._counts[loop_state.FREE_QUEUE] = -1
        self._more_nodes(NODES)
        self._more_queues(QUEUES)
        self._under_way: list[Transfer | None] = []
        self._free_places: list[int] = []
        self._places: dict[int, int] = {}  # of transfers, by their number
        self._traversals = 0
        self._firsts: dict[LastFlit, int] = {}
        self.next_ns = INFINITY  # when the next flit is ready for a link

    # ---- adding flits

    def begin(self, transfer: Transfer, now: float) -> None:
        """A transfer of several hops departs: all its flits are ready now."""
        assert transfer.last_flit is not None
        place = self._places[transfer.seq] = self.place_for(transfer)
        first = self.first_traversal(transfer.last_flit)
        self.make_room(0, transfer.flits)
        self.next_ns = loop_queues.begin(
            now, place, first, transfer.hops, transfer.last, transfer.sink is not None, self.addresses
        )

    def add(self, transfer: Transfer, hop: int, index: int, stop: int, source: Times) -> None:
        """Flits `index` to `stop` of a transfer are ready for `hop` as `source` says."""
        if stop - index > FEW:
            self._add(transfer, hop, index, _all_times(source, index, stop))
        else:
            self.add_at(transfer, hop, index, list(each_time(source, index, stop)))

    def take_from(self, agenda: Agenda[Any]) -> None:
        """The flits that are in an agenda by themselves go on here: those that follow one another, in one queue."""
        waiting: dict[tuple[int, int], list[tuple[float, int, Transfer]]] = {}
        for time, _, flit, transfer, traversal in agenda:
            if traversal.link >= 0:
                waiting.setdefault((transfer.seq, transfer.hop_of(traversal)), []).append((time, flit, transfer))
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
        place = self._place_of(transfer)
        self.make_room(0, len(times))
        loop_queues.add(times, order, place, index, hop, self.addresses)
        self.next_ns = float(self._clock[loop_state.NEXT_NS])

    def _place_of(self, transfer: Transfer) -> int:
        """The row of a transfer, made for its first flits."""
        place = self._places.get(transfer.seq)
        if place is not None:
            return place
        place = self._places[transfer.seq] = self.place_for(transfer)
        assert transfer.last_flit is not None
        first = self.first_traversal(transfer.last_flit)
        self._state.transfers[place] = first, transfer.hops, transfer.last, transfer.sink is not None
        self._state.read_ints[place, loop_state.TOGETHER] = -1
        return place

    def place_for(self, transfer: Transfer) -> int:
        """A row for a transfer, or for one of several that it stands for; `leave` frees it."""
        if self._free_places:
            place = self._free_places.pop()
            self._under_way[place] = transfer
            return place
        place = len(self._under_way)
        self._under_way.append(transfer)
        if place == len(self._state.transfers):
            state, names = self._state, ("transfers", "end_ns", "end_ints", "read_ints", "read_ns")
            self._use(state._replace(**{name: _longer(getattr(state, name)) for name in names}))
        return place

    def first_traversal(self, last_flit: LastFlit) -> int:
        """Where the traversals of transfers with this last flit begin."""
        first = self._firsts.get(last_flit)
        if first is None:
            first = self._firsts[last_flit] = self._traversals
            self._traversals += last_flit.route.hops
            while self._traversals > len(self._state.traversal_ints):
                state = self._state
                self._use(
                    state._replace(
                        traversal_ints=_longer(state.traversal_ints), traversal_ns=_longer(state.traversal_ns)
                    )
                )
            self._note_traversals(last_flit, first)
        return first

    def _note_traversals(self, last_flit: LastFlit, first: int) -> None:
        """Write the rows of a transfer's traversals, and shorten the window where one is quicker."""
        ints: list[tuple[int, bool]] = []
        times: list[tuple[float, float, float, float]] = []
        least = least_last = 0.0  # from a hop to the end of the links in series with it,
        goes_on = False  # and whether there is more behind them
        window = self._clock[loop_state.WINDOW]
        for whole, last in zip(reversed(last_flit.route.traversals), reversed(last_flit.traversals), strict=True):
            _, occupy_ns, tail_ns, onward, special = whole
            is_in_series = bool(special & IN_SERIES)
            if not is_in_series:
                least, least_last, goes_on = 0.0, 0.0, onward is not None
            least += occupy_ns + tail_ns
            least_last += last.occupy_ns + tail_ns
            ints.append((whole.link, is_in_series))
            times.append((occupy_ns, last.occupy_ns, tail_ns, least_last))
            if goes_on and least < window:
                window = least
        self._state.traversal_ints[first : first + len(ints)] = ints[::-1]
        self._state.traversal_ns[first : first + len(ints)] = times[::-1]
        self._clock[loop_state.WINDOW] = window

    # ---- moving flits

    def move(
        self, until: float, other_ns: float, other_order: float, ended: Callable[[Transfer, float, int], None]
    ) -> int:
        """Move flits up to `until`, or to what happens at `other_ns`; returns how many steps that took.

        Written flits are handed to their memories, and `ended` is called with every last flit and its arrival.
        """
        state = self._state
        # An exact conversion: of two types of the order, the loop would be compiled twice.
        compiled_loop.move(until, other_ns, float(other_order), self.addresses)
        self.next_ns = float(self._clock[loop_state.NEXT_NS])
        ends, writes, events = self._counts[loop_state.ENDS :].tolist()
        if writes:
            self._hand_over(writes, min(until, other_ns, self.next_ns, *state.end_ns[:ends].tolist()))
        if ends:
            rows = zip(state.end_ns[:ends].tolist(), state.end_ints[:ends].tolist(), strict=True)
            for time, (link, place) in rows:
                transfer = self._under_way[place]
                assert transfer is not None
                if isinstance(transfer, JoinedReads):  # whose places are left when that time has come
                    transfer.seq = int(state.read_ints[place, loop_state.INJECTION]) - INJECTED
                else:
                    del self._places[transfer.seq]
                    self.leave(place)
                ended(transfer, time, link)
        return int(events)

    @property
    def next_order(self) -> int:
        """The place of the next flit among what happens at its time."""
        return int(loop_queues.next_order(self.addresses))

    def _hand_over(self, writes: int, now: float) -> None:
        """Append flits to the pending writes of their memories; every other flit arrives after `now`."""
        state, under_way = self._state, self._under_way
        full: dict[int, ChannelGroup] = {}
        rows = zip(state.write_ns[:writes].tolist(), state.write_ints[:writes].tolist(), strict=True)
        for time, (link, flit, place) in rows:
            transfer = under_way[place]
            assert transfer is not None
            group = transfer.sink
            assert group is not None
            group.pending.append((time, link, flit, transfer))
            if len(group.pending) > group.most_pending:
                full[group.node] = group
        for group in full.values():
            group.flush(now)

    def leave(self, place: int) -> None:
        """Free a row."""
        self._under_way[place] = None
        self._free_places.append(place)

    @property
    def state(self) -> loop_state.LoopState:
        """The current arrays, which are replaced by longer ones where room is short."""
        return self._state

    def update_next_ns(self) -> None:
        """Flits were added or removed: the next one may be another."""
        self.next_ns = float(self._clock[loop_state.NEXT_NS])

    # ---- for `rewind.py`

    @contextmanager
    def without_events(self) -> Iterator[None]:
        """Within the block there are none of the flits that are in the queues now."""
        taken, heads = loop_queues.take_all(self.addresses)
        quick_ns = self._state.quick_ns[: self._counts[loop_state.QUICK]].copy()
        self._counts[loop_state.QUICK] = 0
        try:
            with set_aside(self):
                yield
        finally:
            loop_queues.return_all(taken, heads, quick_ns, self.addresses)
            self.update_next_ns()

    # ---- for `whereabouts.py`

    def flits_of(self, transfer: Transfer) -> Iterator[tuple[int, int, float]]:
        """Hop, index and time of every flit of a transfer."""
        place = self._places.get(transfer.seq)
        if place is not None:
            for hop, flit, time in loop_queues.find(place, self.addresses).tolist():
                yield int(hop), int(flit), time

    def forget(self, transfer: Transfer) -> None:
        """A transfer is no longer moved flit by flit."""
        place = self._places.get(transfer.seq)
        if place is not None:
            loop_queues.remove(place, self.addresses)
            del self._places[transfer.seq]
            self.leave(place)
            self.update_next_ns()

    # ---- room

    def _use(self, state: loop_state.LoopState) -> None:
        """Some of the arrays are new ones."""
        self._state, self.addresses = state, loop_state.addresses_of(state)

    def make_room(self, rows: int, flits: int) -> None:
        """Make room for so many more rows, each with a queue, one more queue, and the nodes of so many flits."""
        counts = self._counts
        if counts[loop_state.FREE_NODES] < flits:
            self._more_nodes(max(flits, len(self._state.node_ns)))
        if counts[loop_state.FREE_QUEUES] < rows + 1:
            self._more_queues(max(rows + 1, len(self._state.queues)))
        # of each that is under way there are three at most: one that has yet to come to its memory, and two on its way
        most_quick = counts[loop_state.QUICK] + 3 * (len(self._under_way) + rows)
        while most_quick > len(self._state.quick_ns):
            self._use(self._state._replace(quick_ns=_longer(self._state.quick_ns)))

    def make_room_for_joined(self, number: int) -> None:
        """Make room for joined reads of this number."""
        if number == len(self._state.joined_ns):
            names = ("joined_ints", "joined_ns")
            self._use(self._state._replace(**{name: _longer(getattr(self._state, name)) for name in names}))

    def _more_nodes(self, count: int) -> None:
        state, before = self._state, len(self._state.node_ns)
        more = np.zeros((count, 4), np.int32)
        more[:, loop_state.NEXT] = np.arange(before + 1, before + count + 1)
        more[-1, loop_state.NEXT] = self._counts[loop_state.FREE_NODE]
        self._use(
            state._replace(
                node_ns=np.zeros(before + count),
                node_order=np.zeros(before + count, np.int64),
                node_ints=np.concatenate([state.node_ints, more]),
                write_ns=np.empty(before + count),
                write_ints=np.empty((before + count, 3), np.int32),
            )
        )
        self._state.node_ns[:before], self._state.node_order[:before] = state.node_ns, state.node_order
        self._counts[loop_state.FREE_NODE] = before
        self._counts[loop_state.FREE_NODES] += count

    def _more_queues(self, count: int) -> None:
        state, before = self._state, len(self._state.queues)
        more = np.full((count, 3), -1, np.int64)
        more[:, loop_state.TAIL] = np.arange(before + 1, before + count + 1)
        more[-1, loop_state.TAIL] = self._counts[loop_state.FREE_QUEUE]
        self._use(
            state._replace(
                queues=np.concatenate([state.queues, more]),
                head_ns=np.concatenate([state.head_ns, np.full(count, INFINITY)]),
                near=np.concatenate([state.near, np.zeros(count, np.int32)]),
                far=np.concatenate([state.far, np.zeros(count, np.int32)]),
            )
        )
        self._counts[loop_state.FREE_QUEUE] = before
        self._counts[loop_state.FREE_QUEUES] += count


def _groups_in_order(groups: Mapping[int, ChannelGroup]) -> list[tuple[int, int, int]]:
    """Of every memory: its first channel, channels - 1, and the granules of a burst."""
    rows, first = [], 0
    for group in groups.values():
        rows.append((first, group.mask, group.per_burst))
        first += group.channels
    return rows


def _shared(row: NDArray[Any]) -> Any:
    """A row or column as a sequence of plain numbers, which is quicker to index."""
    return row.data


def _longer(rows: NDArray[Any]) -> NDArray[Any]:
    """The same with twice the room."""
    return np.concatenate([rows, np.zeros_like(rows)])


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
