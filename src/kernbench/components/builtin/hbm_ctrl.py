"""HBM controller of one PE's slice: pseudo channels that the fabric schedules burst by burst, and the replies.

The channel of a burst follows from its address, `(address >> log2(burst)) & (channels - 1)`. A burst starts when it
has arrived and its channel is free, plus a turnaround penalty where the channel changes direction, and takes burst /
channel bandwidth; one that is not full takes whole granules. Reads and writes share a channel. With `one_to_one` a
transfer is one channel's part of an access. With the model `closed` a burst that is not full opens a row, and the
turnaround is paid once for a batch of writes; refresh is part of the bandwidth.
Not modelled: banks, reordering.
"""

from __future__ import annotations

from kernbench.common.frozen import frozen
from kernbench.common.units import on_grid, transfer_ns
from kernbench.components.base import Context, MemoryComponent
from kernbench.topology.graph import Node


@frozen
class HbmChannelSpec:
    """The parameters of a group of memory channels that the fabric needs."""

    channels: int
    burst_ns: float
    switch_penalty_ns: float
    separate: bool = False  # whether each transfer is for one channel
    granule_bytes: int = 0  # of a burst that is not full; 0: bursts are whole
    open_ns: float = 0.0  # the least time of such a burst
    drain_bytes: int = 0  # a batch of writes; 0: each change of direction costs the penalty


def burst_ns(channels: int, burst_bytes: int, channel_bw_gbs: float) -> float:
    """One burst on one channel. All channels together are exactly as fast as the link, on the time grid too."""
    return channels * transfer_ns(burst_bytes, channels * channel_bw_gbs)


def last_burst_ns(node: Node, nbytes: int) -> float:
    """The last burst of an access from the beginning of a burst on: whole granules, and the row it may have to open."""
    attrs = node.attrs
    channels, burst_bytes = int(attrs["num_pcs"]), int(attrs["burst_bytes"])
    whole_ns = burst_ns(channels, burst_bytes, float(attrs["pc_bw_gbs"]))
    granules = burst_bytes // int(attrs.get("granule_bytes", burst_bytes))
    spare = (burst_bytes - 1 - (nbytes - 1) % burst_bytes) * granules // burst_bytes
    if not spare:
        return whole_ns
    opens = -(-nbytes // burst_bytes) <= channels
    return max(whole_ns - spare * on_grid(whole_ns / granules), float(attrs.get("open_ns", 0.0)) if opens else 0.0)


class HbmCtrlComponent(MemoryComponent):
    """One endpoint per PE: all channels of its slice."""

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        attrs = node.attrs
        channels = int(attrs["num_pcs"])
        self.channels = HbmChannelSpec(
            channels,
            burst_ns(channels, int(attrs["burst_bytes"]), float(attrs["pc_bw_gbs"])),
            float(attrs["switch_penalty_ns"]),
            bool(attrs.get("one_to_one", False)),
            int(attrs.get("granule_bytes", 0)),
            float(attrs.get("open_ns", 0.0)),
            int(attrs.get("drain_bytes", 0)),
        )
