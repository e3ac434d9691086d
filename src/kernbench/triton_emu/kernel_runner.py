"""Runs a kernel on the clock. The kernel is a plain function in a greenlet of its own; time passes in the SimPy
process of its PE.

When the kernel calls something that takes time, control goes to the process with a command, and returns when the
command is done. Asynchronous commands are submitted to the PE at once. A kernel is over when its function has returned
and all of its commands are done. An exception ends it where it was raised; commands in flight continue. A kernel that
is aborted is terminated at once, in whatever command it waits, and issues none after that, whatever it catches; engines
complete the commands that they have.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from inspect import isgenerator
from traceback import walk_tb
from types import FrameType
from typing import NamedTuple, Protocol, TypeVar, cast

import simpy
from greenlet import GreenletExit, getcurrent, greenlet

from kernbench.common.commands import (
    BarrierCmd,
    Command,
    CompositeCmd,
    CpuCmd,
    EngineCommand,
    RecvCmd,
    SendCmd,
    SimpleCmd,
    WaitCmd,
)
from kernbench.common.errors import KernBenchError, KernelError
from kernbench.triton_emu.call_site import kernel_line

MOST_THROWS = 16  # of GreenletExit into a kernel that catches it; then the kernel is left suspended

Records = tuple[int, ...]
RecordsCallback = Callable[[Records], object]  # its result is not used
KernelProcess = Generator[simpy.Event, object, None]


class KernelThread(greenlet):  # type: ignore[misc]  # greenlet has no types
    """What a kernel runs in. Only the PE lets time pass here: the host's calls would let it pass within an event."""


class PeServices(Protocol):
    """What a kernel needs of the PE that runs it."""

    @property
    def env(self) -> simpy.Environment:
        """The clock."""

    @property
    def cycle_ns(self) -> float:
        """How long one cycle of PE_CPU takes."""

    def submit(self, cmd: EngineCommand, done: RecordsCallback, after: int | None) -> None:
        """Give a command to PE_SCHEDULER; `done` is called when it is finished, with its op-log ids. `after` is the
        op that the kernel waited for last, if it waited for one yet.
        """


class CommandWatch(Protocol):
    """Observes every command of a kernel, in the kernel's own thread: its caller is the kernel's line."""

    def asked(self, cmd: Command) -> Command:
        """The kernel issues a command and waits for it; returns the command to execute, the same or a changed one."""

    def answered(self, cmd: Command) -> None:
        """A command that the kernel waits for is done."""

    def issued(self, number: int, cmd: EngineCommand) -> None:
        """The kernel issues an asynchronous command."""

    def finished(self, number: int) -> None:
        """An asynchronous command is done; the kernel may not have waited for it yet."""

    def waited(self, number: int) -> None:
        """The kernel has waited for an asynchronous command."""

    def begin_program(self, program_id: tuple[int, ...]) -> None:
        """The kernel, which runs several programs of a grid, begins one."""


AnyCommand = TypeVar("AnyCommand", bound=Command)


def _with_line(cmd: AnyCommand) -> AnyCommand:
    """The command with its line of the kernel; messages have it already."""
    if isinstance(cmd, CpuCmd | WaitCmd | SendCmd | RecvCmd | BarrierCmd):
        return cmd
    if isinstance(cmd, CompositeCmd):
        return replace(cmd, line=kernel_line())
    return cast(AnyCommand, cmd._replace(line=kernel_line()))


class CommandUnderWay(NamedTuple):
    """A command under way: the event of its end, and what is then to be done."""

    finished: simpy.Event
    cmd: EngineCommand
    done: RecordsCallback


def _outside() -> KernelError:
    what = "tl is used outside its kernel, or after its kernel has ended"
    return KernelError(what, hint="keep `tl` inside the kernel")


