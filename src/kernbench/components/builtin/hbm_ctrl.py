"""HBM controller of one PE's slice: pseudo channels that the fabric schedules burst by burst, and the replies.

The channel of a burst follows from its address, `(address >> log2(burst)) & (channels - 1)`. A burst starts when it
has arrived and its channel is free, plus a turnaround penalty where the channel changes direction, and takes burst /
channel bandwidth. Reads and writes share a channel. With `one_to_one` a transfer is one channel's part of an access.
Not modelled: banks and rows, refresh, reordering, a write buffer.
"""

from __future__ import annotations

from kernbench.common.frozen import frozen
from kernbench.common.units import transfer_ns
from kernbench.components.base import Context, MemoryComponent
from kernbench.topology.graph import Node


@frozen
class ChannelSpec:
    """The parameters of a group of memory channels that the fabric needs."""

    channels: int
    burst_ns: float
    switch_penalty_ns: float
    separate: bool = False  # whether each transfer is for one channel


def burst_ns(channels: int, burst_bytes: int, channel_bw_gbs: float) -> float:
    """One burst on one channel. All channels together are exactly as fast as the link, on the time grid too."""
    return channels * transfer_ns(burst_bytes, channels * channel_bw_gbs)


class HbmCtrlComponent(MemoryComponent):
    """One endpoint per PE: all channels of its slice."""

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        attrs = node.attrs
        channels = int(attrs["num_pcs"])
        self.channels = ChannelSpec(
            channels,
            burst_ns(channels, int(attrs["burst_bytes"]), float(attrs["pc_bw_gbs"])),
            float(attrs["switch_penalty_ns"]),
            bool(attrs.get("one_to_one", False)),
        )
