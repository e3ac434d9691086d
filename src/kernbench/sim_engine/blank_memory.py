"""A memory that keeps nothing and reads as zeros, for runs that are about time only."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.dtypes import DType, dtype_of
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.values.graph import Value, ValueGraph


class BlankMemory(MemoryStore):
    """Costs nothing however much is written."""

    def __init__(self, graph: ValueGraph) -> None:
        super().__init__(graph)
        self._values = graph

    def write(self, addr: int, value: Value) -> None:
        """Nothing is kept."""

    def write_strided(self, addr: int, value: Value, strides_bytes: Sequence[int]) -> None:
        """Nothing is kept."""

    def read(self, addr: int, shape: Sequence[int], dtype: DType | str, *, zero_fill: bool = False) -> Value:
        return self._values.full(shape, 0, dtype_of(dtype))

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
        return self._values.full(shape, 0, dtype_of(dtype))
