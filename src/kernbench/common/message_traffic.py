"""What a kernel's messages have moved over the links of the machine.

A chunk of a message counts for a kernel if it travelled while that kernel ran: it set out after the kernel's start and
had landed before its end. So what is counted for a link, over the link's bandwidth, is never longer than the kernel.
"""

from __future__ import annotations

from typing import NamedTuple

Path = tuple[str, ...]  # nodes, from the sender's DMA to the memory of the slot


class MessageTraffic(NamedTuple):
    """What one PE answers for its kernel: bytes that it sent, and the bytes that travelled meanwhile, by path."""

    sent_bytes: int = 0
    carried: tuple[tuple[Path, int], ...] = ()  # sent and received


NO_MESSAGES = MessageTraffic()


class MessageCounter:
    """Counts for one kernel on one PE, until that ends. Credits are left out."""

    __slots__ = ("_carried", "is_over", "sent_bytes", "since_ns")

    def __init__(self, since_ns: float) -> None:
        self.since_ns = since_ns  # when the kernel started
        self.sent_bytes = 0
        self.is_over = False
        self._carried: dict[Path, int] = {}

    def carry(self, path: Path, nbytes: int) -> None:
        """Bytes of a message have travelled."""
        self._carried[path] = self._carried.get(path, 0) + nbytes

    def traffic(self) -> MessageTraffic:
        return MessageTraffic(self.sent_bytes, tuple(sorted(self._carried.items())))
