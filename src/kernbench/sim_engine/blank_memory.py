"""A memory that keeps nothing and reads as zeros, for runs that are about time only."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.dtypes import DType, dtype_of
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.values.graph import Value, ValueGraph


class BlankMemory(MemoryStore):
    """Costs nothing however much is written. With `is_unknown_to_kernels` they may not look at what depends on it."""

    def __init__(self, graph: ValueGraph, *, is_unknown_to_kernels: bool = False) -> None:
        super().__init__(graph)
        self._values = graph
        self.is_unknown_to_kernels = is_unknown_to_kernels
        self._read: set[int] = set()  # ids of values, where they matter

    def is_unknown(self, value: Value) -> bool:
        left, seen = [value], {value.id}
        while left:
            one = left.pop()
            if one.id in self._read:
                return True
            for each in one.inputs:
                if each.id not in seen:
                    seen.add(each.id)
                    left.append(each)
        return False

    def _blank(self, shape: Sequence[int], dtype: DType | str) -> Value:
        value = self._values.full(shape, 0, dtype_of(dtype))
        if self.is_unknown_to_kernels:
            self._read.add(value.id)
        return value

    def write(self, addr: int, value: Value) -> None:
        """Nothing is kept."""

    def write_strided(self, addr: int, value: Value, strides_bytes: Sequence[int]) -> None:
        """Nothing is kept."""

    def read(self, addr: int, shape: Sequence[int], dtype: DType | str, *, zero_fill: bool = False) -> Value:
        return self._blank(shape, dtype)

    def gaps(self, addr: int, nbytes: int) -> list[tuple[int, int]]:
        """Everything reads as zeros."""
        return []

    def read_strided(
        self,
        addr: int,
        shape: Sequence[int],
        strides_bytes: Sequence[int],
        dtype: DType | str,
        *,
        zero_fill: bool = False,
    ) -> Value:
        return self._blank(shape, dtype)
