"""How many bytes HBM has moved, in whole bursts: on a SIP, and for a block that asked for them.

The fabric counts what it moves by its two ends, so what a block reads and writes is known without a look at any single
transfer. Bytes that stop on their way, as those between SIPs do at the PCIe endpoints, travel in several legs of which
only one touches the memory; they are counted here, packet by packet, as they enter or leave it.
"""

from __future__ import annotations

from kernbench.components.base import Packet
from kernbench.sim_engine.fabric import Fabric
from kernbench.topology.graph import TopologyGraph


class HbmUse:
    """The bytes of one engine's machine."""

    def __init__(self, graph: TopologyGraph, fabric: Fabric, controllers: frozenset[str]) -> None:
        self._fabric = fabric
        self._sip_of = {node: graph.node(node).place.sip for node in sorted(controllers)}
        self._far: dict[str, dict[int, int]] = {}  # in several legs: by block and SIP

    def on_sip(self, sip: int) -> int:
        """What the channels of a SIP have been given to move, for whomever."""
        return sum(self._fabric.bank_bytes(node) for node, at in self._sip_of.items() if at == sip)

    def by(self, node: str) -> dict[int, int]:
        """What a block has moved, by SIP of the memory; of transfers that are done."""
        moved = dict(self._far.get(node, ()))
        names = self._fabric.network.names
        for bank, nbytes in self._fabric.bank_bytes_by(node).items():
            sip = self._sip_of[str(names[bank])]
            moved[sip] = moved.get(sip, 0) + nbytes
        return moved

    def count_leg(self, packet: Packet) -> None:
        """A packet enters or leaves memory on one of several legs."""
        block, memory = packet.path[0], packet.path[-1]
        if packet.is_reply:
            block, memory = memory, block
        moved, sip = self._far.setdefault(block, {}), self._sip_of[memory]
        flit_bytes = self._fabric.network.flit_bytes
        moved[sip] = moved.get(sip, 0) + -(-packet.nbytes // flit_bytes) * flit_bytes
