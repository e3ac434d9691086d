"""M_CPU: a cube's command processor, with a DMA engine of its own.

The DMA has one read and one write channel, each held for a whole transfer; it reaches its cube's memories over the NoC without
passing a PE. A command is answered when every part of it is done.
"""

from __future__ import annotations

import simpy

from kernbench.common.messages import CubeDmaMsg
from kernbench.components.base import ActiveComponent, Context, Packet, Process
from kernbench.topology.graph import Node


class MCpuComponent(ActiveComponent):
    """Fans a command out inside its cube and collects the answers."""

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._read_channel = simpy.Resource(self.env, 1)
        self._write_channel = simpy.Resource(self.env, 1)

    def accept(self, packet: Packet) -> Process | None:
        if isinstance(packet.request, CubeDmaMsg):
            return self._move(packet, packet.request)
        return super().accept(packet)

    def _move(self, packet: Packet, request: CubeDmaMsg) -> Process:
        pes = range(self.ctx.graph.spec.cube.n_pes) if request.target_pes == "all" else request.target_pes
        yield self.env.all_of([self.env.process(self._dma(packet, request, pe)) for pe in pes])
        self.reply(packet)

    def _dma(self, packet: Packet, request: CubeDmaMsg, pe: int) -> Process:
        place = self.node.place
        memory = self.ctx.resolver.find_hbm_ctrl(place.sip, place.cube, pe)
        path = self.ctx.router.find_mcpu_dma_path(self.node.id, memory)
        with (self._write_channel if request.is_write else self._read_channel).request() as channel:
            yield channel
            move = self.write if request.is_write else self.read
            address = pe * self.ctx.graph.spec.cube.hbm_slice_bytes + request.offset
            yield move(request, path, address, request.nbytes, packet.legs)
