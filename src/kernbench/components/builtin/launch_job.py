"""A PE's job of a launch, from its arrival to its end: the state that PE_CPU keeps, and the driver of its steps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import simpy

from kernbench.common.declared_state import incomparable
from kernbench.common.messages import KernelLaunchMsg, PeResult
from kernbench.components.base import Packet, Process
from kernbench.components.race_watch import KernelWatch
from kernbench.policy.address.allocator import TcmLease
from kernbench.triton_emu.kernel_env import KernelEnv
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.triton_emu.tl_context import TLContext

Answer = Callable[[PeResult], object]
MakeTl = Callable[[KernelEnv], TLContext]  # makes the `tl` of a kernel


class LaunchJob:
    """The part of a launch that one PE runs: queued, running, or over.

    It is driven as a SimPy process would be, without the two events that a process costs at its start and its end.
    """

    STATE = incomparable("_steps", "_waits_on", "is_aborted", "is_answered", "lease", "runner", "stops")
    DERIVED = ("answer", "launch", "make_tl", "tcm_peak_bytes", "watch")

    __slots__ = (
        "_steps", "_waits_on", "answer", "is_aborted", "is_answered", "launch", "lease", "make_tl", "runner", "stops",
        "tcm_peak_bytes", "watch",
    )  # fmt: skip

    def __init__(self, launch: KernelLaunchMsg, answer: Answer, make_tl: MakeTl = TLContext) -> None:
        self.answer = answer  # called with the result
        self.launch = launch
        self.make_tl = make_tl
        self._steps: Process | None = None
        self._waits_on: simpy.Event | None = None
        self.runner: KernelRunner | None = None  # once it runs
        self.watch: KernelWatch | None = None  # for the race detector
        self.is_aborted = False
        self.is_answered = False  # by a replay
        self.lease: TcmLease | None = None  # TCM that a replay has leased for it
        self.tcm_peak_bytes = 0
        self.stops: list[Packet] = []  # aborts to answer when it is over

    def begin(self, steps: Process) -> None:
        """Run its first step."""
        self._steps = steps
        try:
            first = next(steps)
        except StopIteration:
            return
        self._wait_for(first)

    def go_on(self, event: simpy.Event) -> None:
        """Run its next step: the event that it waits for has fired."""
        assert self._steps is not None
        try:
            following = self._steps.send(event.value)
        except StopIteration:
            return
        self._wait_for(following)

    def abort(self) -> None:
        """Abort it, unless its kernel has ended already: a kernel that waits in a command is interrupted there."""
        if self.runner is None:
            self.is_aborted = True
            return
        is_waiting = self.runner.abort()
        self.is_aborted = self.runner.is_aborted
        if is_waiting:
            assert self._steps is not None
            assert self._waits_on is not None
            assert self._waits_on.callbacks is not None
            self._waits_on.callbacks.remove(self.go_on)
            with suppress(StopIteration):
                self._wait_for(self._steps.throw(simpy.Interrupt("the launch is aborted")))

    def _wait_for(self, event: simpy.Event) -> None:
        self._waits_on = event
        assert event.callbacks is not None
        event.callbacks.append(self.go_on)