class KernelRunner:
    """Runs one kernel on one PE. `error` is what it raised, if it did. `watch` sees its commands. With `lines`,
    commands say which line of the kernel they come from.
    """

    def __init__(self, pe: PeServices, watch: CommandWatch | None = None, *, lines: bool = False) -> None:
        self._pe = pe
        self._lines = lines
        self._watch = watch
        self._env = pe.env
        self._under_way: dict[int, CommandUnderWay] = {}  # that the kernel does not wait for, by number
        self._failures: dict[int, KernBenchError] = {}  # that the kernel has yet to see, by number
        self._left_running: tuple[simpy.Event, Command] | None = None  # an engine's, in which the kernel was terminated
        self._count = 0
        self._last_op: int | None = None  # op-log id of what the kernel waited for last
        self._done: RecordsCallback | None = None  # of the command that the kernel is in
        self._thread: KernelThread | None = None
        self.command: Command | None = None  # that the kernel waits in, or that its end waits for
        self.error: BaseException | None = None
        self.stopped_at: FrameType | None = None  # where the user's interrupt found it, if it was running then
        self.is_aborted = False
        self._has_ended = False

    # ---- the kernel's side

    def call(self, cmd: Command, done: RecordsCallback | None = None) -> Records:
        """Let time pass until `cmd` is done; returns its op-log ids. Raises the PE's error if it refuses the command,
        and KernelError outside the kernel. `done` commits the effects of an engine's command; it is called even when
        the kernel is aborted meanwhile.
        """
        thread = self._thread
        if thread is None or getcurrent() is not thread:
            raise _outside()
        self._done = done
        if self._lines:
            cmd = _with_line(cmd)
        if self._watch is not None:
            cmd = self._watch.asked(cmd)
        reply = thread.parent.switch(cmd)
        if isinstance(reply, KernBenchError):
            raise reply
        assert isinstance(reply, tuple)
        if self._watch is not None:
            self._watch.answered(cmd)
        return reply

    def issue(self, cmd: EngineCommand, done: RecordsCallback, after: Sequence[int] = ()) -> int:
        """Issue a command and return its number at once; `done` is called when it is finished. Raises the PE's error if
        it refuses the command, and KernelError outside the kernel. An error of `done` is raised where the kernel waits
        for the command, see `take_failure`; without a wait, the kernel fails with it at its end. The PE gets the
        command, which goes to one engine then, when the commands numbered `after` are finished.
        """
        self.check_inside()
        if self.is_aborted:  # it is ending: `_terminate` counts how often it comes back here
            getcurrent().parent.switch()
            raise GreenletExit
        if self._lines:
            cmd = _with_line(cmd)
        number, watch = self._count, self._watch

        def finish(records: Records) -> None:
            # `done` holds blocks of TCM, so it must not live as long as the engines keep `finish`: when blocks are
            # free again would be for the garbage collector to say.
            issued = self._under_way[number]
            try:
                issued.done(records)
            except KernBenchError as error:  # the clock goes on: it is the kernel's failure
                self._failures[number] = error
            if watch is not None:
                watch.finished(number)
            del self._under_way[number]
            issued.finished.succeed(records)

        awaited = [self._under_way[before].finished for before in after if before in self._under_way]
        if awaited:
            self._submit_after(awaited, cast(SimpleCmd, cmd), finish)
        else:
            self._pe.submit(cmd, finish, self._last_op)
        if watch is not None:  # the PE has taken it, and time has yet to pass
            watch.issued(number, cmd)
        self._count += 1
        self._under_way[number] = CommandUnderWay(self._env.event(), cmd, done)
        return number

    def _submit_after(self, awaited: Sequence[simpy.Event], cmd: SimpleCmd, finish: RecordsCallback) -> None:
        """Give a command to the PE when these events have happened: the ends of commands that it depends on."""
        left = len(awaited)

        def one_ended(event: simpy.Event) -> None:
            nonlocal left
            left -= 1
            if left:
                return
            made_by = [record for each in awaited for record in cast(Records, each.value)]
            deps = tuple(dict.fromkeys((*cmd.deps, *made_by)))
            last = cast(Records, event.value)
            self._pe.submit(cmd._replace(deps=deps), finish, last[-1] if last else self._last_op)

        for event in awaited:
            assert event.callbacks is not None
            event.callbacks.append(one_ended)

    def check_inside(self) -> None:
        """Raise KernelError unless the kernel itself asks: elsewhere no process could wait for it."""
        if getcurrent() is not self._thread:
            raise _outside()

    def is_done(self, number: int) -> bool:
        return number not in self._under_way

    def note_waited(self, number: int) -> None:
        """The kernel knows that the command of this number is done."""
        if self._watch is not None:
            self._watch.waited(number)

    def begin_program(self, program_id: tuple[int, ...]) -> None:
        """The kernel begins the next program of a grid; those before it on this PE are in no order with it."""
        if self._watch is not None:
            self._watch.begin_program(program_id)

    def take_failure(self, number: int | None = None) -> KernBenchError | None:
        """What went wrong at the end of a command, or of the first that failed; the kernel is shown it once."""
        if number is None:
            number = min(self._failures, default=-1)
        return self._failures.pop(number, None)

    # ---- for reports

    @property
    def now_ns(self) -> float:
        return float(self._env.now)

    @property
    def under_way(self) -> dict[int, EngineCommand]:
        """The commands that the kernel has not waited for and that are not done, by number."""
        return {number: issued.cmd for number, issued in self._under_way.items()}

    @property
    def frame(self) -> FrameType | None:
        """Where the kernel waits; None when it has ended."""
        return self._thread.gr_frame if self._thread is not None else None

    # ---- the clock's side

    def run(self, kernel: Callable[[], object]) -> KernelProcess:
        """A SimPy process, to be driven with `yield from`: it is over when the kernel is."""

        def body(_: object) -> None:
            try:
                if isgenerator(kernel()):
                    raise KernelError("the kernel returned a generator, whose body is never run", hint="loop inside it")
            except (Exception, SystemExit) as error:  # a kernel that exits ends itself, not the simulation
                self.error = error
            except KeyboardInterrupt as stopped:  # ends the simulation; the report has this kernel's position
                self.stopped_at = [frame for frame, _ in walk_tb(stopped.__traceback__)][-1]
                raise

        thread = self._thread = KernelThread(body)
        reply: object = None
        while not self.is_aborted:
            driver = getcurrent()  # the greenlet that drives the clock now waits for the kernel
            if thread.parent is not driver:
                thread.parent = driver
            cmd = thread.switch(reply)
            if thread.dead:
                break
            self.command = cmd
            try:
                reply = yield from self._execute(cmd)
            except simpy.Interrupt:  # by an abort
                break
            except KernBenchError as error:
                reply = error
        self._has_ended = True
        self.command = None
        if self.is_aborted:
            self._terminate(thread)
        if self.error is None:
            yield from self.drain()
            if not self.is_aborted:
                self.error = self.take_failure()

    def abort(self) -> bool:
        """Let the kernel run no further command, if it has not ended; returns whether it waits in one, and is to be
        interrupted there (`simpy.Interrupt`).
        """
        if self._has_ended:
            return False
        self.is_aborted = True
        return self.command is not None

    def abandon(self) -> None:
        """Terminate the kernel when time no longer advances: one that waits for ever keeps itself, and the machine, in
        memory. Raises nothing: a kernel that catches all, or runs in another thread, is left suspended.
        """
        if self._thread is not None and not self._thread.dead:
            self.is_aborted = True
            with suppress(BaseException):  # whatever it raises as it ends
                self._terminate(self._thread)

    def drain(self) -> KernelProcess:
        """Wait for all commands that were submitted to engines."""
        if self._left_running is not None:
            finished, self.command = self._left_running
            if not finished.processed:
                yield finished
        if self._under_way:
            self.command = WaitCmd()
            yield from self._wait(self.command)
        self.command = None

    def _terminate(self, thread: KernelThread) -> None:
        """Terminate the kernel. What it raises meanwhile is not reported: the failure of another PE is."""
        thread.parent = getcurrent()
        for _ in range(MOST_THROWS):
            if thread.dead:
                break
            thread.throw(GreenletExit)
        self.error = None

    def _execute(self, cmd: Command) -> Generator[simpy.Event, object, Records]:
        if isinstance(cmd, CpuCmd):
            yield self._env.timeout(cmd.cycles * self._pe.cycle_ns)
            return ()
        if isinstance(cmd, WaitCmd):
            yield from self._wait(cmd)
            return ()
        finished, on_done = self._env.event(), self._done
        if on_done is not None:

            def note(_: simpy.Event) -> None:
                records = finished.value
                assert isinstance(records, tuple)
                on_done(records)

            assert finished.callbacks is not None
            finished.callbacks.append(note)  # before the kernel goes on
        self._pe.submit(cmd, finished.succeed, self._last_op)
        try:
            records = yield finished
        except simpy.Interrupt:
            self._left_running = finished, cmd
            raise
        assert isinstance(records, tuple)
        self._note(records)
        return records

    def _wait(self, cmd: WaitCmd) -> KernelProcess:
        for number in cmd.numbers or tuple(self._under_way):
            issued = self._under_way.get(number)
            if issued is not None:
                self._note((yield issued.finished))

    def _note(self, records: object) -> None:
        """Note the op that the kernel has waited for, or at whose end it resumes."""
        if isinstance(records, tuple) and records:
            self._last_op = records[-1]
