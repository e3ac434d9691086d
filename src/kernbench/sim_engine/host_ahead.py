"""Whether host programs may be run ahead of the clock by worker processes, and whether this process is such a worker.

A worker finds out what is launched next, so that recordings of launches exist when the machine comes to them
(`memo/record_ahead.py`). It is a copy of this process and runs the host's own code. So the host says where that
does no harm: all programs that run must be within such a scope, and a worker ends where one of them leaves it.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from greenlet import getcurrent

from kernbench.common.errors import UsageError

WORKERS = "KERNBENCH_WORKERS"
MOST_WORKERS = 8


def workers_wanted() -> int:
    """How many processes may run ahead; raises UsageError where the environment says what cannot be."""
    wanted = os.environ.get(WORKERS, "")
    if wanted and not wanted.isdecimal():
        raise UsageError(f"{WORKERS} is '{wanted}'", hint="set it to a number of processes, 0 for none")
    if sys.platform != "linux":  # elsewhere a copy of a process is not safe to use
        return 0
    cores = len(os.sched_getaffinity(0))
    return int(wanted) if wanted else min(cores, MOST_WORKERS) if cores > 1 else 0


def _why_none(allowed: bool) -> str:
    """Why no process may run ahead."""
    if not allowed:
        return "this fast path is off"
    if sys.platform != "linux":
        return "worker processes are made on Linux only"
    return f"{WORKERS} is 0" if os.environ.get(WORKERS) else "there is one core only"


class HostAhead:
    """The scopes of one machine's host programs."""

    def __init__(self, *, allowed: bool = True) -> None:
        self.workers = workers_wanted() if allowed else 0
        self.why_none = "" if self.workers else _why_none(allowed)
        self.is_worker = False  # whether this process runs ahead
        self.on_end: list[Callable[[], object]] = []  # called where the last scope is left
        self._inside: Counter[object] = Counter()  # by program: blocks may be nested
        self._programs: Callable[[], int] = lambda: 1

    @contextmanager
    def scope(self, programs: Callable[[], int]) -> Iterator[None]:
        """What one program does in here workers may do, too; `programs` says how many there are now."""
        self._programs, program = programs, getcurrent()
        self._inside[program] += 1
        try:
            yield
        finally:
            self._inside[program] -= 1
            if not self._inside[program]:
                del self._inside[program]
                self.end_worker()
                for end in () if self._inside else self.on_end:
                    end()

    @property
    def is_inside(self) -> bool:
        """Whether some program is within its scope."""
        return bool(self._inside)

    @property
    def may_begin(self) -> bool:
        """Whether all programs are within their scopes."""
        return not self.is_worker and 0 < len(self._inside) == self._programs()

    def end_worker(self) -> None:
        """End this process if it is a worker: nothing that comes now is for it."""
        if self.is_worker:
            os._exit(0)
