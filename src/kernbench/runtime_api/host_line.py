"""The line of a user's host program that made a call: the innermost frame outside of this package.

The package's benches count as user programs. An error that a call raises gets that line when it leaves the program, so
that individual checks need not look for it.
"""

from __future__ import annotations

import re
import sys
from linecache import getline
from traceback import walk_tb
from types import FrameType

from kernbench.common.errors import DeadlockError, KernBenchError, SpawnException, TimeLimitError
from kernbench.runtime_api.bench_params import PARAMETER

_OURS, _PROGRAMS = "kernbench.", "kernbench.benches."
_REPORTS = DeadlockError | TimeLimitError | SpawnException
_NAMES_A_LINE = re.compile(r":\d+\b")


def is_ours(frame: FrameType) -> bool:
    """Whether a frame is of this package; its benches count as user programs."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(_OURS) and not name.startswith(_PROGRAMS)


def host_line() -> str:
    """`file:line` of the call that led here; empty if there is none outside of this package."""
    return line_of_frame(sys._getframe(1))


def line_of_frame(frame: FrameType | None) -> str:
    """`file:line` of the program's call that led to a frame; empty when there is none."""
    while frame is not None and is_ours(frame):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def at_host_line(error: KernBenchError) -> None:
    """Add the program's line to an error, unless its `where` already has a line or a parameter."""
    where = error.where or ""
    if isinstance(error, _REPORTS) or _NAMES_A_LINE.search(where) or where.startswith(PARAMETER):
        return
    own = [(frame.f_code.co_filename, at) for frame, at in walk_tb(error.__traceback__) if not is_ours(frame)]
    if own:
        file, at = own[-1]
        error.where = f"{file}:{at}  {error.where or getline(file, at).strip()}".rstrip()
