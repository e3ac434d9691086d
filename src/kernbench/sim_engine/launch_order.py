"""The happens-before order between host programs, their requests, and the kernels of launches.

- What a host program did before it submitted a launch happens before the launch's kernels: requests that it waited for,
  and launches that it waited for.
- What a launch's kernels did happens before what a host program does after it has waited for the launch.
- Programs of one grid that a kernel runs (`next_program`) are in no order with each other, also on one PE.
- A PE serves the launches of a stream one after the other, so a kernel happens after the previous one of its stream on
  its PE. Launches that were not waited for order no kernels of the other stream or of other PEs.
- Programs that a host program starts (`ranks.run`) happen after what it did before, and before what it does when they
  are over. What a program did before it triggers an event (`ranks.event`) happens before what another program does
  after waiting for that event. Data that ranks pass in any other way, such as through a Python list, orders nothing.

Clocks of launches are kept within a memory limit (`MOST_BYTES`), the oldest are dropped first. A dropped clock is
replaced by the join of all dropped clocks: this may assume an order that does not exist, but never misses one, so no
false race is reported.

Requests of one host program are assumed to reach a memory in the order of submission. Not checked: DMA requests that
the host submits for PEs and cubes, which belong to no kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from types import FrameType
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

import simpy
from greenlet import getcurrent, greenlet

from kernbench.common.ids import PeKey
from kernbench.common.messages import (
    HostMessage,
    KernelAbortMsg,
    KernelLaunchMsg,
    LaunchStream,
    MemoryReadMsg,
    MemoryWriteMsg,
    RequestId,
)
from kernbench.common.race import AccessKind, Epoch, RacingAccess
from kernbench.sim_engine.bounded_dict import BoundedDict
from kernbench.sim_engine.races import RaceDetector, Task
from kernbench.sim_engine.vector_clock import VectorClock

MOST_BYTES = 1 << 26  # of clocks of one kind
CLOCK_BYTES, ENTRY_BYTES = 512, 100  # of memory: a clock, and each of its entries
K = TypeVar("K", bound=Hashable)
_OURS = ("kernbench.sim_engine", "kernbench.runtime_api")


class LaunchOrder:
    """Feeds the race detector with the accesses, releases and acquires of a machine and its host programs."""

    def __init__(self) -> None:
        self.detector = RaceDetector()
        self._hosts: WeakKeyDictionary[greenlet, Task] = WeakKeyDictionary()
        self._starts = _Clocks[RequestId]()  # acquired by the kernels of a launch when they begin
        self._ends = _Clocks[RequestId]()  # released by the kernels of a launch that have ended
        self._answered = _Clocks[int]()  # by number of a finished launch or abort: released by its answer
        self._writes: dict[int, tuple[RacingAccess, Epoch]] = {}  # by number of a request under way to memory
        self._events: WeakKeyDictionary[simpy.Event, VectorClock] = WeakKeyDictionary()
        self._last_on: dict[tuple[PeKey, LaunchStream], list[Task]] = {}  # one for each program of a grid

    @property
    def compared(self) -> int:
        """How many accesses there were."""
        return self.detector.compared

    # ---- kernels

    def begin(self, pe: PeKey, launch: RequestId, stream: LaunchStream) -> LaunchedKernel:
        """A kernel of a launch begins on a PE."""
        clock = self._starts.of(launch).copy()
        before = self._last_on.setdefault((pe, stream), [])
        if before and not clock.knows(before[0].timeline, before[0].number):
            clock.join(before[0].clock)
        return LaunchedKernel(self.detector, clock, before, self._ends, launch)

    # ---- host programs

    def submitted(self, number: int, message: HostMessage, now_ns: float) -> None:
        """A host program submits a request."""
        host = self._host(getcurrent())
        if isinstance(message, KernelLaunchMsg):
            known = host.release().flat()
            self._starts.keep(message.id, known)
            self._ends.keep(message.id, known.copy())
        elif isinstance(message, MemoryWriteMsg):
            self._access(number, host, "write", message.dst_pa, message.nbytes, message.debug_label, now_ns)
        elif isinstance(message, MemoryReadMsg):
            self._access(number, host, "read", message.src_pa, message.nbytes, message.debug_label, now_ns)

    def done(self, number: int, message: HostMessage, now_ns: float) -> None:
        """A request is answered."""
        if isinstance(message, KernelLaunchMsg | KernelAbortMsg):
            launch = message.launch_id if isinstance(message, KernelAbortMsg) else message.id
            ended = self._ends.of(launch)
            self._ends.keep(launch, ended)  # which has grown since it began
            self._answered.keep(number, ended.copy())
        elif number in self._writes:
            self._writes[number][0].end_ns = now_ns

    def waited(self, number: int) -> None:
        """A host program has waited for a request: it acquires what the request released."""
        host = self._host(getcurrent())
        if number in self._writes:
            host.merge(self._writes.pop(number)[1])
        else:
            host.acquire(self._answered.of(number))

    def host_read(self, address: int, nbytes: int, tensor: str, now_ns: float) -> None:
        """A host program reads memory contents directly, in zero time."""
        access = _host_access("read", tensor, now_ns)
        access.end_ns = now_ns
        self._host(getcurrent()).touch(access, ((address, nbytes),))

    def forked(self, programs: list[greenlet]) -> None:
        """A host program starts others."""
        released = self._host(getcurrent()).release()
        for program in programs:
            self._hosts[program] = self.detector.new_task(released)

    def joined(self, programs: list[greenlet]) -> None:
        """Programs are over: the one that started them acquires what they did."""
        host = self._host(getcurrent())
        for program in programs:
            host.acquire(self._host(program).release())

    def release_to(self, event: simpy.Event) -> None:
        """A host program triggers an event."""
        self._events[event] = self._host(getcurrent()).release()

    def acquire_from(self, events: Sequence[simpy.Event]) -> None:
        """A host program has waited for events."""
        for event in events:
            if event in self._events:
                self._host(getcurrent()).acquire(self._events[event])

    def _host(self, program: greenlet) -> Task:
        task = self._hosts.get(program)
        if task is None:
            task = self._hosts[program] = self.detector.new_task()
        return task

    def _access(
        self, number: int, host: Task, kind: AccessKind, address: int, nbytes: int, tensor: str | None, now_ns: float
    ) -> None:
        access, branch = _host_access(kind, tensor, now_ns), host.branch()
        self._writes[number] = (access, branch)
        host.touch(access, ((address, nbytes),), branch)


class _Clocks(Generic[K]):
    """Clocks by key, within `MOST_BYTES`."""

    def __init__(self) -> None:
        self._kept: BoundedDict[K, VectorClock] = BoundedDict(MOST_BYTES)
        self._dropped = VectorClock({})  # the join of all dropped clocks

    def keep(self, key: K, clock: VectorClock) -> None:
        for dropped in self._kept.put(key, clock, CLOCK_BYTES + ENTRY_BYTES * (len(clock.base) + len(clock.own))):
            self._dropped.join(dropped)

    def of(self, key: K) -> VectorClock:
        found = self._kept.get(key)
        return self._dropped if found is None else found


class LaunchedKernel:
    """A kernel of a launch on a PE; implements `components.race_watch.KernelTask`."""

    __slots__ = (
        "_detector", "_ends", "_launch", "_on_pe", "_start", "_tasks", "acquire", "branch", "merge", "release", "touch",
    )  # fmt: skip

    def __init__(
        self,
        detector: RaceDetector,
        start: VectorClock,
        on_pe: list[Task],
        ends: _Clocks[RequestId],
        launch: RequestId,
    ) -> None:
        self._detector, self._start, self._on_pe = detector, start, on_pe
        self._ends, self._launch = ends, launch
        self._tasks: list[Task] = []  # the first is the kernel's own
        task = self.next_program()
        self.touch, self.branch, self.merge = task.touch, task.branch, task.merge
        self.release, self.acquire = task.release, task.acquire

    def next_program(self) -> Task:
        """A task that begins with what the kernel knew at its start, and continues a timeline of the launch before."""
        at = len(self._tasks)
        if at < len(self._on_pe):
            before = self._on_pe[at]
            task = self._detector.new_task(self._start, timeline=before.timeline, number=before.number + 1)
            self._on_pe[at] = task
        else:
            task = self._detector.new_task(self._start)
            self._on_pe.append(task)
        self._tasks.append(task)
        return task

    def end(self) -> None:
        first, *others = self._tasks
        for task in (first, *others):
            task.end()
        for task in others:
            first.acquire(task.clock)
        self._ends.of(self._launch).join(first.clock)


def _host_access(kind: AccessKind, tensor: str | None, now_ns: float) -> RacingAccess:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_OURS):
        frame = frame.f_back
    file, line = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<host>", 0)
    return RacingAccess(kind, f"host {kind}", None, "", tensor, file, line, now_ns)
