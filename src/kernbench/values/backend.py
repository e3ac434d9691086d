"""The interface of a backend: it computes the groups of a level, and chooses where to store their arrays.

The numpy backend (numpy_backend.py) defines what results are, bit for bit. The torch backend (on_torch/) keeps arrays
on a device; integers are equal to numpy's, floats within the tolerance of sums in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

from kernbench.common.array_types import Array
from kernbench.values.graph import Value
from kernbench.values.plan import EvaluationUnit

Job: TypeAlias = Callable[[], object]


class Rates(NamedTuple):
    """Measured rates of this computer: f32 products, and moving bytes."""

    flops_s: float
    bytes_s: float


class ArrayBackend(Protocol):
    """Computes values in groups of equal op, types and parameters, and fills in their `data`."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str:
        """The name of the device."""

    @property
    def chunk_bytes(self) -> int:
        """The approximate size of the stacks into which a group is split."""

    @property
    def threaded(self) -> bool:
        """Whether stacks may be computed on several threads."""

    def session(self) -> AbstractContextManager[None]:
        """The context in which values are evaluated."""

    def nodes(self, values: Sequence[Value]) -> None:
        """Compute values of one op of the table as one stack."""

    def bytes(self, values: Sequence[Value]) -> None:
        """Compute views and gathers."""

    def chains(self, chains: Sequence[EvaluationUnit], threads: int) -> tuple[list[Job], bool]:
        """Jobs that compute the last links of chains of one kind, and whether to run them on threads."""

    def host(self, value: Value) -> Array:
        """The numpy array of an evaluated value, or of a view of one."""

    def rates(self) -> Rates:
        """Measure the rates; takes a few milliseconds."""
