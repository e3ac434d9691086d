"""Times of a row of flits as a few runs (first, step, count), and what a FIFO server does to them.

Exact: all times lie on the grid, so that products and sums of them are exact. A run leaves a link as at most two runs: while
there is a backlog the flits leave back to back; once it is gone they leave at the pace at which they come.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

Run = tuple[float, float, int]


def append_run(runs: list[Run], first: float, step: float, count: int) -> None:
    """Add a run, as part of the one before it where it goes on at the same pace."""
    if runs:
        t, dt, n = runs[-1]
        gap = first - (t + (n - 1) * dt)
        if (n == 1 or gap == dt) and (count == 1 or gap == step):
            runs[-1] = (t, gap, n + count)
            return
    runs.append((first, step if count > 1 else 0.0, count))


def serve(runs: list[Run], occupy: float, free: float) -> tuple[list[Run], float]:
    """When flits that are ready at `runs` leave a server that takes `occupy` for each and is free at `free`."""
    out: list[Run] = []
    for t, dt, n in runs:
        if free <= t:
            if dt <= occupy:
                append_run(out, t + occupy, occupy, n)
                free = t + n * occupy
            else:
                append_run(out, t + occupy, dt, n)
                free = t + (n - 1) * dt + occupy
        elif dt <= occupy:
            append_run(out, free + occupy, occupy, n)
            free += n * occupy
        else:
            caught_up = _caught_up(t, dt, free, occupy)
            if caught_up >= n:
                append_run(out, free + occupy, occupy, n)
                free += n * occupy
            else:
                append_run(out, free + occupy, occupy, caught_up)
                append_run(out, t + caught_up * dt + occupy, dt, n - caught_up)
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


def serve_with_last(runs: list[Run], occupy: float, last_occupy: float, free: float) -> tuple[list[Run], float]:
    """`serve`, where the very last flit is a smaller one."""
    if occupy == last_occupy:
        return serve(runs, occupy, free)
    t, dt, n = runs[-1]
    head = [*runs[:-1], (t, dt, n - 1)] if n > 1 else runs[:-1]
    out, free = serve(head, occupy, free)
    ready = t + (n - 1) * dt
    free = (free if free > ready else ready) + last_occupy
    append_run(out, free, 0.0, 1)
    return out, free


def shifted(runs: list[Run], by: float) -> list[Run]:
    return [(t + by, dt, n) for t, dt, n in runs]


def last_time(runs: list[Run]) -> float:
    t, dt, n = runs[-1]
    return t + (n - 1) * dt


def nth_time(runs: list[Run], index: int) -> float:
    """The time of flit `index`, counted from the first of `runs`."""
    for t, dt, n in runs:
        if index < n:
            return t + index * dt
        index -= n
    raise IndexError(index)


def count_until(runs: list[Run], now: float) -> int:
    """How many flits have a time of `now` or earlier. Times do not decrease along `runs`."""
    total = 0
    for t, dt, n in runs:
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


def times_of(runs: list[Run]) -> Iterator[float]:
    """Every flit's time."""
    for t, dt, n in runs:
        for i in range(n):
            yield t + i * dt


def part_of(runs: list[Run], start: int, stop: int) -> list[Run]:
    """Flits `start` to `stop` (not included) of `runs`."""
    out: list[Run] = []
    for t, dt, n in runs:
        if stop <= 0:
            break
        a, b = max(start, 0), min(stop, n)
        if a < b:
            out.append((t + a * dt, dt, b - a))
        start -= n
        stop -= n
    return out
