"""The runs of a request as transfers to memory channels: a request pays once for what its runs touch.

A run that begins inside a burst is cut at the end of that burst. Bytes in the burst in which the previous run ends
belong to that run's transfer: the burst is accessed once. So only the last burst of a transfer may be partial, and how
many of its granules are touched is counted here, where the gaps between runs are known.
"""

from __future__ import annotations

from collections.abc import Iterable

from kernbench.components.memory_port import MemoryPort


class RunBursts:
    """One transfer: where it begins, and its bytes."""

    __slots__ = ("_touched", "address", "nbytes", "port")

    def __init__(self, port: MemoryPort, address: int, nbytes: int) -> None:
        self.port = port
        self.address = address
        self.nbytes = nbytes
        self._touched = self._granules_at(address, nbytes)

    def takes(self, port: MemoryPort, address: int) -> bool:
        """Whether an address lies in the burst in which this ends."""
        burst_bytes = port.burst_bytes
        return port is self.port and address // burst_bytes == (self.address + self.nbytes - 1) // burst_bytes

    def extend(self, address: int, nbytes: int) -> None:
        """Further bytes of the last burst."""
        self.nbytes += nbytes
        self._touched |= self._granules_at(address, nbytes)

    @property
    def granules(self) -> int:
        """How many granules of its last burst are touched; 0 for a memory that has none."""
        return self._touched.bit_count()

    def _granules_at(self, address: int, nbytes: int) -> int:
        """The granules that some bytes touch in their last burst, one bit each."""
        burst_bytes, granule_bytes = self.port.burst_bytes, self.port.granule_bytes
        if granule_bytes == burst_bytes:  # also of a memory without channels
            return 0
        end = address + nbytes
        first = max(address, (end - 1) // burst_bytes * burst_bytes) % burst_bytes // granule_bytes
        last = (end - 1) % burst_bytes // granule_bytes
        return (2 << last) - (1 << first)


def bursts_of(runs: Iterable[tuple[MemoryPort, int, int]]) -> list[RunBursts]:
    """Runs, each by memory, address there and bytes, as transfers."""
    found: list[RunBursts] = []
    for run_port, run_address, run_bytes in runs:
        port, address, nbytes = run_port, run_address, run_bytes
        burst_bytes = port.burst_bytes
        head = -address % burst_bytes if burst_bytes else 0
        if found and burst_bytes and found[-1].takes(port, address):
            shared = min(head, nbytes)
            found[-1].extend(address, shared)
            address, nbytes, head = address + shared, nbytes - shared, 0
        if 0 < head < nbytes:
            found.append(RunBursts(port, address, head))
            address, nbytes = address + head, nbytes - head
        if nbytes:
            found.append(RunBursts(port, address, nbytes))
    return found
