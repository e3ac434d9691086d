"""Base classes of every hardware block: a node, a context, and one of two kinds.

A *transit* block (router, switch, UCIe) has parameters and no process: the fabric delays each flit by its rule. An
*active* block takes whole packets: the fabric hands it each packet that is addressed to it or must stop there, and it
answers, forwards, or runs a SimPy process. The fabric charges `entry_ns` to whatever enters a block, so a
store-and-forward block pays its overhead once, after the last byte. Blocks reach the fabric, the routes and each
other only through their context.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import simpy

from kernbench.common.channel_traffic import ChannelTraffic
from kernbench.common.declared_state import Derived, State, View, incomparable, timing_state
from kernbench.common.dtypes import DType
from kernbench.common.errors import ComponentError
from kernbench.common.flits import FlitArrival
from kernbench.common.ipcq import Communicator
from kernbench.common.messages import KernelAbortMsg, LaunchStream, Request, RequestId
from kernbench.common.units import on_grid
from kernbench.common.writers import Writers
from kernbench.components.interface import Interface

# The types of a memory port belong to this module's contract, whichever of them it uses itself.
from kernbench.components.memory_port import Arrival as Arrival
from kernbench.components.memory_port import Initiator as Initiator
from kernbench.components.memory_port import Landed as Landed
from kernbench.components.memory_port import Listener, MemoryPort, OnLeft
from kernbench.components.memory_port import OnArrival as OnArrival
from kernbench.components.race_watch import Races
from kernbench.components.recording import Recorder
from kernbench.components.replays import CompositeReplayer, LaunchReplayer
from kernbench.policy.address.allocator import TcmLease
from kernbench.policy.routing.router import AddressResolver, PathRouter
from kernbench.topology.graph import Node, TopologyGraph
from kernbench.triton_emu.registry import Kernel
from kernbench.values.graph import Value, ValueGraph

T = TypeVar("T")
Process = Generator[simpy.Event, Any, Any]
TransferTrace = list[Any] | None  # the finished transfers of one request, when hops are traced
Legs = TransferTrace  # its former name

P = TypeVar("P")


@dataclass(slots=True, eq=False)
class Packet:
    """What travels between active blocks. Without bytes it is a control message.

    A read is a control message that asks for `wanted_bytes`, answered by a packet that carries them; a write carries
    its bytes and is answered by a control message. `answer` is called with the reply once that is back at the issuer.
    """

    STATE: ClassVar[State] = incomparable("place")
    DERIVED: ClassVar[Derived] = (
        "answer",
        "granules",
        "initiator",
        "is_posted",
        "leg_routes",
        "nbytes",
        "on_left",
        "path",
        "request",
        "slot",
    )

    request: Request
    path: tuple[str, ...]
    nbytes: int = 0
    wanted_bytes: int = 0
    address: int | None = None  # in the memory at the end of the path
    is_reply: bool = False
    answer: Callable[[Packet], object] | None = None
    payload: object = None
    on_left: tuple[OnLeft, ...] = ()  # called when it departs, from its sender and from each block that forwards it
    on_arrival: Callable[[], object] | None = None  # called when it is in the memory at the end, instead of listeners
    slot: tuple[int, int] | None = None  # the i-th of n packets whose flits alternate on the first link
    granules: int = 0  # that the last burst of a memory access touches; 0: as many as its bytes fill
    is_posted: bool = False  # whether its answer is dropped
    place: int = 0  # index in `path` of the node where it is now
    trace: TransferTrace = field(default=None, repr=False)
    initiator: object = None  # the work that an engine sends it for; observers of the fabric read it
    leg_routes: Any = field(default=None, repr=False)  # of its path, which the machine looks up when it is first sent

    @property
    def node(self) -> str:
        return self.path[self.place]

    @property
    def at_end(self) -> bool:
        return self.place == len(self.path) - 1


class Served(NamedTuple):
    """What a block that serves requests returns: the path that was taken, and the payload of the answer."""

    path: tuple[str, ...]
    payload: object = None


class Memory(Protocol):
    """The tray's memory: physical addresses and the values that lie there."""

    def read(self, addr: int, shape: Sequence[int], dtype: DType | str, *, zero_fill: bool = False) -> Value:
        """The value that the bytes at `addr` hold now; raises DataError for bytes never written."""

    def read_strided(self, addr: int, shape: Sequence[int], strides_bytes: Sequence[int], dtype: DType | str) -> Value:
        """The value that strided bytes from `addr` on hold now."""

    def write(self, addr: int, value: Value) -> None:
        """Bytes from `addr` on hold `value` from now on."""

    def write_strided(self, addr: int, value: Value, strides_bytes: Sequence[int]) -> None:
        """Strided bytes hold `value` from now on; no two elements may share a byte."""

    def is_unknown(self, value: Value) -> bool:
        """Whether a value depends on bytes with unknown contents."""


