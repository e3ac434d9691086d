"""Listeners for writes to a memory, such as ring buffers that wait for a message.

A listener names a range of one memory. It is called at the instant at which the last byte of a write is in that memory,
which is before the writer has its acknowledgement, whatever path the bytes took.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from operator import itemgetter

from kernbench.components.memory_port import Landed, Listener

ListenedRange = tuple[int, int, int, Listener]  # first byte, number in the order of adding, end, what to call
_NUMBER = itemgetter(1)


class WriteListeners:
    """The listeners of one engine's machine, by memory."""

    def __init__(self) -> None:
        self._by_node: dict[str, list[ListenedRange]] = {}  # sorted
        self._longest: dict[str, int] = {}  # by memory: no range there is longer
        self._count = 0

    def add(self, node: str, address: int, nbytes: int, listener: Listener) -> Callable[[], None]:
        """Call `listener` for writes to [address, address + nbytes); returns a function that removes it."""
        self._count = number = self._count + 1
        row = (address, number, address + nbytes, listener)
        insort(self._by_node.setdefault(node, []), row)
        self._longest[node] = max(self._longest.get(node, 0), nbytes)

        def remove() -> None:
            here = self._by_node.get(node, [])
            at = bisect_left(here, row[:2])
            if at < len(here) and here[at] is row:
                del here[at]
                if not here:
                    del self._by_node[node], self._longest[node]

        return remove

    def has_any(self, node: str) -> bool:
        """Whether a memory has listeners."""
        return node in self._by_node

    def notify(self, node: str, address: int, nbytes: int, payload: object) -> None:
        """A write has brought bytes to a memory; its listeners are called in the order in which they were added."""
        here = self._by_node.get(node)
        if not here:
            return
        at, until, found = bisect_left(here, (address - self._longest[node],)), address + nbytes, []
        while at < len(here) and here[at][0] < until:
            if address < here[at][2]:
                found.append(here[at])
            at += 1
        if found:
            landed = Landed(node, address, nbytes, payload)
            for _, _, _, listener in sorted(found, key=_NUMBER) if len(found) > 1 else found:
                listener(landed)
