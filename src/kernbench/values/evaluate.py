"""Pass 2: pending values become arrays, outside the clock.

Values are taken level by level in dependency order (plan.py). Within a level, values of equal op, types and
parameters are computed as one stack, in chunks, on threads. A chain of dot_acc whose links nobody else needs is one
unit: its tile products are computed as stacks and added in the order of the chain. Every op is defined on stacks and
treats its items alone (op.py), so results do not depend on batching, chunking or threads, bit for bit.

Results are cached on the values. An evaluated value lets go of its inputs, so an intermediate that neither the
program nor memory holds is freed when its last user is done; `keep_inputs` keeps the graph whole, for inspection.
Links inside a fused chain are not stored; one that is asked for later is computed then, to the same bits.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Literal, TypeAlias, cast

import numpy as np

from kernbench.common.errors import UsageError
from kernbench.values.bytes_of import Patch, ViewParams, compute_gather, compute_view
from kernbench.values.chains import ChainGroup, Indices, Product
from kernbench.values.graph import Value
from kernbench.values.matmul import product
from kernbench.values.op import Array
from kernbench.values.ops import OPS
from kernbench.values.plan import Level, Unit, plan_levels
from kernbench.values.stacking import CHUNK_BYTES, known, stack_of

Backend: TypeAlias = Literal["numpy", "torch"]
Job: TypeAlias = Callable[[], None]
MAX_THREADS = 8


def evaluate(
    values: Sequence[Value], *, threads: int | None = None, backend: Backend = "numpy", keep_inputs: bool = False
) -> list[Array]:
    """The arrays of `values`, in their order, read-only. `threads` defaults to the processors there are, at most 8.

    `backend="torch"` computes matrix products with PyTorch, on a GPU where there is one; they may differ in the last
    bits.
    Raises UsageError for an unknown backend, a missing PyTorch or no threads, DataError when values of two graphs are
    mixed.
    """
    run = _Evaluation(thread_count(threads), _product(backend))
    try:
        for level in plan_levels(values):
            run.level(level)
            if not keep_inputs:
                _release(level)
    finally:
        run.close()
    return [known(value) for value in values]


def thread_count(threads: int | None) -> int:
    """How many threads that is; raises UsageError for what is not 1 or more."""
    if threads is None:
        return min(os.cpu_count() or 1, MAX_THREADS)
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise UsageError(
            f"threads is {threads!r}", hint="give 1 or more, or leave it out for as many as there are processors"
        )
    return threads


def _product(backend: str) -> Product:
    if backend == "numpy":
        return product
    if backend == "torch":
        from kernbench.values.torch_product import torch_product

        return torch_product()
    raise UsageError(f"no backend {backend!r}", hint="use 'numpy' or 'torch'")


def _settle(values: Sequence[Value], stack: Array) -> None:
    """Gives each value its item of the stack."""
    if values[0].op != "full":  # a full value stays one element seen many times
        stack = np.ascontiguousarray(stack)
    stack.setflags(write=False)
    for value, array in zip(values, stack, strict=True):
        value.data = array


def _release(level: Level) -> None:
    for group in level.nodes.values():
        for value in group:
            value.inputs = ()
    for value in level.bytes:
        value.inputs = ()
    for chains in level.chains.values():
        for chain in chains:
            chain.last.inputs = ()


def _compute_nodes(values: Sequence[Value]) -> None:
    first = values[0]
    args = [stack_of([v.inputs[at] for v in values]) for at in range(len(first.inputs))]
    result = OPS[first.op].compute(args, [v.type for v in first.inputs], first.type, first.params)
    _settle(values, result if args else np.broadcast_to(result, (len(values), *first.shape)))


def _compute_bytes(values: Sequence[Value]) -> None:
    for value in values:
        arrays = [known(v) for v in value.inputs]
        if value.op == "view":
            array = compute_view(arrays[0], value.inputs[0].type, value.type, cast(ViewParams, value.params))
        else:
            array = compute_gather(arrays, value.type, cast(tuple[Patch, ...], value.params))
        array.setflags(write=False)
        value.data = array


def _compute_share(group: ChainGroup, share: Indices) -> None:
    chains, stack = group.compute(share)
    _settle([chain.last for chain in chains], stack)


class _Evaluation:
    """One evaluation: cuts levels into jobs, and runs them here or on threads."""

    def __init__(self, threads: int, multiply: Product) -> None:
        self._threads = threads
        self._multiply = multiply
        self._pool: ThreadPoolExecutor | None = None

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    def level(self, level: Level) -> None:
        light: list[Job] = []  # small items, many per job: worth a thread
        for nodes in level.nodes.values():
            nbytes = 4 * (nodes[0].type.size + sum(v.type.size for v in nodes[0].inputs))
            size = max(1, CHUNK_BYTES // max(nbytes, 1))
            light += [partial(_compute_nodes, nodes[at : at + size]) for at in range(0, len(nodes), size)]
        for chains in level.chains.values():
            self._chain_jobs(chains, light)
        if level.bytes:
            _compute_bytes(level.bytes)
        self._run(light)

    def _chain_jobs(self, chains: Sequence[Unit], light: list[Job]) -> None:
        group = ChainGroup(chains, self._multiply)
        jobs = [partial(_compute_share, group, share) for share in group.shares(self._threads)]
        if group.heavy:
            for job in jobs:
                job()
        else:
            light += jobs

    def _run(self, jobs: Sequence[Job]) -> None:
        if self._threads == 1 or len(jobs) < 2:
            for job in jobs:
                job()
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads)
        for done in [self._pool.submit(job) for job in jobs]:
            done.result()
