"""Joined reads in the compiled loop, from their memories on: none is a transfer, an event or a call of its own, and
only the end of the last one is reported.

The loop holds the state of a memory, in its arrays, while no write is under way to it. The first look
at such a `ChannelsInLoop` takes it back, together with the reads that have yet to come to that memory; those go on as
transfers of their own. While joined reads are under way no train is planned and nothing is reserved, so that no owner
has to be called when one of them departs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kernbench.common.declared_state import declared, incomparable
from kernbench.common.units import on_grid
from kernbench.sim_engine.fabric import compiled_loop, loop_state
from kernbench.sim_engine.fabric.agenda import Agenda
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.counters import Counters
from kernbench.sim_engine.fabric.flit_events import AT_DONE, Event
from kernbench.sim_engine.fabric.joined_reads import AsSingle, JoinedRead, JoinedReads
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.planner import Planner
from kernbench.sim_engine.fabric.reservations import Reservations
from kernbench.sim_engine.fabric.routes import LastFlit
from kernbench.sim_engine.fabric.transfers import INJECTED, Transfer

if TYPE_CHECKING:
    from kernbench.sim_engine.fabric.flit_queues import FlitQueues

MOST_FLITS = 64  # of one read: a larger one is worth a plan of its own
UNKNOWN = float("inf")  # when a read ends
COUNTED = -1.0  # its end is over and counted, or it is a transfer of its own


class ReadsEngine(Protocol):
    """What joined reads need of the engine whose loop moves them (`engine.py`)."""

    network: Network
    groups: dict[int, ChannelGroup]
    counters: Counters
    agenda: Agenda[Event]
    planner: Planner
    reservations: Reservations
    now: float

    def send(self, transfer: Transfer) -> None: ...

    def push_injection(self, transfer: Transfer) -> None: ...


class ChannelsInLoop(ChannelGroup):
    """Memory channels whose state the loop has: a look at it takes it back first."""

    __slots__ = ()


def _reclaiming(name: str) -> property:
    slot: Any = getattr(ChannelGroup, name)

    def get(group: ChannelGroup) -> Any:
        _reclaim(group)
        return slot.__get__(group)

    def put(group: ChannelGroup, value: object) -> None:
        _reclaim(group)
        slot.__set__(group, value)

    return property(get, put)


def _reclaim(group: ChannelGroup) -> None:
    reads = group.state_held_by
    assert isinstance(reads, LoopReads)
    reads.reclaim(group)


for _name in declared(ChannelGroup):
    if _name != "state_held_by":
        setattr(ChannelsInLoop, _name, _reclaiming(_name))


class LoopReads:
    """The joined reads of one engine, and the memories whose state its loop holds."""

    STATE = incomparable("_free_numbers", "_next_number", "_under_way")
    DERIVED = ("_engine", "_may_reserve", "_numbers", "_queues")

    def __init__(self, engine: ReadsEngine, queues: FlitQueues) -> None:
        self._engine, self._queues = engine, queues
        self._numbers = {node: number for number, node in enumerate(engine.groups)}  # of memories
        self._under_way: dict[int, JoinedReads] = {}
        self._next_number, self._free_numbers = 0, list[int]()
        self._may_reserve = False
        engine.counters.count_before_reading(self._count_ended)

    # ---- departure

    def add(self, reads: list[JoinedRead], then: Callable[[Transfer], None], tag: object, as_single: AsSingle) -> None:
        """Reads depart together; `then` is called when the last of them is done."""
        engine = self._engine
        together = JoinedReads(reads, then, tag, as_single)
        if not self._under_way:
            self._begin()
        joined: list[tuple[JoinedRead, ChannelGroup, int, LastFlit]] = []
        for read in reads:
            group, flits = engine.groups[read.route.nodes[0]], -(-read.nbytes // engine.network.flit_bytes)
            if flits > MOST_FLITS or read.route.has_delay_rule or not _may_be_in_loop(group):
                together.add_part()
                engine.send(as_single(read, together))
                continue
            spare = 0
            if group.per_burst > 1:
                last_bytes = read.nbytes - (flits - 1) * engine.network.flit_bytes
                spare = group.per_burst - read.granules if read.granules else group.spare_of(last_bytes)
            joined.append((read, group, flits, read.route.last_flit(engine.network, read.nbytes, spare)))
        if joined:
            together.add_part()
            self._join(together, joined)
        elif not self._under_way:
            self._end()

    def _begin(self) -> None:
        """Joined reads are under way from now on: nothing is planned or reserved meanwhile."""
        engine = self._engine
        engine.planner.pause(engine.now)
        self._may_reserve, engine.reservations.are_allowed = engine.reservations.are_allowed, False

    def _end(self) -> None:
        self._engine.planner.resume()
        self._engine.reservations.are_allowed = self._may_reserve

    @property
    def are_any(self) -> bool:
        """Whether some are under way."""
        return bool(self._under_way)

    def _join(self, together: JoinedReads, joined: list[tuple[JoinedRead, ChannelGroup, int, LastFlit]]) -> None:
        queues, count = self._queues, len(joined)
        together.number = number = self._number_for(together)
        queues.make_room(count, sum(flits for _, _, flits, _ in joined) + count)
        places = [queues.place_for(together) for _ in joined]
        together.in_loop = {place: read for place, (read, _, _, _) in zip(places, joined, strict=True)}
        together.last_flits = {place: last_flit for place, (_, _, _, last_flit) in zip(places, joined, strict=True)}
        rows, ints, times = [], [], []
        for read, group, flits, last_flit in joined:
            if group.state_held_by is not self:
                self._hand_to_loop(group)
            spare = last_flit.spare
            rows.append((queues.first_traversal(last_flit), read.route.hops, flits - 1, False))
            ints.append((
                self._numbers[group.node], read.address >> group.shift, -1, number, group.per_burst - spare,
                INJECTED + read.seq,
            ))  # fmt: skip
            times.append((on_grid(read.at_ns), group.last_ns(flits, spare) if spare else group.burst_ns))
        state, at = queues.state, np.array(places)
        state.transfers[at], state.read_ints[at] = rows, ints
        arrivals = np.array(times)
        state.read_ns[at, loop_state.LAST_BURST], state.read_ns[at, loop_state.END] = arrivals[:, 1], UNKNOWN
        state.joined_ints[number], state.joined_ns[number] = (count, -1, -1), -1.0
        order = np.lexsort((state.read_ints[at, loop_state.INJECTION], arrivals[:, 0]))
        compiled_loop.add_reads(at[order], arrivals[order, 0], queues.addresses)
        queues.update_next_ns()

    def _number_for(self, together: JoinedReads) -> int:
        if self._free_numbers:
            number = self._free_numbers.pop()
        else:
            number, self._next_number = self._next_number, self._next_number + 1
            self._queues.make_room_for_joined(number)
        self._under_way[number] = together
        return number

    # ---- ending

    def ended(self, together: JoinedReads) -> None:
        """All that the loop moved of them is done, now."""
        del self._under_way[together.number]
        self._free_numbers.append(together.number)
        self._count(together, UNKNOWN)
        for place in together.in_loop:
            self._queues.leave(place)
        if not self._under_way:
            self._end()

    def _count_ended(self) -> None:
        """Counters are about to be read: count the reads that have ended by now."""
        for together in self._under_way.values():
            self._count(together, self._engine.now)

    def _count(self, together: JoinedReads, until: float) -> None:
        state, count = self._queues.state, self._engine.counters.count
        places = list(together.in_loop)
        ends = state.read_ns[places, loop_state.END].tolist()
        for place, end in zip(places, ends, strict=True):
            if COUNTED < end <= until:
                count(together.last_flits[place], int(state.transfers[place, loop_state.LAST]))
                state.read_ns[place, loop_state.END] = COUNTED

    # ---- memories

    def _hand_to_loop(self, group: ChannelGroup) -> None:
        part, state = self._channels_of(group), self._queues.state
        state.channel_ns[:, part] = group._free_ns, group._worst_ns, group._worst_at_ns
        state.granules[part] = group._extra
        group.any_first_channel = False
        group.state_held_by = self
        group.__class__ = ChannelsInLoop

    def _channels_of(self, group: ChannelGroup) -> slice:
        first = int(self._queues.state.group_ints[self._numbers[group.node], loop_state.CHANNEL])
        return slice(first, first + group.channels)

    def reclaim(self, group: ChannelGroup) -> None:
        """A memory is looked at: its state is its own again, and reads on their way to it are transfers."""
        group.__class__, group.state_held_by = ChannelGroup, None
        part, state = self._channels_of(group), self._queues.state
        group._free_ns, group._worst_ns, group._worst_at_ns = state.channel_ns[:, part].tolist()
        group._extra = state.granules[part].tolist()
        group._all_waited_ns = 0.0
        for place, _ in compiled_loop.take_reads(self._numbers[group.node], self._queues.addresses).tolist():
            self._go_on_as_single(int(place))
        self._queues.update_next_ns()

    def _go_on_as_single(self, place: int) -> None:
        state, engine = self._queues.state, self._engine
        together = self._under_way[int(state.read_ints[place, loop_state.TOGETHER])]
        state.read_ns[place, loop_state.END] = COUNTED
        together.add_part()
        engine.push_injection(together.as_single(together.in_loop[place], together))
        number = together.number
        state.joined_ints[number, loop_state.LEFT] -= 1
        if state.joined_ints[number, loop_state.LEFT]:
            return
        end_ns, link = float(state.joined_ns[number]), int(state.joined_ints[number, loop_state.BY_LINK])
        if end_ns > engine.now:
            together.seq = (
                int(state.read_ints[state.joined_ints[number, loop_state.LATEST], loop_state.INJECTION]) - INJECTED
            )
            engine.agenda.push((end_ns, link, together.epoch, together, AT_DONE))
        else:
            together.drop_part()
            self.ended(together)


def _may_be_in_loop(group: ChannelGroup) -> bool:
    """Whether reads are all that is under way to a memory, and turning its channels costs nothing."""
    if type(group) is ChannelsInLoop:
        return True
    return type(group) is ChannelGroup and not (group.penalty_ns or group.separate or group.users or group.pending)