class Context(Protocol):
    """What a block may use of the machine around it."""

    graph: TopologyGraph
    values: ValueGraph
    data: bool  # whether tensor contents are kept; without them memory reads as zeros
    may_compile: bool  # whether compiled code may take the place of plain Python, where numba is installed
    router: PathRouter
    resolver: AddressResolver
    kernels: dict[str, Kernel]  # by the name that launches use
    writers: Writers | None  # the op that wrote each byte last; None without an op log
    communicators: dict[str, Communicator]  # by name

    @property
    def composite_replayer(self) -> CompositeReplayer | None:
        """Replays recorded composites; None when every composite is simulated tile by tile."""

    @property
    def launch_replayer(self) -> LaunchReplayer | None:
        """Replays recorded launches; None when every kernel is run."""

    @property
    def races(self) -> Races | None:
        """The race detector; None when it is off."""

    @property
    def memory(self) -> Memory:
        """The contents of every memory of the tray."""

    @property
    def log(self) -> Recorder | None:
        """The op log; None when no ops are recorded."""

    @property
    def env(self) -> simpy.Environment:
        """The clock, for processes, events and time-outs."""

    def at(self, at_ns: float, action: Callable[[T], object], subject: T) -> None:
        """Call `action` with `subject` at a time of now or later, before the processes that resume at that time."""

    def send(self, packet: Packet) -> None:
        """Send a packet from its present node to the next active block on its path."""

    def latency_ns(self, path: Sequence[str]) -> float:
        """How long a control message takes along `path`."""

    def memory_port(self, path: tuple[str, ...]) -> MemoryPort:
        """The memory at the end of `path`, for an engine at its start."""

    def requests_of(
        self, path: tuple[str, ...], address: int, nbytes: int
    ) -> Sequence[tuple[tuple[str, ...], int, int]]:
        """The requests of an access to the memory at the end of `path`: path, address and bytes of the one, or of one
        for each channel that it uses.
        """

    def listen(self, memory: str, address: int, nbytes: int, listener: Listener) -> Callable[[], None]:
        """Call `listener` for every write to that range, when its last byte is in memory; returns a function that
        removes the listener.
        """

    def memory_traffic_by(self, node_id: str) -> dict[str, ChannelTraffic]:
        """The finished transfers of a block to and from HBM, by controller."""

    def begin_launch(self, pe: str, launch: RequestId, stream: LaunchStream) -> None:
        """A PE begins a launch: from now on its engines' work in that stream is attributed to it."""

    def lease_tcm(self, sip: int, cube: int, pe: int, stream: LaunchStream) -> TcmLease:
        """Give a kernel TCM of a PE until `end_lease`: the free part, or for communication the part reserved for it.
        Raises AllocationError where nothing is reserved.
        """

    def tcm_holders(self, sip: int, cube: int, pe: int) -> list[tuple[str, int]]:
        """The parts of a PE's TCM that its kernels cannot use: name and bytes of each."""

    def end_lease(self, sip: int, cube: int, pe: int, stream: LaunchStream) -> None:
        """End the lease of a kernel, if there is one."""

    def component(self, node_id: str) -> Component:
        """Another block of the same unit, say the MMU of a DMA engine's PE."""

    def component_so_far(self, node_id: str) -> Component | None:
        """That block, if it has been created yet."""


class Component:
    """One hardware block. Subclasses are named in the components table, or in YAML as `module:Class`."""

    __slots__ = ("ctx", "env", "node")

    STATE: ClassVar[State] = ()  # what decides its future timing, see `common.declared_state`
    DERIVED: ClassVar[Derived] = ("ctx", "env", "node")  # attributes that may change and do not

    stores_and_forwards = False  # whether a packet in transit is received whole here before it is forwarded

    def __init__(self, node: Node, ctx: Context) -> None:
        self.node = node
        self.ctx = ctx
        self.env = ctx.env

    @property
    def entry_ns(self) -> float:
        """What the fabric charges to a flit, or a control message, that enters this block."""
        return self.node.overhead_ns

    def timing_state(self, view: View) -> tuple[object, ...]:
        """All that decides the future timing of this block, as seen from an instant; built from `STATE`."""
        return timing_state(self, view)

    def start(self) -> None:
        """Called once before time begins; a block that has processes starts them here."""

    def sibling(self, node_id: str, interface: Interface[P]) -> P:
        """Another block of the same unit, checked against the interface it must have; ComponentError names the missing
        members.
        """
        found: Any = self.ctx.component(node_id)
        missing = interface.missing(found)
        if missing:
            raise ComponentError(
                f"{node_id} {interface.lacks}",
                where=f"impl {self.ctx.graph.node(node_id).impl}",
                hint=f"give its class {' and '.join(missing)}, as {interface.name} has them",
            )
        ready: P = found
        return ready


