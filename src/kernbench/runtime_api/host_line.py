"""The line of a user's host program that made a call: the innermost frame outside of this package.

The package's benches count as user programs. An error that a call raises gets that line when it leaves the program, so
that individual checks need not look for it.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from linecache import getline
from traceback import walk_tb
from types import FrameType

from kernbench.common.errors import DeadlockError, KernBenchError, SpawnException, TimeLimitError, UsageError
from kernbench.runtime_api.bench_params import PARAMETER

_OURS, _PROGRAMS = "kernbench.", "kernbench.benches."
_LIBRARY = sysconfig.get_paths()["stdlib"]
_REPORTS = DeadlockError | TimeLimitError | SpawnException
_NAMES_A_LINE = re.compile(r":\d+\b")


def is_ours(frame: FrameType) -> bool:
    """Whether a frame is of this package; its benches count as user programs."""
    name = str(frame.f_globals.get("__name__", ""))
    return name.startswith(_OURS) and not name.startswith(_PROGRAMS)


def _is_shipped(frame: FrameType) -> bool:
    """Whether a frame is of a bench of this package."""
    return str(frame.f_globals.get("__name__", "")).startswith(_PROGRAMS)


def _is_library(frame: FrameType) -> bool:
    """Whether a frame is of Python's library or of an installed package, which a program or this package calls."""
    file = frame.f_code.co_filename
    return file.startswith((_LIBRARY, "<frozen ")) or "site-packages" in file


def host_call() -> str:
    """`file:line  source` of the call that led here; empty if there is none outside of this package."""
    line = host_line()
    file, _, number = line.rpartition(":")
    return f"{line}  {getline(file, int(number)).strip()}".rstrip() if line else ""


def host_line() -> str:
    """`file:line` of the call that led here; empty if there is none outside of this package."""
    return line_of_frame(sys._getframe(1))


def line_of_frame(frame: FrameType | None) -> str:
    """`file:line` of the program's call that led to a frame; empty when there is none."""
    installed: FrameType | None = None  # the innermost of an installed package: the program may be one
    while frame is not None and (is_ours(frame) or _is_library(frame)):
        installed = installed or (None if is_ours(frame) else frame)
        frame = frame.f_back
    found = frame or installed
    return "" if found is None else f"{found.f_code.co_filename}:{found.f_lineno}"


def at_host_line(error: KernBenchError) -> None:
    """Add the program's line to an error, unless its `where` already has a line or a parameter, or a bench of this
    package says itself what is wrong with its parameters.
    """
    where = error.where or ""
    if isinstance(error, _REPORTS) or _NAMES_A_LINE.search(where) or where.startswith(PARAMETER):
        return
    frames = list(walk_tb(error.__traceback__))
    outside = [(frame, at) for frame, at in frames if not is_ours(frame)]
    programs = [(frame, at) for frame, at in outside if not _is_library(frame)]
    is_own = bool(programs) and frames[-1] == programs[-1] and all(_is_shipped(frame) for frame, _ in programs)
    if is_own and isinstance(error, UsageError):
        return
    own = [(frame.f_code.co_filename, at) for frame, at in programs or outside]
    if own:
        file, at = own[-1]
        error.where = f"{file}:{at}  {error.where or getline(file, at).strip()}".rstrip()
