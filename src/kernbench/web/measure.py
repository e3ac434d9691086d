"""Measurements of what-if estimates: `kernbench explain RUN --what-if NAME --save RUN-free` as a process of its own.

The new run is kept beside the run, in `RUN-free/NAME`, where the server finds it. One measurement runs at a time. They
start by POST with a header that pages of other sites cannot set, and only if the server listens on this machine alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from threading import Lock
from typing import IO, Final

from kernbench.common.errors import UsageError
from kernbench.report.explain.what_if import TARGETS, free_folder
from kernbench.web.machine_map import Json
from kernbench.web.run_view import RunView

_LAST_BYTES: Final = 4096  # of what the process printed


@dataclass
class BackgroundMeasurement:
    """One measurement: a process, and what it printed on standard error."""

    run: str  # id
    name: str
    total_ns: float
    process: subprocess.Popen[bytes]
    printed: IO[bytes]
    started: float

    def as_json(self) -> Json:
        """How far it is: `share` is the simulated time over that of the measured run, None before its first report."""
        code = self.process.poll()
        lines = self._lines()
        reports = [line for line in lines if line.startswith("simulated ")]
        share = min(float(reports[-1].split()[1]) / self.total_ns, 1.0) if reports and self.total_ns else None
        state = "running" if code is None else "failed" if code else "done"
        error = " ".join(line.strip() for line in lines if line not in reports)[-400:] if code else None
        seconds = round(time.monotonic() - self.started, 1)
        return {"name": self.name, "state": state, "share": share, "seconds": seconds, "error": error}

    def _lines(self) -> list[str]:
        size = os.fstat(self.printed.fileno()).st_size
        at = max(0, size - _LAST_BYTES)
        text = os.pread(self.printed.fileno(), _LAST_BYTES, at).decode("utf-8", "replace")
        whole = text[: text.rfind("\n") + 1] if self.process.poll() is None else text
        return whole.splitlines()[1 if at else 0 :]


class Measurements:
    """The measurements of a server, by run and component."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._all: dict[tuple[str, str], BackgroundMeasurement] = {}

    def start(self, view: RunView, name: str, scope: str | None) -> None:
        """Start one; raises UsageError for an unknown component, or while another runs."""
        if name not in TARGETS:
            raise UsageError(f"no component '{name[:40]}' to make free", hint=f"use one of {', '.join(TARGETS)}")
        view.scope(scope)
        folder = view.run.path.resolve()
        target = free_folder(folder)
        command = [sys.executable, "-m", "kernbench", "explain", str(folder), *_scope_options(view, scope)]
        command += ["--what-if", name, "--save", str(target), "--progress", "--json"]
        with self._lock:
            busy = next((one for one in self._all.values() if one.process.poll() is None), None)
            if busy is not None:
                raise UsageError(f"'{busy.name}' is being measured", hint="measure the next one when that is done")
            printed = tempfile.TemporaryFile()  # noqa: SIM115  # open as long as the measurement is known
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=printed)
            total_ns = view.run.total_ns
            self._all[view.id, name] = BackgroundMeasurement(
                view.id, name, total_ns, process, printed, time.monotonic()
            )

    def of(self, run: str) -> list[Json]:
        with self._lock:
            return [one.as_json() for one in self._all.values() if one.run == run]

    def close(self) -> None:
        """End what still runs."""
        with self._lock:
            for one in self._all.values():
                if one.process.poll() is None:
                    one.process.terminate()
                    one.process.wait()
                one.printed.close()
            self._all.clear()


def _scope_options(view: RunView, scope: str | None) -> list[str]:
    """The options of `explain` for a scope of the page."""
    if scope in (None, "", view.main_scope):
        return []
    kind, _, number = str(scope).partition(":")
    return ["--launch", number] if kind == "launch" else ["--whole"] if kind == "run" else []
