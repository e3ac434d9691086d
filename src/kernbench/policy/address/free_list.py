"""First fit over a range of bytes, with every free checked; the allocator of memories whose addresses matter.

Free blocks are kept sorted by start and never touch: a freed block is joined to its neighbours at once. Live blocks are
remembered, so that a block freed twice, never allocated, or freed with another size is refused instead of corrupting
the list. First fit is enough because tensors come and go almost like a stack; nothing is moved to fight fragmentation.
`slot_list.py` is for those who allocate in loops.
"""

from __future__ import annotations

from bisect import bisect_right

from kernbench.common.errors import AllocationError


def whole(name: str, what: str, value: object, least: int) -> int:
    """`value`, if it is a whole number of `least` or more; raises AllocationError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AllocationError(f"{name}: {what} is {value!r}", hint=f"give a whole number of {least} or more")
    return value


class FreeList:
    """`capacity_bytes` from `base` on. `name` is what errors call it."""

    def __init__(self, capacity_bytes: int, *, base: int = 0, name: str = "memory") -> None:
        self.name = name
        self.base = whole(name, "base", base, 0)
        self.capacity_bytes = whole(name, "capacity_bytes", capacity_bytes, 0)
        self._free: list[tuple[int, int]] = [(base, capacity_bytes)] if capacity_bytes else []  # (start, size)
        self._live: dict[int, int] = {}  # start -> size
        self._used_bytes = 0

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    @property
    def free_bytes(self) -> int:
        return self.capacity_bytes - self._used_bytes

    @property
    def largest_free_bytes(self) -> int:
        return max((size for _, size in self.free_blocks), default=0)

    @property
    def free_blocks(self) -> tuple[tuple[int, int], ...]:
        """(start, size) of every free block, in order."""
        return tuple(self._free)

    def alloc(self, nbytes: int, align: int = 1) -> int:
        """The start of a block of `nbytes`, a multiple of `align`, in the lowest place that has room.

        Raises AllocationError, with the required size and the largest free block, when no place has.
        """
        whole(self.name, "nbytes", nbytes, 1)
        whole(self.name, "align", align, 1)
        for at, (start, size) in enumerate(self._free):
            gap = -start % align
            if gap + nbytes <= size:
                return self._take(at, start + gap, nbytes)
        raise self._overflow(nbytes, align)

    def _take(self, at: int, start: int, nbytes: int) -> int:
        """Allocate bytes that lie in the free block of index `at`; returns where they begin."""
        first, size = self._free[at]
        pieces = ((first, start - first), (start + nbytes, first + size - start - nbytes))
        self._free[at : at + 1] = [piece for piece in pieces if piece[1]]
        self._live[start] = nbytes
        self._used_bytes += nbytes
        return start

    def _overflow(self, nbytes: int, align: int) -> AllocationError:
        aligned, blocks = f" aligned to {align}" if align > 1 else "", len(self.free_blocks)
        return AllocationError(
            f"{self.name} overflow: {nbytes} bytes{aligned} required, "
            f"the largest free block has {self.largest_free_bytes} bytes",
            hint=f"{self.free_bytes} of {self.capacity_bytes} bytes are free in {blocks} blocks: "
            "free something or ask for less",
        )

    def free(self, start: int, nbytes: int) -> None:
        """Give back exactly one allocated block; raises AllocationError when `start` and `nbytes` name none."""
        self._end(start, nbytes)
        at = bisect_right(self._free, start, key=block_start)
        end = start + nbytes
        first, last = at, at
        if at and sum(self._free[at - 1]) == start:
            first, start = at - 1, self._free[at - 1][0]
        if at < len(self._free) and self._free[at][0] == end:
            last, end = at + 1, sum(self._free[at])
        self._free[first:last] = [(start, end - start)]

    def _end(self, start: int, nbytes: int) -> None:
        """A live block is live no more."""
        if self._live.get(start) != nbytes or isinstance(start, bool) or isinstance(nbytes, bool):
            whole(self.name, "nbytes", nbytes, 1)
            whole(self.name, "start", start, 0)
            raise AllocationError(self._why_not(start, nbytes), hint="free each block once, as it was allocated")
        del self._live[start]
        self._used_bytes -= nbytes

    def _why_not(self, start: int, nbytes: int) -> str:
        if start in self._live:
            return f"{self.name}: the block at {start:#x} has {self._live[start]} bytes, not {nbytes}"
        if any(first <= start < first + size for first, size in self.free_blocks):
            return f"{self.name}: {start:#x} is free already"
        return f"{self.name}: no block was allocated at {start:#x}"


def block_start(block: tuple[int, int]) -> int:
    """For bisecting (start, size)."""
    return block[0]
