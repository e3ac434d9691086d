"""The bytes that a kernel's composites have yet to write.

A composite runs beside its kernel and writes memory when it is done. A command that touches such bytes before must
wait for it, or it would read old numbers, or its own would be overwritten. Bytes are compared by their physical
addresses, so two ways to the same byte are one. Not looked at: what other PEs write.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from kernbench.common.writers import Writers
from kernbench.triton_emu.handle import CompletionHandle

Piece = tuple[int, int]  # physical address, bytes


class UnderWay:
    """Composites that will write memory. Each waits for those whose bytes it touches, so no two write the same ones."""

    def __init__(self) -> None:
        self._numbers = count()
        self._composites: dict[int, tuple[CompletionHandle, Sequence[Piece]]] = {}  # in the order of issue
        self._number_of: dict[CompletionHandle, int] = {}
        self._bytes = Writers()

    def begin(self, composite: CompletionHandle, pieces: Sequence[Piece]) -> None:
        """A composite will write these bytes."""
        number = self._number_of[composite] = next(self._numbers)
        self._composites[number] = (composite, pieces)
        for address, nbytes in pieces:
            self._bytes.note(address, nbytes, number)

    def end(self, composite: CompletionHandle) -> None:
        """It has written them."""
        number = self._number_of.pop(composite, None)
        if number is not None:
            for address, nbytes in self._composites.pop(number)[1]:
                self._bytes.note(address, nbytes, None)

    def writers_of(self, pieces: Sequence[Piece]) -> list[CompletionHandle]:
        """The composites that have yet to write some of these bytes, in the order of issue."""
        if not self._composites:
            return []
        found = {number for address, nbytes in pieces for number in self._bytes.of(address, nbytes)}
        return [self._composites[number][0] for number in sorted(found)]
