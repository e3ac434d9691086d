"""The network at work, one event for each flit and hop. Exact and plain; `trains` builds the fast path on top of it.

An event says that a flit is ready for its next link. The link takes it at max(now, free), so one event per flit and
hop is enough. Events at one instant are ordered by the index of the link the flit came in on, injections last, then by
order of injection: a rule that each output can apply by itself. Zero-byte messages pay every node and wire,
uncontended.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from itertools import count, islice
from operator import attrgetter

from kernbench.common.errors import FabricError
from kernbench.common.flits import FlitArrival
from kernbench.common.units import MAX_TIME_NS, on_grid
from kernbench.sim_engine.fabric.agenda import INFINITY, Agenda
from kernbench.sim_engine.fabric.channels import ChannelGroup, Pace
from kernbench.sim_engine.fabric.counters import Counters
from kernbench.sim_engine.fabric.model import Crossing, Network, Route
from kernbench.sim_engine.fabric.progressions import Progression, times_of
from kernbench.sim_engine.fabric.transfers import FlitSchedule, Transfer

# What an event is about, where it is not simply a flit ready for a link: the crossing's link is -(8 * hop + kind).
INJECT, DONE, COMMIT, WATCHED, ENTER, REFILL = 1, 2, 3, 4, 5, 6
CHUNK = 16  # flits that a schedule queues at a time
TIE = 2.0**-32  # flits that a delay rule made ready at one instant on one link keep the order in which it was asked

Event = tuple[float, float, int, Transfer, Crossing]  # time, order within it, flit or epoch, whose, and what


@cache
def other(kind: int, hop: int = 0) -> Crossing:
    return Crossing(-(8 * hop + kind), 0.0, 0.0, None, False)


AT_INJECT, AT_DONE, AT_COMMIT = other(INJECT), other(DONE), other(COMMIT)


class FlitFabric(Counters):
    """Moves flits by the rules of this package. Driven by `inject`, `run` (or `advance`) and `next_time`."""

    def __init__(self, network: Network, *, record: bool = False) -> None:
        super().__init__(network, record=record)
        self.events = 0  # taken from the queue so far
        links = len(network.link_ends)
        self._free = [0.0] * links
        self._users = [0] * links  # transfers moved flit by flit that have yet to pass the link
        self._agenda: Agenda[Event] = Agenda(network.typical_hop_ns())
        self.agenda: Agenda[Event] = self._agenda  # for whoever drives the fabric
        self._seq = count()
        self._tie = count()

    # ---- what drives it

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

        `read_from` is an address in the memory at the first node: a flit may leave once its burst is committed.
        `write_to` is an address in the memory at the last node: the transfer is done once its last burst is.
        `on_done` is called by `run`. Raises FabricError for a path, size or time the network cannot carry.
        """
        route = path if isinstance(path, Route) else self.network.route(path)
        at = self._time_on_grid(self.now if at_ns is None else at_ns)
        wire_bytes = nbytes + header_bytes
        if nbytes < 0 or header_bytes < 0:
            raise FabricError(f"a transfer of {nbytes} bytes with a header of {header_bytes}", hint="give 0 or more")
        transfer = Transfer(next(self._seq), route, nbytes, at, on_done, tag)
        if read_from is not None:
            transfer.source, transfer.block = self._channels_at(route.nodes[0], read_from, header_bytes)
        if write_to is not None:
            if read_from is not None:
                raise FabricError("a transfer that both reads and writes memory", hint="inject a read, then a write")
            transfer.sink, transfer.block = self._channels_at(route.nodes[-1], write_to, header_bytes)
        if wire_bytes == 0:
            self._agenda.push((at + route.control_ns, transfer.order, 0, transfer, AT_DONE))
            return transfer
        self._cut_into_flits(transfer, wire_bytes)
        if trace or route.has_delay_rule or self.recorded is not None:
            transfer.slow = True
            if trace:
                transfer.times = [[0.0] * 4 for _ in range(route.hops)]
        if at == self.now < self.next_time():
            self._set_out(transfer, at)  # nothing else can happen at this instant before it
        else:
            self._agenda.push((at, transfer.order, -1, transfer, AT_INJECT))
        return transfer

    def run(self, until: float = INFINITY) -> None:
        """Move everything up to `until`, calling `on_done` of each transfer at its time."""
        while done := self.advance(until):
            for transfer in done:
                if transfer.on_done is not None:
                    transfer.on_done(transfer)

    def next_time(self) -> float:
        """When the next thing happens; infinity when nothing is under way."""
        agenda = self._agenda
        return agenda.current[0][0] if agenda.current or agenda.load() else INFINITY

    # ---- setting out

    def _time_on_grid(self, at_ns: float) -> float:
        if not self.now <= at_ns < MAX_TIME_NS:
            raise FabricError(
                f"a transfer at {at_ns} ns, when the clock stands at {self.now} ns",
                hint=f"inject now or later, and before {MAX_TIME_NS:.0f} ns",
            )
        return on_grid(at_ns)

    def _cut_into_flits(self, transfer: Transfer, wire_bytes: int) -> None:
        route, flit_bytes = transfer.route, self.network.flit_bytes
        if route.control_only_link is not None:
            a, b = (self.network.names[node] for node in self.network.link_ends[route.control_only_link])
            raise FabricError(f"the link from {a!r} to {b!r} carries control only", hint="give it a bandwidth")
        transfer.last = last = (wire_bytes - 1) // flit_bytes
        transfer.flits = last + 1
        transfer.last_flit = last_flit = route.last_flit(self.network, wire_bytes - last * flit_bytes)
        transfer.crossings, transfer.last_crossings = route.crossings, last_flit.crossings

    def _channels_at(self, node: int, address: int, header_bytes: int) -> tuple[ChannelGroup, int]:
        """The memory channels at `node`, and the address in bursts."""
        group = self._groups.get(node)
        if group is None:
            raise FabricError(f"node {self.network.names[node]!r} has no memory channels", hint="add_channels there")
        if header_bytes:
            raise FabricError("a memory access with a header", hint="leave header_bytes out: a flit is a burst")
        if address < 0:
            raise FabricError(f"a memory access at address {address}", hint="give 0 or more")
        return group, address >> group.shift

    def _set_out(self, transfer: Transfer, now: float) -> None:
        if transfer.source is not None:
            self._commit_read(transfer, transfer.source, now)
        self._begin(transfer, now)

    def _commit_read(self, transfer: Transfer, group: ChannelGroup, now: float) -> None:
        group.flush(now)
        transfer.pace = group.commit_reads(transfer.block, transfer.flits, now)

    def _begin(self, transfer: Transfer, now: float) -> None:
        """A transfer sets out, flit by flit."""
        users, flits = self._users, transfer.flits
        for link in transfer.links:
            users[link] += 1
        if transfer.sink is not None:
            transfer.sink.users += 1
        if transfer.pace is not None:
            self._schedule(transfer, 0, 0, flits, transfer.pace)
            return
        if transfer.slow:
            self._schedule(transfer, 0, 0, flits, [(now, 0.0, flits)])
            return
        # All flits are ready at once, so they follow one another on the first link whatever else comes.
        link, flit_ns, tail_ns, _, _ = transfer.crossings[0]
        last = transfer.last
        start = self._free[link]
        if start < now:
            start = now
        last_start = start + last * flit_ns
        self._free[link] = leave = last_start + transfer.last_crossings[0].occupy_ns
        self._note_wait(link, last_start - now, now)
        users[link] -= 1
        if transfer.hops == 1 and transfer.sink is None:
            self._arrive(transfer, leave + tail_ns, link, last, 1)
            return
        progressions = [(leave + tail_ns, 0.0, 1)]
        if last:
            progressions.insert(0, (start + flit_ns + tail_ns, flit_ns, last))
        self._schedule(transfer, 1, 0, flits, progressions)

    def _schedule(self, transfer: Transfer, hop: int, index: int, stop: int, source: list[Progression] | Pace) -> None:
        """Flits `index` to `stop` go on singly; when they are ready for `hop`, or for a memory at the end, is known."""
        times = source.times(index, stop) if isinstance(source, Pace) else times_of(source)
        if stop - index <= CHUNK:
            self._queue_flits(transfer, hop, index, list(times))
            return
        if transfer.schedules is None:
            transfer.schedules = {}
        transfer.schedules[hop] = FlitSchedule(index, stop, source, times)
        self._queue_next_flits(transfer, hop)

    def _queue_next_flits(self, transfer: Transfer, hop: int) -> None:
        """The next few flits of a schedule go into the queue; those behind them follow when half are gone."""
        assert transfer.schedules is not None
        schedule = transfer.schedules[hop]
        index, times = schedule.index, list(islice(schedule.times, CHUNK))
        schedule.index += len(times)
        self._queue_flits(transfer, hop, index, times)
        if schedule.index < schedule.stop:
            order = transfer.links[hop - 1] if hop else transfer.order
            half = CHUNK // 2
            self._agenda.push((times[half], order, index + half, transfer, other(REFILL, hop)))

    def _queue_flits(self, transfer: Transfer, hop: int, index: int, times: list[float]) -> None:
        """Flits from `index` on take their places in the queue."""
        order = transfer.links[hop - 1] if hop else transfer.order
        if transfer.slow or hop == transfer.hops:
            for i, ready in enumerate(times, index):
                self._arrive(transfer, ready, order, i, hop)
            return
        crossing = transfer.crossings[hop]
        events: list[Event] = [(ready, order, i, transfer, crossing) for i, ready in enumerate(times, index)]
        if events[-1][2] == transfer.last:
            events[-1] = (times[-1], order, transfer.last, transfer, transfer.last_crossings[hop])
        self._agenda.extend(events)

    # ---- moving

    def advance(self, until: float = INFINITY) -> list[Transfer]:
        """Move flits up to `until` or the first instant at which transfers are done; returns those, as injected.

        Longer than other functions because a call for each flit would cost as much as all the rest.
        """
        agenda, free, users = self._agenda, self._free, self._users
        worst, worst_at = self._worst, self._worst_at
        bucket_at = agenda.later.get
        done: list[Transfer] = []
        while agenda.current or agenda.load():
            current, number, width_ns = agenda.current, agenda.number, agenda.width_ns
            if current[0][0] > until:
                break
            for event in current:
                now, _, i, transfer, crossing = event
                if now > until:
                    break
                link, leave, tail_ns, onward, final = crossing
                if link < 0:
                    self.now = now
                    if self._other(transfer, now, i, -link):
                        done.append(transfer)
                        until = now
                    continue
                # A flit is ready for a link: the one event that counts for speed.
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
                if final:
                    users[link] -= 1
                leave += tail_ns
                if onward is not None:
                    nearby = leave // width_ns
                    if nearby == number:
                        insort(current, (leave, link, i, transfer, onward))
                        continue
                    bucket = bucket_at(nearby)
                    if bucket is not None:
                        bucket.append((leave, link, i, transfer, onward))
                    else:
                        agenda.push((leave, link, i, transfer, onward))
                elif final:
                    self._arrive(transfer, leave, link, i, transfer.hops)
                else:
                    group = transfer.sink
                    if group is not None:
                        group.pending.append((leave, link, i, transfer))
                        if len(group.pending) > group.most_pending:
                            group.flush(now)
            else:
                self.events += len(current)
                agenda.drop(len(current))
                continue
            passed = bisect_left(current, event)
            self.events += passed
            agenda.drop(passed)
            break
        if until < INFINITY and until > self.now:
            self.now = until
        if done:
            if len(done) > 1:
                done.sort(key=attrgetter("seq"))
            self._after(done)
        return done

    def _after(self, done: list[Transfer]) -> None:
        """All that happens at the instant at which transfers were done has happened."""

    def _other(self, transfer: Transfer, now: float, i: int, code: int) -> bool:
        """The rarer events: setting out, the end, a memory to look at, a schedule, a watched flit. True at the end."""
        hop, kind = divmod(code, 8)
        if kind == DONE:
            if i != transfer.epoch:
                return False
            self._complete(transfer, now)
            return True
        if kind == INJECT:
            self._set_out(transfer, now)
        elif kind == REFILL:
            self._queue_next_flits(transfer, hop)
        elif kind == COMMIT:
            assert transfer.sink is not None
            transfer.sink.flush(now)
            transfer.sink.users -= 1
            self._finish(transfer, transfer.finish_ns)
        elif kind == ENTER:
            self._ask_delay_rule(transfer, now, i, hop)
        else:
            self._cross_watched(transfer, now, i, hop)
        return False

    def _cross_watched(self, transfer: Transfer, now: float, i: int, hop: int) -> None:
        """Flit `i` is ready for the link of `hop`: the rule of `advance`, with what may watch the flit."""
        link, occupy_ns, tail_ns, _, final = transfer.crossing(hop, i)
        if final:
            self._users[link] -= 1
        start = self._free[link]
        if start > now:
            self._note_wait(link, start - now, now)
        else:
            start = now
        self._free[link] = leave = start + occupy_ns
        self._watch(transfer, i, hop, now, leave)
        if self.network.delay_rule[transfer.route.nodes[hop + 1]] is None:
            self._arrive(transfer, leave + tail_ns, link, i, hop + 1)
        else:
            arrival = leave + self.network.propagation_ns[link]
            order = link - len(self._free)  # delay rules are asked before flits move on, in order of link
            self._agenda.push((arrival, order, i, transfer, other(ENTER, hop)))

    def _arrive(self, transfer: Transfer, ready: float, order: float, i: int, hop: int) -> None:
        """Flit `i` will be ready at `ready` for the next link, or for what stands at the end."""
        if hop < transfer.hops:
            crossing = other(WATCHED, hop) if transfer.slow else transfer.crossing(hop, i)
            self._agenda.push((ready, order, i, transfer, crossing))
        elif transfer.sink is not None:
            group = transfer.sink
            group.pending.append((ready, order, i, transfer))
            if i == transfer.last:
                self._agenda.push((ready, order, i, transfer, AT_COMMIT))
            elif len(group.pending) > group.most_pending:
                group.flush(self.now)
        elif i == transfer.last:
            self._agenda.push((ready, order, transfer.epoch, transfer, AT_DONE))

    def _ask_delay_rule(self, transfer: Transfer, now: float, i: int, hop: int) -> None:
        route, names = transfer.route, self.network.names
        node, came_from = names[route.nodes[hop + 1]], names[route.nodes[hop]]
        rule = self.network.delay_rule[route.nodes[hop + 1]]
        assert rule is not None
        nbytes = self._flit_bytes(transfer, i)
        delay = rule(FlitArrival(node, came_from, now, i, transfer.flits, nbytes, transfer.nbytes, transfer.tag))
        if not (isinstance(delay, int | float) and 0 <= delay < MAX_TIME_NS):
            raise FabricError(f"the delay rule of {node!r} answered {delay!r}", hint="answer ns, 0 or more")
        # Order within a transfer is kept: a flit is never ready before the one ahead of it.
        if transfer.delayed_until_ns is None:
            transfer.delayed_until_ns = {}
        transfer.delayed_until_ns[hop] = ready = max(now + on_grid(delay), transfer.delayed_until_ns.get(hop, 0.0))
        self._arrive(transfer, ready, transfer.links[hop] + next(self._tie) * TIE, i, hop + 1)

    def _finish(self, transfer: Transfer, at: float) -> None:
        self._agenda.push((at, transfer.order, transfer.epoch, transfer, AT_DONE))

    def _complete(self, transfer: Transfer, now: float) -> None:
        if now > MAX_TIME_NS:
            raise FabricError(
                f"{transfer!r} would end at {now} ns", hint=f"stay below {MAX_TIME_NS:.0f} ns: times are exact"
            )
        transfer.done_ns = now
        if transfer.last_flit is not None:
            self._count(transfer.last_flit, transfer.last)
