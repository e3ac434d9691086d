"""Tables of `auto` from measurements: which algorithm for which size, and the file that says so.

Sizes are measured one by one. A row holds up to the geometric mean of the last size it was best at and the first size
at which another one was. What the present table takes is kept where nothing is better by more than `TOLERANCE`, and so
is the choice for the size before: a new table differs from the old one where it gains something.
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


class Trial(NamedTuple):
    """One measurement. `chunk_bytes` is None where the algorithm's own was used."""

    nbytes: int
    algorithm: str
    chunk_bytes: int | None
    time_ns: float


def choose_rows(trials: Sequence[Trial], before: Sequence[Trial]) -> tuple[tuple[AutoRow, ...], tuple[Trial, ...]]:
    """A table, and what it takes at each size; `before` is what the present one takes there, size by size."""
    chosen: list[Trial] = []
    for present in before:
        here = [present, *(trial for trial in trials if trial.nbytes == present.nbytes)]
        least_ns = min(trial.time_ns for trial in here)
        last = chosen[-1][1:3] if chosen else None
        good = [trial for trial in here if trial.time_ns <= least_ns * (1 + TOLERANCE)]
        kept = [trial for trial in good if trial[1:3] in (present[1:3], last)]
        chosen.append(kept[0] if kept else min(good, key=lambda trial: trial.time_ns))
    rows = []
    for at, trial in enumerate(chosen):
        if at + 1 == len(chosen):
            rows.append(AutoRow(trial.algorithm, None, trial.chunk_bytes))
        elif chosen[at + 1][1:3] != trial[1:3]:
            rows.append(AutoRow(trial.algorithm, isqrt(trial.nbytes * chosen[at + 1].nbytes), trial.chunk_bytes))
    return tuple(rows), tuple(chosen)


def table_text(tables: Mapping[str, Sequence[AutoRow]], about: Sequence[str]) -> str:
    """The file: a section `auto`, after lines of comment."""
    lines = [f"# {line}".rstrip() for line in about]
    lines.append("auto:")
    for name, rows in tables.items():
        lines.append(f"  {name}:")
        for row in rows:
            limit = "" if row.up_to_bytes is None else f"up_to_bytes: {row.up_to_bytes}, "
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
    """Write a file that is there whole, or as it was before."""
    target = Path(os.path.realpath(path))
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
