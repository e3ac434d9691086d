"""A cube's shared scratchpad: an endpoint on the NoC that costs its overhead and the bandwidth of its link.

Not modelled: banks, capacity effects on time.
"""

from __future__ import annotations

from kernbench.components.base import MemoryComponent


class SramComponent(MemoryComponent):
    """Reads and writes by any PE's DMA, by the M_CPU and by the host."""
