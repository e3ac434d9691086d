"""Runs points on a dask.distributed cluster: a scheduler at an address, and workers that connect to it.

Workers need the same source of KernBench, and the same `ccl.yaml`. A bench in a file must have the same path there, as
on a shared file system. A worker runs one point at a time, whatever its number of threads. When a worker dies, the
scheduler reassigns its points; a point whose workers died several times becomes a row with an error.
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
from kernbench.sweep.pool import TaskQueue
from kernbench.sweep.provenance import source_here
from kernbench.sweep.rows import failed_row
from kernbench.sweep.work import PointOutcome, PointRunner, PointTask

CONNECT_S = 10.0
IN_FLIGHT = 4  # tasks in flight per thread of the cluster
MIN_IN_FLIGHT = 32
MAX_RETRIES = 3  # of a task that the scheduler has lost
HINT = "finished points are kept: run the same sweep again to go on"


class ClusterPool:
    """A client of a cluster; it connects when the first points are to be run."""

    def __init__(self, context: SweepContext, address: str) -> None:
        self._context = context
        self._address = address
        self._client: Any = None

    def run(self, tasks: Sequence[PointTask]) -> Iterator[PointOutcome]:
        if not tasks:
            return
        if self._client is None:
            self._client = _connect(self._address)
        waiting = TaskQueue(tasks)
        futures: dict[str, PointTask] = {}
        again: Counter[int] = Counter()
        done = _distributed().as_completed(loop=self._client.loop)
        room = max(MIN_IN_FLIGHT, IN_FLIGHT * sum(self._client.nthreads().values()))
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
            if self._client.status != "running" or again[task.number] == MAX_RETRIES:
                raise UsageError("the connection to the cluster is lost", hint=HINT)
            again[task.number] += 1  # the scheduler lost it when its worker ended
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
    """The exceptions of dask for a cancelled future, which depend on its version."""
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


def _outcome(future: Any, task: PointTask) -> PointOutcome | None:
    """The outcome of a task; None if the scheduler has lost it, which can happen even to a finished one: its result is
    on the worker until it is fetched.
    """
    error = None
    try:
        if future.status == "finished":
            outcome: PointOutcome = future.result()
            return outcome
        if future.status == "error":
            error = future.exception()
    except _cancelled():
        return None
    if error is None:
        return None
    if isinstance(error, _distributed().KilledWorker):
        what = "the workers that ran this point ended, several times; out of memory, or killed"
        return PointOutcome(task, failed_row(task.point, what, task.number), 0.0)
    raise UsageError(f"a worker of the cluster failed: {type(error).__name__}: {error}", hint=HINT)


_lock = threading.Lock()
_runners: list[tuple[SweepContext, PointRunner]] = []  # in a worker: the runner of its sweep


def run_on_worker(context: SweepContext, task: PointTask) -> PointOutcome:
    """Run a point in a worker of the cluster; compiled machines are kept between points."""
    with _lock:
        if not _runners or _runners[0][0] != context:
            _check_source(context)
            _runners[:] = [(context, PointRunner(context))]
        return _runners[0][1].run(task)


def _check_source(context: SweepContext) -> None:
    """Raise RuntimeError in a worker that has another simulator source or another `ccl.yaml`."""
    for name, wanted in context.source_here.items():
        found = source_here()[name]
        if found != wanted:
            raise RuntimeError(
                f"a worker has {name} {found}, the sweep has {wanted}; workers need the same source of KernBench, "
                "and the same ccl.yaml where they were started"
            )
