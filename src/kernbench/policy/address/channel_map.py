"""How an access to HBM is divided over the pseudo channels of its slice, where each channel has a request of its own.

Addresses are interleaved burst by burst, so burst i of an access is on channel `(first burst + i) mod channels`. All
bursts of an access that are on one channel are one request: 4 KiB over 8 channels are 8 requests of 512 bytes, 256
bytes are one request, and a stride of a whole round of channels stays on one channel. An access occupies whole bursts
from the one of its first byte on; the last burst may be partial.
"""

from __future__ import annotations

from typing import NamedTuple

from kernbench.common.ids import PeId, Place


class ChannelRequest(NamedTuple):
    """The part of an access that is on one channel: its first address there, and its bytes."""

    channel: int
    address: int
    nbytes: int


def channel_requests(address: int, nbytes: int, channels: int, burst_bytes: int) -> list[ChannelRequest]:
    """One request for each channel that an access uses, in the order of their first bursts."""
    first, bursts = address // burst_bytes, -(-nbytes // burst_bytes)
    missing = bursts * burst_bytes - nbytes  # of the last burst
    found: list[ChannelRequest] = []
    for i in range(min(bursts, channels)):
        own = (bursts - i - 1) // channels + 1
        has_last = (bursts - i - 1) % channels == 0
        start = (first + i) * burst_bytes if i else address
        found.append(ChannelRequest((first + i) % channels, start, own * burst_bytes - has_last * missing))
    return found


def channel_path(path: tuple[str, ...], channel: int) -> tuple[str, ...]:
    """A path to an HBM controller by way of another channel's router."""
    place = Place.of(path[-2])
    return (*path[:-2], PeId(place.sip, place.cube, place.pe).channel_router(channel), path[-1])
