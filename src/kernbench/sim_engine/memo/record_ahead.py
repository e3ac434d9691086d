"""Record, ahead of the clock: worker processes record launches before the machine comes to them.

A recording depends on the launch and on nothing that happens before it. So when one has taken long, this process makes
workers, copies of itself (`fork`), which run ahead: for a worker every launch is over at once, so that the host's next
launch comes at once, too. The first process that reaches a kind of launch without a recording, a worker or the
machine's own process, reserves it and records it. A worker writes its recording to a file, and the machine's process
reads it when it comes to that launch. There it is matched as any other: no result depends on which process has recorded
what, or when.

Workers run the host's code, and do that only where the host allows it (`host_ahead.py`).
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

from kernbench.sim_engine.host_ahead import HostAhead
from kernbench.sim_engine.memo.private_files import make_files_private
from kernbench.sim_engine.simulation_stats import SimulationStats

LONG = 2  # reports while a launch is recorded, one every 256 steps of its clock: about half a second
POLL_S = 0.002
FOLDER, LOCK = "kernbench-", "lock"  # of workers, in the folder of temporary files

Found = TypeVar("Found")


class RecorderProcesses(NamedTuple):
    """Processes that run ahead, and where they write what they have found. Their owner locks that folder as long as it
    lives.
    """

    pids: list[int]
    place: Path
    lock: int

    def end(self, owner: int) -> None:
        """End them all; only the process that has made them does."""
        if os.getpid() != owner:
            return
        for pid in self.pids:
            if not self.collect_if_ended(pid):
                with suppress(ProcessLookupError, ChildProcessError):
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
        shutil.rmtree(self.place, ignore_errors=True)
        os.close(self.lock)

    def collect_if_ended(self, pid: int) -> bool:
        """Collect one of them if it has ended, so that the system forgets it; returns whether it has ended."""
        try:
            return os.waitpid(pid, os.WNOHANG)[0] == pid
        except ChildProcessError:  # it was collected before
            return True


class RecordAhead:
    """What workers of this process record for one machine; in a worker, what it records for the others."""

    def __init__(self, host: HostAhead, stats: SimulationStats) -> None:
        self._host = host
        self._stats = stats
        host.on_end.append(self._end)
        self._reports = 0  # of the latest launch that was recorded
        self._owner = 0  # the machine's own process
        self._workers: RecorderProcesses | None = None
        self._finalizer: weakref.finalize[..., RecordAhead] | None = None
        self._reserved: dict[str, bool] = {}  # kinds of launches that were asked for: whether this process records them
        self._given: set[str] = set()  # those that this worker has recorded

    @property
    def is_worker(self) -> bool:
        return self._host.is_worker

    def note_steps(self) -> None:
        """Count a report: the recording of a launch has taken 256 more steps of its clock."""
        self._reports += 1
        self.check_owner()

    def begin(self) -> None:
        """A launch was recorded, or had a recording: if that has taken long, make workers, which have it, too."""
        was_long, self._reports = self._reports >= LONG, 0
        if not was_long or self._workers is not None:
            return
        self._stats.no_workers = self._why_none()
        if self._stats.no_workers:
            return
        try:
            workers = RecorderProcesses([], *_own_folder())
        except OSError as error:  # no place for what they find
            self._stats.no_workers = f"no temporary folder: {error}"
            return
        self._workers, self._owner = workers, os.getpid()
        self._finalizer = weakref.finalize(self, workers.end, self._owner)
        for _ in range(self._host.workers):
            try:
                pid = os.fork()
            except OSError as error:  # too many processes, or too little memory: so there are fewer
                self._stats.no_workers = f"no further process: {error}"
                break
            if not pid:
                self._become_worker()
                return
            workers.pids.append(pid)
            self._stats.workers += 1

    def _why_none(self) -> str:
        """Why no process can run ahead now; empty where some can."""
        if self._host.why_none:
            return self._host.why_none
        if not self._host.may_begin:
            return "the host program has not announced that it may be run ahead"
        if threading.active_count() > 1:  # a copy of this process has none of the other threads
            return "other threads run in this process"
        return ""

    def _become_worker(self) -> None:
        """Make this process a worker: its only effect outside is the recordings that it publishes."""
        self._host.is_worker = True
        gc.freeze()  # what was there before is shared as long as it is not written to
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        make_files_private()

    def _end(self) -> None:
        """No host program is within its scope any more."""
        if self._finalizer is not None:
            self._finalizer()
        self._workers = self._finalizer = None
        self._reserved.clear()
        self._reports = 0

    def check_owner(self) -> None:
        """A worker whose owner was killed ends, and leaves nothing behind."""
        if self.is_worker and os.getppid() != self._owner:
            assert self._workers is not None
            shutil.rmtree(self._workers.place, ignore_errors=True)
            self._host.end_worker()

    # ---- which process records what

    def reserve_recording(self, key: str) -> bool:
        """Reserve the recording of a kind of launch for this process, unless another one has; returns whether it is
        reserved for this one.
        """
        if self._workers is None:
            return True
        self.check_owner()
        if key not in self._reserved:
            try:
                self._reserved[key] = _try_to_own(self._reservation_of(key))
            except OSError:  # the place is gone, or full
                self._reserved[key] = not self.is_worker
        return self._reserved[key]

    def has_given(self, key: str) -> bool:
        """Whether this worker has recorded a kind of launch before."""
        return key in self._given

    def give(self, key: str, found: object) -> None:
        """Write what this worker has recorded of a kind of launch, if that is reserved for it."""
        if not self._reserved.get(key) or key in self._given:
            return
        self._given.add(key)
        path = self._file_of(key)
        path.with_suffix(".part").write_bytes(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
        path.with_suffix(".part").replace(path)

    def take(self, key: str, kind: type[Found]) -> Found | None:
        """What a worker has found, once; None where there is nothing. Waits for a worker that records it."""
        if self.reserve_recording(key):
            return None
        self._reserved[key] = True  # this process records what else there is of this kind
        assert self._workers is not None
        path, recorder = self._file_of(key), int(self._reservation_of(key).read_text())
        while not path.exists():
            if self._workers.collect_if_ended(recorder) and not path.exists():
                return None
            time.sleep(POLL_S)
        found = pickle.loads(path.read_bytes())  # written by a worker
        path.unlink()
        assert isinstance(found, kind)
        return found

    def _file_of(self, key: str) -> Path:
        assert self._workers is not None
        return self._workers.place / hashlib.sha256(key.encode()).hexdigest()[:24]

    def _reservation_of(self, key: str) -> Path:
        return self._file_of(key).with_suffix(".owner")


def _own_folder() -> tuple[Path, int]:
    """A new temporary folder, and an open file that locks it. Raises OSError where there can be none."""
    _remove_leftovers()
    place = Path(tempfile.mkdtemp(prefix=FOLDER))
    try:
        lock = os.open(place / "new", os.O_WRONLY | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        (place / "new").rename(place / LOCK)  # from now on it is a leftover where it is not locked
    except OSError:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return place, lock


def _remove_leftovers() -> None:
    """Remove folders of this user's processes that were killed, with their workers."""
    for left in Path(tempfile.gettempdir()).glob(f"{FOLDER}*/{LOCK}"):
        with suppress(OSError):  # gone meanwhile, of another user, or locked by a process that lives
            lock = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if left.stat().st_uid == os.getuid():
                    shutil.rmtree(left.parent)
            finally:
                os.close(lock)


def _try_to_own(path: Path) -> bool:
    """Take something by a link to a file with the process id; returns whether this process is the first to do so."""
    own = path.with_suffix(f".{os.getpid()}")
    own.write_text(str(os.getpid()))
    try:
        os.link(own, path)
    except FileExistsError:
        return False
    finally:
        own.unlink()
    return True
