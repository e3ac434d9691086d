"""Errors that the Python code of a bench raises, reported at the bench's line."""

from __future__ import annotations

import os
from collections.abc import Callable
from linecache import getline
from traceback import walk_tb

from kernbench.common.errors import UsageError


def bench_failed(name: str, fn: Callable[..., object], error: BaseException) -> UsageError:
    """The error of a bench that raised something other than a KernBenchError."""
    code = getattr(fn, "__code__", None)
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    own = [place for place in frames if code is not None and place[0] == code.co_filename] or frames
    file, line = own[-1]
    inside = "" if frames[-1] == own[-1] else f" (raised in {os.path.basename(frames[-1][0])}:{frames[-1][1]})"
    return UsageError(
        f"bench '{name}' failed: {type(error).__name__}: {error}{inside}",
        where=f"{file}:{line}  {getline(file, line).strip()}",
        hint="fix the bench, or give it other parameters",
    )
