"""Stages of a tile: the work of each engine of a PE on it, its amount, and its parameters in the op log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple

from kernbench.common.commands import DmaRequest
from kernbench.common.work_units import BYTES, macs_of, vector_ops_of
from kernbench.components.recording import FieldValue

Fields = dict[str, FieldValue]


class StageType(Enum):
    """What happens to a tile, in the order of a plain one."""

    DMA_READ = 0
    FETCH = 1
    GEMM = 2
    MATH = 3
    STORE = 4
    DMA_WRITE = 5


class DmaStage(NamedTuple):
    """Rows of bytes between TCM and an operand in memory, `stride_bytes` apart there, the first at `offset`. They are
    one run of bytes to memory, or each is a run of its own.
    """

    type: StageType
    component: str
    operand: int  # which one of the command's
    offset: int
    nbytes: int
    rows: int
    row_bytes: int
    stride_bytes: int
    is_by_rows: bool = False

    @property
    def op_kind(self) -> str:
        return "memory"

    @property
    def unit(self) -> str:
        return BYTES

    @property
    def amount(self) -> int:
        return self.nbytes

    def fields(self, addresses: Sequence[int]) -> Fields:
        """Its parameters in the op log; operands are at `addresses`."""
        return {"address": addresses[self.operand] + self.offset, "nbytes": self.nbytes}


class RunsStage(NamedTuple):
    """One request of a simple command: runs of bytes anywhere in memory. `apply` makes it a read-modify-write,
    `copies` a multicast.
    """

    type: StageType
    component: str
    runs: DmaRequest
    nbytes: int
    apply: Callable[[], object] | None = None
    copies: tuple[DmaRequest, ...] = ()

    @property
    def op_kind(self) -> str:
        return "memory"

    @property
    def unit(self) -> str:
        return BYTES

    @property
    def amount(self) -> int:
        return self.nbytes

    def fields(self, addresses: Sequence[int]) -> Fields:
        return {"nbytes": self.nbytes}


class MoveStage(NamedTuple):
    """Bytes between TCM and the register file. A fetch takes `registers` bytes of it, a store gives them back."""

    type: StageType
    component: str
    nbytes: int
    registers: int

    @property
    def op_kind(self) -> str:
        return "memory"

    @property
    def unit(self) -> str:
        return BYTES

    @property
    def amount(self) -> int:
        return self.nbytes

    def fields(self, addresses: Sequence[int]) -> Fields:
        return {"nbytes": self.nbytes}


class GemmStage(NamedTuple):
    """A product on the MAC array; gives back the registers of its operands where it is their last reader."""

    type: StageType
    component: str
    m: int
    k: int
    n: int
    dtype: str
    registers: int = 0

    @property
    def op_kind(self) -> str:
        return "gemm"

    def fields(self, addresses: Sequence[int]) -> Fields:
        return {"m": self.m, "k": self.k, "n": self.n, "dtype": self.dtype}

    @property
    def unit(self) -> str:
        return macs_of(self.dtype)

    @property
    def amount(self) -> int:
        return self.m * self.k * self.n


class MathStage(NamedTuple):
    """One vector op on the lanes; gives back the registers of its operands where it is their last reader."""

    type: StageType
    component: str
    op: str
    elements: int
    dtype: str
    registers: int = 0
    along: int = 0  # elements along the axis of the op; 0: all of them

    @property
    def op_kind(self) -> str:
        return "math"

    def fields(self, addresses: Sequence[int]) -> Fields:
        return {"op": self.op, "elements": self.elements, "dtype": self.dtype}

    @property
    def unit(self) -> str:
        return vector_ops_of(self.dtype)

    @property
    def amount(self) -> int:
        return self.elements


Stage = DmaStage | RunsStage | MoveStage | GemmStage | MathStage
