"""Where the bytes of an operand lie: which memories, and at which addresses there, found once per command.

The rows of a tile travel as one transfer for each memory they lie in, from the tile's first address there on; of a
row-major operand, each row is a run of bytes where it lies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from kernbench.common.commands import Segment
from kernbench.components.memory_port import MemoryPort

Locate = Callable[[int], tuple[MemoryPort, int]]  # from a physical address to a memory, and the address there


class OperandExtent(NamedTuple):
    """Bytes of an operand, from `start` on, that lie in one memory without a gap."""

    start: int
    nbytes: int
    port: MemoryPort
    address: int  # in that memory


PortTransfer = tuple[MemoryPort, int, int]  # which memory, its address, bytes


class OperandAccess:
    """An operand in memory. `port` and `address` are set where all of it lies in one memory without a gap."""

    __slots__ = ("_starts", "address", "extents", "port")

    def __init__(self, segments: Iterable[Segment], locate: Locate) -> None:
        extents: list[OperandExtent] = []
        start = 0
        for pa, nbytes in segments:
            extents.append(OperandExtent(start, nbytes, *locate(pa)))
            start += nbytes
        self._lies_in(extents)

    @classmethod
    def of(cls, extents: list[OperandExtent]) -> OperandAccess:
        """An operand that lies in known places."""
        access = cls.__new__(cls)
        access._lies_in(extents)
        return access

    def _lies_in(self, extents: list[OperandExtent]) -> None:
        self.extents = extents
        self._starts = [extent.start for extent in self.extents]
        whole = extents[0] if len(extents) == 1 else None
        self.port = None if whole is None else whole.port
        self.address = 0 if whole is None else whole.address

    def transfers(self, offset: int, rows: int, row_bytes: int, stride_bytes: int) -> list[PortTransfer]:
        """What to move for some rows, the first at `offset`."""
        if rows == 1:
            return self._pieces(offset, row_bytes)
        span = (rows - 1) * stride_bytes + row_bytes
        if len(around := self._pieces(offset, span)) == 1:
            return [(around[0][0], around[0][1], rows * row_bytes)]
        gathered: dict[tuple[str, ...], PortTransfer] = {}
        for row in range(rows):
            for port, address, nbytes in self._pieces(offset + row * stride_bytes, row_bytes):
                _, first, so_far = gathered.get(port.path, (port, address, 0))
                gathered[port.path] = (port, first, so_far + nbytes)
        return list(gathered.values())

    def runs(self, offset: int, rows: int, row_bytes: int, stride_bytes: int) -> Iterator[PortTransfer]:
        """The runs of some rows, the first at `offset`."""
        for row in range(rows):
            yield from self._pieces(offset + row * stride_bytes, row_bytes)

    def _pieces(self, offset: int, nbytes: int) -> list[PortTransfer]:
        at, end = bisect_right(self._starts, offset) - 1, offset + nbytes
        found: list[PortTransfer] = []
        for start, size, port, address in self.extents[at:]:
            if start >= end:
                break
            first = max(start, offset)
            found.append((port, address + first - start, min(start + size, end) - first))
        return found
