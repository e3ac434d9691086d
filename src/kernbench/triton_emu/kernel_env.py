"""What a kernel runs in: memory, the tensors it was given, its place in the grid, its TCM and its PE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from kernbench.common.commands import TILED, Segment, Space, TensorLayout
from kernbench.common.dtypes import DType
from kernbench.common.frozen import frozen
from kernbench.common.ids import PeKey
from kernbench.common.ipcq import Communicator
from kernbench.common.launch import KernelLaunchMsg
from kernbench.common.writers import Writers
from kernbench.triton_emu.kernel_runner import KernelRunner
from kernbench.values.graph import Value, ValueGraph


class KernelMemory(Protocol):
    """Bytes of the machine as values."""

    def read(self, address: int, shape: tuple[int, ...], dtype: DType | str) -> Value:
        """What the bytes hold now."""

    def read_strided(
        self, address: int, shape: tuple[int, ...], strides_bytes: tuple[int, ...], dtype: DType | str
    ) -> Value:
        """What strided bytes hold now."""

    def write(self, address: int, value: Value) -> None:
        """Put a value there."""

    def write_strided(self, address: int, value: Value, strides_bytes: tuple[int, ...]) -> None:
        """Put the elements of a value there, so far apart."""

    def is_unknown(self, value: Value) -> bool:
        """Whether a value depends on bytes with unknown contents."""


@frozen
class TensorRange:
    """Addresses that belong to a tensor argument: all of it, or with physical addresses one of its parts."""

    name: str
    start: int
    end: int
    dtype: str
    space: Space = "hbm"
    is_one_of_several: bool = False
    layout: TensorLayout = TILED


class KernelIds(NamedTuple):
    """Where a kernel runs: (PE, cube, SIP) as its launch counts them, how many there are, and as the machine counts;
    and whose directions it means.
    """

    program: tuple[int, int, int]
    grid: tuple[int, int, int]
    place: PeKey
    communicator: Communicator | None = None


@frozen
class KernelEnv:
    """What a kernel runs in. `program` and `grid` are (PE, cube, SIP)."""

    runner: KernelRunner
    values: ValueGraph
    memory: KernelMemory
    translate: Callable[[int, int], list[Segment]]
    tensors: tuple[TensorRange, ...]
    tcm_base: Callable[[], int]
    tcm_bytes: int
    launch: KernelLaunchMsg
    program: tuple[int, int, int] = (0, 0, 0)
    grid: tuple[int, int, int] = (1, 1, 1)
    writers: Writers | None = None  # where there is an op log
    place: PeKey = (0, 0, 0)  # SIP, cube and PE as the machine counts them
    communicator: Communicator | None = None  # whose directions the kernel means
    tcm_holders: Callable[[], Sequence[tuple[str, int]]] = tuple  # what of the PE's TCM is not for its kernels
