"""Uncaught errors of a script, as short as the command prints them.

`python script.py` shows the script's own lines and the error. The package's frames, of which there are a dozen for an
error in a rank, and the errors of single ranks, which are part of the report, are left out. A program's own
`sys.excepthook` is not replaced.
"""

from __future__ import annotations

import sys
from traceback import StackSummary, walk_tb
from types import TracebackType

from kernbench.common.errors import KernBenchError, StoppedRun
from kernbench.runtime_api.host_line import is_ours


def shorten_uncaught_errors() -> None:
    """Print uncaught errors of this package without its frames, from now on."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_short


def _print_short(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, StoppedRun):
        print(error, file=sys.stderr)
    elif isinstance(error, KernBenchError):
        own = StackSummary.extract((frame, line) for frame, line in walk_tb(trace) if not is_ours(frame))
        print("Traceback (most recent call last), without frames of kernbench:", file=sys.stderr)
        print(f"{''.join(own.format())}{kind.__name__}: {error}", file=sys.stderr)
    else:
        sys.__excepthook__(kind, error, trace)
