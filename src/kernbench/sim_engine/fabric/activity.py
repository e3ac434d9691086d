"""Watches every flit on every link and channel: what each did over time, and what held up whose transfers.

A fabric with an `Activity` moves flits by themselves, or a transfer that is alone as a train, whose flits are reported
when it is through; times are the same. Transfers are distinguished by what they are for (`purpose_of` their tag): a
flit that waits behind flits of the same purpose is not contended.

A place is a link, by its index, or a channel: `channel_place`. Bins start at `bin_ns` and are merged in pairs whenever
there would be more than `most_bins`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from kernbench.sim_engine.fabric.bins import Bins
from kernbench.sim_engine.fabric.channel_bank import READ, WRITE, ChannelSpec, WriteBursts
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.progressions import Pace
from kernbench.sim_engine.fabric.routes import Route
from kernbench.sim_engine.fabric.transfers import Transfer

MOST_BINS = 4096


class SeenTransfer(NamedTuple):
    """A transfer that was seen. `block` is its address in bursts where it reads or writes channels."""

    route: Route
    nbytes: int  # on the wire
    reads: bool
    writes: bool
    block: int
    at_ns: float
    done_ns: float
    slot: tuple[int, int] | None = None  # its places on the first link, and granules of its last burst, as
    granules: int = 0  # `Fabric.inject` has them


@dataclass(slots=True)
class TransferGroup:
    """The transfers of one purpose (an op's, a message's, a host request's), in order of their ends."""

    pieces: list[SeenTransfer] = field(default_factory=list)
    waits: dict[int, float] = field(default_factory=dict)  # by place: how long its flits waited behind others
    under_way: int = 0


class _Own:
    """Flits of one purpose that are on a link, or have yet to be: until when, and for how long they have it."""

    __slots__ = ("flits", "pending_ns")

    def __init__(self) -> None:
        self.flits: deque[tuple[float, float]] = deque()
        self.pending_ns = 0.0

    def ahead_ns(self, ready: float) -> float:
        """How long the link is theirs from `ready` on."""
        flits = self.flits
        while flits and flits[0][0] <= ready:
            self.pending_ns -= flits.popleft()[1]
        if not flits:
            return 0.0
        leave, occupy = flits[0]
        passed = ready - (leave - occupy)
        return self.pending_ns - passed if passed > 0.0 else self.pending_ns

    def add(self, leave: float, occupy: float) -> None:
        self.flits.append((leave, occupy))
        self.pending_ns += occupy


class Activity:
    """What is seen of one fabric. `purpose_of` says what a transfer is for, by its tag; None: not recorded."""

    def __init__(
        self, purpose_of: Callable[[object], Hashable], *, bin_ns: float = 1.0, most_bins: int = MOST_BINS
    ) -> None:
        self._purpose_of = purpose_of
        self.bins = Bins(bin_ns, most_bins)
        self.transfer_groups: dict[Hashable, TransferGroup] = {}  # by purpose
        self._own: dict[Hashable, dict[int, _Own]] = {}  # by purpose, then place; of those under way
        self._purposes: dict[int, Hashable] = {}  # by id of a transfer under way
        self._first_channel: dict[int, int] = {}  # by node: the place of its channel 0
        self._links = 0
        self._flit_bytes = 0

    def attach(self, network: Network) -> None:
        """Watch a fabric on this network."""
        self._flit_bytes = network.flit_bytes
        self._links = place = len(network.link_ends)
        for node, (channels, *_) in network.channel_specs.items():
            self._first_channel[node] = place
            place += channels

    def channel_place(self, node: int, channel: int) -> int:
        """The place of a channel behind a node."""
        return self._first_channel[node] + channel

    def channel_at(self, place: int) -> tuple[int, int]:
        """Node and channel of a place that is a channel."""
        first, node = max((first, node) for node, first in self._first_channel.items() if first <= place)
        return node, place - first

    def is_link(self, place: int) -> bool:
        return place < self._links

    # ---- called by the fabric

    def depart(self, transfer: Transfer, now: float) -> None:
        """A transfer departs."""
        purpose = self._purpose_of(transfer.tag)
        if purpose is None:
            return
        self._purposes[id(transfer)] = purpose
        group = self.transfer_groups.get(purpose)
        if group is None:
            group = self.transfer_groups[purpose] = TransferGroup()
        group.under_way += 1

    def ended(self, transfer: Transfer, now: float) -> None:
        """A transfer is done."""
        purpose = self._purposes.pop(id(transfer), None)
        if purpose is None:
            return
        group = self.transfer_groups[purpose]
        assert transfer.last_flit is not None
        nbytes = transfer.last * self._flit_bytes + transfer.last_flit.nbytes
        reads, writes = transfer.source is not None, transfer.sink is not None
        at_ns, slot, memory = transfer.at_ns, transfer.slot, transfer.source or transfer.sink
        granules = 0 if memory is None else memory.per_burst - transfer.spare
        piece = SeenTransfer(transfer.route, nbytes, reads, writes, transfer.block, at_ns, now, slot, granules)
        group.pieces.append(piece)
        group.under_way -= 1
        if not group.under_way:
            self._own.pop(purpose, None)

    def crossed(self, transfer: Transfer, link: int, nbytes: int, ready: float, leave: float, occupy: float) -> None:
        """A flit that was ready takes a link."""
        self._used(transfer, link, nbytes, ready, leave, occupy)

    def committed(self, transfer: Transfer, place: int, nbytes: int, ready: float, finish: float, burst: float) -> None:
        """A burst takes a channel."""
        self._used(transfer, place, nbytes, ready, finish, burst)

    def committed_together(
        self, transfer: Transfer, place: int, nbytes: int, ready: float, start: float, burst: float, bursts: int
    ) -> None:
        """Bursts that are all ready at once take a channel from `start` on, one after the other."""
        end = start + bursts * burst
        self.bins.use(place, start, end, bursts * nbytes)
        own = self._own_at(transfer, place)
        behind = start - ready
        if own is not None:
            behind = max(0.0, behind - own.ahead_ns(ready))
            if behind:
                waits = self.transfer_groups[self._purposes[id(transfer)]].waits
                waits[place] = waits.get(place, 0.0) + bursts * behind
            own.add(end, bursts * burst)
        for number in range(bursts):
            begun = start + number * burst
            if begun > ready:
                self.bins.wait(place, ready, begun, behind)

    def passed(
        self, transfer: Transfer, hop: int, ready: list[float], leave: list[float], first: int, before: float
    ) -> None:
        """Flits of a train from `first` on have passed a hop, whose link others had until `before`."""
        if not leave:
            return
        link, occupy, *_ = transfer.traversals[hop]
        last, bins = transfer.last, self.bins
        own = self._own_at(transfer, link)
        behind = 0.0
        start = leave[0] - transfer.traversal(hop, first).occupy_ns
        nbytes = 0
        for at, (came, left) in enumerate(zip(ready, leave, strict=True)):
            index = first + at
            took = occupy if index < last else transfer.last_traversals[hop].occupy_ns
            begun = left - took
            if nbytes and begun != leave[at - 1]:  # flits that follow each other are added as one
                bins.use(link, start, leave[at - 1], nbytes)
                start, nbytes = begun, 0
            nbytes += transfer.flit_bytes(index, self._flit_bytes)
            if begun > came:
                others = 0.0
                if before > came:
                    others = max(0.0, before - came - (0.0 if own is None else own.ahead_ns(came)))
                    behind += others
                bins.wait(link, came, begun, others)
        bins.use(link, start, leave[-1], nbytes)
        if own is not None:
            own.add(leave[-1], leave[-1] - start)
            if behind:
                waits = self.transfer_groups[self._purposes[id(transfer)]].waits
                waits[link] = waits.get(link, 0.0) + behind

    def _own_at(self, transfer: Transfer, place: int) -> _Own | None:
        """The flits of a transfer's purpose at a place."""
        purpose = self._purposes.get(id(transfer))
        if purpose is None:
            return None
        places = self._own.get(purpose)
        if places is None:
            places = self._own[purpose] = {}
        own = places.get(place)
        if own is None:
            own = places[place] = _Own()
        return own

    def _used(self, transfer: Transfer, place: int, nbytes: int, ready: float, leave: float, occupy: float) -> None:
        start = leave - occupy
        self.bins.use(place, start, leave, nbytes)
        own = self._own_at(transfer, place)
        if start > ready:
            behind = start - ready
            if own is not None:
                behind = max(0.0, behind - own.ahead_ns(ready))
                if behind:
                    waits = self.transfer_groups[self._purposes[id(transfer)]].waits
                    waits[place] = waits.get(place, 0.0) + behind
            self.bins.wait(place, ready, start, behind)
        if own is not None:
            own.add(leave, occupy)


class WatchedChannels(ChannelGroup):
    """Memory channels whose bursts are watched: the same rule, burst by burst."""

    __slots__ = ("_activity", "_reader")

    def __init__(
        self,
        activity: Activity,
        node: int,
        spec: ChannelSpec,
    ) -> None:
        super().__init__(node, *spec)
        self._activity = activity
        self._reader: Transfer | None = None  # whose read is committed next

    def read_for(self, transfer: Transfer) -> None:
        """The next read is that of a transfer."""
        self._reader = transfer

    def commit_reads(self, block: int, flits: int, now: float, spare: int = 0) -> Pace:
        reader = self._reader
        assert reader is not None
        channels, nbytes = self.mask + 1, 1 << self.shift
        for j in range(min(flits, channels)):
            channel = self.channel_of(block + j)
            turns = not self.drain and self._direction[channel] not in (0, READ)
            start = max(self._free_ns[channel], now) + (self.penalty_ns if turns else 0.0)
            place = self._activity.channel_place(self.node, channel)
            bursts = (flits - j - 1) // channels + 1
            is_short = spare > 0 and j + (bursts - 1) * channels == flits - 1
            whole = bursts - is_short
            if whole:
                self._activity.committed_together(reader, place, nbytes, now, start, self.burst_ns, whole)
            if is_short:
                short_ns, start = self.last_ns(flits, spare), start + whole * self.burst_ns
                short_bytes = nbytes - (spare << self.granule_shift)
                self._activity.committed_together(reader, place, short_bytes, now, start, short_ns, 1)
        return super().commit_reads(block, flits, now, spare)

    def read_if_idle(self, block: int, flits: int, now: float, spare: int = 0) -> bool:
        return False  # every read is committed for its transfer

    def flush(self, now: float) -> None:
        self.pending.sort()
        arrived = [flit for flit in self.pending if flit[0] <= now]
        del self.pending[: len(arrived)]
        for ready, _, i, transfer in arrived:
            channel = self.channel_of(transfer.block + i)
            spare = transfer.spare if i == transfer.last else 0
            finish = self._commit(channel, ready, WRITE, transfer.flits, spare)
            transfer.finish_ns = max(transfer.finish_ns, finish)
            self._seen(transfer, channel, ready, finish, spare)

    def _seen(self, transfer: WriteBursts, channel: int, ready: float, finish: float, spare: int) -> None:
        assert isinstance(transfer, Transfer)
        place = self._activity.channel_place(self.node, channel)
        nbytes = (1 << self.shift) - (spare << self.granule_shift)
        self._activity.committed(transfer, place, nbytes, ready, finish, self.last_ns(transfer.flits, spare))
