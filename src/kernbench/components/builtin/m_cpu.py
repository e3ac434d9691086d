"""M_CPU: a cube's command processor, with its own DMA engine.

It forwards launches and aborts to the PE_CPUs of its PEs and mappings to their MMUs or DMA engines, and collects
arrivals at barriers. The DMA has one read and one write channel, each held for a whole transfer; it reaches its cube's
memories over the NoC without passing through a PE. A command is answered when every part of it is done.
"""

from __future__ import annotations

from dataclasses import replace

import simpy

from kernbench.common.declared_state import StateField, View, differs
from kernbench.common.messages import (
    BaawSegmentInstallMsg,
    BaawSegmentRemoveMsg,
    BarrierMsg,
    CubeCommand,
    CubeDmaMsg,
    KernelAbortMsg,
    KernelLaunchMsg,
    MmuMapMsg,
    MmuUnmapMsg,
    Targets,
)
from kernbench.components.base import Context, Packet, Process
from kernbench.components.builtin.fan_out import CommandProcessor, cube_dispatch_ns
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.graph import Node


def _in_use(channel: str) -> StateField:
    """A channel whose holders and queue are not compared in detail."""

    def relative(cpu: MCpuComponent, view: View) -> tuple[object, ...]:
        resource: simpy.Resource = getattr(cpu, channel)
        return differs() if resource.count or resource.queue else ()

    return StateField(channel, relative)


class MCpuComponent(CommandProcessor):
    """Fans a command out inside its cube and collects the answers."""

    STATE = (_in_use("_read_channel"), _in_use("_write_channel"))
    DERIVED = ("_parts_of",)

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._read_channel = simpy.Resource(self.env, 1)
        self._write_channel = simpy.Resource(self.env, 1)
        self._parts_of: dict[tuple[Targets, str], list[str]] = {}  # by target PEs and kind

    def accept(self, packet: Packet) -> Process | None:
        command = packet.request
        if isinstance(command, KernelLaunchMsg):
            if command.target_start_ns is None:  # it did not come through an IO_CPU
                reach = cube_dispatch_ns(self.ctx, self.node.id, self.node.place.cube, command)
                command = replace(command, target_start_ns=self.env.now + reach)
            self.fan_out(packet, command, self._parts(command, "pe_cpu"))
        elif isinstance(command, KernelAbortMsg):
            self.fan_out(packet, command, self._parts(command, "pe_cpu"))
        elif isinstance(command, MmuMapMsg | MmuUnmapMsg):
            self.fan_out(packet, command, self._parts(command, "pe_mmu"))
        elif isinstance(command, BaawSegmentInstallMsg | BaawSegmentRemoveMsg):
            self.fan_out(packet, command, self._parts(command, "pe_dma"))
        elif isinstance(command, BarrierMsg):
            self.barriers.arrive(packet, len(command.pes(self.ctx.graph.spec.cube.n_pes)), self._above(command))
        elif isinstance(command, CubeDmaMsg):
            pes = command.pes(self.ctx.graph.spec.cube.n_pes)
            self.answer_after(packet, [self.env.process(self._dma(packet, command, pe)) for pe in pes])
        else:
            return super().accept(packet)
        return None

    def _above(self, command: BarrierMsg) -> str | None:
        """The processor that collects this cube's arrival at a barrier; None for a launch on this cube only."""
        if len(command.sips) == 1 and len(command.cubes(self.ctx.graph.spec.sip.n_cubes)) == 1:
            return None
        return self.ctx.resolver.find_io_cpu(command.sip)

    def _parts(self, command: CubeCommand, kind: str) -> list[str]:
        """The block of that kind in every target PE of a command."""
        key = (command.target_pes, kind)
        cached = self._parts_of.get(key)
        if cached is None:
            sip, cube, pes = self.node.place.sip, self.node.place.cube, command.pes(self.ctx.graph.spec.cube.n_pes)
            cached = self._parts_of[key] = [self.ctx.resolver.find_pe_part(sip, cube, pe, kind) for pe in pes]
        return cached

    def _dma(self, packet: Packet, request: CubeDmaMsg, pe: int) -> Process:
        place = self.node.place
        memory = self.ctx.resolver.find_hbm_ctrl(place.sip, place.cube, pe)
        path = self.ctx.router.find_mcpu_dma_path(self.node.id, memory)
        with (self._write_channel if request.is_write else self._read_channel).request() as channel:
            yield channel
            move = self.write if request.is_write else self.read
            spec, slice_bytes = self.ctx.graph.spec, self.ctx.graph.cube_at(self.node.id).hbm_slice_bytes
            pa = PhysAddr.pe_hbm_addr(place.sip, place.cube, pe, request.offset, slice_bytes, spec.address_layout)
            address = self.ctx.resolver.local_address(pa)
            yield move(request, path, address, request.nbytes, packet.trace)
