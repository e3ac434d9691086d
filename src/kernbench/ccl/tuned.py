"""Tables of `auto` from measurements: the algorithm for each range of sizes, and the file with the table.

Sizes are measured one by one. A row applies up to the geometric mean of the last size at which its algorithm was best
and the first size at which another one was. The choice of the current table, or that of the previous size, is kept
unless another is better by more than `TOLERANCE`: a new table differs from the old one only where that saves time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isqrt
from pathlib import Path
from typing import NamedTuple

from kernbench.ccl.config_spec import AutoRow
from kernbench.common.errors import UsageError

TOLERANCE = 0.02


class Measurement(NamedTuple):
    """The time of one algorithm at one size. `chunk_bytes` is None if the algorithm's default was used."""

    nbytes: int
    algorithm: str
    chunk_bytes: int | None
    time_ns: float


def choose_rows(
    measurements: Sequence[Measurement], before: Sequence[Measurement]
) -> tuple[tuple[AutoRow, ...], tuple[Measurement, ...]]:
    """A table, and its choice at each size; `before` has the choices of the current table."""
    chosen: list[Measurement] = []
    for present in before:
        here = [present, *(measured for measured in measurements if measured.nbytes == present.nbytes)]
        least_ns = min(measured.time_ns for measured in here)
        last = chosen[-1][1:3] if chosen else None
        good = [measured for measured in here if measured.time_ns <= least_ns * (1 + TOLERANCE)]
        kept = [measured for measured in good if measured[1:3] in (present[1:3], last)]
        chosen.append(kept[0] if kept else min(good, key=lambda measured: measured.time_ns))
    rows = []
    for at, measured in enumerate(chosen):
        if at + 1 == len(chosen):
            rows.append(AutoRow(measured.algorithm, None, measured.chunk_bytes))
        elif chosen[at + 1][1:3] != measured[1:3]:
            rows.append(
                AutoRow(measured.algorithm, isqrt(measured.nbytes * chosen[at + 1].nbytes), measured.chunk_bytes)
            )
    return tuple(rows), tuple(chosen)


def table_text(tables: Mapping[str, Sequence[AutoRow]], about: Sequence[str]) -> str:
    """The text of the file: comment lines, then a section `auto`."""
    lines = [f"# {line}".rstrip() for line in about]
    lines.append("auto:")
    for name, rows in tables.items():
        lines.append(f"  {name}:")
        for row in rows:
            limit = "" if row.up_to_ranks is None else f"up_to_ranks: {row.up_to_ranks}, "
            limit += "" if row.up_to_bytes is None else f"up_to_bytes: {row.up_to_bytes}, "
            chunk = "" if row.chunk_bytes is None else f", chunk_bytes: {row.chunk_bytes}"
            lines.append(f"    - {{ {limit}algorithm: {row.algorithm}{chunk} }}")
    return "\n".join(lines) + "\n"


def check_writable(path: Path) -> None:
    """Raise UsageError for a file that could not be written, before anything is measured."""
    why = None
    if not path.name or path.is_dir():
        why = "it is a folder"
    elif not path.parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "permission denied"
    if why is not None:
        raise UsageError(f"'{path}' cannot be written: {why}", hint="name a file in a folder that exists")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically: it is complete, or as it was before."""
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
