"""What a kernel's messages have moved over the links of the machine, and to memory.

For links a chunk of a message counts for a kernel if it travelled while that kernel ran: it departed after the kernel's
start and had landed before its end. So what is counted for a link, over the link's bandwidth, is never longer than the
kernel. For memory a chunk counts for the kernel that sent it, also where it lands after that kernel's end: the PE's
traffic has the late bytes when they land, which may be during another kernel, and they are taken off that one.
"""

from __future__ import annotations

from typing import NamedTuple

from kernbench.common.channel_traffic import NO_TRAFFIC, ChannelTraffic

NodePath = tuple[str, ...]  # nodes, from the sender's DMA to the memory of the slot
ByMemory = dict[str, ChannelTraffic]  # by controller


class MessageTraffic(NamedTuple):
    """What one PE answers for its kernel: bytes that it sent, and the bytes that travelled meanwhile, by path."""

    sent_bytes: int = 0
    carried: tuple[tuple[NodePath, int], ...] = ()  # sent and received


NO_MESSAGES = MessageTraffic()


class MessageCounter:
    """Counts for one kernel on one PE. Credits are left out. `late` is the PE's: what its kernels sent to memories with
    channels, and what landed there after they had ended.
    """

    __slots__ = ("_carried", "is_over", "late", "sent_bytes", "since_ns", "under_way")

    def __init__(self, since_ns: float, late: ByMemory) -> None:
        self.since_ns = since_ns  # when the kernel started
        self.sent_bytes = 0
        self.is_over = False
        self.late = late
        self.under_way: ByMemory = {}  # to memories with channels
        self._carried: dict[NodePath, int] = {}

    def send(self, memory: str, nbytes: int, to_channels: ChannelTraffic | None) -> None:
        """A chunk departs; `to_channels` is what it writes where its slot lies in a memory with channels."""
        self.sent_bytes += nbytes
        if to_channels is not None:
            self.under_way[memory] = self.under_way.get(memory, NO_TRAFFIC).plus(to_channels)

    def land(self, path: NodePath, nbytes: int, to_channels: ChannelTraffic | None) -> None:
        """A chunk is in memory."""
        if not self.is_over:
            self.carry(path, nbytes)
        if to_channels is not None:
            self.land_part(path[-1], to_channels)

    def land_part(self, memory: str, to_channels: ChannelTraffic) -> None:
        """Some of a chunk is in memory. What was counted so is taken back before the chunk lands as a whole."""
        if self.is_over:
            self.late[memory] = self.late.get(memory, NO_TRAFFIC).plus(to_channels)
        else:
            self.under_way[memory] = self.under_way[memory].minus(to_channels)

    def carry(self, path: NodePath, nbytes: int) -> None:
        """Bytes of a message have travelled."""
        self._carried[path] = self._carried.get(path, 0) + nbytes

    def traffic(self) -> MessageTraffic:
        return MessageTraffic(self.sent_bytes, tuple(sorted(self._carried.items())))
