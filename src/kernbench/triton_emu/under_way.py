"""The bytes that a kernel's composites have yet to write.

A composite runs beside its kernel and writes memory when it is done. A command that touches such bytes before must
wait for it, or it would read old numbers, or its own would be overwritten. Bytes are compared by their physical
addresses, so two ways to the same byte are one. Not looked at: what other PEs write.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.triton_emu.handle import CompletionHandle

Piece = tuple[int, int]  # physical address, bytes


class UnderWay:
    """Composites that will write memory, in the order of issue."""

    def __init__(self) -> None:
        self._writes: dict[CompletionHandle, Sequence[Piece]] = {}

    def begin(self, composite: CompletionHandle, pieces: Sequence[Piece]) -> None:
        """A composite will write these bytes."""
        self._writes[composite] = pieces

    def end(self, composite: CompletionHandle) -> None:
        """It has written them."""
        self._writes.pop(composite, None)

    def writers_of(self, pieces: Sequence[Piece]) -> list[CompletionHandle]:
        """The composites that have yet to write some of these bytes."""
        return [composite for composite, writes in self._writes.items() if _meet(pieces, writes)]


def _meet(some: Sequence[Piece], others: Sequence[Piece]) -> bool:
    return any(a < b + m and b < a + n for a, n in some for b, m in others)
