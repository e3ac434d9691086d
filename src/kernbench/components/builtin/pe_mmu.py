"""A PE's MMU: receives mappings over the fabric, and translates virtual addresses for the PE's DMA.

A map or unmap message takes effect when it arrives and is then acknowledged. A translation is a function call of the
DMA, which pays `translation_ns` for each request, whatever kind of transfer it is. In the physical address model there
are no translations. Not modelled: a cache of translations (TLB) and its misses.
"""

from __future__ import annotations

from kernbench.common.declared_state import part
from kernbench.common.engine_declaration import TIME_NS, Attribute, EngineDeclaration
from kernbench.common.messages import MmuMapMsg, MmuUnmapMsg
from kernbench.common.units import on_grid
from kernbench.components.base import ActiveComponent, Context, Packet, Process
from kernbench.policy.address.page_table import PageTable, PhysRange
from kernbench.topology.graph import Node


class PeMmuComponent(ActiveComponent):
    """The page table of one PE, changed by map and unmap messages."""

    declaration = EngineDeclaration(
        {"page_size": Attribute.power_of_two(64, 1 << 30), "tlb_overhead_ns": TIME_NS}, role="control"
    )

    STATE = (part("table"),)

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self.table = PageTable(int(node.attrs["page_size"]))
        self.translation_ns = on_grid(float(node.attrs["tlb_overhead_ns"]))

    def translate(self, va: int, nbytes: int) -> list[PhysRange]:
        """The physical segments of a virtual range; raises AddressError for unmapped bytes."""
        return self.table.translate(va, nbytes)

    def accept(self, packet: Packet) -> Process | None:
        request = packet.request
        if isinstance(request, MmuMapMsg):
            place = self.node.place
            if request.is_run:
                self.table.map_run(request.entries)
            else:
                for entry in request.entries:
                    if entry.is_for(place.cube, place.pe):
                        self.table.map_run((entry,))
        elif isinstance(request, MmuUnmapMsg):
            for gone in request.entries:
                self.table.unmap(gone.va, gone.nbytes)
        else:
            return super().accept(packet)
        self.reply(packet)
        return None
