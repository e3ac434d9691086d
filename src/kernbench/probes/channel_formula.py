"""The time of an uncontended access that is split over HBM channels, by a recurrence over its flits.

Each channel's request has two links of its own, next to the memory, and shares all others. On each link flits leave one
after the other in the order in which they are ready; at a block that stores and forwards a request goes on when its
last flit is there. A read's flits are ready when their channel has committed them. The bursts of a write alternate
over the channels on the first link, unless a block on the path stores and forwards: then requests follow one another.
Constant latencies are left out: they are the same for all flits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from kernbench.common.units import transfer_ns
from kernbench.policy.address.channel_map import channel_requests

Segments = tuple[tuple[float, ...], ...]  # bandwidths of the links between blocks that store and forward
OWN_LINKS = 2  # of each channel, next to the memory
_Flit = tuple[float, int, int, int]  # when it is ready, its channel, its number there, its bytes


@lru_cache(maxsize=256)
def split_ns(
    segments: Segments, nbytes: int, channels: int, burst_bytes: int, burst_ns: float, last_ns: float, *, is_write: bool
) -> float:
    """From the start of an access at the beginning of a slice until its last burst, of `last_ns`, is there, without
    latencies.
    """
    requests = channel_requests(0, nbytes, channels, burst_bytes)
    sizes = [[min(burst_bytes, part.nbytes - at) for at in range(0, part.nbytes, burst_bytes)] for part in requests]
    n, step_ns = len(sizes), transfer_ns(burst_bytes, segments[0][0]) if is_write and len(segments) == 1 else 0.0
    flits: list[_Flit] = []
    for channel, own in enumerate(sizes):
        for number, size in enumerate(own):
            lasts = burst_ns if size == burst_bytes else last_ns
            ready = (number * n + channel) * step_ns if is_write else number * burst_ns + lasts
            flits.append((ready, channel, number, size))
    if is_write and not step_ns:
        flits.sort(key=lambda flit: flit[1:])
    for index, segment in enumerate(segments):
        at_memory = len(segments) - 1 if is_write else 0
        shared = segment[: len(segment) - OWN_LINKS] if is_write else segment[OWN_LINKS:]
        own_links = (segment[len(shared) :] if is_write else segment[:OWN_LINKS]) if index == at_memory else ()
        shared = shared if index == at_memory else segment
        if is_write:
            flits = _over_own(_over_shared(flits, shared), own_links)
        else:
            flits = _over_shared(_over_own(flits, own_links), shared)
        if index < len(segments) - 1:
            flits = _stored(flits)
    if not is_write:
        return max(flit[0] for flit in flits)
    free = [0.0] * channels
    for ready, channel, _, size in sorted(flits, key=lambda flit: flit[1:3]):
        free[channel] = max(ready, free[channel]) + (burst_ns if size == burst_bytes else last_ns)
    return max(free)


def _over_shared(flits: list[_Flit], links: Sequence[float]) -> list[_Flit]:
    """All flits over the same links, in the order in which they are ready; of equals, as they are listed."""
    for gbs in links:
        free, passed = 0.0, []
        for ready, channel, number, size in sorted(flits, key=lambda flit: flit[0]):
            free = max(ready, free) + transfer_ns(size, gbs)
            passed.append((free, channel, number, size))
        flits = passed
    return flits


def _over_own(flits: list[_Flit], links: Sequence[float]) -> list[_Flit]:
    """Each channel's flits over its own links; the result is listed by time, then by channel."""
    if not links:
        return flits
    channels = sorted({flit[1] for flit in flits})
    passed = [flit for own in channels for flit in _over_shared([flit for flit in flits if flit[1] == own], links)]
    return sorted(passed, key=lambda flit: flit[:2])


def _stored(flits: list[_Flit]) -> list[_Flit]:
    """All flits of a request are ready when its last one has arrived."""
    last: dict[int, float] = {}
    for ready, channel, _, _ in flits:
        last[channel] = max(last.get(channel, 0.0), ready)
    return sorted([(last[flit[1]], *flit[1:]) for flit in flits], key=lambda flit: flit[:3])
