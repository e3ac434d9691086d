"""Hazards among a kernel's commands: the bytes that commands under way have yet to write or to read.

Composites and asynchronous loads and stores run while their kernel continues. A command that touches bytes which one of
them has yet to write must wait for it (read after write, write after write); one that writes bytes which a load has yet
to read must wait for that (write after read). Bytes are compared by physical address, so aliases are the same byte.
Accesses of other PEs are not considered.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, count
from typing import NamedTuple

from kernbench.common.commands import Segment
from kernbench.common.writers import Writers
from kernbench.triton_emu.pending_handle import PendingCommand


class ReadRanges(NamedTuple):
    """The bytes that a command has yet to read, so that an overlap is found by bisection."""

    pending: PendingCommand
    starts: list[int]  # in ascending order
    ends: list[int]  # the end of all ranges up to each of them

    @classmethod
    def of(cls, pending: PendingCommand, segments: Sequence[Segment]) -> ReadRanges:
        """Of these segments, of which some may overlap."""
        ordered = sorted(segments)
        ends = accumulate((address + nbytes for address, nbytes in ordered), max)
        return cls(pending, [address for address, _ in ordered], list(ends))

    def touches(self, address: int, end: int) -> bool:
        """Whether some byte of [address, end) is among them."""
        before = bisect_left(self.starts, end)
        return before > 0 and self.ends[before - 1] > address


class UnderWay:
    """Commands that will touch memory. Each waits for those whose bytes it touches, so no two write the same ones."""

    __slots__ = ("_bytes", "_number_of", "_numbers", "_reading", "_writing")

    def __init__(self) -> None:
        self._numbers = count()
        self._writing: dict[int, tuple[PendingCommand, Sequence[Segment]]] = {}  # in the order of issue
        self._reading: dict[int, ReadRanges] = {}
        self._number_of: dict[PendingCommand, int] = {}
        self._bytes = Writers()

    def begin(self, pending: PendingCommand, segments: Sequence[Segment]) -> None:
        """A command will write these bytes."""
        number = self._number_of[pending] = next(self._numbers)
        self._writing[number] = (pending, segments)
        self._bytes.note_all(segments, number)

    def begin_reading(self, pending: PendingCommand, segments: Sequence[Segment]) -> None:
        """A command will read these bytes."""
        number = self._number_of[pending] = next(self._numbers)
        self._reading[number] = ReadRanges.of(pending, segments)

    def end(self, pending: PendingCommand) -> None:
        """A command has finished its accesses."""
        number = self._number_of.pop(pending, None)
        if number is None or self._reading.pop(number, None) is not None:
            return
        self._bytes.note_all(self._writing.pop(number)[1], None)

    def writers_of(self, segments: Sequence[Segment]) -> list[PendingCommand]:
        """The commands that have yet to write some of these bytes, in the order of issue."""
        if not self._writing:
            return []
        found = {number for address, nbytes in segments for number in self._bytes.of(address, nbytes)}
        return [self._writing[number][0] for number in sorted(found)]

    def readers_of(self, segments: Sequence[Segment]) -> list[PendingCommand]:
        """The commands that have yet to read some of these bytes, in the order of issue."""
        if not self._reading or not segments:
            return []
        first, end = min(segments)[0], max(address + nbytes for address, nbytes in segments)
        return [
            reading.pending
            for reading in self._reading.values()
            if reading.starts[0] < end
            and first < reading.ends[-1]
            and any(reading.touches(pa, pa + nbytes) for pa, nbytes in segments)
        ]
