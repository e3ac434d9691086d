"""What the parts of a PE need of each other. A part may be replaced by any class that has these members, whatever it is
derived from; `PeEngine` (pipeline.py) has the ones that every engine needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kernbench.common.blocked import RingWait
from kernbench.common.commands import IpcqCommand, Operand, ScheduledCommand, Segment
from kernbench.common.ipcq import Chunk, Communicator, Credit
from kernbench.common.message_traffic import ByMemory, MessageTraffic
from kernbench.common.messages import KernelLaunchMsg, Request
from kernbench.components.base import MemoryPort
from kernbench.components.builtin.operand_access import OperandAccess
from kernbench.components.builtin.pipeline import ServerQueue, StageServer, TileToken
from kernbench.components.interface import Interface
from kernbench.triton_emu.kernel_runner import Done


class CommandTaker(Protocol):
    """PE_SCHEDULER, as PE_CPU needs it."""

    def submit(self, cmd: ScheduledCommand, request: Request, done: Done, after: int | None = None) -> None:
        """Take a command; `done` is called when it is finished. `after` is the op that the kernel waited for last."""


class ComputeSlots(Protocol):
    """PE_SCHEDULER, as compute engines need it. The first slot is the one that engines without their own share."""

    compute_slots: list[ServerQueue]


class DataMover(Protocol):
    """PE_DMA, as PE_CPU and PE_SCHEDULER need it.

    PE_CPU also reports its `busy_ns`, and the choice of tiles asks `timing_to(operand)`, where it has them.
    """

    def translate(self, address: int, nbytes: int) -> Sequence[Segment]:
        """The physical segments of a range that a kernel names; raises AddressError for what is not mapped."""

    def access(self, operand: Operand) -> OperandAccess | None:
        """How to reach an operand; None for one that is pinned."""


class MessageMover(Protocol):
    """PE_DMA, as PE_IPCQ needs it: its communication channel."""

    def locate(self, pa: int) -> tuple[MemoryPort, int]:
        """The memory that a physical address is in, and the address there."""

    def post(self, pa: int, nbytes: int, payload: Chunk | Credit, left: Callable[[], object] | None) -> None:
        """Send bytes to a physical address; `left` is called when the last has left the PE."""

    def fetch(self, pa: int, nbytes: int, request: Request, arrived: Callable[[], object]) -> None:
        """Read bytes from a physical address; `arrived` is called when they are here."""


class MessageQueue(Protocol):
    """PE_IPCQ, as PE_CPU and the PE_IPCQ of a neighbour need it."""

    landed_late: ByMemory  # what kernels sent to HBM that had ended when it landed

    def submit(
        self, cmd: IpcqCommand, launch: KernelLaunchMsg, done: Done, after: int | None, started_ns: float
    ) -> None:
        """Take a command of a kernel that has started then; `done` is called when it is over."""

    def traffic_of(self, launch: KernelLaunchMsg) -> MessageTraffic:
        """What the messages of a kernel that runs have moved so far."""

    def under_way_of(self, launch: KernelLaunchMsg) -> ByMemory:
        """What a kernel that runs has sent to HBM and is not there yet."""

    def cancel(self, launch: KernelLaunchMsg) -> None:
        """A kernel has failed or is aborted: what it asked for is over."""

    def finished(self, launch: KernelLaunchMsg) -> None:
        """A kernel has ended as it should."""

    def describe(self, cmd: IpcqCommand, launch: KernelLaunchMsg) -> tuple[RingWait, ...]:
        """What a command waits for, for the report of a deadlock."""

    def connect(self, communicator: Communicator, direction: str, credit_to: int, sent: int) -> int:
        """The sender's side of a ring is made, or made again, after so many chunks; returns where the ring lies."""

    def disconnect(self, communicator: Communicator, direction: str, taken: int) -> bool:
        """The ring that this PE sends to is given up, if all that it sent is taken; says whether that is so."""


class Translator(Protocol):
    """PE_MMU, as PE_DMA needs it."""

    translation_ns: float  # what a request pays

    def translate(self, va: int, nbytes: int) -> list[Segment]:
        """The physical segments of a virtual range; raises AddressError for what is not mapped."""


class RegisterFile(Protocol):
    """PE_FETCH_STORE, as compute engines need it."""

    def give_back(self, registers: int, left: int) -> None:
        """Room in the register file is free again, since stage `left` is over."""


class TcmPorts(Protocol):
    """PE_TCM, as PE_FETCH_STORE needs it. PE_CPU also reports its `busy_ns`, where it has one."""

    def fetch(self, token: TileToken, nbytes: int) -> float:
        """Take the read port for a token's stage, and set its `start_ns`; returns until when."""

    def store(self, token: TileToken, nbytes: int) -> float:
        """Take the write port for a token's stage, and set its `start_ns`; returns until when."""


COMMAND_TAKER: Interface[CommandTaker] = Interface(CommandTaker, "takes no commands")
COMPUTE_SLOTS: Interface[ComputeSlots] = Interface(ComputeSlots, "keeps no compute slot")
DATA_MOVER: Interface[DataMover] = Interface(DataMover, "moves no bytes")
MESSAGE_MOVER: Interface[MessageMover] = Interface(MessageMover, "moves no messages")
MESSAGE_QUEUE: Interface[MessageQueue] = Interface(MessageQueue, "has no rings for messages")
TRANSLATOR: Interface[Translator] = Interface(Translator, "translates no addresses")
REGISTER_FILE: Interface[RegisterFile] = Interface(RegisterFile, "keeps no register file")
TCM_PORTS: Interface[TcmPorts] = Interface(TcmPorts, "has no ports to fetch from")
STAGE_SERVER: Interface[StageServer] = Interface(StageServer, "takes no commands")
