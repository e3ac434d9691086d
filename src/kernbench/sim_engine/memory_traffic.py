"""How many bytes memories have moved, in whole bursts where they have channels: on a SIP, and for a block that asked.

The fabric counts what it moves by its two ends, so what a block reads and writes is known without a look at any single
transfer. Bytes that stop on their way, as those between SIPs do at the PCIe endpoints, travel in several legs of which
only one touches the memory; they are counted here, packet by packet, as they enter or leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kernbench.common.channel_traffic import NO_TRAFFIC, ChannelTraffic
from kernbench.common.ids import memory_kind
from kernbench.components.base import Packet
from kernbench.sim_engine.fabric import Fabric
from kernbench.topology.graph import TopologyGraph


class LegTraffic(NamedTuple):
    """What a block has moved to or from a memory in several legs."""

    block: str
    memory: str
    use: ChannelTraffic


class MemoryTraffic:
    """The bytes of one engine's machine."""

    def __init__(self, graph: TopologyGraph, fabric: Fabric, controllers: frozenset[str]) -> None:
        self._fabric = fabric
        self._sip_of = {node: graph.node(node).place.sip for node in sorted(controllers) if memory_kind(node) == "hbm"}
        self._far_nodes = [node for node in sorted(controllers) if memory_kind(node) == "far"]
        self._in_legs: dict[str, dict[str, ChannelTraffic]] = {}  # in several legs: by block and controller

    def hbm_on_sip(self, sip: int) -> int:
        """What the HBM channels of a SIP have been given to move, for all blocks together."""
        return sum(self._fabric.channel_bytes(node) for node, at in self._sip_of.items() if at == sip)

    def far_bytes(self) -> int:
        """What the channels of far memory have been given to move."""
        return sum(map(self._fabric.channel_bytes, self._far_nodes))

    def by(self, node: str) -> dict[str, ChannelTraffic]:
        """What a block has moved, by memory; of transfers that are done."""
        moved = dict(self._in_legs.get(node, ()))
        names = self._fabric.network.names
        for memory, use in self._fabric.traffic_by(node).items():
            controller = str(names[memory])
            moved[controller] = moved[controller].plus(use) if controller in moved else use
        return dict(sorted(moved.items()))  # independent of the order of counting

    def count_leg(self, packet: Packet) -> None:
        """A packet enters or leaves memory on one of several legs."""
        block, memory = packet.path[0], packet.path[-1]
        nbytes, network = packet.nbytes, self._fabric.network
        controller = memory if not packet.is_reply else block
        spec = network.channel_specs.get(network.node_index(controller))
        burst_bytes = nbytes
        if spec is not None:
            whole = (nbytes - 1) // spec.burst_bytes
            granules = packet.granules or -(-(nbytes - whole * spec.burst_bytes) // spec.granule_bytes)
            burst_bytes = whole * spec.burst_bytes + granules * spec.granule_bytes
        use = ChannelTraffic(burst_bytes, written_bytes=nbytes)
        if packet.is_reply:
            block, memory, use = memory, block, ChannelTraffic(burst_bytes, read_bytes=nbytes)
        self.add_legs(LegTraffic(block, memory, use))

    def add_legs(self, traffic: LegTraffic) -> None:
        """Add what a block has moved in several legs."""
        moved = self._in_legs.setdefault(traffic.block, {})
        moved[traffic.memory] = moved.get(traffic.memory, NO_TRAFFIC).plus(traffic.use)

    def in_legs(self) -> list[LegTraffic]:
        """All that was moved in several legs, by block and memory."""
        return [LegTraffic(block, memory, use) for block, of in self._in_legs.items() for memory, use in of.items()]

    def legs_since(self, before: Sequence[LegTraffic]) -> list[LegTraffic]:
        """The same since `in_legs` returned `before`."""
        had = {(block, memory): use for block, memory, use in before}
        now = [LegTraffic(of.block, of.memory, of.use.minus(had.get(of[:2], NO_TRAFFIC))) for of in self.in_legs()]
        return [each for each in now if each.use != NO_TRAFFIC]
