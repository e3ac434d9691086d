"""First-fit allocator over a range of bytes, with every free checked; used for HBM, TCM, SRAM and virtual addresses.

Free blocks are sorted by start and never adjacent: a freed block is coalesced with its neighbours at once. First fit
suffices because tensors are allocated and freed almost in stack order; blocks are not moved. Long blocks among short
ones may be placed at the other end, so that a short block that stays does not part their room. `slot_list.py` serves
allocations in loops.
"""

from __future__ import annotations

from bisect import bisect_right

from kernbench.policy.address.block_allocator import BlockAllocator, whole


class FreeList(BlockAllocator):
    """First fit: a block is placed at the lowest address that has room."""

    def __init__(self, capacity_bytes: int, *, base: int = 0, name: str = "memory") -> None:
        super().__init__(capacity_bytes, base=base, name=name)
        self._free: list[tuple[int, int]] = [(base, capacity_bytes)] if capacity_bytes else []  # (start, size)

    @property
    def free_blocks(self) -> tuple[tuple[int, int], ...]:
        """(start, size) of every free block, in order."""
        return tuple(self._free)

    def alloc(self, nbytes: int, align: int = 1, below: int | None = None) -> int:
        """The start of a block of `nbytes`, a multiple of `align`, at the lowest address that has room and, if `below`
        is given, where it ends by that.

        Raises AllocationError, with the required size and the largest free block, if there is no room.
        """
        whole(self.name, "nbytes", nbytes, 1)
        whole(self.name, "align", align, 1)
        for at, (start, size) in enumerate(self._free):
            gap = -start % align
            if gap + nbytes <= size and (below is None or start + gap + nbytes <= below):
                return self._take(at, start + gap, nbytes)
        raise self._overflow(nbytes, align)

    def alloc_at_end(self, nbytes: int, align: int = 1) -> int:
        """As `alloc`, at the highest address that has room."""
        whole(self.name, "nbytes", nbytes, 1)
        whole(self.name, "align", align, 1)
        for at in range(len(self._free) - 1, -1, -1):
            first, size = self._free[at]
            start = (first + size - nbytes) // align * align
            if start >= first:
                return self._take(at, start, nbytes)
        raise self._overflow(nbytes, align)

    def _take(self, at: int, start: int, nbytes: int) -> int:
        """Allocate `nbytes` at `start`, inside the free block of index `at`; returns `start`."""
        first, size = self._free[at]
        pieces = ((first, start - first), (start + nbytes, first + size - start - nbytes))
        self._free[at : at + 1] = [piece for piece in pieces if piece[1]]
        return self._add_live(start, nbytes)

    def free(self, start: int, nbytes: int) -> None:
        """Give back exactly one allocated block; raises AllocationError when `start` and `nbytes` name none."""
        self._remove_live(start, nbytes)
        at = bisect_right(self._free, start, key=block_start)
        end = start + nbytes
        first, last = at, at
        if at and sum(self._free[at - 1]) == start:
            first, start = at - 1, self._free[at - 1][0]
        if at < len(self._free) and self._free[at][0] == end:
            last, end = at + 1, sum(self._free[at])
        self._free[first:last] = [(start, end - start)]


def block_start(block: tuple[int, int]) -> int:
    """The key for bisecting (start, size)."""
    return block[0]
