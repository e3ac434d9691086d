"""A scratchpad in banks: a bank serves one request at a time, for bytes / bank bandwidth; banks work side by side.

An active block is handed whole packets and may run SimPy processes. A memory overrides `accept`, lets time pass as its
hardware would, and then replies.
"""

from __future__ import annotations

import simpy

from kernbench.components.base import Context, MemoryComponent, Packet, Process
from kernbench.topology.graph import Node

BANK_BYTES = 4096  # consecutive bytes of one bank; then comes the next


class BankedSramComponent(MemoryComponent):
    """attrs: overhead_ns, banks (2), bank_gbs (64.0)."""

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self.banks = [simpy.Resource(self.env, 1) for _ in range(int(node.attrs.get("banks", 2)))]
        self.bank_gbs = float(node.attrs.get("bank_gbs", 64.0))

    def accept(self, packet: Packet) -> Process | None:
        if packet.address is None:
            return super().accept(packet)  # not a memory access: refused
        return self.access(packet, packet.address)

    def access(self, packet: Packet, address: int) -> Process:
        with self.banks[address // BANK_BYTES % len(self.banks)].request() as bank:
            yield bank
            yield from self.pause((packet.nbytes or packet.wanted_bytes) / self.bank_gbs)
        self.reply(packet, nbytes=packet.wanted_bytes)
