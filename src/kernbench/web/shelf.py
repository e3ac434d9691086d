"""The folders given to the server: runs, sweeps and evaluations, and a machine for the case without runs.

Folders are scanned each time the page requests the list, so newly saved runs are found. A run that was shown stays in
memory when its folder is written again, so that the two can be compared. A folder that cannot be read is
an entry with an error; the others work. Nothing outside the given folders can be requested: requests use ids, and only
entries found here have ids.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from threading import RLock

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.report.explain.what_if import free_folder
from kernbench.report.run_command import NextStep
from kernbench.report.runs.layout import MANIFEST
from kernbench.report.runs.saved_run import SavedRun, folders_in, open_run
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.machine_hash import machine_hash
from kernbench.web.machine_map import Json, MachineMap
from kernbench.web.measure import Measurements
from kernbench.web.results_view import RESULTS_FILES, ResultsView
from kernbench.web.run_view import RunView

_DEEPEST = 3  # levels below a given folder that are searched
_COMPARED = 2  # most recent runs that stay open at any size
_MOST_OPS = 500_000  # total ops of other runs that stay open


@dataclass(frozen=True, slots=True)
class Damaged:
    """A folder that cannot be shown, with its error."""

    id: str
    dir: Path
    error: KernBenchError


Entry = RunView | ResultsView | Damaged


class Shelf:
    """Entries by id. Raises UsageError for a folder that does not exist."""

    def __init__(
        self,
        folders: Sequence[Path],
        machine: TopologyGraph,
        next_step: Callable[[SavedRun, str], NextStep] | None = None,
    ) -> None:
        for folder in folders:
            if not folder.exists():
                raise UsageError(
                    f"there is no folder '{folder}'",
                    hint="name a folder that `kernbench run --save` or `kernbench sweep --out` wrote",
                )
        self._folders = tuple(folders)
        self._lock = RLock()
        self._seen: dict[Path, tuple[tuple[int, int], Entry]] = {}
        self._former: dict[str, RunView] = {}  # runs that were shown and whose folders were written again, by id
        self._used: list[RunView] = []  # most recently used last
        self._next_step = next_step
        self.measurements = Measurements()
        self.machine = MachineMap(machine)
        self.machine_id = machine_hash(machine.spec)[:12]
        self._entries: list[Entry] = []
        self.entries()

    def entries(self) -> list[Entry]:
        """The current entries, in the order given."""
        with self._lock:
            found: dict[Path, Entry] = {}
            for folder in self._folders:
                for path in _folders_to_open(folder, _DEEPEST):
                    found.setdefault(path, self._entry(path))
                beside = free_folder(folder)  # what was measured of a run
                if (folder / MANIFEST).is_file() and beside.is_dir():
                    for path in _folders_to_open(beside, 1):
                        found.setdefault(path, self._entry(path))
            self._entries = list(found.values())
            return self._entries

    def next_step(self, view: RunView, cause: str) -> NextStep:
        """What to run next, for the cause that the verdict names."""
        if self._next_step is None:
            return NextStep(f"kernbench explain {shlex.quote(str(view.run.path))}")
        return self._next_step(view.run, cause)

    def _entry(self, path: Path) -> Entry:
        mark = _mark(path)
        seen = self._seen.get(path)
        if seen is not None and seen[0] == mark:
            return seen[1]
        try:
            entry = RunView(open_run(path)) if not _is_results(path) else ResultsView(path)
            entry.listed()
        except Exception as error:  # an error in one folder must not hide the others
            return Damaged(sha256(os.fsencode(path)).hexdigest()[:12], path, _as_error(error, path))
        if seen is not None and isinstance(seen[1], RunView) and seen[1].is_held and seen[1].id != entry.id:
            self._former[seen[1].id] = seen[1]
            while len(self._former) > _COMPARED:
                del self._former[next(iter(self._former))]
        self._seen[path] = (mark, entry)
        return entry

    def damaged(self) -> list[Damaged]:
        return [entry for entry in self._entries if isinstance(entry, Damaged)]

    def runs(self) -> list[RunView]:
        return [entry for entry in self._entries if isinstance(entry, RunView)]

    def find(self, entry_id: str) -> Entry | None:
        found = next((entry for entry in self._entries if entry.id == entry_id), self._former.get(entry_id))
        if isinstance(found, RunView):
            with suppress(KernBenchError):  # of a damaged file, which the response reports
                found.hold()
            self._close_old_runs(found)
        return found

    def _close_old_runs(self, used: RunView) -> None:
        """Close large runs that were not used recently; their columns are read again when needed."""
        with self._lock:
            self._used = [view for view in self._used if view is not used] + [used]
            while sum(view.run.manifest.ops for view in self._used[:-_COMPARED]) > _MOST_OPS:
                old = self._used.pop(0)
                path = old.run.path
                if path in self._seen and self._seen[path][1] is old:
                    del self._seen[path]
                    self._entries = [self._entry(path) if entry is old else entry for entry in self._entries]

    def summary(self) -> str:
        """The number of runs and results, in one line."""
        runs = len(self.runs())
        results = sum(isinstance(entry, ResultsView) for entry in self._entries)
        parts = [f"{n} {word}{'' if n == 1 else 's'}" for n, word in ((runs, "run"), (results, "result folder")) if n]
        return ", ".join(parts) or f"machine '{self.machine.graph.spec.system.name}', no run"

    def as_json(self) -> list[Json]:
        return [_entry_json(entry) for entry in self.entries()]


def _as_error(error: Exception, path: Path) -> KernBenchError:
    if isinstance(error, KernBenchError):
        return error
    return UsageError(f"cannot be read: {type(error).__name__}: {error}", where=str(path), hint="write it again")


def _entry_json(entry: Entry) -> Json:
    if isinstance(entry, Damaged):
        error = {"what": entry.error.what, "where": entry.error.where, "hint": entry.error.hint}
        return {"id": entry.id, "name": entry.dir.name, "dir": str(entry.dir), "kind": "damaged", "ok": False,
                "error": error}  # fmt: skip
    return entry.listed()


def _is_results(path: Path) -> bool:
    return not (path / MANIFEST).is_file() and any((path / name).is_file() for name in RESULTS_FILES)


def _folders_to_open(folder: Path, deep: int) -> Iterator[Path]:
    """The folder itself if it is a run or results, else those below it; itself, for its error, if there are none."""
    found = list(_below(folder, deep)) if folder.is_dir() else []
    yield from found or [folder]


def _below(folder: Path, deep: int, *, is_part: bool = False) -> Iterator[Path]:
    """Folders to open; `is_part`: below a results folder, where an evaluation stores its points."""
    is_run, is_results = (folder / MANIFEST).is_file(), _is_results(folder)
    if is_run or (is_results and not (is_part and not (folder / "results.json").is_file())):
        yield folder
    if deep and not is_run:
        for child in folders_in(folder):
            yield from _below(child, deep - 1, is_part=is_part or is_results)


def _mark(path: Path) -> tuple[int, int]:
    """A stamp that changes when a folder is written again."""
    for name in (MANIFEST, *RESULTS_FILES):
        try:
            stat = (path / name).stat()
        except OSError:
            continue
        return stat.st_mtime_ns, stat.st_size
    return 0, 0
