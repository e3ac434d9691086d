"""How a DMA engine reaches a memory: the accesses it makes, and the port that takes them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from kernbench.common.messages import Request

OnLeft = Callable[[str, float], None]  # with a node, and when the last byte leaves it


class Arrival(Protocol):
    """A transfer that has arrived; `tag` is the object that its requester attached to it."""

    @property
    def tag(self) -> Any: ...


class Initiator(Protocol):
    """The work on whose behalf bytes move: the `tag` of a transfer."""

    @property
    def request(self) -> Request: ...


OnArrival = Callable[[Arrival], None]


class MemoryAccess(NamedTuple):
    """A read or a write of bytes, which departs at `at_ns`, now or later. The address is relative to its memory.

    `done` is called with its `tag` when the bytes of a read, or the acknowledgement of a write, are back; a write
    without it is posted: its acknowledgement is dropped. `on_left` is called when a write departs, from the engine and
    then from each active block on the path. `slot` is the place of a write among those that share its first link.
    `granules` is how many granules of its last burst it touches; 0: as many as its bytes fill.
    """

    nbytes: int
    address: int
    at_ns: float
    done: OnArrival | None
    tag: Initiator
    payload: object = None
    on_left: OnLeft | None = None
    slot: tuple[int, int] | None = None
    granules: int = 0


class Notice(NamedTuple):
    """A message to the listeners of a range, which departs at `at_ns`; `then` is called after them, where it is given.

    It occupies no link, unless the machine has `fabric.control_bytes`.
    """

    address: int
    nbytes: int
    at_ns: float
    tag: Initiator
    payload: object
    then: Callable[[], object] | None = None


class PartialRead(Protocol):
    """One of several reads: where, how many bytes, and how many granules of the last burst."""

    @property
    def port(self) -> MemoryPort: ...

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def granules(self) -> int: ...


class MemoryPort(Protocol):
    """One memory as a DMA engine reaches it over any path.

    There are two implementations with the same times: one hands the transfer to
    the fabric as a whole, the other sends packets that every active block on the path receives and forwards.
    """

    @property
    def path(self) -> tuple[str, ...]:
        """From the engine to the memory."""

    @property
    def burst_bytes(self) -> int:
        """What is interleaved over memory channels, and a full access of one; 0 for a memory without channels."""

    @property
    def granule_bytes(self) -> int:
        """The smallest access of one memory channel; 0 for a memory without channels."""

    @property
    def exit_node(self) -> str:
        """The node that a posted write must have left for its sender to continue: the engine itself, or, where the
        memory is on another SIP, the last block of the sender's SIP that forwards it.
        """

    def read(self, access: MemoryAccess) -> None:
        """Read bytes."""

    def read_together(self, parts: Sequence[PartialRead], at_ns: float, done: OnArrival, tag: Initiator) -> bool:
        """Read several parts, of this memory and others, as `read` does with each; `done` is called once, when the last
        one is here. False, and nothing done, where that gains nothing.
        """

    def write(self, access: MemoryAccess) -> None:
        """Write bytes. Listeners there (`Context.listen`) are called with `payload` when the last byte is in memory."""

    def multicast_to(self, others: Sequence[MemoryPort], nbytes: int) -> Callable[[Sequence[MemoryAccess]], None]:
        """What writes the same `nbytes` to this memory and others, and takes one access for each: a link that leads to
        several of them carries the bytes once. Raises FabricError where paths form no tree, or are not the fabric's
        alone.
        """

    def notify(self, notice: Notice) -> None:
        """Call the listeners of a range with a payload, by a control message."""

    def update(self, access: MemoryAccess, apply: Callable[[], object]) -> None:
        """A read-modify-write: send bytes, call `apply` when the last one is there, and return as many."""


class Landed(NamedTuple):
    """Bytes that a write has brought to a memory: the memory's node, and their address in that memory."""

    node: str
    address: int
    nbytes: int
    payload: object


Listener = Callable[[Landed], None]
