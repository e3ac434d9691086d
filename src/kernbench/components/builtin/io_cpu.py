"""IO_CPU: takes a host command, fans it out to the M_CPUs of the cubes it names, answers once all have answered.

Commands are control messages, so that a fan-out to many cubes does not queue behind itself. Memory traffic never comes here.
"""

from __future__ import annotations

from typing import Any

from kernbench.common.messages import CubeDmaMsg
from kernbench.components.base import ActiveComponent, Packet, Process


class IoCpuComponent(ActiveComponent):
    """The command processor of an IO chiplet."""

    def accept(self, packet: Packet) -> Process | None:
        if isinstance(packet.request, CubeDmaMsg):
            return self._fan_out(packet, packet.request)
        return super().accept(packet)

    def _fan_out(self, packet: Packet, request: CubeDmaMsg) -> Process:
        sip = self.node.place.sip
        cubes = range(self.ctx.graph.spec.sip.n_cubes) if request.target_cubes == "all" else request.target_cubes
        answers: list[Any] = []
        for cube in cubes:
            path = self.ctx.router.find_node_path(self.node.id, self.ctx.resolver.find_m_cpu(sip, cube))
            answers.append(self.command(request, path, None, packet.legs))
        yield self.env.all_of(answers)
        self.reply(packet)
