"""Points on a dask.distributed cluster: a scheduler at an address, and workers that reach it from anywhere.

Workers need the same source of KernBench, and the same `ccl.yaml`. A bench that is a file must lie at the same path
there, as on a shared file system. A worker runs one point at a time, whatever number of threads it has. When one dies,
the scheduler gives its points to others; a point that has ended several workers is a row with an error.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

from kernbench.common.errors import UsageError
from kernbench.sweep.context import SweepContext
from kernbench.sweep.pool import Waiting
from kernbench.sweep.provenance import source_here
from kernbench.sweep.rows import failed_row
from kernbench.sweep.work import Outcome, PointRunner, Task

CONNECT_S = 10.0
UNDER_WAY = 4  # tasks per thread of the cluster that are submitted at a time
LEAST_UNDER_WAY = 32
MOST_AGAIN = 3  # times that a forgotten task is submitted anew
HINT = "finished points are kept: run the same sweep again to go on"


class ClusterPool:
    """A client of a cluster; it connects when the first points are to be run."""

    def __init__(self, context: SweepContext, address: str) -> None:
        self._context = context
        self._address = address
        self._client: Any = None

    def run(self, tasks: Sequence[Task]) -> Iterator[Outcome]:
        if not tasks:
            return
        if self._client is None:
            self._client = _connect(self._address)
        waiting = Waiting(tasks)
        futures: dict[str, Task] = {}
        again: Counter[int] = Counter()
        done = _distributed().as_completed(loop=self._client.loop)
        room = max(LEAST_UNDER_WAY, UNDER_WAY * sum(self._client.nthreads().values()))
        while waiting or futures:
            while waiting and len(futures) < room:
                task = waiting.take(None, ())
                future = self._client.submit(run_on_worker, self._context, task, pure=False)
                futures[future.key] = task
                done.add(future)
            future = next(done)
            task = futures.pop(future.key)
            outcome = _outcome(future, task)
            if outcome is not None:
                yield outcome
                continue
            if self._client.status != "running" or again[task.number] == MOST_AGAIN:
                raise UsageError("the connection to the cluster is lost", hint=HINT)
            again[task.number] += 1  # the scheduler forgot it when its worker ended: ask once more
            waiting.put_back(task)

    def close(self) -> None:
        if self._client is not None:
            self._client.close(timeout=2)
            self._client = None


def _distributed() -> ModuleType:
    try:
        return import_module("distributed")
    except ImportError as error:
        raise UsageError("a cluster needs dask.distributed", hint="pip install 'kernbench[cluster]'") from error


def _cancelled() -> tuple[type[BaseException], ...]:
    """What dask raises of a future that is gone: by version, the one or the other."""
    asyncio, futures = import_module("asyncio"), import_module("concurrent.futures")
    return asyncio.CancelledError, futures.CancelledError


def _connect(address: str) -> Any:
    distributed = _distributed()
    try:
        return distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"no scheduler answers: {str(error).splitlines()[0][:200]}",
            where=f"--cluster {address}",
            hint="give the address that `dask scheduler` prints, as tcp://host:8786",
        ) from None


def _outcome(future: Any, task: Task) -> Outcome | None:
    """What came of a task; None where the scheduler has forgotten it, which may happen up to the last moment: what has
    finished lies on its worker until it is fetched.
    """
    error = None
    try:
        if future.status == "finished":
            outcome: Outcome = future.result()
            return outcome
        if future.status == "error":
            error = future.exception()
    except _cancelled():
        return None
    if error is None:
        return None
    if isinstance(error, _distributed().KilledWorker):
        what = "the workers that ran this point ended, several times; out of memory, or killed"
        return Outcome(task, failed_row(task.point, what, task.number), 0.0)
    raise UsageError(f"a worker of the cluster failed: {type(error).__name__}: {error}", hint=HINT)


_lock = threading.Lock()
_runners: list[tuple[SweepContext, PointRunner]] = []  # in a worker: that of the sweep it runs points of


def run_on_worker(context: SweepContext, task: Task) -> Outcome:
    """Run a point in a worker of the cluster; it keeps its machines from one point to the next."""
    with _lock:
        if not _runners or _runners[0][0] != context:
            _check_source(context)
            _runners[:] = [(context, PointRunner(context))]
        return _runners[0][1].run(task)


def _check_source(context: SweepContext) -> None:
    """Raise RuntimeError in a worker that would make rows with another simulator or another `ccl.yaml`."""
    for name, wanted in context.source_here.items():
        found = source_here()[name]
        if found != wanted:
            raise RuntimeError(
                f"a worker has {name} {found}, the sweep has {wanted}; workers need the same source of KernBench, "
                "and the same ccl.yaml where they were started"
            )
