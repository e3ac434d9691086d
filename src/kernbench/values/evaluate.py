"""Pass 2: evaluates pending values to arrays, outside simulated time.

Values are taken level by level in dependency order (plan.py). Within a level, values of equal op, types and parameters
are computed as one stack, in chunks, on threads, by a backend (backend.py). A chain of dot_acc whose links have no
other users is one unit: its tile products are computed as stacks and added in the order of the chain. Every op is
defined on stacks and treats items independently (op.py), so results do not depend on batching, chunking or threads, bit
for bit.

Results are cached on the values. An evaluated value drops its inputs, so an intermediate that neither the
program nor memory references is freed after its last use; `keep_inputs` keeps the graph, for inspection.
Links inside a fused chain are not stored; one that is needed later is computed then, to the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from kernbench.common.array_types import Array
from kernbench.common.errors import UsageError
from kernbench.values.backend import ArrayBackend, Job
from kernbench.values.backends import backend_named
from kernbench.values.graph import Value
from kernbench.values.op import BackendName
from kernbench.values.plan import BYTE_OPS, PRODUCTS, Level, plan_levels

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

MAX_THREADS = 8
FEW = 16  # up to so many values are computed one by one


def evaluate(
    values: Sequence[Value],
    *,
    threads: int | None = None,
    backend: ArrayBackend | BackendName = "numpy",
    keep_inputs: bool = False,
) -> list[Array]:
    """The arrays of `values`, in their order, read-only. `threads` defaults to the number of processors, at most 8.

    `backend="torch"` computes with PyTorch, on a GPU if there is one; floats may differ in the last bits.
    Raises UsageError for an unknown backend, a missing PyTorch or an invalid thread count, DataError if values of two
    graphs are mixed.
    """
    by = materialize(values, threads=threads, backend=backend, keep_inputs=keep_inputs)
    return [by.host(value) for value in values]


def materialize(
    values: Sequence[Value],
    *,
    threads: int | None = None,
    backend: ArrayBackend | BackendName = "numpy",
    keep_inputs: bool = False,
) -> ArrayBackend:
    """Compute `values` as `evaluate` does, and leave their arrays in the storage of the backend."""
    by = backend_named(backend) if isinstance(backend, str) else backend
    few = _few_pending(values)
    if few is not None:
        with by.session():
            for value in few:
                (by.bytes if value.op in BYTE_OPS else by.nodes)([value])
                if not keep_inputs:
                    value.inputs = ()
        return by
    run = _Evaluation(thread_count(threads) if by.threaded else 1, by)
    try:
        with by.session():
            for level in plan_levels(values):
                run.level(level)
                if not keep_inputs:
                    _release(level)
    finally:
        run.close()
    return by


def _few_pending(values: Sequence[Value]) -> list[Value] | None:
    """The pending values in order, if they are few, as when a kernel reads a number that it waits for: then no plan is
    needed. None if they are more, include products, or come from several graphs.
    """
    found: dict[int, Value] = {}
    left = [value for value in values if value.data is None]
    while left:
        value = left.pop()
        if value.id in found:
            continue
        found[value.id] = value
        if len(found) > FEW or value.op in PRODUCTS:
            return None
        for needed in value.inputs:
            if needed.data is None:
                if needed.id >= value.id:
                    return None
                left.append(needed)
    return [found[number] for number in sorted(found)]


def thread_count(threads: int | None) -> int:
    """The number of threads; raises UsageError unless it is 1 or more."""
    if threads is None:
        return min(os.cpu_count() or 1, MAX_THREADS)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise UsageError(
            f"threads is {threads!r}", hint="give 1 or more, or leave it out for as many as there are processors"
        )
    return threads


def _release(level: Level) -> None:
    for group in level.nodes.values():
        for value in group:
            value.inputs = ()
    for value in level.bytes:
        value.inputs = ()
    for chains in level.chains.values():
        for chain in chains:
            chain.last.inputs = ()


class _Evaluation:
    """One evaluation: splits levels into jobs, and runs them on this thread or a pool."""

    def __init__(self, threads: int, backend: ArrayBackend) -> None:
        self._threads = threads
        self._backend = backend
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def level(self, level: Level) -> None:
        light: list[Job] = []  # small items, many per job: worth a thread
        for nodes in level.nodes.values():
            nbytes = 4 * (nodes[0].type.size + sum(v.type.size for v in nodes[0].inputs))
            size = max(1, self._backend.chunk_bytes // max(nbytes, 1))
            light += [partial(self._backend.nodes, nodes[at : at + size]) for at in range(0, len(nodes), size)]
        for chains in level.chains.values():
            jobs, for_threads = self._backend.chains(chains, self._threads)
            if for_threads:
                light += jobs
            else:
                for job in jobs:
                    job()
        if level.bytes:
            self._backend.bytes(level.bytes)
        self._run(light)

    def _run(self, jobs: Sequence[Job]) -> None:
        if self._threads == 1 or len(jobs) < 2:
            for job in jobs:
                job()
            return
        if self._pool is None:
            from concurrent.futures import ThreadPoolExecutor  # imported only for large evaluations

            self._pool = ThreadPoolExecutor(self._threads)
        for done in [self._pool.submit(job) for job in jobs]:
            done.result()
