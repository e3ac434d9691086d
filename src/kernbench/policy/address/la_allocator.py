"""Logical address space: 64 GiB for each PE from 0x1_0000_0000 on, first fit.

A tensor has the same logical address on every PE, because a launch passes one pointer to all of them; what lies there
differs from PE to PE. So one allocator serves all PEs. Blocks begin on a burst, as the segments' memory does.
"""

from __future__ import annotations

from kernbench.common.units import GIB
from kernbench.policy.address.free_list import FreeList

LA_BASE = 0x1_0000_0000
LA_BYTES = 64 * GIB


class LogicalAllocator:
    """`la_size` bytes from `la_base` on, in blocks that begin at multiples of `align`."""

    def __init__(self, la_base: int = LA_BASE, la_size: int = LA_BYTES, align: int = 256) -> None:
        self._space = FreeList(la_size, base=la_base, name="logical address space of a PE")
        self._align = align

    @property
    def used_bytes(self) -> int:
        return self._space.used_bytes

    def alloc(self, nbytes: int) -> int:
        """The logical address of a block; raises AllocationError when there is no room."""
        return self._space.alloc(nbytes, self._align)

    def free(self, la: int, nbytes: int) -> None:
        """Give back one allocation; raises AllocationError when `la` and `nbytes` name none."""
        self._space.free(la, nbytes)
