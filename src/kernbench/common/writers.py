"""Which op wrote each byte of memory last, so that the op log can say what a load waited for.

Stretches are disjoint and sorted by address; finding one is a bisection. What the host wrote has no op. A write to
every few bytes of a large tensor makes as many stretches as writes; writes side by side by one op are one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from kernbench.common.access_observers import AccessObservers

_FEW = 16  # ranges that are noted one by one
WINDOW_BITS = 30  # of addresses: a PE's memory is a few windows


class Writers:
    """The last writer of every byte that an op has written, by op-log id."""

    __slots__ = ("_starts", "_stretches", "access_observers")

    def __init__(self) -> None:
        self.access_observers = AccessObservers()  # called with the address
        self._starts: list[int] = []
        self._stretches: list[tuple[int, int]] = []  # end, op

    def note(self, address: int, nbytes: int, op: int | None) -> None:
        """Bytes from `address` on were last written by `op`, or by the host."""
        if nbytes == 0:
            return
        if self.access_observers:
            self.access_observers.notify(address)
        end = address + nbytes
        first, past = self._touched(address, end)
        starts: list[int] = []
        stretches: list[tuple[int, int]] = []
        if op is not None:
            starts.append(address)
            stretches.append((end, op))
        if first < past:
            begin, (_, before) = self._starts[first], self._stretches[first]
            if begin < address:
                starts.insert(0, begin)
                stretches.insert(0, (address, before))
            stop, after = self._stretches[past - 1]
            if stop > end:
                starts.append(end)
                stretches.append((stop, after))
        self._starts[first:past] = starts
        self._stretches[first:past] = stretches

    def note_all(self, segments: Sequence[tuple[int, int]], op: int | None) -> None:
        """The same of several ranges, (address, bytes) each: many in ascending order are noted in one pass."""
        if len(segments) <= _FEW or any(a + n > b for (a, n), (b, _) in pairwise(segments)):
            for address, nbytes in segments:
                self.note(address, nbytes, op)
            return
        start, end = segments[0][0], sum(segments[-1])
        if self.access_observers:
            for address, _ in segments:
                self.access_observers.notify(address)
        first, past = self._touched(start, end)
        noted = [] if op is None else [(address, address + nbytes, op) for address, nbytes in segments]
        old = zip(self._starts[first:past], self._stretches[first:past], strict=True)
        kept = _outside(((begin, stop, op) for begin, (stop, op) in old), segments)
        together = sorted([*noted, *kept])
        self._starts[first:past] = [begin for begin, _, _ in together]
        self._stretches[first:past] = [(stop, op) for _, stop, op in together]

    def of(self, address: int, nbytes: int) -> tuple[int, ...]:
        """The ops that wrote these bytes, each once, in order of id."""
        if nbytes == 0:
            return ()  # inside a stretch no byte is still not a byte of it
        if self.access_observers:
            self.access_observers.notify(address)
        first, past = self._touched(address, address + nbytes)
        if past - first <= 1:  # as when what is read was written in one go
            return (self._stretches[first][1],) if first < past else ()
        return tuple(sorted({op for _, op in self._stretches[first:past]}))

    def _touched(self, start: int, end: int) -> tuple[int, int]:
        """The stretches that [start, end) touches: first, and past the last."""
        first = bisect_right(self._starts, start) - 1
        if first < 0 or self._stretches[first][0] <= start:
            first += 1
        return first, bisect_left(self._starts, end, first)


class MachineWriters(Writers):
    """The same for all memories of a machine: windows of addresses have a list each, so that a write moves few entries
    however many PEs have written.
    """

    __slots__ = ("_windows",)

    def __init__(self) -> None:
        super().__init__()
        self._windows: dict[int, Writers] = {}

    def note(self, address: int, nbytes: int, op: int | None) -> None:
        if nbytes and self.access_observers:
            self.access_observers.notify(address)
        for window, start, size in _by_window(address, nbytes):
            self._window(window).note(start, size, op)

    def note_all(self, segments: Sequence[tuple[int, int]], op: int | None) -> None:
        window = segments[0][0] >> WINDOW_BITS if segments else 0
        if len(segments) <= _FEW or any(
            address >> WINDOW_BITS != window or address + nbytes - 1 >> WINDOW_BITS != window
            for address, nbytes in segments
        ):
            for address, nbytes in segments:
                self.note(address, nbytes, op)
            return
        if self.access_observers:
            for address, _ in segments:
                self.access_observers.notify(address)
        self._window(window).note_all(segments, op)

    def of(self, address: int, nbytes: int) -> tuple[int, ...]:
        if nbytes == 0:
            return ()
        if self.access_observers:
            self.access_observers.notify(address)
        windows, window = self._windows, address >> WINDOW_BITS
        if address + nbytes - 1 >> WINDOW_BITS == window:
            return windows[window].of(address, nbytes) if window in windows else ()
        found = [windows[at].of(start, size) for at, start, size in _by_window(address, nbytes) if at in windows]
        return tuple(sorted({op for ops in found for op in ops}))

    def _window(self, number: int) -> Writers:
        found = self._windows.get(number)
        if found is None:
            found = self._windows[number] = Writers()
        return found


def _by_window(address: int, nbytes: int) -> Sequence[tuple[int, int, int]]:
    """A range, cut where windows begin: the window, and address and bytes of the part there."""
    first, last = address >> WINDOW_BITS, address + nbytes - 1 >> WINDOW_BITS
    if first == last:
        return ((first, address, nbytes),)
    cuts = [address, *(window << WINDOW_BITS for window in range(first + 1, last + 1)), address + nbytes]
    return [(start >> WINDOW_BITS, start, end - start) for start, end in pairwise(cuts)]


def _outside(
    stretches: Iterable[tuple[int, int, int]], segments: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, int]]:
    """What is left of stretches (start, end, op) when segments are taken out of them; both in ascending order."""
    at = 0
    for begin, stop, op in stretches:
        while at < len(segments) and sum(segments[at]) <= begin:
            at += 1
        following = at
        while begin < stop and following < len(segments) and segments[following][0] < stop:
            if begin < segments[following][0]:
                yield begin, segments[following][0], op
            begin = sum(segments[following])
            following += 1
        if begin < stop:
            yield begin, stop, op
