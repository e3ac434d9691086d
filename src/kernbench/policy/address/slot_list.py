"""Allocator for repeated allocations of the same sizes, as in a kernel's loop.

A freed block remains a slot of its size, and the next block of that size takes the lowest such slot. Only a size that
has no free slot gets new bytes, above all bytes used so far. So slots of one size are never split by another size,
whatever the order of allocations and frees:

    where at most n_i blocks of size s_i are live at a time, the sum of n_i * s_i bytes always suffices,

and blocks of a single size fit as long as the live ones do. If no new bytes are left, because the sizes have changed,
a block is placed in the smallest free block that has room, ignoring slot sizes. When no block is live, the allocator
is back in its initial state.
"""

from __future__ import annotations

from heapq import heappop, heappush

from kernbench.policy.address.block_allocator import BlockAllocator, whole


class SlotList(BlockAllocator):
    """A block is placed in a free slot of its size. Free blocks are the gaps between live blocks; a loop does not need
    them, so they are computed on demand.
    """

    def __init__(self, capacity_bytes: int, *, base: int = 0, name: str = "memory") -> None:
        super().__init__(capacity_bytes, base=base, name=name)
        self._slots: dict[int, list[int]] = {}  # size -> heap of the starts of freed blocks
        self._top = base  # bytes from here on have never been allocated
        self._is_mixed = (
            False  # whether a block was placed across slots of other sizes, so that some slots may overlap live blocks
        )

    @property
    def free_blocks(self) -> tuple[tuple[int, int], ...]:
        """(start, size) of every free block, in order."""
        at, found = self.base, []
        for start, size in sorted(self._live.items()):
            if start > at:
                found.append((at, start - at))
            at = start + size
        end = self.base + self.capacity_bytes
        return (*found, (at, end - at)) if at < end else tuple(found)

    def has_room(self, nbytes: int) -> bool:
        """Whether some free block has so many bytes; those above all that were used are looked at first."""
        if self.base + self.capacity_bytes - self._top >= nbytes:
            return True
        return self.free_bytes >= nbytes and self.largest_free_bytes >= nbytes

    def alloc(self, nbytes: int, align: int = 1) -> int:
        """The start of a block of `nbytes`, a multiple of `align`: a free slot of that size, else unused bytes, else
        the smallest free block that has room. Raises AllocationError when none has.
        """
        if type(nbytes) is not int or type(align) is not int or nbytes < 1 or align < 1:
            whole(self.name, "nbytes", nbytes, 1)
            whole(self.name, "align", align, 1)
        slots = self._slots.get(nbytes)
        while slots:
            start = heappop(slots)
            if not start % align and not (self._is_mixed and self._is_taken(start, nbytes)):
                return self._add_live(start, nbytes)
        start = self._top + -self._top % align
        if start + nbytes <= self.base + self.capacity_bytes:
            self._top = start + nbytes
            return self._add_live(start, nbytes)
        return self._best_fit(nbytes, align)

    def free(self, start: int, nbytes: int) -> None:
        """Give back exactly one allocated block; raises AllocationError when `start` and `nbytes` name none."""
        self._remove_live(start, nbytes)
        if self._live:
            slots = self._slots.get(nbytes)
            if slots is None:
                self._slots[nbytes] = [start]
            else:
                heappush(slots, start)
        else:
            self._slots.clear()
            self._top, self._is_mixed = self.base, False

    def _is_taken(self, start: int, nbytes: int) -> bool:
        """Whether some of these bytes belong to a live block."""
        return any(first < start + nbytes and start < first + size for first, size in self._live.items())

    def _best_fit(self, nbytes: int, align: int) -> int:
        fits = [
            (size, start, start + -start % align) for start, size in self.free_blocks if -start % align + nbytes <= size
        ]
        if not fits:
            raise self._overflow(nbytes, align)
        _, _, start = min(fits)
        self._top = max(self._top, start + nbytes)
        self._is_mixed = True
        return self._add_live(start, nbytes)
