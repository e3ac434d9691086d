"""Messages between PEs, and the rings they lie in until they are received: the data that `tl`, PE_IPCQ and `ccl` share.

A *communicator* is a set of PEs with names for their neighbours (directions) and one configuration of rings. A ring
belongs to the receiving side of one direction: `n_slots` slots of `slot_size` bytes in TCM, SRAM or HBM. A message is
cut into chunks, one for each slot that it takes. What a message holds travels with it, so nothing that happens to a
slot later can change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from kernbench.common.envelope import Request, Targets
from kernbench.common.ids import PeKey
from kernbench.common.message_traffic import MessageCounter, NodePath

BufferKind = Literal["tcm", "sram", "hbm"]
Backpressure = Literal["sleep", "poll"]
BUFFER_KINDS: tuple[BufferKind, ...] = ("tcm", "sram", "hbm")
BACKPRESSURES: tuple[Backpressure, ...] = ("sleep", "poll")


class RingConfig(NamedTuple):
    """How the rings of a communicator are made. `backpressure` is how a PE waits: for a credit, or for a message."""

    n_slots: int = 4
    slot_size: int = 4096
    buffer_kind: BufferKind = "tcm"
    backpressure: Backpressure = "sleep"
    credit_bytes: int = 16

    @property
    def ring_bytes(self) -> int:
        return self.n_slots * self.slot_size


class Peer(NamedTuple):
    """Who is in a direction, and which of its directions leads back."""

    pe: PeKey
    direction: str


class LaunchOrigin(NamedTuple):
    """The launch that a message comes from. `key` is its own, the same on all its SIPs; `targets` are the cubes and PEs
    of each of them. It receives only messages with its own `tag`.
    """

    key: object
    tag: int
    targets: Mapping[int, tuple[Targets, Targets]]

    def has(self, pe: PeKey) -> bool:
        """Whether it runs on a PE."""
        cubes, pes = self.targets.get(pe[0], ((), ()))
        return (cubes == "all" or pe[1] in cubes) and (pes == "all" or pe[2] in pes)


@dataclass(slots=True, eq=False)
class Message:
    """What one `tl.send` sends. `clock` is for the race detector, `record` is the op-log id of the send."""

    value: object
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    line: str  # of the send, `file:line`
    sender: PeKey
    direction: str  # as the sender calls it
    origin: LaunchOrigin
    clock: object = None
    record: int | None = None
    chunks: int = 1
    wire_bytes: int = field(default=0)  # of all chunks: an empty message is as long as a credit


class Chunk(NamedTuple):
    """Part of a message, in one slot. `number` counts what was sent into the ring.

    A chunk in flight when its communicator is closed may land in rings of the next one: `communicator` identifies it.
    """

    message: Message
    part: int
    nbytes: int
    number: int
    request: Request  # on whose behalf it travels
    communicator: Communicator
    path: NodePath  # that it takes
    sent_ns: float
    sender: MessageCounter

    @property
    def is_last(self) -> bool:
        return self.part == self.message.chunks - 1


@dataclass(slots=True, eq=False)
class Credit:
    """The count of chunks taken out of a ring since its creation; `by` refers to the receive of a message's last chunk
    in the op log, once that is over.
    """

    taken: int
    communicator: Communicator
    by: int = -1


class Unreceived(NamedTuple):
    """A message that lies in a ring, or is on its way there."""

    receiver: PeKey
    direction: str  # as the receiver calls it
    message: Message


class Communicator:
    """PEs that know each other by directions, and the memory of their rings.

    `peer_of` has the peer in a direction of a PE, `directions_of` which it has. `allocate` finds memory for a ring or a
    credit word, (PE, bytes, kind, whether it may take the room of long rings) to a physical address, and `free` takes
    it back. `failure` is set when a kernel that used it has failed: the contents of its rings are then undefined.
    `users` counts the running kernels that have used it, one per PE.
    """

    def __init__(
        self,
        name: str,
        config: RingConfig,
        peer_of: Callable[[PeKey, str], Peer | None],
        directions_of: Callable[[PeKey], tuple[str, ...]],
        allocate: Callable[[PeKey, int, BufferKind, bool], int],
        free: Callable[[int], None],
        sips: tuple[int, ...] = (),
    ) -> None:
        self.name = name
        self.sips = sips  # whose PEs it has
        self.config = config
        self.peer_of = peer_of
        self.directions_of = directions_of
        self.allocate = allocate
        self.free = free
        self.failure: str | None = None
        self.users = 0
        self.unreceived: dict[Message, None] = {}  # sent and not received, in the order of sending
        self.on_close: list[Callable[[], None]] = []

    def left_over_by(self, origin: LaunchOrigin) -> list[Unreceived]:
        """Messages of a finished launch to PEs of that launch: they can no longer be received."""
        key = origin.key
        mine = self._unreceived([message for message in self.unreceived if message.origin.key == key])
        return [left for left in mine if origin.has(left.receiver)]

    def left_over_of(self, tag: int) -> list[Unreceived]:
        """Messages with a tag: once all launches with that tag are over, they can no longer be received."""
        return self._unreceived([message for message in self.unreceived if message.origin.tag == tag])

    def left_over(self) -> list[Unreceived]:
        """The messages that were sent and not received, in the order of sending; none after a failure."""
        return self._unreceived(self.unreceived)

    def _unreceived(self, messages: Iterable[Message]) -> list[Unreceived]:
        if self.failure is not None:
            return []
        found: list[Unreceived] = []
        for message in messages:
            peer = self.peer_of(message.sender, message.direction)
            assert peer is not None
            found.append(Unreceived(peer.pe, peer.direction, message))
        return found

    def close(self) -> None:
        """Remove its rings: chunks that still arrive there are ignored."""
        for end in self.on_close:
            end()
        self.on_close.clear()
        self.unreceived.clear()
