"""Interfaces between the parts of a PE. A part may be replaced by any class that has these members, whatever its base
class; `PeEngine` (pipeline.py) has the members that every engine needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kernbench.common.blocked import RingWait
from kernbench.common.commands import IpcqCommand, Operand, ScheduledCommand, Segment
from kernbench.common.ipcq import Chunk, Communicator, Credit
from kernbench.common.message_traffic import ByMemory, MessageTraffic
from kernbench.common.messages import KernelFailure, KernelLaunchMsg, Request
from kernbench.components.builtin.operand_access import OperandAccess
from kernbench.components.builtin.pipeline import ServerQueue, StageServer, TileToken
from kernbench.components.interface import Interface
from kernbench.components.memory_port import MemoryPort
from kernbench.triton_emu.kernel_runner import RecordsCallback


class CommandTaker(Protocol):
    """PE_SCHEDULER, as PE_CPU needs it."""

    def submit(self, cmd: ScheduledCommand, request: Request, done: RecordsCallback, after: int | None = None) -> None:
        """Take a command; `done` is called when it is finished. `after` is the op that the kernel waited for last."""


class ComputeSlots(Protocol):
    """PE_SCHEDULER, as compute engines need it. The first slot is shared by the engines that have none of their own."""

    compute_slots: list[ServerQueue]


class DataMover(Protocol):
    """PE_DMA, as PE_CPU and PE_SCHEDULER need it.

    Optional members: PE_CPU reports `busy_ns`, the choice of tiles uses `timing_to(operand)`, and `tl.multicast` needs
    `multicast_places(requests)`.
    """

    def translate(self, address: int, nbytes: int) -> Sequence[Segment]:
        """The physical segments of an address range of a kernel; raises AddressError for unmapped bytes."""

    def access(self, operand: Operand) -> OperandAccess | None:
        """How to reach an operand; None for one that is pinned."""


class MessageMover(Protocol):
    """PE_DMA, as PE_IPCQ needs it: its communication channel."""

    def locate(self, pa: int) -> tuple[MemoryPort, int]:
        """The memory that a physical address is in, and the address there."""

    def post(self, pa: int, nbytes: int, payload: Chunk, left: Callable[[], object]) -> None:
        """Write bytes to a physical address; `left` is called when the last has left the PE, or the SIP where the
        memory is on another.
        """

    def notify(
        self, pa: int, nbytes: int, payload: Credit, request: Request, then: Callable[[], object] | None = None
    ) -> None:
        """Notify the listeners of a range of physical addresses by a control message; `then` is called after them."""

    def fetch(self, pa: int, nbytes: int, request: Request, arrived: Callable[[], object]) -> None:
        """Read bytes from a physical address; `arrived` is called when they are here."""


class MessageQueue(Protocol):
    """PE_IPCQ, as PE_CPU and the PE_IPCQ of a neighbour need it."""

    landed_late: ByMemory  # traffic to memories that landed after the sending kernel had ended

    def submit(
        self, cmd: IpcqCommand, launch: KernelLaunchMsg, done: RecordsCallback, after: int | None, started_ns: float
    ) -> None:
        """Take a command of a kernel that started at `started_ns`; `done` is called when it is over."""

    def traffic_of(self, launch: KernelLaunchMsg) -> MessageTraffic:
        """The message traffic of a running kernel so far."""

    def under_way_of(self, launch: KernelLaunchMsg) -> ByMemory:
        """What a running kernel has sent to HBM that has not landed yet."""

    def cancel(self, launch: KernelLaunchMsg, why: KernelFailure | None = None) -> None:
        """A kernel has failed, `why` is how, or is aborted: cancel its pending commands."""

    def finished(self, launch: KernelLaunchMsg) -> None:
        """A kernel has ended normally."""

    def describe(self, cmd: IpcqCommand, launch: KernelLaunchMsg) -> tuple[RingWait, ...]:
        """What a command waits for, for the report of a deadlock."""

    def connect(self, communicator: Communicator, direction: str, credit_to: int, sent: int) -> int:
        """Connect a sender that has sent `sent` chunks to this PE's ring; returns the address of the ring."""

    def disconnect(self, communicator: Communicator, direction: str, taken: int) -> bool:
        """Release the ring that this PE sends to, if all chunks sent are taken; returns whether it was released."""


class Translator(Protocol):
    """PE_MMU, as PE_DMA needs it."""

    translation_ns: float  # charged to each request

    def translate(self, va: int, nbytes: int) -> list[Segment]:
        """The physical segments of a virtual range; raises AddressError for unmapped bytes."""


class RegisterFile(Protocol):
    """PE_FETCH_STORE, as compute engines need it."""

    def give_back(self, registers: int, left: int) -> None:
        """Room in the register file is free again, since stage `left` is over."""


class TcmPorts(Protocol):
    """PE_TCM, as PE_FETCH_STORE needs it. Optional: PE_CPU reports its `busy_ns`."""

    def fetch(self, token: TileToken, nbytes: int) -> float:
        """Use the read port for a token's stage, and set its `start_ns`; returns the end time."""

    def store(self, token: TileToken, nbytes: int) -> float:
        """Use the write port for a token's stage, and set its `start_ns`; returns the end time."""


COMMAND_TAKER: Interface[CommandTaker] = Interface(CommandTaker, "takes no commands")
COMPUTE_SLOTS: Interface[ComputeSlots] = Interface(ComputeSlots, "keeps no compute slot")
DATA_MOVER: Interface[DataMover] = Interface(DataMover, "moves no bytes")
MESSAGE_MOVER: Interface[MessageMover] = Interface(MessageMover, "moves no messages")
MESSAGE_QUEUE: Interface[MessageQueue] = Interface(MessageQueue, "has no rings for messages")
TRANSLATOR: Interface[Translator] = Interface(Translator, "translates no addresses")
REGISTER_FILE: Interface[RegisterFile] = Interface(RegisterFile, "keeps no register file")
TCM_PORTS: Interface[TcmPorts] = Interface(TcmPorts, "has no ports to fetch from")
STAGE_SERVER: Interface[StageServer] = Interface(StageServer, "takes no commands")
