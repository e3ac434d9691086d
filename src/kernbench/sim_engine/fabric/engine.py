"""The network at work, one event for each flit and hop: exact and plain. It owns links, channels and the agenda.

An event says that a flit is ready for its next link; the link takes it by the rule in `fifo.py`, so one event per flit
and hop is enough. Events at one instant are ordered by the index of the link the flit came in on, injections last, then
by order of injection: a rule that each output can apply by itself. Zero-byte messages pay every node and wire,
uncontended.

A transfer that departs is given to the `Planner`, which may move it at once, or leave it to `begin`, flit by flit.

Once many flits have met, a compiled loop (`flit_queues.py`) takes the next ones, where it may and numba is installed.
The agenda then has all other events, and both go on in one order of time.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import TYPE_CHECKING

from kernbench.common.declared_state import aside
from kernbench.common.errors import FabricError
from kernbench.common.units import MAX_TIME_NS
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fabric.agenda import INFINITY, Agenda
from kernbench.sim_engine.fabric.fifo import leave_together
from kernbench.sim_engine.fabric.flit_events import (
    AT_COMMIT,
    AT_DONE,
    AT_INJECT,
    COMMIT,
    DONE,
    ENTER,
    INJECT,
    REFILL,
    Event,
)
from kernbench.sim_engine.fabric.flit_steps import FlitSteps
from kernbench.sim_engine.fabric.joined_reads import JoinedReads
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.planner import FlitLoop, FlitsOnly, Planner
from kernbench.sim_engine.fabric.reservations import Reservations
from kernbench.sim_engine.fabric.routes import FINAL, IN_SERIES
from kernbench.sim_engine.fabric.transfers import Transfer

if TYPE_CHECKING:
    from kernbench.sim_engine.fabric.loop_reads import LoopReads

FEW_READS = 8  # that are as well moved one by one, as long as no others are moved together
TYPICAL_HOPS = 16  # that a read will take, when the loop is asked for on its behalf


class FlitEngine(FlitSteps):
    """Moves flits by the rules of this package. Driven by `depart`, `advance` and `next_time`."""

    DERIVED = (  # a plan is split before its state is taken, and a reservation ends at the first interfering transfer
        "events", "lacks_numba", "loop", "planner", "reads", "reservations",
    )  # fmt: skip
    SET_ASIDE = (
        aside("agenda", lambda engine: Agenda(engine._hop_ns), lambda engine, left: left.pour_into(engine.agenda)),
        aside("now"),
        # A caller in the middle of `advance` has links at hand that a compiled loop would replace: none is loaded.
        aside("compile_after", lambda engine: INFINITY),
        aside("joins_reads", lambda engine: False),
        aside("has_new_calls", lambda engine: False, lambda engine, left: engine.look_again()),
    )

    def __init__(self, network: Network, *, record: bool = False, activity: Activity | None = None) -> None:
        super().__init__(network, record=record, activity=activity)
        self.events = 0  # taken from the queue so far
        self.reservations = Reservations(network, self.links, self.groups)
        self.planner: Planner = FlitsOnly(self)
        self.loop: FlitLoop | None = None  # the loop that moves flits beside the agenda, if there is one
        self.reads: LoopReads | None = None  # that depart together: beside such a loop
        self.joins_reads = True  # not during a rewind
        self.compile_after: float = INFINITY  # events, before it is asked for
        self.lacks_numba = False  # whether it was asked for in vain
        self.has_new_calls = False  # `advance` goes no further than the current instant, once

    # ---- departure

    def send(self, transfer: Transfer) -> None:
        """A transfer departs at its time, which is now or later."""
        at = transfer.at_ns
        if at == self.now < self.next_time():
            self.depart(transfer, at)  # nothing else can happen at this instant before it
        else:
            self.push_injection(transfer)

    def push_injection(self, transfer: Transfer) -> None:
        """A transfer departs at its time, in the order of sequence numbers."""
        self.agenda.push((transfer.at_ns, transfer.order, -1, transfer, AT_INJECT))

    def note_reads(self, count: int) -> None:
        """Reads depart at one instant: many of them make a compiled loop worth while, if there is none yet."""
        self.compile_after -= count * TYPICAL_HOPS

    def may_join_reads(self, count: int) -> bool:
        """Whether a compiled loop may move so many reads, which depart now, together."""
        if self.reads is None or not self.joins_reads or (count < FEW_READS and not self.reads.are_any):
            return False
        return not (self.reservations.held or self.counters.sees_flits)

    def send_control(self, transfer: Transfer) -> None:
        """A message of zero bytes: neither waits for others nor makes them wait."""
        self.finish(transfer, transfer.at_ns + transfer.route.control_ns)

    def depart(self, transfer: Transfer, now: float) -> None:
        """Now is the time of a transfer: owners of what it needs are called first."""
        reservations, activity = self.reservations, self.counters.activity
        if reservations.held or activity is not None:
            for segment in transfer.tree or (transfer,):
                if reservations.held:
                    reservations.interrupt(segment, now, transfer.order)
                if activity is not None:
                    activity.depart(segment, now)
        if transfer.on_left is not None and self.buffered is None:
            # All flits are ready now, so they follow one another on the first link whatever comes later.
            occupy_ns, last_ns = transfer.traversals[0].occupy_ns, transfer.last_traversals[0].occupy_ns
            free_ns = self.links.free[transfer.links[0]]
            transfer.on_left(leave_together(now, free_ns, occupy_ns, last_ns, transfer.last)[1])
            self.has_new_calls = True  # a call was made for that time: what comes next may be before the next flit
        self.planner.depart(transfer, now)

    # ---- moving

    def next_time(self) -> float:
        """When the next thing happens; infinity when nothing is under way."""
        agenda = self.agenda
        time = agenda.current[0][0] if agenda.current or agenda.load() else INFINITY
        return time if self.loop is None else min(time, self.loop.next_ns)

    def advance(self, until: float = INFINITY) -> list[Transfer]:
        """Move flits up to `until` or the first instant at which transfers are done; returns those, as injected.

        An owner that is interrupted may have things to do before `until`: it sets `has_new_calls`, for the caller.
        """
        agenda, loop = self.agenda, self.loop
        if agenda.current or agenda.load():
            return self._move(until) if loop is None else self._move_both(until, loop)
        if loop is not None and loop.next_ns <= until:
            return self._move_both(until, loop)
        if until < INFINITY and until > self.now:
            self.now = until
        return []

    def _move(self, until: float) -> list[Transfer]:
        """The loop of `advance`: longer than other functions, because a call for each flit would cost as much as all
        the rest, and one for each bucket a twentieth. So `fifo.leave_ns` is written out."""
        agenda, free, users = self.agenda, self.links.free, self.links.users
        worst, worst_at = self.links.worst, self.links.worst_at
        later = agenda.later
        done: list[Transfer] = []
        while agenda.current or agenda.load():
            current, number, width_ns = agenda.current, agenda.number, agenda.width_ns
            if current[0][0] > until:
                break
            for now, _, i, transfer, traversal in current:
                if now > until:
                    break
                link, leave, tail_ns, onward, special = traversal
                if link < 0:
                    self.now = now
                    if self._other(transfer, now, i, -link):
                        done.append(transfer)
                        until = now
                    elif self.has_new_calls:
                        until = now
                    continue
                # A flit is ready for a link: the one event that counts for speed.
                ready = now
                while True:
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
                    leave += tail_ns
                    if not special:
                        break
                    if special & FINAL:
                        users[link] -= 1
                    if onward is None or not special & IN_SERIES:
                        break
                    ready = leave
                    link, leave, tail_ns, onward, special = onward
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
                elif transfer.sink is not None:
                    group = transfer.sink
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

    # ---- with a loop of its own

    def use_buffers(self, *, is_compiled: bool) -> None:
        """All flits move through the network's buffers."""
        from kernbench.sim_engine.fabric.buffered_flits import BufferedFlits

        self.compile_after = INFINITY
        self.buffered = BufferedFlits(self.network, self.links, self.counters, is_compiled=is_compiled)
        self.loop = self.buffered
        self.reservations.use_buffers(self.buffered)
        self.lacks_numba = is_compiled and not self.buffered.is_compiled

    @property
    def is_compiled(self) -> bool:
        """Whether a compiled loop moves flits."""
        return self.queues is not None or (self.buffered is not None and self.buffered.is_compiled)

    def compile(self) -> None:
        """Let a compiled loop move the flits that come from now on, where there is one."""
        self.compile_after = INFINITY
        try:
            from kernbench.sim_engine.fabric.flit_queues import FlitQueues
        except ImportError:  # numba is an extra
            self.lacks_numba = True
            return
        from kernbench.sim_engine.fabric.loop_reads import LoopReads

        self.queues = self.loop = FlitQueues(self.links, self.groups)
        self.queues.take_from(self.agenda)
        self.reads = LoopReads(self, self.queues)

    def _move_both(self, until: float, loop: FlitLoop) -> list[Transfer]:
        """What `_move` does: events of the agenda, and flits of the loop, in one order of time."""
        agenda, done = self.agenda, list[Transfer]()
        while True:
            time, order = agenda.current[0][:2] if agenda.current or agenda.load() else (INFINITY, 0.0)
            flit_ns = loop.next_ns
            if flit_ns <= until and (flit_ns < time or (flit_ns == time and loop.next_order < order)):
                self.move_loop(loop, until, time, order)
                if self.buffered is not None and self.buffered.has_entered:
                    self.has_new_calls = True
                    until = self.buffered.moved_to_ns
                continue
            if time > until or time == INFINITY:
                break
            now, _, i, transfer, traversal = agenda.current[0]
            agenda.drop(1)
            self.events += 1
            if traversal.link >= 0:
                self._cross(transfer, now, i, transfer.hop_of(traversal))
                continue
            self.now = now
            if self._other(transfer, now, i, -traversal.link):
                done.append(transfer)
                until = now
            elif self.has_new_calls:
                until = now
        return self._moved(done, until)

    def move_loop(self, loop: FlitLoop, until: float, time: float = INFINITY, order: float = 0.0) -> None:
        """Let flits of the loop move up to `until`, or to what the agenda has at `time`."""
        self.events += loop.move(until, time, order, self._last_flit_left)

    def _last_flit_left(self, transfer: Transfer, at: float, link: int) -> None:
        """A flit of the queues is the last of its transfer, and arrives at the end of its path at `at`."""
        if transfer.sink is not None:
            self.agenda.push((at, link, transfer.last, transfer, AT_COMMIT))
        else:
            self.agenda.push((at, link, transfer.epoch, transfer, AT_DONE))

    def _other(self, transfer: Transfer, now: float, i: int, code: int) -> bool:
        """The rarer events: departure, the end, a memory to look at, a schedule, a watched flit. True at the end."""
        kind = code & 7
        if kind == DONE:
            if i != transfer.epoch:
                return False
            self._complete(transfer, now)
            return True
        if kind == INJECT:
            self.depart(transfer, now)
        elif kind == REFILL:
            self._queue_next_flits(transfer, code >> 3)
        elif kind == COMMIT:
            assert transfer.sink is not None
            transfer.sink.flush(now)
            transfer.sink.users -= 1
            self.finish(transfer, transfer.finish_ns)
        elif kind == ENTER:
            self._ask_delay_rule(transfer, now, i, code >> 3)
        else:
            self._cross(transfer, now, i, code >> 3)
        return False

    # ---- the end

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
        elif isinstance(transfer, JoinedReads):
            assert self.reads is not None
            self.reads.ended(transfer)

    # ---- for `rewind.py`

    def look_again(self) -> None:
        """There are new calls: what comes first may be another."""
        self.has_new_calls = True

    def happen(self, event: Event) -> None:
        """Let one event happen, away from the loop of `advance`. An end is not reported."""
        now, _, i, transfer, traversal = event
        self.now = now
        self.events += 1
        if traversal.link < 0:
            self._other(transfer, now, i, -traversal.link)
        else:
            self._cross(transfer, now, i, transfer.hop_of(traversal))
