"""Time, bytes and bandwidth; the exact time grid.

Time is float nanoseconds on a grid of 2**-20 ns (about 1 fs). Every duration is rounded to the grid once, when the
machine is compiled. Sums of grid times are then exact in a double for 8 s of simulated time and do not depend on the
order of additions. GB/s and bytes per ns are the same number.
"""

from __future__ import annotations

import re

GRID_PER_NS = 1 << 20
GRID_NS = 1.0 / GRID_PER_NS
MAX_TIME_NS = float(1 << 33)  # 2**53 grid steps: beyond this, sums stop being exact

_UNITS_NS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ns|us|ms|s)?")

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30


def on_grid(ns: float) -> float:
    """The grid time nearest to `ns`."""
    return round(ns * GRID_PER_NS) / GRID_PER_NS


def transfer_ns(nbytes: float, bw_gbs: float) -> float:
    """How long `nbytes` occupy a link of `bw_gbs`, on the grid; at least one grid step, so that order is never lost."""
    return max(on_grid(nbytes / bw_gbs), GRID_NS)


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def format_bytes(nbytes: int) -> str:
    """`4096` as `4 KiB`; exact sizes keep no decimals."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:g} {unit}" if size == int(size) else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:g} GiB" if size == int(size) else f"{size:.1f} GiB"


def counted(n: int, noun: str) -> str:
    """`1 rank`, `2 ranks`, `1,024 ranks`."""
    return f"{n} {noun}" if n == 1 else f"{n:,} {noun}s"


def format_joules(joules: float) -> str:
    """An energy for people: `812 pJ`, `3.20 uJ`, `1.75 J`."""
    for unit, size in (("J", 1.0), ("mJ", 1e-3), ("uJ", 1e-6), ("nJ", 1e-9)):
        if joules >= size:
            return f"{joules / size:.3g} {unit}"
    return f"{joules / 1e-12:.3g} pJ"


def parse_ns(text: str) -> float | None:
    """A duration as people write it, in ns: `500`, `500ns`, `2.5 us`, `1ms`, `1s`; None for what is none."""
    found = _DURATION.fullmatch(text.strip().lower())
    return None if found is None else float(found[1]) * _UNITS_NS[found[2] or "ns"]


def format_ns(ns: float) -> str:
    """A duration for people: `812.5 ns`, `3.20 us`, `1.75 ms`."""
    if ns < 1_000:
        return f"{ns:.2f} ns"
    if ns < 1_000_000:
        return f"{ns / 1_000:.2f} us"
    return f"{ns / 1_000_000:.2f} ms"
