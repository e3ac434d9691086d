"""What a link or memory channel did over time, in bins of equal width that are merged in pairs as time goes on.

A flit adds its bytes to the bins during which it was on the link, in proportion, and its waiting to the bins during
which it waited. Parts are multiples of 2**-20, the last one is what is left: sums over bins are exact.
"""

from __future__ import annotations

from itertools import accumulate

from kernbench.common.units import on_grid


class Track:
    """One place. Waiting is kept as whole bins entered and left (`_edges`) and what is beside them (`_parts`)."""

    __slots__ = ("_edges", "_parts", "nbytes")

    def __init__(self) -> None:
        self.nbytes: list[float] = []
        # Of all waiting, and of waiting for others: parts of bins, and flits that begin or end to wait for whole ones
        self._parts: tuple[list[float], list[float]] = ([], [])
        self._edges: tuple[list[int], list[int]] = ([], [])

    def add_bytes(self, nbytes: float, start: float, leave: float, width: float) -> None:
        """A flit was on the link from `start` to `leave`."""
        first, last = int(start // width), int(leave // width)
        if leave == last * width and last > first:
            last -= 1
        bins = self.nbytes
        if len(bins) <= last:
            bins.extend([0.0] * (last + 1 - len(bins)))
        per_ns = nbytes / (leave - start)
        for at in range(first, last):
            part = on_grid(per_ns * ((at + 1) * width - max(start, at * width)))
            bins[at] += part
            nbytes -= part
        bins[last] += nbytes

    def add_wait(self, which: int, start: float, stop: float, width: float) -> None:
        """A flit waited: 0 for all waiting, 1 for waiting behind others."""
        parts, edges = self._parts[which], self._edges[which]
        first, last = int(start // width), int(stop // width)
        if len(parts) <= last:
            more = last + 1 - len(parts)
            parts.extend([0.0] * more)
            edges.extend([0] * more)
        if first == last:
            parts[first] += stop - start
            return
        parts[first] += (first + 1) * width - start
        parts[last] += stop - last * width
        if last > first + 1:
            edges[first + 1] += 1
            edges[last] -= 1

    def waits(self, which: int, width: float) -> list[float]:
        """Of every bin, how long flits waited in it, all together."""
        whole = accumulate(self._edges[which])
        return [part + flits * width for part, flits in zip(self._parts[which], whole, strict=True)]

    def merge(self, width: float) -> None:
        """From bins of `width` to bins of twice that."""
        self.nbytes = _paired(self.nbytes)
        merged = [_paired(self.waits(which, width)) for which in (0, 1)]
        self._parts = (merged[0], merged[1])
        self._edges = ([0] * len(merged[0]), [0] * len(merged[1]))


def _paired(bins: list[float]) -> list[float]:
    if len(bins) % 2:
        bins.append(0.0)
    return [a + b for a, b in zip(bins[::2], bins[1::2], strict=True)]
