"""Runs points in processes of this host, each started with spawn, so that none inherits state.

A worker runs one point at a time. While many are queued, the next one is already in its pipe, so that it does not wait
for this process. If a worker dies, only the point it was running is affected: another worker retries it, and it becomes
a row with an error if that worker dies too. With a time limit, a worker whose point runs longer is killed, and the
point becomes a row with an error at once. Workers end when this process does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from kernbench.common.errors import KernBenchError, UsageError
from kernbench.sweep.context import WORKER, SweepContext
from kernbench.sweep.pool import TaskQueue
from kernbench.sweep.rows import failed_row
from kernbench.sweep.work import PointOutcome, PointRunner, PointTask

ATTEMPTS = 2  # per point whose worker dies
STARTS = 3  # of workers that die before they are ready
AHEAD = 2  # tasks that a worker has, the one it runs included
ONE_THREAD = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")  # each worker has one core
ENDS_S = 5.0  # from the end of a worker's pipe to that of the process
READY = "ready"


def all_cores() -> int:
    """The number of cores available to this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class LocalPool:
    """A pool of `workers` processes. They live until `close`."""

    def __init__(self, context: SweepContext, workers: int, point_timeout_s: float | None = None) -> None:
        self._context = context
        self._size = workers
        self._limit_s = point_timeout_s
        self._workers: list[_Worker] = []
        self._died = Counter[int]()  # deaths of workers by the number of the task they ran
        self._false_starts = 0

    def run(self, tasks: Sequence[PointTask]) -> Iterator[PointOutcome]:
        waiting = TaskQueue(tasks)
        while waiting or any(worker.tasks for worker in self._workers):
            self._start(min(self._size, len(waiting) + sum(1 for worker in self._workers if worker.tasks)))
            self._hand_out(waiting)
            busy = {worker.pipe: worker for worker in self._workers if worker.tasks}
            for pipe in wait(list(busy), self._patience_s()):
                worker = busy[pipe]  # type: ignore[index]  # one of the connections it was given
                try:
                    answer = worker.pipe.recv()
                except (EOFError, OSError):
                    yield from self._bury(worker, waiting)
                    continue
                worker.began_s = time.monotonic()  # of the next point that it has
                if isinstance(answer, PointOutcome):
                    worker.tasks.popleft()
                    yield answer
                elif answer == READY:
                    worker.is_ready = True
                    self._false_starts = 0
                else:
                    raise UsageError(*answer[:1], where=answer[1], hint=answer[2])
            yield from self._end_overdue(waiting)

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self._workers = []

    def _start(self, wanted: int) -> None:
        while len(self._workers) < wanted:
            self._workers.append(_Worker(self._context))

    def _hand_out(self, waiting: TaskQueue) -> None:
        for depth in range(AHEAD):
            if depth and len(waiting) < AHEAD * len(self._workers):
                return  # towards the end no point should be queued behind a long one
            for worker in self._workers:
                if waiting and len(worker.tasks) == depth:
                    others = [other.machine for other in self._workers if other is not worker]
                    worker.give(waiting.take(worker.machine, others))

    def _patience_s(self) -> float | None:
        """How long to wait for an answer: until the first worker's point is overdue."""
        if self._limit_s is None:
            return None
        ends = [worker.began_s + self._limit_s for worker in self._workers if worker.is_running]
        return max(min(ends) - time.monotonic(), 0.0) if ends else None

    def _end_overdue(self, waiting: TaskQueue) -> Iterator[PointOutcome]:
        """Kill workers whose points exceed the time limit; points queued behind those are put back."""
        for worker in [*self._workers] if self._limit_s is not None else []:
            ran_s = time.monotonic() - worker.began_s
            if not worker.is_running or ran_s < (self._limit_s or 0.0) or worker.pipe.poll():
                continue
            self._workers.remove(worker)
            worker.kill()
            overdue, *others = worker.tasks
            for task in reversed(others):
                waiting.put_back(task)
            what = f"it ran longer than the time limit of {self._limit_s:g} s (--point-timeout)"
            yield PointOutcome(overdue, failed_row(overdue.point, what, overdue.number), ran_s)

    def _bury(self, worker: _Worker, waiting: TaskQueue) -> Iterator[PointOutcome]:
        """Remove a dead worker: its points are put back, except one whose workers died too often."""
        self._workers.remove(worker)
        how = worker.how_it_ended()
        worker.kill()
        running, *others = worker.tasks
        for task in reversed(others):
            waiting.put_back(task)
        if not worker.is_ready:
            self._false_starts += 1
            if self._false_starts >= STARTS:
                raise UsageError(
                    f"worker processes end before they begin ({how})",
                    hint="what they printed says why",
                )
        else:
            self._died[running.number] += 1
        if self._died[running.number] < ATTEMPTS:
            waiting.put_back(running)
            return
        what = f"the process that ran this point ended {ATTEMPTS} times ({how}); out of memory, or killed"
        yield PointOutcome(running, failed_row(running.point, what, running.number), 0.0)


class _Worker:
    """A process, its pipe, and its tasks: it runs the first one."""

    def __init__(self, context: SweepContext) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.pipe, theirs = spawn.Pipe()
        self.tasks: deque[PointTask] = deque()
        self.machine: str | None = None
        self.is_ready = False
        self.began_s = 0.0  # when the point that it runs was begun, approximately
        self._process: BaseProcess = spawn.Process(target=_work, args=(context, theirs), name=WORKER, daemon=True)
        with _one_blas_thread(), _without_main(), _interrupts_held():
            self._process.start()
        theirs.close()

    @property
    def is_running(self) -> bool:
        return self.is_ready and bool(self.tasks)

    def give(self, task: PointTask) -> None:
        if not self.tasks:
            self.began_s = time.monotonic()
        self.tasks.append(task)
        self.machine = task.point.machine_key
        with suppress(OSError):  # it is dead: the next read detects that
            self.pipe.send(task)

    def how_it_ended(self) -> str:
        """The exit code or signal of a worker whose pipe is closed."""
        self._process.join(ENDS_S)
        code = self._process.exitcode
        return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"

    def kill(self) -> None:
        self._process.kill()
        self._process.join()
        self.pipe.close()


@contextmanager
def _one_blas_thread() -> Iterator[None]:
    added = [name for name in ONE_THREAD if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back while a process is started. The process inherits that, so that it starts undisturbed until it
    ignores Ctrl-C by itself; this one gets the interrupt when the process has all it needs.
    """
    if not hasattr(signal, "pthread_sigmask"):  # not on Windows
        yield
        return
    resource_tracker.ensure_running()  # starting it later would let interrupts through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _without_main() -> Iterator[None]:
    """Prevent a process that is started here from importing the script that this one runs. A function of that script is
    loaded from its file, like that of any file.
    """
    main = sys.modules["__main__"]
    hidden = {name: getattr(main, name) for name in ("__spec__", "__file__") if hasattr(main, name)}
    main.__spec__ = None
    if "__file__" in hidden:
        del main.__file__
    try:
        yield
    finally:
        for name, value in hidden.items():
            setattr(main, name, value)


def _work(context: SweepContext, pipe: Connection) -> None:
    """The main loop of a worker: it receives points from the pipe and sends their outcomes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that writes rows
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT,))  # see `_interrupts_held`
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout = sys.stderr  # output of a bench must not mix with JSON
    try:
        runner = PointRunner(context)
    except KernBenchError as error:
        pipe.send((error.what, error.where, error.hint))
        return
    pipe.send(READY)
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        pipe.send(runner.run(task))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
