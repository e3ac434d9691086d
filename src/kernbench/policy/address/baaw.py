"""The BAAW of one PE: the segments of its logical addresses, as the front stage of its DMA engine.

A segment is a part of a tensor that lies in one memory; segments never overlap. An access finds its segment by
bisection and must lie inside it. The result is one physical request, or, where channels have requests of their own, one
for each channel that the access uses. The segments of one tensor arrive as one run that all PEs of a SIP share. Not
modelled: a limit on the number of segments, and the time of a lookup, which `pe_dma` overhead_ns includes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

from kernbench.common.address_layout import RECORD_LAYOUT, AddressLayout
from kernbench.common.baaw import BaawSegment
from kernbench.common.errors import AddressError
from kernbench.policy.address.channel_map import channel_requests
from kernbench.policy.address.page_table import PhysRange
from kernbench.policy.address.phyaddr import PhysAddr

_la_base = attrgetter("la_base")


class PhysicalRequest(NamedTuple):
    """One request of an access: its physical address, its bytes, and the node it is sent to."""

    pa: int
    nbytes: int
    dst_node: str


class BaawTable:
    """The segment table of one PE. An HBM slice has `channels`, interleaved in bursts of `burst_bytes`."""

    def __init__(self, channels: int, burst_bytes: int, layout: AddressLayout = RECORD_LAYOUT) -> None:
        self._layout = layout
        self._channels, self._burst_bytes = channels, burst_bytes
        self._starts: list[int] = []  # of the runs, ascending
        self._runs: list[Sequence[BaawSegment]] = []

    def install(self, run: Sequence[BaawSegment]) -> None:
        """Install segments, each of which begins where the previous one ends. The sequence is kept, not copied.

        Raises AddressError, and installs nothing, where they overlap a segment that is installed.
        """
        start, end = run[0].la_base, run[-1].la_end
        at = bisect_right(self._starts, start)
        for other in self._runs[max(at - 1, 0) : at + 1]:
            if other[0].la_base < end and start < other[-1].la_end:
                raise AddressError(
                    f"logical addresses {start:#x} to {end - 1:#x} overlap a segment at {other[0].la_base:#x}",
                    where="the installation of a BAAW segment",
                    hint="remove that segment first, or take addresses that are free",
                )
        self._starts.insert(at, start)
        self._runs.insert(at, run)

    def remove(self, la_base: int, la_size: int) -> None:
        """Remove the segments that begin in a range; segments are removed as they were installed, run by run."""
        first, last = bisect_left(self._starts, la_base), bisect_left(self._starts, la_base + la_size)
        del self._starts[first:last], self._runs[first:last]

    def find(self, la: int, nbytes: int) -> BaawSegment:
        """The segment that an access lies in; raises AddressError where there is none, or where it crosses the end."""
        if nbytes < 1:
            raise AddressError(f"a logical access of {nbytes} bytes at {la:#x}", hint="give 1 byte or more")
        at = bisect_right(self._starts, la) - 1
        run = self._runs[at] if at >= 0 else ()
        if not run or la >= run[-1].la_end:
            raise AddressError(
                f"logical address {la:#x} is in no segment of this PE",
                where=f"an access of {nbytes} bytes at {la:#x}",
                hint="stay inside the tensors that were passed to the kernel, and keep them alive while it runs",
            )
        segment = run[bisect_right(run, la, key=_la_base) - 1]
        if la + nbytes > segment.la_end:
            raise AddressError(
                f"{nbytes} bytes at logical address {la:#x} cross the end of their segment at {segment.la_end:#x}",
                where=f"a segment of {segment.la_size} bytes at {segment.la_base:#x}, in {segment.agg_node_id}",
                hint="a segment is the part of a tensor in one memory: access each part on its own, for example "
                "x.local, or count from x.across where a block spans parts",
            )
        return segment

    def translate(self, la: int, nbytes: int) -> list[PhysRange]:
        """The physical bytes of an access, which are one range; raises AddressError as `find` does."""
        segment = self.find(la, nbytes)
        return [(segment.agg_pa_base + la - segment.la_base, nbytes)]

    def resolve(self, la: int, nbytes: int) -> list[PhysicalRequest]:
        """The physical requests of an access, ready to be routed; raises AddressError as `find` does."""
        segment = self.find(la, nbytes)
        pa = segment.agg_pa_base + la - segment.la_base
        if segment.mode == "n_to_one":
            return [PhysicalRequest(pa, nbytes, segment.agg_node_id)]
        routers = dict(zip(segment.channel_ids, segment.channel_nodes, strict=True))
        base = pa - (PhysAddr.decode(pa, self._layout).hbm_offset or 0)
        return [
            PhysicalRequest(base + part.address, part.nbytes, routers[part.channel])
            for part in channel_requests(pa - base, nbytes, self._channels, self._burst_bytes)
        ]

    @property
    def segments(self) -> tuple[BaawSegment, ...]:
        """All segments, by address."""
        return tuple(segment for run in self._runs for segment in run)

    def copy(self) -> BaawTable:
        """An independent table with the same segments."""
        made = BaawTable(self._channels, self._burst_bytes, self._layout)
        made._starts, made._runs = self._starts[:], self._runs[:]
        return made
