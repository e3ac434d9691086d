"""Host programs side by side on one clock: a greenlet for each rank, and only the main greenlet lets time pass.

A rank runs until it must wait for something on the device. Then it gives way, and the next rank runs at the same
instant; when none can run, the main greenlet lets time pass until something happens that a rank waits for. So ranks
submit their requests as if each had a processor of its own, and what they submit contends. Ranks that become able to
run at one instant run in the order in which what they waited for happened, ranks that set out together in their own
order.

`wait` works the same in a rank and outside of any. What collectives need is here too: events that the host itself
makes (`event`), and programs started from within a rank (`run`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import simpy
from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.common.errors import DeadlockError, UsageError
from kernbench.sim_engine.engine import GraphEngine
from kernbench.triton_emu.kernel_runner import KernelThread

Body = Callable[[], object]


class Ranks:
    """The host programs of one engine."""

    def __init__(self, engine: GraphEngine) -> None:
        self._engine = engine
        self._main: greenlet | None = None  # while ranks run
        self._ready: deque[greenlet] = deque()
        self._blocked: dict[greenlet, str] = {}  # what each waits for, for the report when nothing happens any more

    @property
    def in_rank(self) -> bool:
        """Whether the caller is a rank, which may not let time pass itself."""
        return self._main is not None and getcurrent() is not self._main

    def event(self) -> simpy.Event:
        """Something that the host will make happen: `event.succeed()`."""
        return HostEvent(self._engine)

    def wait(self, events: Sequence[simpy.Event], what: str = "an event") -> None:
        """Return when all events have happened; raises DeadlockError when some never will."""
        self._wait(events, what)
        if self._engine.races is not None:
            self._engine.races.heard(events)

    def _wait(self, events: Sequence[simpy.Event], what: str) -> None:
        missing = [event for event in events if not event.processed]
        if not missing:
            return
        if isinstance(getcurrent(), KernelThread):
            raise UsageError(
                f"a kernel calls the host, which waits for {what}",
                hint="use tl inside a kernel; make, read and launch outside of it",
            )
        if self.in_rank:
            self._give_way(missing, what)
        else:
            for event in missing:
                if not self._engine.run_until_done(event):
                    raise self._deadlock([what])

    def run(self, bodies: Sequence[Body]) -> list[object]:
        """Run programs side by side and return what they return. The first that raises ends all of them."""
        group = _Group(bodies, self.event())
        if self.in_rank:
            self._start(group)
            self.wait([group.over], "the programs it started")
        else:
            self._run_from_main(group)
        for other in group.members:
            self._kill(other)
        if self._engine.races is not None:
            self._engine.races.joined(group.members)
        if group.error is not None:
            raise group.error
        return group.results

    # ---- inside

    def _run_from_main(self, group: _Group) -> None:
        self._main = getcurrent()
        try:
            self._start(group)
            while not group.over.triggered:
                while self._ready and not group.over.triggered:
                    self._ready.popleft().switch()
                if not group.over.triggered and not self._engine.run_until(self._ready):
                    raise self._deadlock(list(self._blocked.values()))
        finally:
            for left in [*self._ready, *self._blocked]:
                self._kill(left)
            self._ready.clear()
            self._blocked.clear()
            self._main = None

    def _start(self, group: _Group) -> None:
        assert self._main is not None
        group.members = [greenlet(body, self._main) for body in group.programs()]
        if self._engine.races is not None:
            self._engine.races.forked(group.members)
        self._ready.extend(group.members)

    def _give_way(self, events: Sequence[simpy.Event], what: str) -> None:
        me = getcurrent()
        left = len(events)

        def happened(_: simpy.Event) -> None:
            nonlocal left
            left -= 1
            if not left and self._blocked.pop(me, None) is not None:
                self._ready.append(me)

        for event in events:
            assert event.callbacks is not None
            event.callbacks.append(happened)
        self._blocked[me] = what
        assert self._main is not None
        self._main.switch()

    def _deadlock(self, waiting: Sequence[str]) -> DeadlockError:
        listed = "; ".join(waiting) or "nothing that is known"
        return DeadlockError(
            "deadlock: nothing is left that could happen, and the host still waits",
            self._engine.blocked_kernels(),
            where=f"the host waits for: {listed}",
            hint="look for a component that takes a packet and never answers it, or a kernel that waits for what "
            "nobody sends",
        )

    def _kill(self, rank: greenlet) -> None:
        self._blocked.pop(rank, None)
        if not rank.dead:
            rank.parent = getcurrent()  # where control goes when it has ended
            rank.throw(GreenletExit)


class HostEvent(simpy.Event):
    """What one host program makes happen and others wait for."""

    def __init__(self, engine: GraphEngine) -> None:
        super().__init__(engine.env)
        self._races = engine.races

    def succeed(self, value: object = None) -> HostEvent:
        """Make it happen: what the program did before is known to all who wait for it."""
        if self._races is not None:
            self._races.said(self)
        super().succeed(value)
        return self


class _Group:
    """Programs that run together. `over` is triggered when all are done or one has raised."""

    def __init__(self, bodies: Sequence[Body], over: simpy.Event) -> None:
        self._bodies = bodies
        self.over = over
        self.members: list[greenlet] = []
        self.results: list[object] = [None] * len(bodies)
        self.error: BaseException | None = None
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
                self.error = self.error or error
            self._left -= 1
            if not self.over.triggered and (self.error is not None or not self._left):
                self.over.succeed()

        return run
