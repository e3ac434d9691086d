"""Evaluation with PyTorch: arrays of values are tensors on one device, from their first use until the host reads them.

Groups of a level are computed as stacks, as with numpy; on a GPU the stacks are larger. What is computed follows the
same definitions in the same types; sums may be added in another order, so floats agree with numpy's to the tolerance
of f32 sums and integers exactly. A constant is copied to the device on first use, and stays there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import cast as cast_to

import numpy as np
import torch
from torch import Tensor

from kernbench.common.array_types import Array
from kernbench.values.backend import Job, Rates
from kernbench.values.bytes_of import Patch, ViewParams
from kernbench.values.graph import Value
from kernbench.values.matmul import sum_type
from kernbench.values.on_torch import bytes_of
from kernbench.values.on_torch.elementwise import ELEMENTWISE, Compute
from kernbench.values.on_torch.matmul import MATMULS, product
from kernbench.values.on_torch.moves import MOVES, arange, full, random
from kernbench.values.on_torch.rows import ROWS
from kernbench.values.on_torch.storage import Resident, cast, stack, to_device
from kernbench.values.plan import EvaluationUnit

COMPUTED: dict[str, Compute] = {**ELEMENTWISE, **ROWS, **MOVES, **MATMULS}
SOURCES = {"full": full, "arange": arange, "random": random}  # ops without inputs, made on the device
GPU_CHUNK_BYTES, CPU_CHUNK_BYTES = 1 << 28, 1 << 22


class TorchBackend:
    """On a GPU where there is one, else on this machine's processors."""

    name = "torch"
    threaded = False  # PyTorch has its own threads

    def __init__(self) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        on_gpu = self._device.type == "cuda"
        self.chunk_bytes = GPU_CHUNK_BYTES if on_gpu else CPU_CHUNK_BYTES
        self.device = torch.cuda.get_device_name() if on_gpu else "cpu"

    @contextmanager
    def session(self) -> Iterator[None]:
        """Products in full f32, whatever the settings of the program; no gradients."""
        before = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")
        try:
            with torch.no_grad():
                yield
        finally:
            torch.set_float32_matmul_precision(before)

    # ---- where arrays are

    def tensor(self, value: Value) -> Tensor:
        """The tensor of an evaluated value, or of a view whose parent is evaluated."""
        data = value.data
        if isinstance(data, Resident):
            return data.tensor
        if data is None:
            parent = value.inputs[0]
            return bytes_of.view(self.tensor(parent), parent.type, value.type, cast_to(ViewParams, value.params))
        held = to_device(data if isinstance(data, np.ndarray | np.generic) else data.host(), value.dtype, self._device)
        value.data = Resident(held, value.dtype)
        return held

    def host(self, value: Value) -> Array:
        array = value.array()
        return Resident(self.tensor(value), value.dtype).host() if array is None else array

    def _stack(self, values: Sequence[Value]) -> Tensor:
        first = values[0]
        if all(value is first for value in values):
            tensor = self.tensor(first)
            return tensor.expand(len(values), *tensor.shape)
        return self._windows(values) if first.data is None else stack([self.tensor(value) for value in values])

    def _windows(self, values: Sequence[Value]) -> Tensor:
        """Pending views; those of one parent are cut from it in one step."""
        parent, params = values[0].inputs[0], values[0].params[1:]
        alike = all(
            v.data is None and v.op == "view" and v.inputs[0] is parent and v.params[1:] == params for v in values
        )
        if alike:
            offsets = [cast_to(ViewParams, value.params)[0] for value in values]
            stride, rows = cast_to(ViewParams, values[0].params)[1:]
            found = bytes_of.windows(self.tensor(parent), parent.type, values[0].type, stride, rows, offsets)
            if found is not None:
                return found
        return stack([self.tensor(value) for value in values])

    def _store_stack(self, values: Sequence[Value], stacked: Tensor) -> None:
        if values[0].op != "full":  # a full value stays one repeated element
            stacked = stacked.contiguous()
        for value, tensor in zip(values, stacked.unbind(0), strict=True):
            value.data = Resident(tensor, value.dtype)

    # ---- the groups of a level

    def nodes(self, values: Sequence[Value]) -> None:
        first = values[0]
        if first.op in SOURCES:
            made = SOURCES[first.op](first.type, first.params, self._device)
            self._store_stack(values, made.expand(len(values), *first.shape))
            return
        args = [self._stack([v.inputs[at] for v in values]) for at in range(len(first.inputs))]
        self._store_stack(values, COMPUTED[first.op](args, [v.type for v in first.inputs], first.type, first.params))

    def bytes(self, values: Sequence[Value]) -> None:
        for value in values:
            if value.op == "view":
                tensor = self.tensor(value)
            else:
                sources = [self.tensor(v) for v in value.inputs]
                tensor = bytes_of.gather(sources, value.type, cast_to(tuple[Patch, ...], value.params))
            value.data = Resident(tensor, value.dtype)

    def chains(self, chains: Sequence[EvaluationUnit], threads: int) -> tuple[list[Job], bool]:
        a, b = (v.type for v in chains[0].links[0].inputs[-2:])
        size = 4 * (a.size + b.size + chains[0].last.type.size)
        count = max(1, self.chunk_bytes // max(size, 1))
        return [partial(self._chains, chains[at : at + count]) for at in range(0, len(chains), count)], False

    def _chains(self, chains: Sequence[EvaluationUnit]) -> None:
        """Compute link after link, each for all chains."""
        a_type, b_type = (v.type for v in chains[0].links[0].inputs[-2:])
        sums, last = sum_type(a_type, b_type), chains[0].last
        total: Tensor | None = None
        if chains[0].init is not None:
            started = [chain.init for chain in chains if chain.init is not None]
            total = cast(self._stack(started), started[0].dtype, sums)
        for at in range(len(chains[0].links)):
            left, right = (self._stack([chain.links[at].inputs[side] for chain in chains]) for side in (-2, -1))
            tiles = product(left, right, a_type, b_type)
            total = tiles if total is None else total + tiles
        assert total is not None  # a chain has at least one link
        self._store_stack([chain.last for chain in chains], cast(total, sums, last.dtype))

    # ---- how fast

    def rates(self) -> Rates:
        size, on_gpu = (4096, True) if self._device.type == "cuda" else (512, False)
        x = torch.ones(size, size, device=self._device)
        with self.session():
            flops_s = 2 * size**3 / self._seconds(lambda: torch.matmul(x, x), on_gpu)
        return Rates(flops_s, 8 * size * size / self._seconds(lambda: torch.neg(x), on_gpu))

    def _seconds(self, work: Job, on_gpu: bool) -> float:
        """The time of the second of two measurements: the first one loads kernels."""
        took = 0.0
        for _ in range(2):
            start = perf_counter()
            work()
            if on_gpu:
                torch.cuda.synchronize()
            took = perf_counter() - start
        return max(took, 1e-9)
