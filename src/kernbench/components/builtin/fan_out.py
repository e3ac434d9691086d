"""Fan-out of a command from IO_CPU over M_CPUs to PEs, collection of the answers, and the latency to the last PE.

A processor sends a command to every target at once, as control messages that never queue, and answers when all targets
have answered. A fail-fast launch is answered with the first failure; targets that have not answered by then are sent an
abort, and their answers are dropped. Messages travel exactly the paths that `dispatch_ns` adds up, so no PE receives a
launch later than the start that was computed for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import simpy

from kernbench.common.declared_state import Derived, State, part
from kernbench.common.messages import CubeCommand, KernelAbortMsg, KernelLaunchMsg, PeResult
from kernbench.components.base import ActiveComponent, Context, Packet, Process
from kernbench.components.builtin.barriers import Barriers
from kernbench.topology.graph import Node

OnFailure = Callable[[Sequence[int]], None]


def cube_dispatch_ns(ctx: Context, m_cpu: str, cube: int, command: CubeCommand) -> float:
    """From the instant at which `m_cpu` forwards a launch until the last of its cube's PEs has it."""
    longest = 0.0
    for pe in command.pes(ctx.graph.spec.cube.n_pes):
        pe_cpu = ctx.resolver.find_pe_part(command.sip, cube, pe, "pe_cpu")
        longest = max(longest, ctx.latency_ns(ctx.router.find_node_path(m_cpu, pe_cpu)))
    return longest


def dispatch_ns(ctx: Context, io_cpu: str, command: CubeCommand) -> float:
    """From the instant at which `io_cpu` forwards a launch until the last of its PEs has it."""
    longest = 0.0
    for cube in command.cubes(ctx.graph.spec.sip.n_cubes):
        m_cpu = ctx.resolver.find_m_cpu(command.sip, cube)
        to_cube = ctx.latency_ns(ctx.router.find_node_path(io_cpu, m_cpu))
        longest = max(longest, to_cube + cube_dispatch_ns(ctx, m_cpu, cube, command))
    return longest


class CommandProcessor(ActiveComponent):
    """What IO_CPU and M_CPU have in common."""

    STATE: ClassVar[State] = (part("barriers"),)
    DERIVED: ClassVar[Derived] = ("_paths",)

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._paths: dict[str, tuple[str, ...]] = {}  # to targets; routes do not change
        self.barriers = Barriers(self, self._path_to)

    def fan_out(self, packet: Packet, command: CubeCommand, targets: Sequence[str]) -> None:
        """Send a command to all targets; `packet` is answered with their answers, in the order of targets."""
        on_failure: OnFailure | None = None
        if isinstance(command, KernelLaunchMsg) and command.failure_policy == "fail_fast":
            on_failure = partial(self._abort, command, targets)
        answers = _Answers(self, packet, len(targets), on_failure)
        for index, node in enumerate(targets):
            self.ctx.send(Packet(command, self._path_to(node), answer=partial(answers.take, index), trace=packet.trace))

    def stop(self, packet: Packet) -> Process | None:
        return self.accept(packet)  # an abort is fanned out as the launch was

    def answer_after(self, packet: Packet, parts: Sequence[simpy.Event]) -> None:
        """Answer `packet` once every event has happened."""
        answers = _Answers(self, packet, len(parts))
        for index, event in enumerate(parts):
            assert event.callbacks is not None
            event.callbacks.append(partial(answers.take, index))

    def _abort(self, launch: KernelLaunchMsg, targets: Sequence[str], still: Sequence[int]) -> None:
        """A PE of the launch has failed: abort it at the targets that have not answered."""
        abort = KernelAbortMsg(
            correlation_id=launch.correlation_id,
            target_device=launch.target_device,
            sip=launch.sip,
            target_cubes=launch.target_cubes,
            target_pes=launch.target_pes,
            launch_id=launch.id,
        )
        for index in still:
            self.ctx.send(Packet(abort, self._path_to(targets[index]), answer=_ignore_answer))

    def _path_to(self, node: str) -> tuple[str, ...]:
        path = self._paths.get(node)
        if path is None:
            path = self._paths[node] = tuple(self.ctx.router.find_node_path(self.node.id, node))
        return path


def _ignore_answer(_: Packet) -> None:
    """The answer to an abort is not waited for."""


class _Answers:
    """Answers under way to one processor. `on_failure` gets the targets that have not answered at the first failure."""

    def __init__(
        self,
        processor: CommandProcessor,
        packet: Packet,
        expected: int,
        on_failure: OnFailure | None = None,
    ) -> None:
        self._on_failure = on_failure
        self._processor = processor
        self._packet = packet
        self._missing = expected
        self._results: list[tuple[PeResult, ...] | None] = [None] * expected  # of each target

    def take(self, index: int, answer: Packet | simpy.Event) -> None:
        """A target has answered, or a part of the work is done."""
        if not self._missing:
            return
        results = self._results[index] = _results_in(answer.payload) if isinstance(answer, Packet) else ()
        self._missing -= 1
        if self._on_failure is not None:
            for result in results:
                if result.error is not None:
                    self._missing = 0
                    self._on_failure([missing for missing, answered in enumerate(self._results) if answered is None])
                    break
        if not self._missing:
            together = tuple([result for part in self._results for result in part or ()])
            self._processor.reply(self._packet, payload=together)


def _results_in(payload: object) -> tuple[PeResult, ...]:
    """What a PE answers, or what an M_CPU has collected."""
    if isinstance(payload, PeResult):
        return (payload,)
    if isinstance(payload, tuple):
        return tuple([item for item in payload if isinstance(item, PeResult)])
    return ()
