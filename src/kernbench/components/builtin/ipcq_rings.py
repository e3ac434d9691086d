"""State of PE_IPCQ: sends and receives under way, and both sides of its rings. The timing rules are in pe_ipcq.py."""

from __future__ import annotations

from collections import deque
from functools import partial
from math import ceil, inf
from typing import ClassVar, NamedTuple, Protocol

from kernbench.common.commands import RecvCmd, SendCmd
from kernbench.common.declared_state import Derived, State, incomparable
from kernbench.common.ids import PeId, PeKey
from kernbench.common.ipcq import Chunk, Communicator, Credit, Message
from kernbench.common.message_traffic import MessageCounter, NodePath
from kernbench.common.messages import KernelLaunchMsg
from kernbench.common.units import on_grid
from kernbench.components.base import Context
from kernbench.components.builtin.interfaces import MessageMover, MessageQueue
from kernbench.components.memory_port import Landed
from kernbench.components.recording import Release
from kernbench.triton_emu.kernel_runner import RecordsCallback


class SlotTier(NamedTuple):
    """One kind of memory that can hold slots."""

    gbs: float
    latency_ns: float

    def access_ns(self, nbytes: int) -> float:
        """How long a write or a read of a slot takes."""
        return on_grid(nbytes / self.gbs + self.latency_ns)


def noticed_ns(backpressure: str, since_ns: float, now_ns: float, wake_ns: float, poll_ns: float) -> float:
    """When a PE that has waited since `since_ns` notices an event at `now_ns`."""
    if backpressure == "sleep":
        return now_ns + wake_ns
    return since_ns + ceil((now_ns - since_ns) / poll_ns) * poll_ns


class User:
    """A kernel that has sent or received here: its communicator, its pending commands, and its traffic."""

    STATE = incomparable("ops")
    DERIVED = ("communicator", "launch", "moved")

    __slots__ = ("communicator", "launch", "moved", "ops")

    def __init__(self, launch: KernelLaunchMsg, communicator: Communicator, moved: MessageCounter) -> None:
        self.launch = launch
        self.communicator = communicator
        self.moved = moved
        self.ops: dict[SendOp | RecvOp, None] = {}


class _Op:
    """A command under way here."""

    STATE: ClassVar[State] = incomparable("is_cancelled", "start_ns")
    DERIVED: ClassVar[Derived] = ("done", "user", "waited")

    __slots__ = ("cause", "done", "is_cancelled", "issued_ns", "start_ns", "user", "waited")

    def __init__(self, user: User, done: RecordsCallback, issued_ns: float, cause: tuple[Release, int]) -> None:
        self.user = user
        self.done = done
        self.issued_ns = issued_ns
        self.cause = cause
        self.start_ns: float | None = None  # when its first chunk moves
        self.waited: tuple[float, ...] = ()  # the cause of its start, if it waited; see `recording.Causes`
        self.is_cancelled = False


class SendOp(_Op):
    """A send: `index` chunks of it are posted, and `unsent` have not left yet, posted or not."""

    STATE = incomparable("index", "unsent")
    DERIVED = ("cmd", "ring")

    __slots__ = ("cmd", "index", "ring", "unsent")

    def __init__(
        self,
        cmd: SendCmd,
        ring: TxRing,
        user: User,
        done: RecordsCallback,
        issued_ns: float,
        cause: tuple[Release, int],
    ) -> None:
        super().__init__(user, done, issued_ns, cause)
        self.cmd = cmd
        self.ring = ring
        self.index = 0
        self.unsent = 0

    @property
    def is_posted(self) -> bool:
        """Whether all of its chunks are posted, so that nothing can delay or cancel it any more."""
        return self.index == self.cmd.message.chunks


class RecvOp(_Op):
    """A receive, and its message once the first chunk has arrived."""

    STATE = incomparable("message", "posted_ns")
    DERIVED = ("cmd",)

    __slots__ = ("cmd", "message", "posted_ns")

    def __init__(
        self, cmd: RecvCmd, user: User, done: RecordsCallback, issued_ns: float, cause: tuple[Release, int]
    ) -> None:
        super().__init__(user, done, issued_ns, cause)
        self.cmd = cmd
        self.message: Message | None = None
        self.posted_ns = issued_ns


