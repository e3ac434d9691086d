"""Times of many flits in short: arithmetic progressions (first, spacing, count), or a memory's rounds.

Exact: all times lie on the grid, so that products and sums of them are exact. Notation only: what a link makes of such
times is in `fifo.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

Progression = tuple[float, float, int]


class Pace:
    """Times in rounds, as the flits of a read leave a memory: a first round one by one, then again every burst time.

    The times never go back. `end` is the time of the last flit, where that is shorter than the others, or longer for
    its packet headers.
    """

    __slots__ = ("burst_ns", "end", "firsts", "flits", "simultaneous")

    def __init__(
        self, firsts: list[float], burst_ns: float, flits: int, *, simultaneous: bool = False, end: float | None = None
    ) -> None:
        self.firsts = firsts  # of the first round, each no earlier than the one before
        self.burst_ns = burst_ns
        self.flits = flits
        self.simultaneous = simultaneous  # all of `firsts` are the same time
        self.end = end

    def time(self, index: int) -> float:
        firsts = self.firsts
        if self.end is not None and index == self.flits - 1:
            return self.end
        rounds, j = divmod(index, len(firsts))
        if not rounds:
            return firsts[j]
        return max(firsts[j] + rounds * self.burst_ns, firsts[-1] + (rounds - 1) * self.burst_ns)

    def times(self, start: int, stop: int) -> Iterator[float]:
        firsts, burst_ns, latest = self.firsts, self.burst_ns, self.firsts[-1]
        channels, last = len(firsts), self.flits - 1
        for index in range(start, stop):
            rounds = index // channels
            own = firsts[index - rounds * channels] + rounds * burst_ns
            if rounds and own < latest + (rounds - 1) * burst_ns:
                own = latest + (rounds - 1) * burst_ns
            yield own if index < last or self.end is None else self.end

    def times_at(self, indices: Sequence[int]) -> list[float]:
        """The times of some flits."""
        firsts, burst_ns, channels, end = self.firsts, self.burst_ns, len(self.firsts), self.end
        last = self.flits - 1 if end is not None else -1
        found: list[float] = []
        for index in indices:
            rounds = index // channels
            time = firsts[index - rounds * channels] + rounds * burst_ns
            if rounds and time < firsts[-1] + (rounds - 1) * burst_ns:
                time = firsts[-1] + (rounds - 1) * burst_ns
            found.append(time if index != last or end is None else end)
        return found

    def moved(self, by: float) -> Pace:
        """The same rounds, `by` later."""
        end = None if self.end is None else self.end + by
        return Pace(
            [first + by for first in self.firsts], self.burst_ns, self.flits, simultaneous=self.simultaneous, end=end
        )

    def count_until(self, now: float, *, inclusive: bool) -> int:
        """How many flits have a time before `now`, or at it too."""
        bisect = bisect_right if inclusive else bisect_left
        return bisect(range(self.flits), now, key=self.time)


Times = list[Progression] | Pace


def moved(times: Times, by: float) -> Times:
    return times.moved(by) if isinstance(times, Pace) else shifted(times, by)


def first_of(times: Times) -> float:
    return times.firsts[0] if isinstance(times, Pace) else times[0][0]


def last_of(times: Times) -> float:
    return times.time(times.flits - 1) if isinstance(times, Pace) else last_time(times)


def append_progression(progressions: list[Progression], first: float, spacing: float, count: int) -> None:
    """Add a progression, as part of the one before it where it goes on at the same pace."""
    if progressions:
        t, dt, n = progressions[-1]
        gap = first - (t + (n - 1) * dt)
        if (n == 1 or gap == dt) and (count == 1 or gap == spacing):
            progressions[-1] = (t, gap, n + count)
            return
    progressions.append((first, spacing if count > 1 else 0.0, count))


def shifted(progressions: list[Progression], by: float) -> list[Progression]:
    return [(t + by, dt, n) for t, dt, n in progressions]


def last_time(progressions: list[Progression]) -> float:
    t, dt, n = progressions[-1]
    return t + (n - 1) * dt


def nth_time(progressions: list[Progression], index: int) -> float:
    """The time of flit `index`, counted from the first of `progressions`."""
    for t, dt, n in progressions:
        if index < n:
            return t + index * dt
        index -= n
    raise IndexError(index)


def times_at(progressions: list[Progression], indices: Sequence[int]) -> list[float]:
    """The times of some flits, counted from the first of `progressions`, in order."""
    found: list[float] = []
    rest = iter(progressions)
    first, t, dt, n = 0, 0.0, 0.0, 0
    for index in indices:
        while index - first >= n:
            first += n
            t, dt, n = next(rest)
        found.append(t + (index - first) * dt)
    return found


def count_until(progressions: list[Progression], now: float) -> int:
    """How many flits have a time of `now` or earlier. Times do not decrease along `progressions`."""
    total = 0
    for t, dt, n in progressions:
        if t > now:
            break
        if t + (n - 1) * dt <= now:
            total += n
            continue
        i = int((now - t) / dt) + 1
        while t + (i - 1) * dt > now:
            i -= 1
        while t + i * dt <= now:
            i += 1
        return total + i
    return total


def times_of(progressions: list[Progression]) -> Iterator[float]:
    """Every flit's time."""
    for t, dt, n in progressions:
        for i in range(n):
            yield t + i * dt


def each_time(times: Times, start: int, stop: int) -> Iterator[float]:
    """The time of every flit: of progressions all, of a memory's rounds those of flits `start` to `stop`."""
    return times.times(start, stop) if isinstance(times, Pace) else times_of(times)


def part_of(progressions: list[Progression], start: int, stop: int) -> list[Progression]:
    """Flits `start` to `stop` (not included) of `progressions`."""
    out: list[Progression] = []
    for t, dt, n in progressions:
        if stop <= 0:
            break
        a, b = max(start, 0), min(stop, n)
        if a < b:
            out.append((t + a * dt, dt, b - a))
        start -= n
        stop -= n
    return out
