"""Where in the user's kernel something went wrong: the nearest line outside `tl` itself."""

from __future__ import annotations

import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Callable
from traceback import walk_tb
from types import FrameType

from kernbench.common.errors import (
    AllocationError,
    KernBenchError,
    KernelCapacityError,
    KernelError,
    StoppedMessagesError,
)
from kernbench.common.messages import KernelFailure

_OURS = ("kernbench.triton", "kernbench.values", "kernbench.components", "triton.")

_LIBRARIES = tuple(
    dict.fromkeys(f"{path}{os.sep}" for path in map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
)
_MOST_CALLS = 8  # of a chain, of which the first and the last are shown in any case

_TL_METHOD = re.compile(r"\bT[lL][A-Z]\w*\.([a-z]\w*)\(\)")  # as Python names a method of `tl` in a TypeError


def is_own_code(frame: FrameType) -> bool:
    """Whether a frame is one of KernBench or of Triton, not of the user."""
    return str(frame.f_globals.get("__name__", "")).startswith(_OURS)


def kernel_place() -> tuple[str, int]:
    """File and line of the call that led here."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_own_code(frame):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("<kernel>", 0)


def kernel_line() -> str:
    """`file:line` of the call that led here."""
    file, line = kernel_place()
    return f"{file}:{line}"


def line_of(frame: FrameType | None) -> tuple[str, int, str] | None:
    """File, line and source of the call that led to a frame; None when only KernBench's own code did."""
    while frame is not None and is_own_code(frame):
        frame = frame.f_back
    if frame is None:
        return None
    file, line = frame.f_code.co_filename, frame.f_lineno
    return file, line, linecache.getline(file, line).strip()


def definition_of(kernel: Callable[..., object]) -> tuple[str, int, str]:
    """File, line and source where a kernel is defined."""
    code = getattr(kernel, "__code__", None)
    if code is None:
        return "<kernel>", 0, ""
    return code.co_filename, code.co_firstlineno, linecache.getline(code.co_filename, code.co_firstlineno).strip()


def kernel_error(what: str, hint: str) -> KernelError:
    """An error at the user's line."""
    return KernelError(what, where=kernel_line(), hint=hint)


def at_kernel_line(error: KernBenchError) -> KernelError:
    """An error raised below `tl`, reported at the user's line, or where it says itself that it is from."""
    file, line = kernel_place()
    kind: type[KernelError] = KernelCapacityError if isinstance(error, AllocationError) else KernelError
    if isinstance(error, KernelCapacityError | StoppedMessagesError):
        kind = type(error)
    return kind(error.what, where=f"{file}:{line}" if line else error.where, hint=error.hint)


def failure_of(error: BaseException, kernel: Callable[..., object], pe: tuple[int, int, int]) -> KernelFailure:
    """The failure report of a kernel that raised: the innermost line of the user's code, and the calls that led there;
    a line of a library only where there is no other.
    """
    file, line, _ = definition_of(kernel)
    frames = [(frame.f_code.co_filename, at) for frame, at in walk_tb(error.__traceback__) if not is_own_code(frame)]
    own = [place for place in frames if place[0] == file or not place[0].startswith(_LIBRARIES)] or frames[-1:]
    if own:
        file, line = own[-1]
    calls = [f"{at_file}:{at}  {linecache.getline(at_file, at).strip()}" for at_file, at in reversed(own[:-1])]
    if len(calls) > _MOST_CALLS:
        calls[_MOST_CALLS - 1 : -1] = [f"... {len(calls) - _MOST_CALLS} more calls"]
    if not frames and isinstance(error, KernelError) and error.where:  # found at the kernel's end
        file, _, at_line = error.where.rpartition(":")
        line = int(at_line)
    message, hint = (error.what, error.hint) if isinstance(error, KernBenchError) else (str(error), None)
    if isinstance(error, TypeError) and (called := _TL_METHOD.search(message)):
        message, hint = _TL_METHOD.sub(r"tl.\1()", message), f"help(tl.{called[1]}) lists its arguments"
    source = linecache.getline(file, line).strip()
    return KernelFailure(type(error).__name__, message, file, line, source, *pe, hint=hint, calls=tuple(calls))
