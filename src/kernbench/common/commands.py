"""What a kernel asks of its PE. `tl` makes commands, PE_SCHEDULER hands them to the engines; messages go to PE_IPCQ.

A command says what moves or is computed, and where it stands; it carries no data and no time. Simple commands go to one
engine; a composite is cut into tiles that pass through several. `deps` are the op-log ids of what made the inputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from enum import StrEnum
from math import prod
from typing import Literal, NamedTuple

from kernbench.common.dtypes import dtype_of
from kernbench.common.frozen import frozen
from kernbench.common.ipcq import Message

Space = Literal["hbm", "sram", "tcm", "far"]
TensorLayout = Literal["tiled", "row_major"]
TILED: TensorLayout = "tiled"
ROW_MAJOR: TensorLayout = "row_major"
Segment = tuple[int, int]  # physical address, bytes
DmaRequest = tuple[Segment, ...]  # the runs that a DMA engine asks for in one go


class Scope(StrEnum):
    """How often an epilogue fires: after every K step, once per output tile, or once over the finished output."""

    K_TILE = "k_tile"
    OUTPUT_TILE = "output_tile"
    KERNEL = "kernel"


class Operand(NamedTuple):
    """A dense tensor that a command reads or writes. One that is pinned is in the PE's own TCM and needs no DMA.

    `segments` say where the others lie; they are found once, when a kernel names the tensor. `layout` says what a tile
    of it is to memory: one run of bytes, or a run for each of its rows.
    """

    address: int  # as the kernel gave it
    shape: tuple[int, ...]
    dtype: str
    space: Space
    transposed: bool = False  # memory holds the matrix with its last two axes swapped
    pinned: bool = False
    segments: tuple[Segment, ...] = ()
    layout: TensorLayout = TILED

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * dtype_of(self.dtype).itemsize


@frozen
class OpSpec:
    """One step of a composite's epilogue: `kind` is a math op, `operand` its second input where that is a tensor."""

    kind: str
    scope: Scope
    operand: Operand | None = None
    dtype: str = "f32"  # that it computes in, and hands on to the next step


class DmaReadCmd(NamedTuple):
    """Bring bytes from memory into the PE's TCM. `requests` say which, and which of them go together."""

    source: Operand
    handle_id: str
    requests: tuple[DmaRequest, ...]
    deps: tuple[int, ...] = ()
    line: str = ""  # of the kernel, where the op log wants it


class DmaWriteCmd(NamedTuple):
    """Send bytes from the PE's TCM to memory. `requests` say where to, and which of them go together; `copies` say
    where else the bytes of the only request go, by multicast.
    """

    source: Operand
    target: Operand
    handle_id: str
    requests: tuple[DmaRequest, ...]
    deps: tuple[int, ...] = ()
    line: str = ""  # of the kernel, where the op log wants it
    copies: tuple[DmaRequest, ...] = ()


class AtomicCmd(NamedTuple):
    """Send bytes to the memory that owns them, change them there, and bring back what they were.

    `apply` is called when the last byte of a request is there, with the number of that request.
    """

    op: str
    target: Operand
    handle_id: str
    requests: tuple[DmaRequest, ...]
    apply: Callable[[int], object]
    deps: tuple[int, ...] = ()
    line: str = ""  # of the kernel, where the op log wants it


class GemmCmd(NamedTuple):
    """Matrix product of operands in TCM, added to `acc` where that is given; leading axes are a batch."""

    a: Operand
    b: Operand
    out: Operand
    m: int
    k: int
    n: int
    dtype: str  # that the MACs work in
    batch: int = 1
    deps: tuple[int, ...] = ()
    acc: Operand | None = None
    line: str = ""  # of the kernel, where the op log wants it


class MathCmd(NamedTuple):
    """One vector op on operands in TCM. `elements` is what the lanes have to go through."""

    op: str
    inputs: tuple[Operand, ...]
    out: Operand
    elements: int
    dtype: str  # that the lanes work in
    axis: int | None = None
    deps: tuple[int, ...] = ()
    line: str = ""  # of the kernel, where the op log wants it


@frozen
class CompositeCmd:
    """A tiled op with epilogues: `gemm` of two matrices, or a math op over tensors that broadcast to its output."""

    op: Literal["gemm", "math"]
    inputs: tuple[Operand, ...]
    out: Operand
    tile_shape: tuple[int, ...] | Literal["auto"] | None = None  # (m, k, n), (m, n) for math; None: the native one
    math_op: str = ""
    acc_dtype: str = "f32"
    epilogues: tuple[OpSpec, ...] = ()
    deps: tuple[int, ...] = ()
    line: str = field(default="", compare=False)  # of the kernel, where the op log wants it


@frozen
class SendCmd:
    """Send a tensor in TCM to a neighbour: `message` has what it holds."""

    direction: str
    source: Operand
    message: Message = field(compare=False, repr=False)
    handle_id: str
    deps: tuple[int, ...] = ()


@frozen
class RecvCmd:
    """Take the next message of a direction, of any where that is None, out of its ring.

    `received` holds the message when the last of it is here. `reads_slots` is off for what only looks at messages:
    they are then not paid for.
    """

    direction: str | None
    shape: tuple[int, ...]
    dtype: str
    handle_id: str
    line: str
    reads_slots: bool = True
    received: list[Message] = field(default_factory=list, compare=False, repr=False)


class CpuCmd(NamedTuple):
    """The kernel's own scalar work on PE_CPU."""

    cycles: int


class WaitCmd(NamedTuple):
    """Wait until the composites of these numbers are done; without numbers, all that are under way."""

    numbers: tuple[int, ...] = ()


@frozen
class BarrierCmd:
    """Wait until every PE of the launch has reached its barrier of this number, counted from 1.

    `clocks` is for the race detector: what this PE releases, and when the barrier is over what all of them released.
    """

    number: int
    line: str
    clocks: list[object] = field(default_factory=list, compare=False, repr=False)


DmaCommand = DmaReadCmd | DmaWriteCmd | AtomicCmd
IpcqCommand = SendCmd | RecvCmd
SimpleCmd = DmaCommand | GemmCmd | MathCmd  # those of one stage, or of one per request
ScheduledCommand = SimpleCmd | CompositeCmd  # those that PE_SCHEDULER takes
EngineCommand = ScheduledCommand | IpcqCommand | BarrierCmd
Command = EngineCommand | CpuCmd | WaitCmd
