"""Packets of a link: every `payload_bytes` of a transfer, and what is left of it, travel behind a header."""

from __future__ import annotations

from typing import NamedTuple


class Framing(NamedTuple):
    """What a link adds to the bytes that it carries: flits of UCIe, packets of PCIe, frames of Ethernet."""

    header_bytes: int  # all that is no payload: header, checksum, gap
    payload_bytes: int  # at most, of one packet

    def headers(self, nbytes: int) -> int:
        """The bytes of headers of a transfer: one for every packet that it begins."""
        return -(-nbytes // self.payload_bytes) * self.header_bytes

    def share(self, nbytes: int) -> float:
        """The bytes of headers of a part of a transfer, spread evenly over full packets."""
        return nbytes * self.header_bytes / self.payload_bytes

    @property
    def efficiency(self) -> float:
        """The share of a link's bandwidth that full packets leave for payload."""
        return self.payload_bytes / (self.payload_bytes + self.header_bytes)
