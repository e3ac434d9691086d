"""What links and memory channels did over time, in bins of equal width that are merged in pairs as time goes on.

A flit adds its bytes to the bins during which it was on the link, in proportion, and its waiting to the bins during
which it waited. Parts are multiples of 2**-20, the last one is what is left: sums over bins are exact. Flits are noted
as they come, and put into bins many at a time, with numpy, which is imported only here.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kernbench.common.units import GRID_PER_NS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

MOST_NOTED = 1 << 21  # numbers, before they are put into bins
METRICS = ("nbytes", "wait_ns", "contended_ns")


@dataclass(frozen=True, eq=False)
class Binned:
    """A row for each place and bin in which something happened, by place, then bin."""

    bin_ns: float
    place: Ints
    bin: Ints
    nbytes: Floats
    wait_ns: Floats
    contended_ns: Floats

    def of(self, place: int, metric: str = "nbytes") -> list[float]:
        """One place, bin by bin, up to its last."""
        rows = self.place == place
        bins, values = self.bin[rows].tolist(), getattr(self, metric)[rows].tolist()
        found = [0.0] * (max(bins, default=-1) + 1)
        for at, value in zip(bins, values, strict=True):
            found[at] = value
        return found

    @property
    def places(self) -> list[int]:
        """Those that carried bytes, in order."""
        return sorted(set(self.place.tolist()))


class Bins:
    """Takes flits and gives bins, at most `most_bins` of `bin_ns` or wider."""

    def __init__(self, bin_ns: float, most_bins: int) -> None:
        self._bin_ns = bin_ns
        self._most_bins = most_bins
        self._uses = array("d")  # place, when a flit, or several that follow each other, begin and leave, bytes
        self._waits = array("d")  # place, from when to when a flit waits, how much of it behind others
        self._sums: tuple[Ints, list[Floats]] | None = None  # place and bin in one number; by metric

    def use(self, place: int, start: float, leave: float, nbytes: float) -> None:
        """Flits were on a link from `start` to `leave`."""
        self._uses.extend((place, start, leave, nbytes))
        if len(self._uses) >= MOST_NOTED:
            self._fold()

    def wait(self, place: int, start: float, stop: float, behind: float) -> None:
        """A flit waited, for a part of the time behind others."""
        self._waits.extend((place, start, stop, behind))
        if len(self._waits) >= MOST_NOTED:
            self._fold()

    def read(self) -> Binned:
        """All that was noted."""
        import numpy as np

        self._fold()
        keys, sums = self._sums or (np.empty(0, np.int64), [np.empty(0)] * len(METRICS))
        return Binned(self._bin_ns, keys // self._most_bins, keys % self._most_bins, *sums)

    def _fold(self) -> None:
        """Put what is noted into bins."""
        import numpy as np

        if not self._uses and not self._waits:
            return
        uses, waits = (np.frombuffer(noted).reshape(-1, 4).T.copy() for noted in (self._uses, self._waits))
        self._uses, self._waits = array("d"), array("d")
        latest = max((float(ends.max()) for ends in (uses[2], waits[2]) if len(ends)), default=0.0)
        while latest >= self._bin_ns * self._most_bins:
            self._bin_ns *= 2
            if self._sums is not None:
                keys, sums = self._sums
                self._sums = _summed(keys - (keys % self._most_bins + 1) // 2, sums)
        width, most = self._bin_ns, self._most_bins
        behind = waits[3] > 0.0
        parts = [
            _bytes_by_bin(uses[0], uses[1], uses[2], uses[3], width, most),
            _waits_by_bin(waits[0], waits[1], waits[2], width, most),
            _waits_by_bin(waits[0][behind], waits[1][behind], (waits[1] + waits[3])[behind], width, most),
        ]
        if self._sums is not None:
            keys, sums = self._sums
            parts = [
                (np.concatenate((keys, own)), np.concatenate((total, values)))
                for (own, values), total in zip(parts, sums, strict=True)
            ]
        all_keys = np.concatenate([keys for keys, _ in parts])
        columns, at = [], 0
        for keys, values in parts:
            column = np.zeros(len(all_keys))
            column[at : at + len(keys)] = values
            columns.append(column)
            at += len(keys)
        self._sums = _summed(all_keys, columns)


def _summed(keys: Ints, columns: list[Floats]) -> tuple[Ints, list[Floats]]:
    """Rows of one key added up; exact in any order, since all are multiples of 2**-20."""
    import numpy as np

    found, rows = np.unique(keys, return_inverse=True)
    return found, [np.bincount(rows, column, len(found)).astype(np.float64) for column in columns]


def _bytes_by_bin(
    place: Floats, start: Floats, leave: Floats, nbytes: Floats, width: float, most: int
) -> tuple[Ints, Floats]:
    import numpy as np

    first = np.floor(start / width).astype(np.int64)
    last = np.maximum(np.ceil(leave / width).astype(np.int64) - 1, first)
    count = last - first + 1
    row = np.repeat(np.arange(len(place)), count)
    ends = np.cumsum(count)
    at = np.arange(len(row)) - np.repeat(ends - count, count) + first[row]
    inside = np.minimum((at + 1) * width, leave[row]) - np.maximum(at * width, start[row])
    part = np.rint(nbytes[row] * (inside / (leave - start)[row]) * GRID_PER_NS) / GRID_PER_NS
    if len(part):
        is_last = ends - 1
        part[is_last] = 0.0
        part[is_last] = nbytes - np.add.reduceat(part, ends - count)
    return place.astype(np.int64)[row] * most + at, part


def _waits_by_bin(place: Floats, start: Floats, stop: Floats, width: float, most: int) -> tuple[Ints, Floats]:
    import numpy as np

    first, last = (np.floor(times / width).astype(np.int64) for times in (start, stop))
    base = place.astype(np.int64) * most
    one = first == last
    several = ~one
    keys = [base[one] + first[one], (base + first)[several], (base + last)[several]]
    values = [
        (stop - start)[one],
        ((first + 1) * width - start)[several],
        (stop - last * width)[several],
    ]
    # Whole bins: how many flits wait changes where one begins or ends to; in between it stays.
    whole = last > first + 1
    edges = np.concatenate(((base + first + 1)[whole], (base + last)[whole]))
    change = np.concatenate((np.ones(whole.sum()), -np.ones(whole.sum())))
    order = np.argsort(edges, kind="stable")
    edges, waiting = edges[order], np.cumsum(change[order])
    if len(edges):
        length = np.where(waiting[:-1] > 0, np.diff(edges), 0)
        row = np.repeat(np.arange(len(length)), length)
        offset = np.arange(len(row)) - np.repeat(np.cumsum(length) - length, length)
        keys.append(edges[:-1][row] + offset)
        values.append(waiting[:-1][row] * width)
    return np.concatenate(keys), np.concatenate(values)
