"""The bytes that a kernel's commands under way have yet to write or to read.

Composites and asynchronous loads and stores run while their kernel goes on. A command that touches bytes which one of
them has yet to write must wait for it, or it would read old numbers, or its own would be overwritten; one that writes
bytes which a load has yet to read must wait for that. Bytes are compared by their physical addresses, so two ways to
the same byte are one. Not looked at: what other PEs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from kernbench.common.commands import Segment
from kernbench.common.writers import Writers
from kernbench.triton_emu.handle import PendingHandle


class UnderWay:
    """Commands that will touch memory. Each waits for those whose bytes it touches, so no two write the same ones."""

    def __init__(self) -> None:
        self._numbers = count()
        self._writing: dict[int, tuple[PendingHandle, Sequence[Segment]]] = {}  # in the order of issue
        self._reading: dict[int, tuple[PendingHandle, Sequence[Segment]]] = {}
        self._number_of: dict[PendingHandle, int] = {}
        self._bytes = Writers()

    def begin(self, pending: PendingHandle, segments: Sequence[Segment]) -> None:
        """A command will write these bytes."""
        number = self._number_of[pending] = next(self._numbers)
        self._writing[number] = (pending, segments)
        for address, nbytes in segments:
            self._bytes.note(address, nbytes, number)

    def begin_reading(self, pending: PendingHandle, segments: Sequence[Segment]) -> None:
        """A command will read these bytes."""
        number = self._number_of[pending] = next(self._numbers)
        self._reading[number] = (pending, segments)

    def end(self, pending: PendingHandle) -> None:
        """It has."""
        number = self._number_of.pop(pending, None)
        if number is None or self._reading.pop(number, None) is not None:
            return
        for address, nbytes in self._writing.pop(number)[1]:
            self._bytes.note(address, nbytes, None)

    def writers_of(self, segments: Sequence[Segment]) -> list[PendingHandle]:
        """The commands that have yet to write some of these bytes, in the order of issue."""
        if not self._writing:
            return []
        found = {number for address, nbytes in segments for number in self._bytes.of(address, nbytes)}
        return [self._writing[number][0] for number in sorted(found)]

    def readers_of(self, segments: Sequence[Segment]) -> list[PendingHandle]:
        """The commands that have yet to read some of these bytes, in the order of issue."""
        return [
            pending
            for pending, read in self._reading.values()
            if any(a < pa + n and pa < a + m for a, m in read for pa, n in segments)
        ]
