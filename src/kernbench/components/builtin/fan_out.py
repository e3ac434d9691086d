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
from kernbench.topology.graph import Node


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

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._ways: dict[str, tuple[str, ...]] = {}  # to targets; ways do not change

    def fan_out(self, packet: Packet, command: CubeCommand, targets: Sequence[str]) -> None:
        """Send a command to all targets; `packet` is answered with what they answer, in their order."""
        fail_fast = isinstance(command, KernelLaunchMsg) and command.failure_policy == "fail_fast"
        answers = _Gathering(self, packet, len(targets), fail_fast)
        for index, node in enumerate(targets):
            way = self._ways.get(node)
            if way is None:
                way = self._ways[node] = tuple(self.ctx.router.find_node_path(self.node.id, node))
            self.ctx.send(Packet(command, way, answer=partial(answers.take, index), legs=packet.legs))

    def answer_after(self, packet: Packet, parts: Sequence[simpy.Event]) -> None:
        """Answer `packet` once every event has happened."""
        answers = _Gathering(self, packet, len(parts), fail_fast=False)
        for index, event in enumerate(parts):
            assert event.callbacks is not None
            event.callbacks.append(partial(answers.take, index))


class _Gathering:
    """Answers under way to one processor."""

    def __init__(self, processor: CommandProcessor, packet: Packet, expected: int, fail_fast: bool) -> None:
        self._processor = processor
        self._packet = packet
        self._missing = expected
        self._fail_fast = fail_fast
        self._results: list[tuple[PeResult, ...]] = [()] * expected  # of each target

    def take(self, index: int, answer: Packet | simpy.Event) -> None:
        """A target has answered, or a part of the work is done."""
        if not self._missing:
            return
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
