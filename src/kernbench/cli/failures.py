"""Errors of user code: a user component that raised, found by the frames of the traceback.

Only frames that KernBench called count, and not those of the standard library or a dependency. A failure of KernBench
itself has no such frame, and is shown as a traceback.
"""

from __future__ import annotations

import linecache
import sys
from traceback import walk_tb

from kernbench.common.errors import ComponentError

_OURS = "kernbench"
_DEPENDENCIES = frozenset(
    {
        "click",
        "dask",
        "distributed",
        "greenlet",
        "matplotlib",
        "ml_dtypes",
        "numpy",
        "optuna",
        "pyarrow",
        "simpy",
        "yaml",
    }
)


def failed_outside(error: Exception) -> ComponentError | None:
    """The error of user code, at its line; None if no user code was running."""
    place: tuple[str, int] | None = None
    inside = False
    for frame, line in walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package == _OURS:
            inside = True
        elif inside and package not in sys.stdlib_module_names and package not in _DEPENDENCIES:
            place = frame.f_code.co_filename, line
    if place is None:
        return None
    file, line = place
    code = linecache.getline(file, line).strip()
    return ComponentError(
        f"user component raised {type(error).__name__}: {error}",
        where=f"{file}:{line}  {code}".rstrip(),
        hint="fix that line",
    )
