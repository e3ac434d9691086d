"""How a command spreads from IO_CPU over M_CPUs to PEs, how answers come together, and when the last PE has it.

A processor sends a command to every target at once, as control messages that never queue, and answers when all targets
have; a launch that is to fail fast is answered with the first failure, and later answers are dropped. The way down
consists of exactly the legs that `dispatch_ns` adds up, so no PE is told later than the start it computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import simpy

from kernbench.common.messages import CubeCommand, KernelLaunchMsg, PeResult
from kernbench.components.base import ActiveComponent, Context, Packet


def cube_dispatch_ns(ctx: Context, m_cpu: str, cube: int, command: CubeCommand) -> float:
    """From the instant at which `m_cpu` sends a launch on until the last of its cube's PEs has it."""
    longest = 0.0
    for pe in command.pes(ctx.graph.spec.cube.n_pes):
        pe_cpu = ctx.resolver.find_pe_part(command.sip, cube, pe, "pe_cpu")
        longest = max(longest, ctx.latency_ns(ctx.router.find_node_path(m_cpu, pe_cpu)))
    return longest


def dispatch_ns(ctx: Context, io_cpu: str, command: CubeCommand) -> float:
    """From the instant at which `io_cpu` sends a launch on until the last of its PEs has it."""
    longest = 0.0
    for cube in command.cubes(ctx.graph.spec.sip.n_cubes):
        m_cpu = ctx.resolver.find_m_cpu(command.sip, cube)
        to_cube = ctx.latency_ns(ctx.router.find_node_path(io_cpu, m_cpu))
        longest = max(longest, to_cube + cube_dispatch_ns(ctx, m_cpu, cube, command))
    return longest


class CommandProcessor(ActiveComponent):
    """What IO_CPU and M_CPU have in common."""

    def fan_out(self, packet: Packet, command: CubeCommand, targets: Sequence[str]) -> None:
        """Send a command to all targets; `packet` is answered with what they answer, in their order."""
        find_path = self.ctx.router.find_node_path
        answers = [self.command(command, find_path(self.node.id, node), None, packet.legs) for node in targets]
        fail_fast = isinstance(command, KernelLaunchMsg) and command.failure_policy == "fail_fast"
        self.answer_after(packet, answers, fail_fast=fail_fast)

    def answer_after(self, packet: Packet, answers: Sequence[simpy.Event], *, fail_fast: bool = False) -> None:
        """Answer `packet` once every event has happened, or with the first failure among them."""
        _Gathering(self, packet, len(answers), fail_fast).watch(answers)


class _Gathering:
    """Answers under way to one processor."""

    def __init__(self, processor: CommandProcessor, packet: Packet, expected: int, fail_fast: bool) -> None:
        self._processor = processor
        self._packet = packet
        self._missing = expected
        self._fail_fast = fail_fast
        self._results: list[tuple[PeResult, ...]] = [()] * expected  # of each target

    def watch(self, answers: Sequence[simpy.Event]) -> None:
        for index, event in enumerate(answers):
            assert event.callbacks is not None
            event.callbacks.append(partial(self._take, index))

    def _take(self, index: int, event: simpy.Event) -> None:
        if not self._missing:
            return
        answer = event.value
        results = _results_in(answer.payload) if isinstance(answer, Packet) else ()
        self._results[index] = results
        self._missing -= 1
        if self._fail_fast and any(result.error is not None for result in results):
            self._missing = 0
        if not self._missing:
            together = tuple(result for part in self._results for result in part)
            self._processor.reply(self._packet, payload=together)


def _results_in(payload: object) -> tuple[PeResult, ...]:
    """What a PE answers, or what an M_CPU has put together."""
    if isinstance(payload, PeResult):
        return (payload,)
    if isinstance(payload, tuple):
        return tuple(item for item in payload if isinstance(item, PeResult))
    return ()
