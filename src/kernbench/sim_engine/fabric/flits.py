"""The network at work, one event for each flit and hop. Exact and plain; `trains` builds the fast path on top of it.

An event says that a flit is ready for its next link. The link takes it at max(now, free), so one event a flit and hop is
enough. Events at one instant are ordered by the index of the link the flit came in on, injections last, then by order of
injection: a rule that each output can apply by itself. Zero-byte messages pay every node and wire and meet nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from itertools import count

from kernbench.common.errors import FabricError
from kernbench.common.units import MAX_TIME_NS, on_grid
from kernbench.sim_engine.fabric.model import READ, WRITE, Bank, FlitArrival, Network, Pace, Route
from kernbench.sim_engine.fabric.runs import Run, times_of

INFINITY = float("inf")
INJECTED = 1 << 40  # order of injections: behind every link index

# What an event is about; a hop number of 0 or more is a flit ready for that hop's link.
FEED, INJECT, COMMIT, DONE = -1, -2, -3, -4
SLOW = -16  # SLOW - 2 * hop: a watched flit ready for its link; SLOW - 2 * hop - 1: it enters a node with a delay rule


@dataclass(frozen=True, slots=True)
class HopTimes:
    """First and last flit at one node: when each has arrived, and when each has left on the next link."""

    node: Hashable
    first_arrival_ns: float
    first_departure_ns: float
    last_arrival_ns: float
    last_departure_ns: float


@dataclass(frozen=True, slots=True)
class FlitHop:
    """One flit on one link, as `record=True` keeps it."""

    link: int
    transfer: int
    flit: int
    nbytes: int
    ready_ns: float
    leave_ns: float


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """What a link, or a memory channel, did. A queue is counted in the time a newcomer had to wait for it to empty."""

    nbytes: int
    busy_ns: float
    longest_queue_bytes: int
    longest_queue_ns: float
    longest_queue_at_ns: float


class Transfer:
    """A message under way. Read `done_ns` once it is done."""

    __slots__ = (
        "access", "at_ns", "bank", "block", "done_ns", "epoch", "finish_ns", "flits", "held_ns", "hops", "last", "last_bytes",
        "last_ns", "links", "nbytes", "on_done", "order", "pace", "route", "seq", "slow", "tag", "times",
    )  # fmt: skip

    flits: int
    last: int  # index of the last flit, its bytes, and how long it takes each link
    last_bytes: int
    last_ns: tuple[float, ...]
    on_done: Callable[[Transfer], None] | None
    tag: object

    def __init__(self, seq: int, route: Route, nbytes: int, at_ns: float) -> None:
        self.seq = seq
        self.order = INJECTED + seq
        self.route = route
        self.links = route.links
        self.hops = route.hops
        self.nbytes = nbytes
        self.at_ns = at_ns
        self.done_ns = INFINITY
        self.finish_ns = 0.0  # of the latest burst committed so far
        self.bank: Bank | None = None
        self.access = 0
        self.block = 0  # address in bursts
        self.pace: Pace | None = None  # of a read, once its bursts are committed
        self.slow = False
        self.times: list[list[float]] | None = None  # per hop: first ready, first leave, last ready, last leave
        self.held_ns: dict[int, float] = {}  # per hop into a node with a delay rule: when the flit ahead is ready
        self.epoch = 0  # an expected end that no longer holds is told by its older epoch

    @property
    def total_ns(self) -> float:
        return self.done_ns - self.at_ns

    def __repr__(self) -> str:
        return f"<Transfer {self.seq}: {self.nbytes} B, {self.route.path[0]!r} to {self.route.path[-1]!r}>"


class Feed:
    """Flits of one transfer whose times at a hop are known: the next is in the queue, the others wait here."""

    __slots__ = ("base", "hop", "index", "order", "source", "stop", "times", "transfer")

    def __init__(self, transfer: Transfer, hop: int, index: int, stop: int, source: list[Run] | Pace) -> None:
        self.transfer = transfer
        self.hop = hop
        self.index = self.base = index  # of the flit in the queue now, and of the first in `source`
        self.stop = stop
        self.source = source
        self.times = source.times(index, stop) if isinstance(source, Pace) else times_of(source)
        self.order = transfer.links[hop - 1] if hop else transfer.order


Event = tuple[float, int, int, int, "Transfer | Feed", int]


class FlitFabric:
    """Moves flits by the rules of this package. Four calls drive it: `inject`, `run` (or `advance`), `next_time`, `on_done`."""

    def __init__(self, network: Network, *, record: bool = False) -> None:
        self.network = network
        self.now = 0.0
        self.events = 0  # taken from the queue so far
        self.recorded: list[FlitHop] | None = [] if record else None
        links = len(network.link_ends)
        self._free = [0.0] * links
        self._users = [0] * links  # transfers moved flit by flit that have yet to pass the link
        self._worst = [0.0] * links
        self._worst_at = [0.0] * links
        self._bytes = [0] * links
        self._busy = [0.0] * links
        self._banks = network.banks()
        self._queue: list[Event] = []
        self._seq = count()
        self._tie = count()

    # ---- the four calls

    def inject(
        self,
        path: Sequence[Hashable] | Route,
        nbytes: int,
        at_ns: float | None = None,
        *,
        header_bytes: int = 0,
        read_from: int | None = None,
        write_to: int | None = None,
        on_done: Callable[[Transfer], None] | None = None,
        trace: bool = False,
        tag: object = None,
    ) -> Transfer:
        """Send `nbytes` along `path` at `at_ns` (now, if left out). Zero bytes travel as a control message.

        `read_from` is an address in the bank at the first node: a flit may leave once its burst is committed. `write_to` is
        an address in the bank at the last node: the transfer is done once its last burst is. `on_done` is called by `run`.
        Raises FabricError for a path, size or time the network cannot carry.
        """
        route = path if isinstance(path, Route) else self.network.route(path)
        at = self.now if at_ns is None else on_grid(at_ns)
        if not self.now <= at < MAX_TIME_NS:
            raise FabricError(
                f"a transfer at {at_ns} ns, when the clock stands at {self.now} ns",
                mend=f"inject now or later, and before {MAX_TIME_NS:.0f} ns",
            )
        transfer = Transfer(next(self._seq), route, nbytes, at)
        transfer.on_done = on_done
        transfer.tag = tag
        wire_bytes = nbytes + header_bytes
        if nbytes < 0 or header_bytes < 0:
            raise FabricError(f"a transfer of {nbytes} bytes with a header of {header_bytes}", mend="give 0 or more")
        if wire_bytes == 0:
            transfer.flits = 0
            heappush(self._queue, (at + route.control_ns, transfer.order, 0, 0, transfer, DONE))
            return transfer
        self._cut_into_flits(transfer, wire_bytes)
        if read_from is not None:
            self._attach_bank(transfer, READ, route.nodes[0], read_from, header_bytes)
        elif write_to is not None:
            self._attach_bank(transfer, WRITE, route.nodes[-1], write_to, header_bytes)
        transfer.slow = trace or route.hooked or self.recorded is not None
        if trace:
            transfer.times = [[0.0] * 4 for _ in range(route.hops)]
        heappush(self._queue, (at, transfer.order, 0, 0, transfer, INJECT))
        return transfer

    def run(self, until: float = INFINITY) -> None:
        """Move everything up to `until`, calling `on_done` of each transfer at its time."""
        while done := self.advance(until):
            for transfer in done:
                if transfer.on_done is not None:
                    transfer.on_done(transfer)
        if until < INFINITY:
            self.now = max(self.now, until)

    def next_time(self) -> float:
        """When the next thing happens; infinity when nothing is under way."""
        return self._queue[0][0] if self._queue else INFINITY

    def on_done(self, transfer: Transfer, callback: Callable[[Transfer], None]) -> None:
        """Have `run` call `callback` when the transfer is done."""
        transfer.on_done = callback

    # ---- counters

    def link_counters(self, src: Hashable, dst: Hashable) -> LinkCounters:
        """What the link from `src` to `dst` has done for transfers that are done."""
        return self._counters_of(self.network.link_index(src, dst))

    def link_busy_ns(self) -> list[float]:
        """How long every link was busy with transfers that are done, in order of index."""
        return self._busy.copy()

    def all_link_counters(self) -> dict[tuple[Hashable, Hashable], LinkCounters]:
        """Every link that has carried bytes, in order of index."""
        names, ends = self.network.names, self.network.link_ends
        used = (link for link, nbytes in enumerate(self._bytes) if nbytes)
        return {(names[ends[link][0]], names[ends[link][1]]): self._counters_of(link) for link in used}

    def channel_counters(self, node: Hashable) -> list[LinkCounters]:
        """What each channel of the bank at `node` has done."""
        bank = self.bank(node)
        burst_bytes, burst_ns = 1 << bank.shift, bank.burst_ns
        return [
            LinkCounters(n * burst_bytes, n * burst_ns, int(wait / burst_ns * burst_bytes), wait, at)
            for n, (wait, at) in zip(bank.bursts, bank.worst, strict=True)
        ]

    def bank(self, node: Hashable) -> Bank:
        """The channels at a node, to look at."""
        bank = self._banks.get(self.network.node_index(node))
        if bank is None:
            raise FabricError(f"node {node!r} has no memory channels", mend="ask for a node with a bank")
        return bank

    def _counters_of(self, link: int) -> LinkCounters:
        wait, bw = self._worst[link], self.network.bw_gbs[link] or 0.0
        return LinkCounters(self._bytes[link], self._busy[link], round(wait * bw), wait, self._worst_at[link])

    # ---- setting out

    def _cut_into_flits(self, transfer: Transfer, wire_bytes: int) -> None:
        route, flit_bytes = transfer.route, self.network.flit_bytes
        if route.dead_link is not None:
            a, b = (self.network.names[node] for node in self.network.link_ends[route.dead_link])
            raise FabricError(f"the link from {a!r} to {b!r} carries control only", mend="give it a bandwidth")
        flits = -(-wire_bytes // flit_bytes)
        transfer.flits = flits
        transfer.last = flits - 1
        transfer.last_bytes = wire_bytes - (flits - 1) * flit_bytes
        transfer.last_ns = route.last_flit_ns(self.network, transfer.last_bytes)

    def _attach_bank(self, transfer: Transfer, access: int, node: int, address: int, header_bytes: int) -> None:
        bank = self._banks.get(node)
        if bank is None:
            raise FabricError(f"node {self.network.names[node]!r} has no memory channels", mend="add_bank there")
        if header_bytes:
            raise FabricError("a memory access with a header", mend="leave header_bytes out: a flit is a burst")
        transfer.bank, transfer.access, transfer.block = bank, access, address >> bank.shift

    def _begin(self, transfer: Transfer, now: float) -> None:
        """A transfer sets out, flit by flit."""
        users = self._users
        for link in transfer.links:
            users[link] += 1
        if transfer.pace is not None:
            self._feed(transfer, 0, 0, transfer.flits, transfer.pace)
            return
        if transfer.slow:
            self._feed(transfer, 0, 0, transfer.flits, [(now, 0.0, transfer.flits)])
            return
        # All flits are ready at once, so they follow one another on the first link whatever else comes.
        link, flit_ns = transfer.links[0], transfer.route.flit_ns[0]
        start = self._free[link]
        if start < now:
            start = now
        last = transfer.last
        leave = start + last * flit_ns + transfer.last_ns[0]
        self._free[link] = leave
        self._note_wait(link, leave - transfer.last_ns[0] - now, now)
        users[link] -= 1
        tail = self.network.tail_ns[link]
        if transfer.hops == 1 and transfer.access != WRITE:
            self._finish(transfer, leave + tail)
        else:
            runs = [(start + flit_ns + tail, flit_ns, last), (leave + tail, 0.0, 1)] if last else [(leave + tail, 0.0, 1)]
            self._feed(transfer, 1, 0, transfer.flits, runs)

    def _commit_read(self, transfer: Transfer, now: float) -> None:
        assert transfer.bank is not None
        transfer.pace = transfer.bank.commit_reads(transfer.block, transfer.flits, now)

    def _feed(self, transfer: Transfer, hop: int, index: int, stop: int, source: list[Run] | Pace) -> None:
        """Flits `index` to `stop` go on one by one; when they are ready for `hop` is known."""
        feed = Feed(transfer, hop, index, stop, source)
        heappush(self._queue, (next(feed.times), feed.order, index, index, feed, FEED))

    def _note_wait(self, link: int, wait: float, at: float) -> None:
        worst = self._worst[link]
        if wait > worst or (wait == worst and at < self._worst_at[link]):
            self._worst[link] = wait
            self._worst_at[link] = at

    # ---- moving

    def advance(self, until: float = INFINITY) -> list[Transfer]:
        """Move flits up to `until` or the first instant at which transfers are done; returns those, in order of injection."""
        queue, free, users = self._queue, self._free, self._users
        worst, worst_at = self._worst, self._worst_at
        tail, flit_ns = self.network.tail_ns, self.network.flit_ns
        done: list[Transfer] = []
        events = 0
        while queue:
            now, _, _, i, x, hop = queue[0]
            if now > until:
                break
            events += 1
            if hop >= 0:
                # A flit is ready for a link: the one event that counts for speed.
                link = x.links[hop]
                if i < x.last:
                    leave = flit_ns[link]
                else:
                    leave = x.last_ns[hop]
                    users[link] -= 1
                start = free[link]
                if start > now:
                    wait = start - now
                    if wait > worst[link]:
                        worst[link] = wait
                        worst_at[link] = now
                    leave += start
                else:
                    leave += now
                free[link] = leave
                hop += 1
                if hop < x.hops:
                    heapreplace(queue, (leave + tail[link], link, i, i, x, hop))
                elif x.access == WRITE:
                    heapreplace(queue, (leave + tail[link], link, i, i, x, COMMIT))
                elif i == x.last:
                    heapreplace(queue, (leave + tail[link], link, 0, x.epoch, x, DONE))
                else:
                    heappop(queue)
            elif hop == FEED:
                self._step_feed(x, now, i)
            elif hop == DONE:
                heappop(queue)
                if i == x.epoch:
                    self._complete(x, now)
                    done.append(x)
                    until = now
            else:
                heappop(queue)
                self.now = now
                self._other(x, now, i, hop)
        self.events += events
        if until < INFINITY and until > self.now:
            self.now = until
        if len(done) > 1:
            done.sort(key=lambda transfer: transfer.seq)
        return done

    def _step_feed(self, feed: Feed, now: float, i: int) -> None:
        """The next of a feed's flits goes on; the one after it takes its place in the queue."""
        following = next(feed.times, None)
        if following is None:
            heappop(self._queue)
        else:
            feed.index = i + 1
            heapreplace(self._queue, (following, feed.order, i + 1, i + 1, feed, FEED))
        transfer, hop = feed.transfer, feed.hop
        if hop == transfer.hops:
            self._commit_write(transfer, now, i)
        else:
            self._cross(transfer, now, i, hop)

    def _cross(self, transfer: Transfer, now: float, i: int, hop: int) -> None:
        """Flit `i` is ready for the link of `hop` now: the full rule, with everything that may watch it."""
        link = transfer.links[hop]
        last = i == transfer.last
        if last:
            self._users[link] -= 1
        start = self._free[link]
        if start > now:
            self._note_wait(link, start - now, now)
        else:
            start = now
        leave = start + (transfer.last_ns[hop] if last else self.network.flit_ns[link])
        self._free[link] = leave
        if transfer.slow:
            self._watch(transfer, i, hop, now, leave)
            if self.network.delay_rule[transfer.route.nodes[hop + 1]] is not None:
                arrival = leave + self.network.propagation_ns[link]
                order = link - len(self._free)  # delay rules are asked before flits move on, in order of link
                heappush(self._queue, (arrival, order, i, i, transfer, SLOW - 2 * hop - 1))
                return
        self._arrive(transfer, leave + self.network.tail_ns[link], link, i, i, hop + 1)

    def _arrive(self, transfer: Transfer, ready: float, link: int, tie: int, i: int, hop: int) -> None:
        """Flit `i` will be ready at `ready` for the next link, or for what stands at the end."""
        if hop < transfer.hops:
            code = SLOW - 2 * hop if transfer.slow else hop
            heappush(self._queue, (ready, link, tie, i, transfer, code))
        elif transfer.access == WRITE:
            heappush(self._queue, (ready, link, tie, i, transfer, COMMIT))
        elif i == transfer.last:
            heappush(self._queue, (ready, link, tie, transfer.epoch, transfer, DONE))

    def _other(self, transfer: Transfer, now: float, i: int, code: int) -> None:
        """The rarer events: setting out, a burst to commit, a watched flit, a delay rule to ask."""
        if code == INJECT:
            if transfer.access == READ:
                self._commit_read(transfer, now)
            self._begin(transfer, now)
        elif code == COMMIT:
            self._commit_write(transfer, now, i)
        else:
            hop, entering = divmod(SLOW - code, 2)
            if entering:
                self._ask_delay_rule(transfer, now, i, hop)
            else:
                self._cross(transfer, now, i, hop)

    def _ask_delay_rule(self, transfer: Transfer, now: float, i: int, hop: int) -> None:
        route, names = transfer.route, self.network.names
        node = route.nodes[hop + 1]
        rule = self.network.delay_rule[node]
        assert rule is not None
        nbytes = transfer.last_bytes if i == transfer.last else self.network.flit_bytes
        arrival = FlitArrival(
            names[node], names[route.nodes[hop]], now, i, transfer.flits, nbytes, transfer.nbytes, transfer.tag
        )
        delay = on_grid(rule(arrival))
        if not 0 <= delay < MAX_TIME_NS:
            raise FabricError(f"the delay rule of {names[node]!r} answered {delay} ns", mend="answer 0 or more")
        # Order within a transfer is kept: a flit is never ready before the one ahead of it.
        ready = max(now + delay, transfer.held_ns.get(hop, 0.0))
        transfer.held_ns[hop] = ready
        self._arrive(transfer, ready, transfer.links[hop], next(self._tie), i, hop + 1)

    def _commit_write(self, transfer: Transfer, now: float, i: int) -> None:
        bank = transfer.bank
        assert bank is not None
        finish = bank.commit((transfer.block + i) & bank.mask, now, WRITE)
        if finish > transfer.finish_ns:
            transfer.finish_ns = finish
        if i == transfer.last:
            self._finish(transfer, transfer.finish_ns)

    def _finish(self, transfer: Transfer, at: float) -> None:
        heappush(self._queue, (at, transfer.order, 0, transfer.epoch, transfer, DONE))

    def _complete(self, transfer: Transfer, now: float) -> None:
        transfer.done_ns = now
        last = transfer.flits - 1
        if last < 0:
            return
        route = transfer.route
        wire_bytes = last * self.network.flit_bytes + transfer.last_bytes
        for link, flit_ns, last_ns in zip(route.links, route.flit_ns, transfer.last_ns, strict=True):
            self._bytes[link] += wire_bytes
            self._busy[link] += last * flit_ns + last_ns

    # ---- watching

    def _watch(self, transfer: Transfer, i: int, hop: int, ready: float, leave: float) -> None:
        last = i == transfer.last
        if self.recorded is not None:
            nbytes = transfer.last_bytes if last else self.network.flit_bytes
            self.recorded.append(FlitHop(transfer.links[hop], transfer.seq, i, nbytes, ready, leave))
        if transfer.times is not None:
            if i == 0:
                transfer.times[hop][0:2] = ready, leave
            if last:
                transfer.times[hop][2:4] = ready, leave

    def hop_times(self, transfer: Transfer) -> list[HopTimes]:
        """Arrival and departure of the first and last flit at every node of a traced transfer that is done."""
        if transfer.times is None:
            raise FabricError(f"{transfer!r} was not traced", mend="inject it with trace=True")
        names, propagation = self.network.names, self.network.propagation_ns
        nodes = transfer.route.nodes
        rows = []
        first, last = transfer.at_ns, transfer.times[0][2]
        for hop, (_, first_leave, _, last_leave) in enumerate(transfer.times):
            rows.append(HopTimes(names[nodes[hop]], first, first_leave, last, last_leave))
            wire = propagation[transfer.links[hop]]
            first, last = first_leave + wire, last_leave + wire
        rows.append(HopTimes(names[nodes[-1]], first, transfer.done_ns, last, transfer.done_ns))
        return rows
