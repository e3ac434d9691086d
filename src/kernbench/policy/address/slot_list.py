"""Slots for those who allocate the same sizes again and again, as a kernel's loop does.

A freed block stays a slot of its size, and the next block of that size takes the lowest such slot. Only a size that has
no free slot gets new bytes, above all that were ever used. So slots of one size are never cut up by another, in
whatever order blocks come and go:

    where at most n_i blocks of size s_i are live at a time, the sum of n_i * s_i bytes always suffices,

and blocks of a single size fit as long as the live ones do. Only when no new bytes are left, because the sizes have
changed meanwhile, is a block put into the smallest free block that has room, whoever's slot that was. When nothing is
live any more, all is as at the beginning.
"""

from __future__ import annotations

from bisect import bisect_right
from heapq import heappop, heappush

from kernbench.policy.address.free_list import FreeList, block_start, whole


class SlotList(FreeList):
    """A FreeList with another rule of where blocks go."""

    def __init__(self, capacity_bytes: int, *, base: int = 0, name: str = "memory") -> None:
        super().__init__(capacity_bytes, base=base, name=name)
        self._slots: dict[int, list[int]] = {}  # by size, the starts of blocks that were freed; some are taken since
        self._top = base  # from here on nothing was ever used

    def alloc(self, nbytes: int, align: int = 1) -> int:
        """The start of a block of `nbytes`, a multiple of `align`: a free slot of that size, else unused bytes, else
        the smallest free block that has room. Raises AllocationError when none has.
        """
        whole(self.name, "nbytes", nbytes, 1)
        whole(self.name, "align", align, 1)
        slots = self._slots.get(nbytes)
        while slots:
            start = heappop(slots)
            at = self._free_at(start, nbytes)
            if at is not None and not start % align:
                return self._take(at, start, nbytes)
        start = self._top + -self._top % align
        if start + nbytes <= self.base + self.capacity_bytes:
            self._top = start + nbytes
            return self._take(len(self._free) - 1, start, nbytes)
        return self._best_fit(nbytes, align)

    def free(self, start: int, nbytes: int) -> None:
        """Give back exactly one allocated block; raises AllocationError when `start` and `nbytes` name none."""
        super().free(start, nbytes)
        if self._live:
            heappush(self._slots.setdefault(nbytes, []), start)
        else:
            self._slots.clear()
            self._top = self.base

    def _free_at(self, start: int, nbytes: int) -> int | None:
        """Index of the free block that holds all of these bytes, if one does."""
        at = bisect_right(self._free, start, key=block_start) - 1
        if at < 0:
            return None
        first, size = self._free[at]
        return at if start + nbytes <= first + size else None

    def _best_fit(self, nbytes: int, align: int) -> int:
        fits = [
            (size, at, start + -start % align)
            for at, (start, size) in enumerate(self._free)
            if -start % align + nbytes <= size
        ]
        if not fits:
            raise self._overflow(nbytes, align)
        _, at, start = min(fits)
        self._top = max(self._top, start + nbytes)
        return self._take(at, start, nbytes)
