"""IO_CPU: receives a host command, fans it out to the M_CPUs of its target cubes, answers once all have answered.

Commands are control messages, so that a fan-out to many cubes does not queue behind itself. A launch is stamped here
with the instant at which the last of its PEs has received it: all PEs start then, however far away they are. Memory
traffic does not pass through this block.
"""

from __future__ import annotations

from dataclasses import replace

from kernbench.common.errors import MessageError
from kernbench.common.messages import BarrierMsg, CubeCommand, KernelLaunchMsg, Targets
from kernbench.components.base import Context, Packet, Process
from kernbench.components.builtin.fan_out import CommandProcessor, dispatch_ns
from kernbench.topology.graph import Node


class IoCpuComponent(CommandProcessor):
    """The command processor of an IO chiplet."""

    DERIVED = ("_dispatch_ns",)

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._dispatch_ns: dict[tuple[Targets, Targets], float] = {}  # by target cubes and PEs: routes do not change

    def accept(self, packet: Packet) -> Process | None:
        command = packet.request
        if not isinstance(command, CubeCommand):
            return super().accept(packet)
        if isinstance(command, BarrierMsg):
            self._collect(packet, command)
            return None
        if isinstance(command, KernelLaunchMsg):
            command = self._stamped(command)
        cubes = command.cubes(self.ctx.graph.spec.sip.n_cubes)
        self.fan_out(packet, command, [self.ctx.resolver.find_m_cpu(command.sip, cube) for cube in cubes])
        return None

    def _collect(self, packet: Packet, barrier: BarrierMsg) -> None:
        """Count the arrival of a cube at a barrier; at the launch's first SIP, also those of the other SIPs."""
        first, *others = barrier.sips
        n_cubes = self.ctx.graph.spec.sip.n_cubes
        if self.node.place.sip != first:
            self.barriers.arrive(packet, len(barrier.cubes(n_cubes)), self.ctx.resolver.find_io_cpu(first))
        else:
            cubes = n_cubes if barrier.first_cubes == "all" else len(barrier.first_cubes)
            self.barriers.arrive(packet, cubes + len(others), None)

    def dispatch_ns(self, command: CubeCommand) -> float:
        """From the instant at which a launch is forwarded here until the last of its PEs has it."""
        key = (command.target_cubes, command.target_pes)
        cached = self._dispatch_ns.get(key)
        if cached is None:
            cached = self._dispatch_ns[key] = dispatch_ns(self.ctx, self.node.id, command)
        return cached

    def _stamped(self, launch: KernelLaunchMsg) -> KernelLaunchMsg:
        """The launch with its start time; one that the host chose must leave time to reach the last PE."""
        earliest = self.env.now + self.dispatch_ns(launch)
        if launch.target_start_ns is None:
            return replace(launch, target_start_ns=earliest)
        if launch.target_start_ns < earliest:
            raise MessageError(
                f"the launch of '{launch.kernel_ref.name}' is to start at {launch.target_start_ns} ns, "
                f"but its last PE has it at {earliest} ns",
                where=self.node.id,
                hint="leave target_start_ns out, or choose a later one",
            )
        return launch
