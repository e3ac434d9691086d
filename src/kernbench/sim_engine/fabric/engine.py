"""The network at work, one event for each flit and hop: exact and plain. It owns links, channels and the agenda.

An event says that a flit is ready for its next link; the link takes it by the rule in `fifo.py`, so one event per flit
and hop is enough. Events at one instant are ordered by the index of the link the flit came in on, injections last, then
by order of injection: a rule that each output can apply by itself. Zero-byte messages pay every node and wire,
uncontended.

A transfer that sets out is given to the `Planner`, which may move it at once, or leave it to `begin`, flit by flit.

Once many flits have met, a compiled loop (`flit_queues.py`) takes the next ones, where it may and numba is installed.
The agenda then has all other events, and both go on in one order of time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sized
from functools import cache
from itertools import count, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Protocol

from kernbench.common.errors import FabricError
from kernbench.common.flits import FlitArrival
from kernbench.common.units import MAX_TIME_NS, on_grid
from kernbench.sim_engine.fabric.activity import Activity, WatchedChannels
from kernbench.sim_engine.fabric.agenda import INFINITY, Agenda
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.counters import Counters
from kernbench.sim_engine.fabric.fifo import leave_ns, leave_together, wait_ns
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import FINAL, IN_SERIES, Crossing, Network
from kernbench.sim_engine.fabric.progressions import Times, each_time
from kernbench.sim_engine.fabric.reservations import Reservations
from kernbench.sim_engine.fabric.transfers import FlitSchedule, Transfer

if TYPE_CHECKING:
    from kernbench.sim_engine.fabric.flit_queues import FlitQueues

# What an event is about, where it is not simply a flit ready for a link: the crossing's link is -(8 * hop + kind).
INJECT, DONE, COMMIT, WATCHED, ENTER, REFILL = 1, 2, 3, 4, 5, 6
MOST_QUEUED = 1 << 16  # flits of a transfer that a compiled loop is given at once: each takes memory
CHUNK = 16  # flits that a schedule queues at a time
TIE = 2.0**-32  # flits that a delay rule made ready at one instant on one link keep the order in which it was asked

Event = tuple[float, float, int, Transfer, Crossing]  # time, order within it, flit or epoch, whose, and what


@cache
def other(kind: int, hop: int = 0) -> Crossing:
    return Crossing(-(8 * hop + kind), 0.0, 0.0, None, 0)


AT_INJECT, AT_DONE, AT_COMMIT = other(INJECT), other(DONE), other(COMMIT)


class Planner(Protocol):
    """Decides how transfers are moved: flit by flit, or at once where that comes to the same times."""

    def set_out(self, transfer: Transfer, now: float) -> None:
        """A transfer sets out: plan it, or leave it to `FlitEngine.begin`."""

    def ended(self, transfer: Transfer, now: float) -> None:
        """A transfer is done."""

    @property
    def waiting(self) -> Sized:
        """Transfers that it may plan once others are done: while there are any, it is told by `settled`."""

    def instant_ended(self, now: float) -> None:
        """Transfers are done, and all else that happens at that instant has happened."""


class FlitsOnly:
    """The planner that plans nothing."""

    def __init__(self, engine: FlitEngine) -> None:
        self._engine = engine
        self.waiting = ()

    def set_out(self, transfer: Transfer, now: float) -> None:
        if transfer.source is not None:
            self._engine.commit_read(transfer, transfer.source, now)
        if self._engine.counters.sees_flits:
            transfer.slow = True
        self._engine.begin(transfer, now)

    def ended(self, transfer: Transfer, now: float) -> None:
        pass

    def instant_ended(self, now: float) -> None:
        pass


class FlitEngine:
    """Moves flits by the rules of this package. Driven by `set_out`, `advance` and `next_time`."""

    def __init__(self, network: Network, *, record: bool = False, activity: Activity | None = None) -> None:
        self.network = network
        self.now = 0.0
        self.events = 0  # taken from the queue so far
        self.links = Links(len(network.link_ends))
        self.groups: dict[int, ChannelGroup] = network.put_to_use()
        if activity is not None:
            activity.attach(network)
            specs = network.channel_specs
            self.groups = {node: WatchedChannels(activity, node, *spec) for node, spec in specs.items()}
        self._hop_ns = network.typical_hop_ns
        self.agenda: Agenda[Event] = Agenda(self._hop_ns)
        self.counters = Counters(network, self.links, self.groups, record=record, activity=activity)
        self.reservations = Reservations(network, self.links, self.groups)
        self.planner: Planner = FlitsOnly(self)
        self.queues: FlitQueues | None = None  # flits that a compiled loop moves
        self.compile_after: float = INFINITY  # events, before it is asked for
        self.lacks_numba = False  # whether it was asked for in vain
        self.recalled = False  # `advance` goes no further than the present instant, once
        self._tie = count()

    # ---- setting out

    def send(self, transfer: Transfer) -> None:
        """A transfer sets out at its time, which is now or later."""
        at = transfer.at_ns
        if at == self.now < self.next_time():
            self.set_out(transfer, at)  # nothing else can happen at this instant before it
        else:
            self.agenda.push((at, transfer.order, -1, transfer, AT_INJECT))

    def send_control(self, transfer: Transfer) -> None:
        """A message of zero bytes: neither waits for others nor makes them wait."""
        self.finish(transfer, transfer.at_ns + transfer.route.control_ns)

    def set_out(self, transfer: Transfer, now: float) -> None:
        """Now is the time of a transfer: whoever owns what it needs is called first."""
        if self.reservations.held:
            self.reservations.interrupt(transfer, now)
        if self.counters.activity is not None:
            self.counters.activity.set_out(transfer, now)
        if transfer.on_left is not None:
            # All flits are ready now, so they follow one another on the first link whatever comes later.
            occupy_ns, last_ns = transfer.crossings[0].occupy_ns, transfer.last_crossings[0].occupy_ns
            free_ns = self.links.free[transfer.links[0]]
            transfer.on_left(leave_together(now, free_ns, occupy_ns, last_ns, transfer.last)[1])
            self.recalled = True  # a call was made for that time: what comes next may be before the next flit
        self.planner.set_out(transfer, now)

    def commit_read(self, transfer: Transfer, group: ChannelGroup, now: float) -> None:
        """The request of a read is at its memory: its bursts take their channels."""
        group.flush(now)
        if isinstance(group, WatchedChannels):
            group.read_for(transfer)
        transfer.pace = group.commit_reads(transfer.block, transfer.flits, now)

    def begin(self, transfer: Transfer, now: float) -> None:
        """Move a transfer flit by flit, from its first link on."""
        links, flits = self.links, transfer.flits
        users = links.users
        for link in transfer.links:
            users[link] += 1
        if transfer.sink is not None:
            transfer.sink.users += 1
        if transfer.pace is not None:
            self.schedule(transfer, 0, 0, flits, transfer.pace)
            return
        link, flit_ns, tail_ns, _, special = transfer.crossings[0]
        if transfer.slow or special & IN_SERIES:
            self.schedule(transfer, 0, 0, flits, [(now, 0.0, flits)])
            return
        # All flits are ready at once, so they follow one another on the first link whatever else comes.
        last, last_ns = transfer.last, transfer.last_crossings[0].occupy_ns
        first_leave, leave = leave_together(now, links.free[link], flit_ns, last_ns, last)
        links.free[link] = leave
        links.note_wait(link, wait_ns(now, leave, last_ns), now)
        users[link] -= 1
        if transfer.hops == 1 and transfer.sink is None:
            self._arrive(transfer, leave + tail_ns, link, last, 1)
            return
        progressions = [(leave + tail_ns, 0.0, 1)]
        if last:
            progressions.insert(0, (first_leave + tail_ns, flit_ns, last))
        self.schedule(transfer, 1, 0, flits, progressions)

    def schedule(self, transfer: Transfer, hop: int, index: int, stop: int, source: Times) -> None:
        """Flits `index` to `stop` go on singly; when they are ready for `hop`, or for a memory at the end, is known."""
        is_plain = not (transfer.slow or hop == transfer.hops)
        if self.queues is not None and is_plain and stop - index <= MOST_QUEUED:
            self.queues.add(transfer, hop, index, stop, source)
            return
        times = each_time(source, index, stop)
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
            self.agenda.push((times[half], order, index + half, transfer, other(REFILL, hop)))

    def _queue_flits(self, transfer: Transfer, hop: int, index: int, times: list[float]) -> None:
        """Flits from `index` on take their places in the queue."""
        order = transfer.links[hop - 1] if hop else transfer.order
        if transfer.slow or hop == transfer.hops:
            for i, ready in enumerate(times, index):
                self._arrive(transfer, ready, order, i, hop)
            return
        if self.queues is not None:
            self.queues.add_at(transfer, hop, index, times)
            return
        crossing = transfer.crossings[hop]
        events: list[Event] = [(ready, order, i, transfer, crossing) for i, ready in enumerate(times, index)]
        if events[-1][2] == transfer.last:
            events[-1] = (times[-1], order, transfer.last, transfer, transfer.last_crossings[hop])
        self.agenda.extend(events)

    # ---- moving

    def next_time(self) -> float:
        """When the next thing happens; infinity when nothing is under way."""
        agenda = self.agenda
        time = agenda.current[0][0] if agenda.current or agenda.load() else INFINITY
        return time if self.queues is None else min(time, self.queues.next_ns)

    def advance(self, until: float = INFINITY) -> list[Transfer]:
        """Move flits up to `until` or the first instant at which transfers are done; returns those, as injected.

        An owner that is disturbed may have things to do before `until`: it sets `recalled`, for whoever drives this.
        """
        agenda, queues = self.agenda, self.queues
        if agenda.current or agenda.load():
            return self._move(until) if queues is None else self._move_both(until, queues)
        if queues is not None and queues.next_ns <= until:
            return self._move_both(until, queues)
        if until < INFINITY and until > self.now:
            self.now = until
        return []

    def _move(self, until: float) -> list[Transfer]:
        """The loop of `advance`: longer than other functions, because a call for each flit would cost as much as all
        the rest. So `fifo.leave_ns` is written out."""
        agenda, free, users = self.agenda, self.links.free, self.links.users
        worst, worst_at = self.links.worst, self.links.worst_at
        later = agenda.later
        done: list[Transfer] = []
        while agenda.current or agenda.load():
            current, number, width_ns = agenda.current, agenda.number, agenda.width_ns
            if current[0][0] > until:
                break
            for now, _, i, transfer, crossing in current:
                if now > until:
                    break
                link, leave, tail_ns, onward, special = crossing
                if link < 0:
                    self.now = now
                    if self._other(transfer, now, i, -link):
                        done.append(transfer)
                        until = now
                    elif self.recalled:
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
                if special:
                    if special & FINAL:
                        users[link] -= 1
                    while special & IN_SERIES:
                        assert onward is not None
                        ready = leave + tail_ns
                        link, leave, tail_ns, onward, special = onward
                        start = free[link]
                        if start > ready:
                            wait = start - ready
                            if wait > worst[link]:
                                worst[link] = wait
                                worst_at[link] = ready
                            leave += start
                        else:
                            leave += ready
                        free[link] = leave
                        if special & FINAL:
                            users[link] -= 1
                leave += tail_ns
                if onward is not None:
                    nearby = leave // width_ns
                    if nearby == number:
                        insort(current, (leave, link, i, transfer, onward))
                        continue
                    try:
                        later[nearby].append((leave, link, i, transfer, onward))
                    except KeyError:
                        agenda.push((leave, link, i, transfer, onward))
                elif special:
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
                if self.events > self.compile_after and not done:
                    self.compile()
                    if self.queues is not None:
                        return self._move_both(until, self.queues)
                continue
            passed = bisect_left(current, (now,))
            self.events += passed
            agenda.drop(passed)
            break
        if self.events > self.compile_after:
            self.compile()
        return self._moved(done, until)

    def _moved(self, done: list[Transfer], until: float) -> list[Transfer]:
        """All has happened up to `until`, where that is a time."""
        if until < INFINITY and until > self.now:
            self.now = until
        if done:
            if len(done) > 1:
                done.sort(key=attrgetter("seq"))
            if self.planner.waiting:
                self.planner.instant_ended(self.now)
        return done

    # ---- with a compiled loop

    def compile(self) -> None:
        """Let a compiled loop move the flits that come from now on, where there is one."""
        self.compile_after = INFINITY
        try:
            from kernbench.sim_engine.fabric.flit_queues import FlitQueues
        except ImportError:  # numba is an extra
            self.lacks_numba = True
            return
        self.queues = FlitQueues(self.links)
        self.queues.take_from(self.agenda)

    def _move_both(self, until: float, queues: FlitQueues) -> list[Transfer]:
        """What `_move` does: events of the agenda, and flits of the queues, in one order of time."""
        agenda, done = self.agenda, list[Transfer]()
        while True:
            time, order = agenda.current[0][:2] if agenda.current or agenda.load() else (INFINITY, 0.0)
            flit_ns = queues.next_ns
            if flit_ns <= until and (flit_ns < time or (flit_ns == time and queues.next_order < order)):
                self.events += queues.move(until, time, order, self._last_flit_left)
                continue
            if time > until or time == INFINITY:
                break
            now, _, i, transfer, crossing = agenda.current[0]
            agenda.drop(1)
            self.events += 1
            if crossing.link >= 0:
                self._cross(transfer, now, i, transfer.hop_of(crossing))
                continue
            self.now = now
            if self._other(transfer, now, i, -crossing.link):
                done.append(transfer)
                until = now
            elif self.recalled:
                until = now
        return self._moved(done, until)

    def _last_flit_left(self, transfer: Transfer, at: float, link: int) -> None:
        """A flit of the queues is the last of its transfer, and arrives at the end of its path at `at`."""
        if transfer.sink is not None:
            self.agenda.push((at, link, transfer.last, transfer, AT_COMMIT))
        else:
            self.agenda.push((at, link, transfer.epoch, transfer, AT_DONE))

    def _other(self, transfer: Transfer, now: float, i: int, code: int) -> bool:
        """The rarer events: setting out, the end, a memory to look at, a schedule, a watched flit. True at the end."""
        hop, kind = divmod(code, 8)
        if kind == DONE:
            if i != transfer.epoch:
                return False
            self._complete(transfer, now)
            return True
        if kind == INJECT:
            self.set_out(transfer, now)
        elif kind == REFILL:
            self._queue_next_flits(transfer, hop)
        elif kind == COMMIT:
            assert transfer.sink is not None
            transfer.sink.flush(now)
            transfer.sink.users -= 1
            self.finish(transfer, transfer.finish_ns)
        elif kind == ENTER:
            self._ask_delay_rule(transfer, now, i, hop)
        else:
            self._cross(transfer, now, i, hop)
        return False

    def _cross(self, transfer: Transfer, now: float, i: int, hop: int) -> None:
        """Flit `i` is ready for the link of `hop`: what `advance` does, for flits that are watched, replayed, or
        left beside a compiled loop."""
        links, special = self.links, IN_SERIES
        hop -= 1
        ready = now
        while special & IN_SERIES:
            hop += 1
            link, occupy_ns, tail_ns, _, special = transfer.crossing(hop, i)
            if special & FINAL:
                links.users[link] -= 1
            links.free[link] = leave = leave_ns(ready, links.free[link], occupy_ns)
            wait = wait_ns(ready, leave, occupy_ns)
            if wait:
                links.note_wait(link, wait, ready)
            self.counters.watch(transfer, i, hop, ready, leave, occupy_ns)
            ready = leave + tail_ns
        if self.network.delay_rule[transfer.route.nodes[hop + 1]] is None:
            self._arrive(transfer, leave + tail_ns, link, i, hop + 1)
        else:
            arrival = leave + self.network.propagation_ns[link]
            order = link - len(links.free)  # delay rules are asked before flits move on, in order of link
            self.agenda.push((arrival, order, i, transfer, other(ENTER, hop)))

    def _arrive(self, transfer: Transfer, ready: float, order: float, i: int, hop: int) -> None:
        """Flit `i` will be ready at `ready` for the next link, or for what stands at the end."""
        if hop < transfer.hops:
            crossing = other(WATCHED, hop) if transfer.slow else transfer.crossing(hop, i)
            self.agenda.push((ready, order, i, transfer, crossing))
        elif transfer.sink is not None:
            group = transfer.sink
            group.pending.append((ready, order, i, transfer))
            if i == transfer.last:
                self.agenda.push((ready, order, i, transfer, AT_COMMIT))
            elif len(group.pending) > group.most_pending:
                group.flush(self.now)
        elif i == transfer.last:
            self.agenda.push((ready, order, transfer.epoch, transfer, AT_DONE))

    def _ask_delay_rule(self, transfer: Transfer, now: float, i: int, hop: int) -> None:
        route, names = transfer.route, self.network.names
        node, came_from = names[route.nodes[hop + 1]], names[route.nodes[hop]]
        rule = self.network.delay_rule[route.nodes[hop + 1]]
        assert rule is not None
        nbytes = transfer.flit_bytes(i, self.network.flit_bytes)
        delay = rule(FlitArrival(node, came_from, now, i, transfer.flits, nbytes, transfer.nbytes, transfer.tag))
        if not (isinstance(delay, int | float) and 0 <= delay < MAX_TIME_NS):
            raise FabricError(f"the delay rule of {node!r} answered {delay!r}", hint="answer ns, 0 or more")
        # Order within a transfer is kept: a flit is never ready before the one ahead of it.
        if transfer.delayed_until_ns is None:
            transfer.delayed_until_ns = {}
        transfer.delayed_until_ns[hop] = ready = max(now + on_grid(delay), transfer.delayed_until_ns.get(hop, 0.0))
        self._arrive(transfer, ready, transfer.links[hop] + next(self._tie) * TIE, i, hop + 1)

    # ---- the end

    def finish(self, transfer: Transfer, at: float) -> None:
        """A transfer will be done at `at`, as long as its epoch does not change."""
        self.agenda.push((at, transfer.order, transfer.epoch, transfer, AT_DONE))

    def _complete(self, transfer: Transfer, now: float) -> None:
        if now > MAX_TIME_NS:
            raise FabricError(
                f"{transfer!r} would end at {now} ns", hint=f"stay below {MAX_TIME_NS:.0f} ns: times are exact"
            )
        transfer.done_ns = now
        if transfer.last_flit is not None:
            self.counters.count(transfer.last_flit, transfer.last)
            self.planner.ended(transfer, now)
            if self.counters.activity is not None:
                self.counters.activity.ended(transfer, now)

    # ---- for `rewind.py`

    def new_agenda(self) -> Agenda[Event]:
        return Agenda(self._hop_ns)

    def happen(self, event: Event) -> None:
        """Let one event happen, away from the loop of `advance`. An end is not reported."""
        now, _, i, transfer, crossing = event
        self.now = now
        self.events += 1
        if crossing.link < 0:
            self._other(transfer, now, i, -crossing.link)
        else:
            self._cross(transfer, now, i, transfer.hop_of(crossing))
