"""A PE's tightly coupled memory as the fabric sees it: an endpoint behind the PE's DMA, with a read and a write port.

The ports are the two directions of the pe_dma link, so that reads and writes do not share bandwidth. Not modelled: banks.
"""

from __future__ import annotations

from kernbench.components.base import MemoryComponent


class PeTcmComponent(MemoryComponent):
    """Reads and writes by other PEs' DMA engines."""