class RingUser(Protocol):
    """PE_IPCQ, as its rings need it: callbacks for their events, and queries about pending commands."""

    pe: PeId
    key: PeKey
    ctx: Context

    @property
    def dma(self) -> MessageMover:
        """The PE's DMA engine."""

    def queue_of(self, pe: PeKey) -> MessageQueue:
        """The PE_IPCQ of another PE."""

    def credited(self, ring: TxRing, landed: Landed) -> None:
        """A write to the credit word of a ring has landed."""

    def landed(self, ring: RxRing, landed: Landed) -> None:
        """A write to a slot of a ring has landed."""

    def arrived(self, ring: RxRing, chunk: Chunk) -> None:
        """A chunk is written to its slot."""

    def fetched(self, ring: RxRing) -> None:
        """The bytes of a slot have been read over the fabric."""

    def has_receive(self, communicator: Communicator, direction: str) -> bool:
        """Whether a pending receive accepts messages of a direction."""

    def is_sending(self, ring: TxRing) -> bool:
        """Whether a send to a ring is under way."""

    def closed(self, communicator: Communicator) -> None:
        """A communicator has been closed, and its rings with it."""


class TxRing:
    """The sender's side of a direction: its view of the ring at the other end."""

    STATE = incomparable("is_waking", "ops", "sent", "stalled_since_ns", "taken", "there")
    DERIVED = ("communicator", "credit", "path", "stop_listening")

    __slots__ = (
        "communicator", "credit", "direction", "is_waking", "ops", "path", "peer", "peer_name", "sent",
        "stalled_since_ns", "stop_listening", "taken", "there", "word",
    )  # fmt: skip

    def __init__(self, user: RingUser, communicator: Communicator, direction: str, peer: PeKey, word: int) -> None:
        self.communicator = communicator
        self.direction = direction
        self.peer = peer
        self.peer_name = str(PeId(*peer))
        self.word = word  # address of its credit word
        self.there = 0  # address of the remote ring, once connected
        self.path: NodePath = ()  # to that ring
        self.sent = 0  # chunks so far
        self.taken = 0  # of those, acknowledged by credits
        self.credit: Credit | None = None  # the last that arrived
        self.ops: deque[SendOp] = deque()  # with chunks to post
        self.stalled_since_ns: float | None = None  # for lack of a credit
        self.is_waking = False
        port, address = user.dma.locate(word)
        credit_bytes = communicator.config.credit_bytes
        self.stop_listening = user.ctx.listen(port.path[-1], address, credit_bytes, partial(user.credited, self))

    @property
    def occupancy(self) -> int:
        return self.sent - self.taken


class RxRing:
    """The receiver's side of a direction: the slots themselves."""

    STATE = incomparable("arrived", "credit_to", "idle_since_ns", "is_reading", "op", "taken")
    DERIVED = ("communicator", "last_record", "on_arrived", "on_fetched", "stop_listening")

    __slots__ = (
        "arrived", "base", "communicator", "credit_to", "direction", "idle_since_ns", "is_reading", "last_record",
        "notice_ns", "on_arrived", "on_fetched", "op", "peer", "peer_name", "stop_listening", "taken",
    )  # fmt: skip

    def __init__(self, user: RingUser, communicator: Communicator, direction: str, peer: PeKey, base: int) -> None:
        self.communicator = communicator
        self.direction = direction
        self.peer = peer
        self.peer_name = str(PeId(*peer))
        self.base = base
        config, (port, address) = communicator.config, user.dma.locate(base)
        is_near = config.buffer_kind == "tcm"
        self.notice_ns = 0.0 if is_near else user.ctx.latency_ns(port.path[::-1])  # from the memory to the PE
        self.credit_to: int | None = None  # address of the sender's credit word, once connected
        self.arrived: dict[int, tuple[Chunk, float]] = {}  # by number, with the time of arrival
        self.taken = 0  # chunks so far: the number of the next
        self.op: RecvOp | None = None  # the receive that its chunks go to
        self.is_reading = False
        self.idle_since_ns = 0.0  # since when no slot is being read
        self.last_record: int | None = None  # op-log id of the previous receive
        self.on_arrived, self.on_fetched = partial(user.arrived, self), partial(user.fetched, self)
        self.stop_listening = user.ctx.listen(port.path[-1], address, config.ring_bytes, partial(user.landed, self))

    @property
    def head_since_ns(self) -> float:
        """When the next chunk arrived; infinity if it has not."""
        return self.arrived[self.taken][1] if self.taken in self.arrived else inf
