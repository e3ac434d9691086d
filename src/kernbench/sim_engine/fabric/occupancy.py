"""How long flits occupy links: bytes over bandwidth, and what packets of the link add (`common.framing`)."""

from __future__ import annotations

from kernbench.common.framing import Framing
from kernbench.sim_engine.fabric.fifo import occupy_ns

LinkRate = tuple[float | None, Framing | None]  # thousands of links have few


class LinkOccupancy(dict[LinkRate, float]):
    """How long a flit of some bytes occupies a link, by the link's rate.

    On a link with framing, whole flits pay their share of packet headers, and the last flit of a transfer pays what is
    then missing of one header for every packet that was begun: so a transfer occupies the link for its bytes and
    whole headers, and all flits but the last are alike.
    """

    def __init__(self, nbytes: int, transfer_bytes: int | None = None) -> None:
        super().__init__()
        self._nbytes = nbytes
        self._transfer_bytes = transfer_bytes  # of which this is the last flit; None for flits before it

    def __missing__(self, rate: LinkRate) -> float:
        bw_gbs, framing = rate
        nbytes: float = self._nbytes
        if framing is not None and self._transfer_bytes is None:
            nbytes += framing.share(self._nbytes)
        elif framing is not None and self._transfer_bytes is not None:
            before = self._transfer_bytes - self._nbytes
            nbytes += framing.headers(self._transfer_bytes) - framing.share(before)
        self[rate] = found = occupy_ns(nbytes, bw_gbs)
        return found