class TransitComponent(Component):
    """A pipeline stage of the fabric. Override `flit_delay_ns` to define the delay of each flit."""

    def flit_delay_ns(self, flit: FlitArrival) -> float:
        """How long `flit` stays in this block. Flits of one transfer stay in order whatever this returns."""
        return self.node.overhead_ns


class ActiveComponent(Component):
    """A block that receives whole packets: those addressed to it, and those in transit."""

    __slots__ = ()

    stores_and_forwards = True

    def handle(self, packet: Packet) -> Process | None:
        """Handle a whole packet: answer it, forward it, or return a SimPy process that will."""
        if packet.at_end:
            return self.stop(packet) if isinstance(packet.request, KernelAbortMsg) else self.accept(packet)
        self.ctx.send(packet)
        return None

    def stop(self, packet: Packet) -> Process | None:
        """Stop a launch that was sent here. A block that cannot do so only acknowledges the request."""
        self.reply(packet)
        return None

    def accept(self, packet: Packet) -> Process | None:
        """Handle a packet that is addressed to this block."""
        raise ComponentError(
            f"{self.node.id} cannot serve a {type(packet.request).__name__}",
            where=f"impl {self.node.impl}",
            hint="send it to a block that can, or give this one another impl",
        )

    # ---- called by issuers

    def read(
        self, request: Request, path: Sequence[str], address: int, nbytes: int, trace: TransferTrace
    ) -> simpy.Event:
        """Read bytes from the memory at the end of `path`; the event fires when the last one is here."""
        parts = self.ctx.requests_of(tuple(path), address, nbytes)
        packets = [Packet(request, way, wanted_bytes=size, address=at, trace=_same(trace)) for way, at, size in parts]
        return self._issue_all(packets, trace)

    def write(
        self, request: Request, path: Sequence[str], address: int, nbytes: int, trace: TransferTrace
    ) -> simpy.Event:
        """Write bytes to the memory at the end of `path`; the event fires when its acknowledgement is here."""
        parts = self.ctx.requests_of(tuple(path), address, nbytes)
        packets = [
            Packet(request, way, nbytes=size, address=at, slot=(place, len(parts)), trace=_same(trace))
            for place, (way, at, size) in enumerate(parts)
        ]
        return self._issue_all(packets, trace)

    def path_of(self, path: Sequence[str], address: int, nbytes: int) -> tuple[str, ...]:
        """The path of an access to the memory at the end of `path`; of one that is divided over stacks, of its first
        request.
        """
        if self.ctx.graph.spec.sip.hbm_stacks is None:
            return tuple(path)
        return self.ctx.requests_of(tuple(path), address, nbytes)[0][0]

    def command(self, request: Request, path: Sequence[str], payload: object, trace: TransferTrace) -> simpy.Event:
        """Send a control message; the event fires when the answer is here, with the reply packet as its value."""
        return self._issue(Packet(request, tuple(path), payload=payload, trace=trace))

    def _issue_all(self, packets: Sequence[Packet], trace: TransferTrace) -> simpy.Event:
        """Send the requests of one access; the event fires when the last is answered, whose transfers `trace` gets."""
        answered, missing = self.env.event(), len(packets)

        def one_answered(reply: Packet) -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                if trace is not None and reply.trace is not None:
                    trace.extend(reply.trace)
                answered.succeed(reply)

        for packet in packets:
            packet.answer = one_answered
            self.ctx.send(packet)
        return answered

    def _issue(self, packet: Packet) -> simpy.Event:
        answered = self.env.event()
        packet.answer = answered.succeed
        self.ctx.send(packet)
        return answered

    def reply(self, packet: Packet, nbytes: int = 0, payload: object = None) -> None:
        """Answer a packet along its path in reverse. An answer without bytes that nothing waits for is not sent."""
        if packet.is_posted and not nbytes:
            return
        answer = Packet(
            packet.request,
            packet.path[::-1],
            nbytes,
            address=packet.address,
            is_reply=True,
            answer=packet.answer,
            payload=payload,
            trace=packet.trace,
            initiator=packet.initiator,
            granules=packet.granules,
            is_posted=packet.is_posted,
        )
        self.ctx.send(answer)

    def pause(self, ns: float) -> Process:
        """`yield from self.pause(ns)`: let time pass on the grid, if there is any to pass."""
        if ns > 0:
            yield self.env.timeout(on_grid(ns))


def _same(trace: TransferTrace) -> TransferTrace:
    """A list for one request of an access, if its hops are traced."""
    return None if trace is None else []


class MemoryComponent(ActiveComponent):
    """A memory at the end of a path: a write is acknowledged once it is in, a read is answered with its bytes."""

    __slots__ = ()

    def accept(self, packet: Packet) -> Process | None:
        if packet.address is None:
            return super().accept(packet)
        self.reply(packet, nbytes=packet.wanted_bytes)
        return None
