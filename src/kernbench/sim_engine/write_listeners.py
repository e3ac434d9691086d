"""Listeners for writes to a memory, such as ring buffers that wait for a message.

A listener names a range of one memory. It is called at the instant at which the last byte of a write is in that memory,
which is before the writer has its acknowledgement, whatever path the bytes took.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.components.memory_port import Landed, Listener


class WriteListeners:
    """The listeners of one engine's machine, by memory."""

    def __init__(self) -> None:
        self._by_node: dict[str, dict[int, tuple[int, int, Listener]]] = {}
        self._by_range: dict[str, dict[tuple[int, int], tuple[Listener, ...]]] = {}  # by range, where there are any
        self._count = 0

    def add(self, node: str, address: int, nbytes: int, listener: Listener) -> Callable[[], None]:
        """Call `listener` for writes to [address, address + nbytes); returns a function that removes it."""
        self._count = number = self._count + 1
        self._by_node.setdefault(node, {})[number] = (address, address + nbytes, listener)
        self._by_range.pop(node, None)

        def remove() -> None:
            self._by_range.pop(node, None)
            here = self._by_node.get(node, {})
            here.pop(number, None)
            if not here:
                self._by_node.pop(node, None)

        return remove

    def has_any(self, node: str) -> bool:
        """Whether a memory has listeners."""
        return node in self._by_node

    def notify(self, node: str, address: int, nbytes: int, payload: object) -> None:
        """A write has brought bytes to a memory; its listeners are called in the order in which they were added."""
        here = self._by_node.get(node)
        if not here:
            return
        by_range = self._by_range.setdefault(node, {})
        listeners = by_range.get((address, nbytes))
        if listeners is None:
            until = address + nbytes
            listeners = tuple(listener for start, end, listener in here.values() if start < until and address < end)
            if listeners:  # slots are written repeatedly; ranges without listeners are not cached, to bound the table
                by_range[address, nbytes] = listeners
        if listeners:
            landed = Landed(node, address, nbytes, payload)
            for listener in listeners:
                listener(landed)
