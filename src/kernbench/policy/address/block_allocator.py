"""Base of the allocators of byte blocks: the set of live blocks, the check of every free, the overflow message.

Live blocks are recorded, so that a block freed twice, never allocated, or freed with another size is an error instead
of corrupting the allocator. Placement and bookkeeping of free blocks are defined by the subclasses (`free_list.py`,
`slot_list.py`).
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

    def _add_live(self, start: int, nbytes: int) -> int:
        """Record a block as live; returns its start."""
        self._live[start] = nbytes
        self._used_bytes += nbytes
        return start

    def _remove_live(self, start: int, nbytes: int) -> None:
        """Remove a live block; raises AllocationError if `start` and `nbytes` are not one."""
        # Only ints are looked up: 0.0 == 0 would match, and a list has no hash.
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
