"""What evaluation asks of a backend: to compute the groups of a level, and to keep their arrays where it likes.

The numpy backend (numpy_backend.py) defines what results are, bit for bit. The torch backend (on_torch/) keeps arrays
on a device; integers are equal to numpy's, floats within the tolerance of sums in f32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, TypeAlias

from kernbench.values.graph import Value
from kernbench.values.op import Array
from kernbench.values.plan import Unit

Job: TypeAlias = Callable[[], object]


class Rates(NamedTuple):
    """How fast this machine is, measured: of products in f32, and of moving bytes."""

    flops_s: float
    bytes_s: float


class ArrayBackend(Protocol):
    """Computes values in groups of equal op, types and parameters, and fills in their `data`."""

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> str:
        """What computes, in words."""

    @property
    def chunk_bytes(self) -> int:
        """A group is cut into stacks of about this much."""

    @property
    def threaded(self) -> bool:
        """Whether stacks may be computed on several threads."""

    def session(self) -> AbstractContextManager[None]:
        """What holds while values are evaluated."""

    def nodes(self, values: Sequence[Value]) -> None:
        """Compute values of one op of the table as one stack."""

    def bytes(self, values: Sequence[Value]) -> None:
        """Compute views and gathers."""

    def chains(self, chains: Sequence[Unit], threads: int) -> tuple[list[Job], bool]:
        """Jobs that compute the last links of chains of one kind, and whether they are for threads."""

    def host(self, value: Value) -> Array:
        """The array of a known value, or of a view of one, for the host to read."""

    def rates(self) -> Rates:
        """Measure. Takes a few milliseconds."""
