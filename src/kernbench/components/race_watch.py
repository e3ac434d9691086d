"""A PE's reports of its kernels' memory accesses to the race detector.

Each command names the bytes that it reads and writes; here it becomes accesses, at the kernel's line. A load or a store
that the kernel waits for belongs to the kernel's own timeline. One that it does not wait for, and the output of a
composite, is a branch until `tl.wait`, or until a command waits for it because it touches the same bytes. The inputs of
a composite are read when it is called, as its values are; its reads of TCM are private to its PE.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import simpy

from kernbench.common.commands import (
    AtomicCmd,
    BarrierCmd,
    Command,
    CompositeCmd,
    DmaReadCmd,
    DmaWriteCmd,
    EngineCommand,
    Operand,
    RecvCmd,
    Segment,
    SendCmd,
    WaitCmd,
)
from kernbench.common.ids import PeKey
from kernbench.common.messages import LaunchStream, RequestId
from kernbench.common.race import AccessKind, Epoch, RacingAccess
from kernbench.triton_emu.call_site import kernel_place
from kernbench.triton_emu.kernel_env import TensorRange


class ProgramTask(Protocol):
    """What runs in order on a PE, as the race detector tracks it: a kernel, or one of the programs that it runs."""

    def touch(self, access: RacingAccess, segments: Sequence[Segment], branch: Epoch | None = None) -> None:
        """Memory is accessed now, or by a branch that begins now."""

    def branch(self) -> Epoch:
        """The kernel issues an asynchronous command."""

    def merge(self, branch: Epoch) -> None:
        """The kernel has waited for a branch."""

    def release(self) -> object:
        """What the kernel has done so far, to travel with a message."""

    def acquire(self, released: object) -> None:
        """The kernel has received a message: what its sender did before the release happens before what follows."""


class KernelTask(ProgramTask, Protocol):
    """One kernel on one PE."""

    def next_program(self) -> ProgramTask:
        """The kernel begins another program of a grid, which is in no order with the others."""

    def end(self) -> None:
        """The kernel is over, and all its commands are done."""


class Races(Protocol):
    """The race detector."""

    def begin(self, pe: PeKey, launch: RequestId, stream: LaunchStream) -> KernelTask:
        """A kernel of a launch begins on a PE, after those of its stream there."""


class KernelWatch:
    """Reports every command of one kernel. See `triton_emu.kernel_runner.CommandWatch`."""

    def __init__(
        self, task: KernelTask, clock: simpy.Environment, pe: PeKey, kernel: str, tensors: Sequence[TensorRange]
    ) -> None:
        self._kernel_task = task
        self._task: ProgramTask = task  # of the program that runs
        self._program: tuple[int, ...] | None = None
        self._clock = clock
        self._pe = pe
        self._kernel = kernel
        self._tensors = tensors
        self._asked: list[RacingAccess] = []  # by the command that the kernel is in
        self._issued: dict[int, list[RacingAccess]] = {}  # by number of a command under way
        self._branches: dict[int, tuple[ProgramTask, Epoch]] = {}  # of those that were not waited for, by number
        self._receives: dict[int, RecvCmd] = {}  # of those, by number

    def asked(self, cmd: Command) -> Command:
        if isinstance(cmd, AtomicCmd):
            return self._atomic(cmd)
        if isinstance(cmd, WaitCmd | RecvCmd):
            return cmd
        if isinstance(cmd, BarrierCmd):
            cmd.clocks.append(self._task.release())
            return cmd
        if isinstance(cmd, SendCmd):
            cmd.message.clock = self._task.release()
            return cmd
        self._asked = self._report(cmd, None)
        return cmd

    def answered(self, cmd: Command) -> None:
        if isinstance(cmd, WaitCmd):
            for number in cmd.numbers or tuple(self._branches):
                self.waited(number)
        if isinstance(cmd, RecvCmd):
            self._task.acquire(cmd.received[0].clock)
        if isinstance(cmd, BarrierCmd):
            for clock in cmd.clocks:
                self._task.acquire(clock)
        self._ended(self._asked)
        self._asked = []

    def issued(self, number: int, cmd: EngineCommand) -> None:
        if isinstance(cmd, SendCmd):
            cmd.message.clock = self._task.release()
        elif isinstance(cmd, RecvCmd):
            self._receives[number] = cmd
        branch = self._task.branch()
        self._branches[number] = self._task, branch
        self._issued[number] = self._report(cmd, branch)

    def finished(self, number: int) -> None:
        self._ended(self._issued.pop(number))

    def waited(self, number: int) -> None:
        if number in self._branches:
            task, branch = self._branches.pop(number)
            task.merge(branch)
        received = self._receives.pop(number, None)
        if received is not None and received.received:
            self._task.acquire(received.received[0].clock)

    def begin_program(self, program_id: tuple[int, ...]) -> None:
        if self._program is not None:
            self._task = self._kernel_task.next_program()
        self._program = program_id

    def end(self) -> None:
        """The kernel is over, and all its commands are done."""
        self._kernel_task.end()

    # ---- from commands to accesses

    def _report(self, cmd: Command, branch: Epoch | None) -> list[RacingAccess]:
        if isinstance(cmd, DmaReadCmd):
            return [self._touch("read", "load", cmd.source, _segments(cmd), branch)]
        if isinstance(cmd, DmaWriteCmd):
            op = "multicast" if cmd.copies else "store"
            return [self._touch("write", op, cmd.target, _segments(cmd), branch)]
        if not isinstance(cmd, CompositeCmd):
            return []
        inputs = [*cmd.inputs, *(step.operand for step in cmd.epilogues if step.operand is not None)]
        found = [self._touch("read", "composite", x, x.segments, None) for x in inputs if x.segments]
        if cmd.out.segments:
            found.append(self._touch("write", "composite", cmd.out, cmd.out.segments, branch))
        return found

    def _atomic(self, cmd: AtomicCmd) -> AtomicCmd:
        """An atomic touches memory when it is there, one request after the other."""
        access = self._access("atomic", f"atomic_{cmd.op}", cmd.target)
        self._asked = [access]

        task = self._task

        def apply(number: int) -> object:
            task.touch(access, cmd.requests[number])
            return cmd.apply(number)

        return cmd._replace(apply=apply)

    def _touch(
        self, kind: AccessKind, op: str, operand: Operand, segments: Sequence[Segment], branch: Epoch | None
    ) -> RacingAccess:
        access = self._access(kind, op, operand)
        self._task.touch(access, segments, branch)
        return access

    def _access(self, kind: AccessKind, op: str, operand: Operand) -> RacingAccess:
        at = operand.address
        tensor = next((tensor.name for tensor in self._tensors if tensor.start <= at < tensor.end), None)
        place, now_ns = kernel_place(), self._clock.now
        return RacingAccess(kind, op, self._pe, self._kernel, tensor, *place, now_ns, program=self._program)

    def _ended(self, accesses: Sequence[RacingAccess]) -> None:
        for access in accesses:
            access.end_ns = self._clock.now


def _segments(cmd: DmaReadCmd | DmaWriteCmd) -> tuple[Segment, ...]:
    copies = cmd.copies if isinstance(cmd, DmaWriteCmd) else ()
    return tuple(segment for request in (*cmd.requests, *copies) for segment in request)
