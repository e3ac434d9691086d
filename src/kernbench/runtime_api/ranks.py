"""Concurrent host programs on one clock: a greenlet for each rank, and only the main greenlet advances time.

A rank runs until it must wait for an event on the device. Then it yields, and the next rank runs at the same simulated
time; when no rank is ready, the main greenlet advances time until an event wakes one. So ranks submit requests as if
each had its own processor, and their requests contend. Ranks whose requests are answered at the same time resume in the
order of submission, after all other events of that time; ranks that start together run in order of their numbers.

If a rank raises, the ranks it was started with are ended, after the other events of that time: ranks that fail at the
same time are all reported. In a deadlock, the report has what each rank waits for.

`wait` works the same inside and outside of a rank. Collectives use two more functions: events that the host triggers
(`event`), and programs started from within a rank, in the foreground (`run`) or in the background (`start`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from weakref import WeakKeyDictionary, WeakSet

import simpy
from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.common.blocked import hint_for
from kernbench.common.errors import DeadlockError, UsageError
from kernbench.common.frozen import frozen
from kernbench.runtime_api.host_line import host_line, line_of_frame
from kernbench.runtime_api.rank_output import whole_lines
from kernbench.sim_engine.engine import GraphEngine
from kernbench.triton_emu.kernel_runner import KernelThread

Body = Callable[[], object]


@frozen
class RankOutcome:
    """What programs returned, by number, and what those that failed have raised, the first to fail first."""

    results: list[object]
    errors: dict[int, BaseException]


class Ranks:
    """The host programs of one engine."""

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._main: greenlet | None = None  # while ranks run
        self._ready: deque[greenlet] = deque()
        self._blocked: dict[
            greenlet, str | None
        ] = {}  # what each waits for, for the report; None: for programs it started
        self._names: WeakKeyDictionary[greenlet, str] = WeakKeyDictionary()
        self._ended: WeakSet[greenlet] = WeakSet()  # may clean up, but not wait
        self.unmatched: list[
            Callable[[], Sequence[str]]
        ] = []  # in a deadlock: collective calls that not all ranks made

    @property
    def in_rank(self) -> bool:
        """Whether the caller is a rank, which must not advance time itself."""
        return self._main is not None and getcurrent() is not self._main

    @property
    def running(self) -> int:
        """The number of programs, not counting those that wait for programs they started; without ranks, the main
        program counts as one.
        """
        waiting = sum(what is not None for what in self._blocked.values())
        return max(1, len(self._ready) + waiting)

    def event(self) -> simpy.Event:
        """A new event that the host triggers with `event.succeed()`."""
        return HostEvent(self._engine)

    def wait(self, events: Sequence[simpy.Event], what: str | None = "an event") -> None:
        """Return when all events have been processed; raises DeadlockError if some never will be. `what` describes the
        wait in the report; with None it is left out, because other programs are listed instead.
        """
        self._wait(events, what)
        if self._engine.races is not None:
            self._engine.races.acquire_from(events)

    def _wait(self, events: Sequence[simpy.Event], what: str | None) -> None:
        missing = [event for event in events if not event.processed]
        if not missing:
            return
        _refuse_kernels(what or "others")
        if self.in_rank:
            self._yield_for(missing, what)
        else:
            for event in missing:
                if not self._engine.run_until_done(event):
                    raise self._deadlock([_at(what, host_line())] if what is not None else [])

    def run(self, bodies: Sequence[Body], names: Sequence[str] = ()) -> list[object]:
        """Run programs concurrently and return what they return. The first that raises ends all of them."""
        outcome = self.run_all(bodies, names)
        for error in outcome.errors.values():
            raise error
        return outcome.results

    def run_all(self, bodies: Sequence[Body], names: Sequence[str] = ()) -> RankOutcome:
        """As `run`, but returns the errors of the programs that failed. `names` are for deadlock reports."""
        _refuse_kernels("programs to end")
        group = _Programs(bodies, self.event())
        try:
            with whole_lines() if len(bodies) > 1 else nullcontext():
                if self.in_rank:
                    self._start(group, names)
                    self._yield_for([group.over], None)
                else:
                    self._run_from_main(group, names)
        finally:  # also if the calling program is ended
            group.is_ended = True
            for other in group.members:
                self._kill(other)
        if self._engine.races is not None:
            self._engine.races.joined(group.members)
        return RankOutcome(group.results, group.errors)

    def start(self, body: Body, name: str) -> Background:
        """Run a program in the background of the calling rank."""
        assert self.in_rank, "only a rank has background programs"
        group = _Programs([body], self.event())
        self._start(group, [name])
        return Background(self, group)

    # ---- inside

    def _run_from_main(self, group: _Programs, names: Sequence[str]) -> None:
        main = self._main = getcurrent()
        assert group.over.callbacks is not None
        group.over.callbacks.append(lambda _: self._ready.append(main))  # it is scheduled like a rank
        try:
            self._start(group, names)
            while True:
                while self._ready:
                    following = self._ready.popleft()
                    if following is main:
                        return
                    following.switch()
                if not self._engine.run_until(self._ready):
                    raise self._deadlock(self._waiting())
        finally:
            group.is_ended = True
            for member in [*group.members, *self._ready, *self._blocked]:
                self._kill(member)
            self._ready.clear()
            self._blocked.clear()
            self._main = None

    def _start(self, group: _Programs, names: Sequence[str]) -> None:
        assert self._main is not None
        group.members = [greenlet(body, self._main) for body in group.programs()]
        self._names.update(zip(group.members, names, strict=False))
        if self._engine.races is not None:
            self._engine.races.forked(group.members)
        self._ready.extend(group.members)

    def _yield_for(self, events: Sequence[simpy.Event], what: str | None) -> None:
        me = getcurrent()
        if me in self._ended:
            raise GreenletExit
        pending = len(events)

        def processed(_: simpy.Event) -> None:
            nonlocal pending
            pending -= 1
            if not pending and me in self._blocked:
                del self._blocked[me]
                self._ready.append(me)

        for event in events:
            assert event.callbacks is not None
            event.callbacks.append(processed)
        self._blocked[me] = what
        assert self._main is not None
        self._main.switch()

    def _waiting(self) -> list[str]:
        """What each rank waits for and at which line, without ranks that wait for programs they started."""
        names: dict[str, list[str]] = {}
        for rank, what in self._blocked.items():
            if what is not None:
                names.setdefault(_at(what, line_of_frame(rank.gr_frame)), []).append(self._names.get(rank, ""))
        return [f"{', '.join(whose)}: {waits}" if any(whose) else waits for waits, whose in names.items()]

    def _deadlock(self, waiting: Sequence[str]) -> DeadlockError:
        listed = "; ".join(waiting) or "an unnamed event"
        blocked, unmatched = self._engine.blocked_kernels(), [text for ask in self.unmatched for text in ask()]
        return DeadlockError(
            "deadlock: nothing is left that could happen, and the host still waits",
            blocked,
            unmatched=unmatched,
            where=f"the host waits for: {listed}",
            hint=hint_for(blocked, unmatched) or "look for a component that takes a packet and never answers it",
        )

    def _kill(self, rank: greenlet) -> None:
        self._blocked.pop(rank, None)
        if not rank.dead and rank is not self._main:
            self._ended.add(rank)
            rank.parent = getcurrent()  # where control goes when it has ended
            rank.throw(GreenletExit)


def _at(what: str, line: str) -> str:
    return f"{what} at {line}" if line else what


def _refuse_kernels(what: str) -> None:
    if isinstance(getcurrent(), KernelThread):
        raise UsageError(
            f"a kernel calls the host, which waits for {what}",
            hint="use tl inside a kernel; make, read and launch outside of it",
        )


class HostEvent(simpy.Event):
    """An event that one host program triggers and others wait for."""

    def __init__(self, engine: GraphEngine) -> None:
        super().__init__(engine.env)
        self._races = engine.races

    def succeed(self, value: object = None) -> HostEvent:
        """Trigger the event. For race detection this is a release: waiting for the event acquires it."""
        if self._races is not None:
            self._races.release_to(self)
        super().succeed(value)
        return self


class _Programs:
    """Programs that run together. `over` is triggered when all are done or one has raised."""

    def __init__(self, bodies: Sequence[Body], over: simpy.Event) -> None:
        self._bodies = bodies
        self.over = over
        self.members: list[greenlet] = []
        self.results: list[object] = [None] * len(bodies)
        self.errors: dict[int, BaseException] = {}
        self.is_ended = False  # remaining programs are being ended, and errors they raise now are ignored
        self._left = len(bodies)
        if not bodies:
            over.succeed()

    def programs(self) -> list[Body]:
        return [self._program(number) for number in range(len(self._bodies))]

    def _program(self, number: int) -> Body:
        def run() -> None:
            try:
                self.results[number] = self._bodies[number]()
            except GreenletExit:
                raise
            except BaseException as error:
                if self.is_ended:
                    return
                self.errors[number] = error
            self._left -= 1
            if not self.over.triggered and (self.errors or not self._left):
                self.over.succeed()

        return run


class Background:
    """A program that runs in the background of a rank."""

    def __init__(self, ranks: Ranks, group: _Programs) -> None:
        self._ranks = ranks
        self._group = group

    @property
    def is_over(self) -> bool:
        return self._group.over.triggered

    @property
    def has_failed(self) -> bool:
        return bool(self._group.errors)

    def wait(self) -> None:
        """Return when it is over; raises what it raised."""
        self._ranks.wait([self._group.over], None)  # the report lists what the program itself waits for
        for error in self._group.errors.values():
            raise error
