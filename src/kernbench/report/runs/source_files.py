"""Source files of kernels as saved with a run, under short names that do not depend on the machine."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[2]  # kernbench


def read_sources(files: Mapping[str, int], lines: Mapping[tuple[int, int], int]) -> dict[str, object]:
    """The content of `sources.json`."""
    names = short_names(files)
    rows = [{"name": names[file], "text": "".join(linecache.getlines(file)) or None} for file in files]
    return {"files": rows, "lines": [list(line) for line in lines]}


def short_names(files: Iterable[str]) -> dict[str, str]:
    """A file of the package by its path within it, another by its name, with as much of its path as makes it unique."""
    short: dict[str, str] = {}
    found = list(files)
    for file in found:
        path = Path(file)
        short[file] = f"kernbench/{path.relative_to(PACKAGE).as_posix()}" if path.is_relative_to(PACKAGE) else path.name
    depth = 1
    while any(times > 1 for times in Counter(short.values()).values()) and depth < 32:
        depth += 1
        counts = Counter(short.values())
        for file in found:
            if counts[short[file]] > 1:
                short[file] = "/".join(Path(file).parts[-depth:])
    return short
