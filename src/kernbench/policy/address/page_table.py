"""The page table of one PE: the physical bytes of a range of virtual bytes.

A mapping may begin and end inside a page, so that the shards of a small tensor can share one; a later mapping of the
same bytes replaces an earlier one. A range that crosses mappings gives one piece for each run of physical bytes.
The mappings of one tensor arrive as one run of entries that all PEs of a SIP share. Each table applies them lazily, at
its first translation, because a tray has many PEs. Not modelled: levels, a TLB, access rights.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from kernbench.common.declared_state import idle
from kernbench.common.errors import AddressError
from kernbench.common.messages import MapEntry
from kernbench.common.units import is_power_of_two

PhysRange = tuple[int, int]  # physical address, bytes
_Range = tuple[int, int, Sequence[MapEntry]]  # from, to, and the entries that cover at least that
_entry_va = attrgetter("va")


class PageTable:
    """The mappings of one MMU, in pages of `page_bytes`."""

    STATE = (idle("_ranges"), idle("_pending"))
    DERIVED = ("_starts",)

    def __init__(self, page_bytes: int) -> None:
        if isinstance(page_bytes, bool) or not isinstance(page_bytes, int) or not is_power_of_two(page_bytes):
            raise AddressError(f"page_bytes is {page_bytes!r}", hint="give a power of two, say 4096")
        self.page_bytes = page_bytes
        self._starts: list[int] = []  # of the mapped ranges, ascending; ranges never overlap
        self._ranges: list[_Range] = []
        self._pending: list[_Range] = []  # not yet applied, in order of arrival; without entries: unmapped

    def map(self, va: int, pa: int, nbytes: int) -> None:
        """Map `nbytes` at `va` to `pa`."""
        self.map_run((MapEntry(va, pa, nbytes),))

    def map_run(self, entries: Sequence[MapEntry]) -> None:
        """Map a run of entries, each of which begins where the previous one ends. The sequence is kept, not copied."""
        last = entries[-1]
        self._pending.append((entries[0].va, last.va + last.nbytes, entries))

    def unmap(self, va: int, nbytes: int) -> None:
        """Remove the mappings of `nbytes` at `va`; bytes that are not mapped are ignored."""
        _check(va, nbytes)
        self._pending.append((va, va + nbytes, ()))

    def translate(self, va: int, nbytes: int) -> list[PhysRange]:
        """The physical pieces of a virtual range, in order; raises AddressError for a byte that is not mapped."""
        _check(va, nbytes)
        if self._pending:
            self._apply_pending()
        pieces: list[PhysRange] = []
        at, end = va, va + nbytes
        index = bisect_right(self._starts, va) - 1
        while at < end:
            start, stop, entries = self._ranges[index] if 0 <= index < len(self._ranges) else (0, 0, ())
            if not start <= at < stop:
                raise AddressError(
                    f"virtual address {at:#x} is not mapped (page {at // self.page_bytes:#x})",
                    where=f"an access of {nbytes} bytes at {va:#x}",
                    hint="stay inside the tensors that were passed to the kernel, and keep them alive while it runs",
                )
            entry = entries[bisect_right(entries, at, key=_entry_va) - 1]
            size = min(entry.va + entry.nbytes, stop, end) - at
            here = entry.pa + at - entry.va
            if pieces and sum(pieces[-1]) == here:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + size)
            else:
                pieces.append((here, size))
            at += size
            if at == stop:
                index += 1
        return pieces

    def copy(self) -> PageTable:
        """An independent table with the same mappings."""
        self._apply_pending()
        made = PageTable(self.page_bytes)
        made._starts, made._ranges = self._starts[:], self._ranges[:]
        return made

    @property
    def mapped_bytes(self) -> int:
        """How many virtual bytes are mapped."""
        self._apply_pending()
        return sum(end - va for va, end, _ in self._ranges)

    def _apply_pending(self) -> None:
        """Apply mappings and unmappings in order of arrival."""
        for va, end, entries in self._pending:
            self._cut(va, end)
            if entries:
                at = bisect_right(self._starts, va)
                self._starts.insert(at, va)
                self._ranges.insert(at, (va, end, entries))
        self._pending.clear()

    def _cut(self, va: int, end: int) -> None:
        """Unmap [va, end); ranges that extend beyond it keep the remainder."""
        first = bisect_right(self._starts, va)
        if first and self._ranges[first - 1][1] > va:
            first -= 1
        last = first
        kept: list[_Range] = []
        while last < len(self._ranges) and self._ranges[last][0] < end:
            start, stop, entries = self._ranges[last]
            if start < va:
                kept.append((start, va, entries))
            if stop > end:
                kept.append((end, stop, entries))
            last += 1
        self._ranges[first:last] = kept
        self._starts[first:last] = [start for start, _, _ in kept]


def _check(va: int, nbytes: int) -> None:
    if va < 0 or nbytes < 1:
        raise AddressError(f"a virtual range of {nbytes} bytes at {va}", hint="give an address and 1 byte or more")
