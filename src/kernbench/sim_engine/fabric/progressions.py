"""Times of flits as a few arithmetic progressions (first, spacing, count), and what a FIFO server does to them.

Exact: all times lie on the grid, so that products and sums of them are exact. A progression leaves a link as at most
two: while there is a backlog the flits leave back to back; once it is gone they leave at the pace at which they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

Progression = tuple[float, float, int]

EXAMINE = -1.0  # a longest wait that has to be looked for


def append_progression(progressions: list[Progression], first: float, spacing: float, count: int) -> None:
    """Add a progression, as part of the one before it where it goes on at the same pace."""
    if progressions:
        t, dt, n = progressions[-1]
        gap = first - (t + (n - 1) * dt)
        if (n == 1 or gap == dt) and (count == 1 or gap == spacing):
            progressions[-1] = (t, gap, n + count)
            return
    progressions.append((first, spacing if count > 1 else 0.0, count))


def serve(progressions: list[Progression], occupy: float, free: float) -> tuple[list[Progression], float]:
    """When flits that are ready at `progressions` leave a server that takes `occupy` for each and is free at `free`."""
    out: list[Progression] = []
    for t, dt, n in progressions:
        if free <= t:
            if dt <= occupy:
                append_progression(out, t + occupy, occupy, n)
                free = t + n * occupy
            else:
                append_progression(out, t + occupy, dt, n)
                free = t + (n - 1) * dt + occupy
        elif dt <= occupy:
            append_progression(out, free + occupy, occupy, n)
            free += n * occupy
        else:
            caught_up = _caught_up(t, dt, free, occupy)
            if caught_up >= n:
                append_progression(out, free + occupy, occupy, n)
                free += n * occupy
            else:
                append_progression(out, free + occupy, occupy, caught_up)
                append_progression(out, t + caught_up * dt + occupy, dt, n - caught_up)
                free = t + (n - 1) * dt + occupy
    return out, free


def _caught_up(t: float, dt: float, free: float, occupy: float) -> int:
    """The first flit that finds the server idle: least i with t + i*dt >= free + i*occupy."""
    i = max(1, ceil((free - t) / (dt - occupy)))
    while t + i * dt < free + i * occupy:
        i += 1
    while i > 1 and t + (i - 1) * dt >= free + (i - 1) * occupy:
        i -= 1
    return i


def pass_link(
    progressions: list[Progression], occupy: float, last_occupy: float, tail: float, free: float
) -> tuple[list[Progression], float, float, float]:
    """How flits that are ready at `progressions`, the very last a smaller one, pass a link and a node of delay `tail`.

    Returns when they are ready after it, when the link is free again, the longest wait and when that began. The usual
    cases by formula: one progression, with or without a single last flit behind it, that leaves as it came. Waits
    change evenly along a progression, so the longest is the first or the last one's.
    """
    t, dt, n = progressions[0]
    last = t
    single = len(progressions) == 2 and progressions[1][2] == 1
    if single:
        last = progressions[1][0]
    elif len(progressions) == 1 and occupy != last_occupy and n > 1:
        single, n = True, n - 1
        last = t + n * dt
    elif len(progressions) > 1 or occupy != last_occupy:
        return _pass_any(progressions, occupy, last_occupy, tail, free)
    start = free if free > t else t
    spacing = occupy if dt < occupy else dt
    if dt > occupy and free > t:
        return _pass_any(progressions, occupy, last_occupy, tail, free)
    out = [(start + occupy + tail, spacing, n)]
    wait, at, n = start - t, t, n - 1
    if n and spacing > dt:
        wait, at = wait + n * (spacing - dt), t + n * dt
    free = start + n * spacing + occupy
    if single:
        start = free if free > last else last
        if start - last > wait:
            wait, at = start - last, last
        free = start + last_occupy
        out.append((free + tail, 0.0, 1))
    return out, free, wait, at


def _pass_any(
    progressions: list[Progression], occupy: float, last_occupy: float, tail: float, free: float
) -> tuple[list[Progression], float, float, float]:
    out, free = serve_with_last(progressions, occupy, last_occupy, free)
    return shifted(out, tail), free, EXAMINE, 0.0


def serve_with_last(
    progressions: list[Progression], occupy: float, last_occupy: float, free: float
) -> tuple[list[Progression], float]:
    """`serve`, where the very last flit is a smaller one."""
    if occupy == last_occupy:
        return serve(progressions, occupy, free)
    t, dt, n = progressions[-1]
    head = [*progressions[:-1], (t, dt, n - 1)] if n > 1 else progressions[:-1]
    out, free = serve(head, occupy, free)
    ready = t + (n - 1) * dt
    free = (max(ready, free)) + last_occupy
    append_progression(out, free, 0.0, 1)
    return out, free


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
