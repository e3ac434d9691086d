"""The part of a PE's TCM that a kernel may use for its tensors. A block is freed with its last reference.

Blocks of one size reuse each other's slots, so that a loop does not fragment its TCM: see slot_list.py for the
guarantee.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernbench.common.errors import AllocationError, KernelCapacityError
from kernbench.common.units import format_bytes
from kernbench.policy.address.slot_list import SlotList
from kernbench.triton_emu.call_site import kernel_error, kernel_line

ALIGN_BYTES = 16


class TcmBlock:
    """Some bytes of TCM, freed with the object."""

    __slots__ = ("_arena", "address", "nbytes")

    def __init__(self, arena: TcmArena, address: int, nbytes: int) -> None:
        self._arena = arena
        self.address = address
        self.nbytes = nbytes

    def __del__(self) -> None:
        self._arena.take_back(self)


class TcmArena:
    """`capacity_bytes` from a base address on, for the length of one kernel."""

    def __init__(
        self, find_base: Callable[[], int], capacity_bytes: int, holders: Callable[[], Sequence[tuple[str, int]]]
    ) -> None:
        self._find_base = find_base  # many kernels never ask for TCM
        self._holders = holders  # what else takes of the PE's TCM, for the report of an overflow
        self._base = 0
        self._capacity_bytes = capacity_bytes
        self._space: SlotList | None = None  # while nothing was ever taken
        self._closed = False
        self.peak_bytes = 0
        self.advice = "drop tensors you no longer need (del x), stream with tl.ref and tl.composite"

    def alloc(self, nbytes: int) -> TcmBlock:
        """A block of `nbytes`; raises KernelCapacityError at the user's line when there is no room."""
        space, size = self._space or self._opened(), _block_bytes(nbytes)
        try:
            at = space.alloc(size, ALIGN_BYTES)
        except AllocationError:
            raise self._overflow(nbytes, space) from None
        if space.used_bytes > self.peak_bytes:
            self.peak_bytes = space.used_bytes
        return TcmBlock(self, self._base + at, size)

    def has_room(self, nbytes: int) -> bool:
        """Whether a block of `nbytes` can be had now."""
        size = _block_bytes(nbytes)
        return size <= self._capacity_bytes if self._space is None else self._space.has_room(size)

    def check_size(self, nbytes: int) -> None:
        """Raise the KernelCapacityError that `alloc` would, for a block that could not fit an empty TCM either."""
        if nbytes > self._capacity_bytes:
            raise self._overflow(nbytes, self._opened())

    def _opened(self) -> SlotList:
        if self._closed:
            raise kernel_error("a tensor is made after its kernel has ended", "keep `tl` inside the kernel")
        if self._space is None:
            self._space = SlotList(self._capacity_bytes, name="TCM")
            self._base = self._find_base()
        return self._space

    def take_back(self, block: TcmBlock) -> None:
        if self._space is not None:
            self._space.free(block.address - self._base, block.nbytes)

    def close(self) -> None:
        """The kernel is over: everything is free, even where handles are still referenced."""
        self._space, self._closed = None, True

    def _overflow(self, nbytes: int, space: SlotList) -> KernelCapacityError:
        held = [(name, n) for name, n in (("this kernel's tensors", space.used_bytes), *self._holders()) if n]
        taken = ", ".join(f"{name} {format_bytes(n)}" for name, n in held)
        return KernelCapacityError(
            f"TCM overflow: {nbytes} bytes ({format_bytes(nbytes)}) required, {space.free_bytes} free of "
            f"{space.capacity_bytes}, the largest block {space.largest_free_bytes}; taken by {taken}",
            where=kernel_line(),
            hint=f"work on smaller blocks, {self.advice}, or raise cube.memory_map.tcm_mb_per_pe",
        )


def _block_bytes(nbytes: int) -> int:
    """What a block takes: one without elements has a place, too."""
    return max(-(-nbytes // ALIGN_BYTES), 1) * ALIGN_BYTES
