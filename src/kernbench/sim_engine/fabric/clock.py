"""SimPy's clock with a fabric inside: processes wait for transfers as they wait for any event.

Before each SimPy event the fabric runs ahead to that event's time, and stops at every completion before that, whose
`on_done` is called at its exact time; that of `transfer` makes it a SimPy event. What the fabric does at time t comes
before what processes do at t, and between the two what `at` was asked for, in the order of asking. Calls asked for at
one instant are kept together: many PEs in step cost one look at the clock. `at_end_of_instant` comes last of all: host
programs go on there, so that no order among simultaneous events of the machine decides which of them is first.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from heapq import heappop, heappush
from typing import Any, TypeVar

import simpy
from simpy.events import NORMAL, Event, EventPriority, Timeout

from kernbench.common.declared_state import aside, set_aside
from kernbench.common.errors import KernBenchError
from kernbench.common.units import GRID_NS, on_grid
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.fabric import Fabric
from kernbench.sim_engine.fabric.rewind import RewoundFabric, rewound
from kernbench.sim_engine.fabric.routes import Route
from kernbench.sim_engine.fabric.transfers import Transfer

_BEFORE_PROCESSES = EventPriority(-1)  # SimPy priority of completions
_AFTER_PROCESSES = EventPriority(NORMAL + 1)  # and of what comes when all else of an instant has happened

NEVER = -1.0
_simpy_step = simpy.Environment.step

T = TypeVar("T")
SimProcess = Generator[Event, Any, Any]


class TransferEnd(Event):
    """The end of a transfer."""

    def complete(self, transfer: Transfer) -> None:
        """Happens when the transfer is done, which is its value."""
        self._ok, self._value, env = True, transfer, self.env
        transfer.on_done = None  # it refers to this event: no cycle is left for the garbage collector
        heappush(env._queue, (transfer.done_ns, _BEFORE_PROCESSES, next(env._eid), self))


class FabricEnvironment(simpy.Environment):
    """A SimPy environment whose `transfer` moves bytes through `fabric`."""

    SET_ASIDE = (
        aside("_queue", lambda clock: [], lambda clock, left: clock.return_events(left)),
        aside("_calls", lambda clock: {}, lambda clock, left: clock.return_calls(left)),
        aside("_call_times", lambda clock: []),
        *map(aside, ("now", "_now", "_active_proc", "_is_before_calls", "_follows_calls")),
        *(aside(name, lambda clock: NEVER) for name in ("ends_at", "calls_at", "processes_at", "ended_at")),
    )
    DERIVED = ("_eid", "fabric")  # numbers of events only grow

    fabric: Fabric
    now: float = 0.0  # SimPy's property as an attribute: it is read several times per event

    def __init__(self, fabric: Fabric | None = None) -> None:
        super().__init__(initial_time=0.0)
        self._calls: dict[float, list[tuple[Callable[[Any], object], Any]]] = {}  # by time
        self._call_times: list[float] = []  # a heap
        # The last instants at which ends were reported, calls were made, and a process resumed
        self.ends_at = self.calls_at = self.processes_at = NEVER
        self._is_before_calls = False  # whether that process resumed before the calls of its instant,
        self._follows_calls = False  # and after earlier calls of that instant, one of which started it
        self.ended_at = NEVER  # the last instant at which `at_end_of_instant` was reached
        if fabric is not None:
            self.fabric = fabric

    def event(self) -> Event:
        return Event(self)  # SimPy makes a bound method first, at each call

    def timeout(self, delay: float = 0, value: Any = None) -> Timeout:
        """SimPy's time-out, rounded to the grid: the clock never stands between two grid times."""
        return Timeout(self, on_grid(delay), value)

    def transfer(self, path: Sequence[Hashable] | Route, nbytes: int, **options: Any) -> Event:
        """Inject now; the event's value is the finished `Transfer`. Options are those of `Fabric.inject`."""
        event = TransferEnd(self)
        self.fabric.inject(path, nbytes, self._now, on_done=event.complete, **options)
        return event

    def multicast(self, paths: Sequence[Sequence[Hashable]], nbytes: int, **options: Any) -> Event:
        """Multicast now; the event comes when the last destination has all bytes. Its value is that `Transfer`."""
        event, left = TransferEnd(self), len(paths)

        def arrived(transfer: Transfer) -> None:
            nonlocal left
            left -= 1
            if not left:
                event.complete(transfer)

        self.fabric.multicast(paths, nbytes, self._now, on_done=arrived, **options)
        return event

    def at(self, at_ns: float, action: Callable[[T], object], subject: T) -> None:
        """Have `action` called with `subject` at a time of now or later."""
        calls = self._calls.get(at_ns)
        if calls is None:
            self._calls[at_ns] = [(action, subject)]
            heappush(self._call_times, at_ns)
        else:
            calls.append((action, subject))

    def at_end_of_instant(self, action: Callable[[Event], None]) -> None:
        """Have `action` called now, when all that happens at this instant without it has happened."""
        event = Event(self)
        event._ok, event._value, event.callbacks = True, None, [action]
        heappush(self._queue, (self._now, _AFTER_PROCESSES, next(self._eid), event))

    def begin_at(self, now: float) -> None:
        """Set the clock, before anything has happened."""
        self.now = self._now = self.fabric.engine.now = now

    def run_calls(self, until: float) -> None:
        """Simulate everything up to `until`, including that instant."""
        while self.peek() <= until:
            if until not in self._calls:
                self.at(until, _stop, None)  # so that the fabric goes no further
            self.step()

    def run_transfers(self, until: float) -> None:
        """Simulate the fabric up to `until`, and nothing else."""
        engine = self.fabric.engine
        while engine.next_time() <= until:
            finished = engine.advance(until)
            for transfer in finished:
                self.now = self._now = transfer.done_ns
                if transfer.on_done is not None:
                    transfer.on_done(transfer)

    def calls(self) -> list[tuple[float, Callable[[Any], object], Any]]:
        """All calls that were asked for, in order."""
        return [(time, *call) for time in sorted(self._calls) for call in self._calls[time] if call[0] is not _stop]

    # ---- rewind

    def rewind(self, begin_ns: float, start: Callable[[], object], *, is_call: bool = True) -> None:
        """Call `start` as it would have been called at `begin_ns`, among the calls of that instant, and simulate what
        follows from it, up to now. Then the simulation continues as if it had been called in time.

        What `start` uses must have been idle since `begin_ns`, and held by a reservation that has just ended, so that
        nothing else was affected. May be called during any event, and between steps. Of what is due at this very
        instant, that is simulated which precedes the current event: transfers with a lower sequence number than the
        one that interrupts; all of the fabric's events, while calls are being made; calls as well, while processes
        resume; everything, once the end of the instant is reached.
        """
        now = self.fabric.engine.now
        if is_call and begin_ns >= now != self.ended_at:
            self.at(begin_ns, _begin, start)
            self.fabric.engine.look_again()
            return
        catch_up = self._catch_up_rule(now)
        with set_aside(self), rewound(self.fabric.engine) as fabric:
            self.begin_at(begin_ns)
            self.calls_at = begin_ns
            start()
            self.run_calls(now - GRID_NS)
            catch_up(now, fabric)

    def return_events(self, left: list[Any]) -> None:
        """Schedule SimPy events that are left at the end of a rewind."""
        for event in left:
            heappush(self._queue, event)

    def return_calls(self, left: dict[float, list[tuple[Callable[[Any], object], Any]]]) -> None:
        """Schedule calls that were asked for in a rewind and are yet to be made."""
        for at_ns in sorted(left):
            for action, subject in left[at_ns]:
                if action is not _stop:
                    self.at(at_ns, action, subject)

    def _catch_up_rule(self, now: float) -> Callable[[float, RewoundFabric], None]:
        """The function that simulates, of a rewind's events at `now`, those that precede the current event."""
        if self.ended_at == now:
            return lambda now, _: self.run_calls(now)
        if self.processes_at == now and not self._is_before_calls:
            return self._run_before_processes
        if self.processes_at == now and self._follows_calls:
            return self._run_first_calls
        if self.calls_at == now:
            return self._run_before_calls
        interfering_order = self.fabric.engine.reservations.interfering_order
        if interfering_order == INFINITY or now in (self.ends_at, self.processes_at):
            return lambda now, _: self.run_transfers(now)
        return lambda now, fabric: fabric.catch_up(now, interfering_order)

    def _run_before_calls(self, now: float, _: RewoundFabric) -> None:
        """What the fabric does at `now`, and the processes that resume before calls are made."""
        queue = self._queue
        self.run_transfers(now)
        while queue and queue[0][:2] < (now, NORMAL):
            self.step()
            self.run_transfers(now)

    def _run_first_calls(self, now: float, fabric: RewoundFabric) -> None:
        """The same, and the calls that are made together: one of these has started the process that resumes now."""
        self._run_before_calls(now, fabric)
        if self._call_times and self._call_times[0] == now:
            self.step()

    def _run_before_processes(self, now: float, fabric: RewoundFabric) -> None:
        """All that happens at `now` but processes."""
        self._run_before_calls(now, fabric)
        while self._call_times and self._call_times[0] == now:
            self.step()
            self._run_before_calls(now, fabric)

    def step(self) -> None:
        """Simulate the next SimPy event, or all calls of the next instant, after what the fabric does before it.

        Raises EmptySchedule when nothing is left.
        """
        queue, times, fabric = self._queue, self._call_times, self.fabric.engine
        agenda = fabric.agenda
        while True:
            # `_horizon` and `next_time`, written out: this is done for every event of a run.
            horizon = queue[0][0] if queue else INFINITY
            if times and times[0] < horizon:
                horizon = times[0]
            if (not (agenda.current or agenda.load()) or agenda.current[0][0] > horizon) and (
                fabric.loop is None or fabric.loop.next_ns > horizon
            ):
                break
            finished = fabric.advance(horizon)
            if fabric.has_new_calls:  # there are new calls: look again what comes first
                fabric.has_new_calls = False
            elif not finished:
                break
            if not finished:
                continue
            self.now = self._now = self.ends_at = finished[0].done_ns
            for transfer in finished:
                if transfer.on_done is not None:
                    transfer.on_done(transfer)
        if fabric.now < horizon < INFINITY:
            fabric.now = horizon
        if times and times[0] == horizon and not (queue and queue[0][0] == horizon and queue[0][1] < NORMAL):
            self.now = self._now = self.calls_at = heappop(times)
            self._follows_calls = False
            for action, subject in self._calls.pop(horizon):
                action(subject)
            return
        if horizon < INFINITY:
            self.now = self.processes_at = horizon
            self._is_before_calls = queue[0][1] < NORMAL
            self._follows_calls = self.calls_at == horizon
            if queue[0][1] > NORMAL:
                self.ended_at = horizon
        try:
            _simpy_step(self)
        except KernBenchError as copy:
            # SimPy raises a copy of what a process raised, made from its args alone: where and hint would be lost.
            raise copy.__cause__ if type(copy.__cause__) is type(copy) else copy from None

    def peek(self) -> float:
        return min(self._horizon(), self.fabric.next_time())

    def _horizon(self) -> float:
        """When the next SimPy event or call comes."""
        queue, times = self._queue, self._call_times
        horizon = queue[0][0] if queue else INFINITY
        return times[0] if times and times[0] < horizon else horizon


def _begin(start: Callable[[], object]) -> None:
    start()


def _stop(_: object) -> None:
    """A call that does nothing: the fabric runs no further than its time."""
