"""What was moved between a block and a memory with channels."""

from __future__ import annotations

from typing import NamedTuple


class ChannelTraffic(NamedTuple):
    """In whole bursts, as channels serve them, and each way in bytes, as links carry them."""

    burst_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0

    def plus(self, more: ChannelTraffic) -> ChannelTraffic:
        return ChannelTraffic(
            self.burst_bytes + more.burst_bytes,
            self.read_bytes + more.read_bytes,
            self.written_bytes + more.written_bytes,
        )

    def minus(self, less: ChannelTraffic) -> ChannelTraffic:
        return ChannelTraffic(
            self.burst_bytes - less.burst_bytes,
            self.read_bytes - less.read_bytes,
            self.written_bytes - less.written_bytes,
        )


NO_TRAFFIC = ChannelTraffic()
