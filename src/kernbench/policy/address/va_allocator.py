"""Virtual address space: whole pages, first fit.

A block is as many pages as its bytes need, so two tensors never share a page and the MMU maps page by page.
"""

from __future__ import annotations

from kernbench.common.errors import AllocationError
from kernbench.common.units import GIB, KIB, is_power_of_two
from kernbench.policy.address.free_list import FreeList

DEFAULT_VA_BASE = 4 * GIB
DEFAULT_VA_BYTES = 64 * GIB
DEFAULT_PAGE_BYTES = 4 * KIB


class VirtualAllocator:
    """`va_size` bytes from `va_base` on, in pages of `page_size`, which must be those of the MMU."""

    def __init__(
        self, va_base: int = DEFAULT_VA_BASE, va_size: int = DEFAULT_VA_BYTES, page_size: int = DEFAULT_PAGE_BYTES
    ) -> None:
        if isinstance(page_size, bool) or not isinstance(page_size, int) or not is_power_of_two(page_size):
            raise AllocationError(f"page_size is {page_size!r}", hint="give a power of two, say 4096")
        self.page_size = page_size
        self._space = FreeList(va_size, base=va_base, name="virtual address space")
        if va_base % page_size or va_size % page_size:
            raise AllocationError(
                f"virtual address space {va_base:#x} + {va_size:#x} does not consist of whole pages",
                hint=f"give multiples of {page_size:#x}",
            )

    @property
    def used_bytes(self) -> int:
        return self._space.used_bytes

    @property
    def free_bytes(self) -> int:
        return self._space.free_bytes

    @property
    def free_blocks(self) -> tuple[tuple[int, int], ...]:
        """(address, size) of every free block, in order."""
        return self._space.free_blocks

    def alloc(self, nbytes: int) -> int:
        """The address of enough whole pages for `nbytes`; raises AllocationError when there is no room."""
        return self._space.alloc(self._pages(nbytes))

    def free(self, va: int, nbytes: int) -> None:
        """Give back the pages of one allocation; raises AllocationError when `va` and `nbytes` name none."""
        self._space.free(va, self._pages(nbytes))

    def _pages(self, nbytes: int) -> int:
        if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 1:
            raise AllocationError(
                f"virtual address space: nbytes is {nbytes!r}", hint="give a whole number of 1 or more"
            )
        return -(-nbytes // self.page_size) * self.page_size
