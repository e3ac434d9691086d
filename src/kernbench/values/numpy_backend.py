"""The numpy backend: stacks that fit the cache, on threads. Its results define those of all backends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from time import perf_counter
from typing import cast

import numpy as np

from kernbench.common.array_types import Array
from kernbench.values.backend import Job, Rates
from kernbench.values.bytes_of import Patch, ViewParams, compute_gather, compute_view
from kernbench.values.chains import ChainGroup, Indices
from kernbench.values.graph import Value
from kernbench.values.matmul import product
from kernbench.values.ops import OPS
from kernbench.values.plan import EvaluationUnit
from kernbench.values.stacking import CHUNK_BYTES, array_of, stack_of


class NumpyBackend:
    """Arrays in the memory of this process."""

    name = "numpy"
    device = "cpu"
    threaded = True
    chunk_bytes = CHUNK_BYTES

    def session(self) -> AbstractContextManager[None]:
        return nullcontext()

    def nodes(self, values: Sequence[Value]) -> None:
        first = values[0]
        args = [stack_of([v.inputs[at] for v in values]) for at in range(len(first.inputs))]
        result = OPS[first.op].compute(args, [v.type for v in first.inputs], first.type, first.params)
        _store_stack(values, result if args else np.broadcast_to(result, (len(values), *first.shape)))

    def bytes(self, values: Sequence[Value]) -> None:
        for value in values:
            arrays = [array_of(v) for v in value.inputs]
            if value.op == "view":
                array = compute_view(arrays[0], value.inputs[0].type, value.type, cast(ViewParams, value.params))
            else:
                array = compute_gather(arrays, value.type, cast(tuple[Patch, ...], value.params))
            array.setflags(write=False)
            value.data = array

    def chains(self, chains: Sequence[EvaluationUnit], threads: int) -> tuple[list[Job], bool]:
        """Not on threads if one product fills a chunk: BLAS threads are then more efficient."""
        group = ChainGroup(chains, product)
        return [partial(_compute_share, group, share) for share in group.shares(threads)], not group.heavy

    def host(self, value: Value) -> Array:
        return array_of(value)

    def rates(self) -> Rates:
        """The second of two measurements each: the first one starts the BLAS threads."""
        size = 512
        x = np.ones((size, size), np.float32)
        took = [0.0, 0.0]
        for _ in range(2):
            for at, work in enumerate((partial(np.matmul, x, x), partial(np.negative, x))):
                start = perf_counter()
                work()
                took[at] = max(perf_counter() - start, 1e-9)
        return Rates(2 * size**3 / took[0], 8 * size * size / took[1])


def _store_stack(values: Sequence[Value], stack: Array) -> None:
    """Store in each value its item of the stack."""
    if values[0].op != "full":  # a full value stays one repeated element
        stack = np.ascontiguousarray(stack)
    stack.setflags(write=False)
    if len(values) == 1:
        values[0].data = stack[0]
        return
    for value, array in zip(values, stack, strict=True):
        value.data = array


def _compute_share(group: ChainGroup, share: Indices) -> None:
    chains, stack = group.compute(share)
    _store_stack([chain.last for chain in chains], stack)
