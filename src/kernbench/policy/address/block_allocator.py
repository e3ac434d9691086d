"""What allocators of blocks of bytes share: the live blocks, a check of every free, and what an overflow says.

Live blocks are remembered, so that a block freed twice, never allocated, or freed with another size is refused instead
of corrupting the allocator. Where blocks go, and what is known of the free ones, is up to each: `free_list.py`,
`slot_list.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from kernbench.common.errors import AllocationError


def whole(name: str, what: str, value: object, least: int) -> int:
    """`value`, if it is a whole number of `least` or more; raises AllocationError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise AllocationError(f"{name}: {what} is {value!r}", hint=f"give a whole number of {least} or more")
    return value


class BlockAllocator(ABC):
    """`capacity_bytes` from `base` on. `name` is what errors call it."""

    def __init__(self, capacity_bytes: int, *, base: int = 0, name: str = "memory") -> None:
        self.name = name
        self.base = whole(name, "base", base, 0)
        self.capacity_bytes = whole(name, "capacity_bytes", capacity_bytes, 0)
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
    @abstractmethod
    def free_blocks(self) -> tuple[tuple[int, int], ...]:
        """(start, size) of every free block, in order."""

    @abstractmethod
    def alloc(self, nbytes: int, align: int = 1) -> int:
        """The start of a block of `nbytes`, a multiple of `align`.

        Raises AllocationError, with the required size and the largest free block, when no place has room.
        """

    @abstractmethod
    def free(self, start: int, nbytes: int) -> None:
        """Give back exactly one allocated block; raises AllocationError when `start` and `nbytes` name none."""

    def _begin(self, start: int, nbytes: int) -> int:
        """A block is live from now on; returns its start."""
        self._live[start] = nbytes
        self._used_bytes += nbytes
        return start

    def _end(self, start: int, nbytes: int) -> None:
        """A live block is live no more; raises AllocationError when it is none."""
        # What is no int is refused before the lookup: 0.0 == 0, and a list has no hash.
        if type(start) is not int or type(nbytes) is not int or self._live.get(start) != nbytes:
            self._check_live(start, nbytes)
        del self._live[start]
        self._used_bytes -= nbytes

    def _check_live(self, start: int, nbytes: int) -> None:
        if whole(self.name, "nbytes", nbytes, 1) != self._live.get(whole(self.name, "start", start, 0)):
            raise AllocationError(self._why_not(start, nbytes), hint="free each block once, as it was allocated")

    def _why_not(self, start: int, nbytes: int) -> str:
        if start in self._live:
            return f"{self.name}: the block at {start:#x} has {self._live[start]} bytes, not {nbytes}"
        if any(first <= start < first + size for first, size in self.free_blocks):
            return f"{self.name}: {start:#x} is free already"
        return f"{self.name}: no block was allocated at {start:#x}"

    def _overflow(self, nbytes: int, align: int) -> AllocationError:
        aligned, blocks = f" aligned to {align}" if align > 1 else "", len(self.free_blocks)
        return AllocationError(
            f"{self.name} overflow: {nbytes} bytes{aligned} required, "
            f"the largest free block has {self.largest_free_bytes} bytes",
            hint=f"{self.free_bytes} of {self.capacity_bytes} bytes are free in {blocks} blocks: "
            "free something or ask for less",
        )
