"""A PE's DMA engine: moves bytes between its PE and any memory of the tray.

A read channel and a write channel (`engines_per_direction` of each), each held for the whole transfer: a second request in
the same direction waits until the first is answered. Reads bring data on the way back; writes are acknowledged.
"""

from __future__ import annotations

from typing import Any

import simpy

from kernbench.common.messages import PeDmaMsg, Request
from kernbench.components.base import ActiveComponent, Context, Process
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.topology.graph import Node


class PeDmaComponent(ActiveComponent):
    """Serves the DMA requests of one PE."""

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        engines = int(node.attrs.get("engines_per_direction", 1))
        self._read_channel = simpy.Resource(self.env, engines)
        self._write_channel = simpy.Resource(self.env, engines)

    def serve(self, request: Request, legs: list[Any] | None) -> Process:
        """Carry out one DMA request; returns the path to the memory."""
        assert isinstance(request, PeDmaMsg)
        address = PhysAddr.decode(request.dst_pa)
        pe = self.node.id.rpartition(".")[0]
        path = self.ctx.router.find_path(pe, self.ctx.resolver.resolve(address))
        local = self.ctx.resolver.local_address(address)
        with (self._write_channel if request.is_write else self._read_channel).request() as channel:
            yield channel
            yield from self.pause(self.entry_ns)
            move = self.write if request.is_write else self.read
            yield move(request, path, local, request.nbytes, legs)
        return tuple(path)
