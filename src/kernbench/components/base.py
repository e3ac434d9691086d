"""What every hardware block has in common: a node, a context, and one of two natures.

A *transit* block (router, switch, UCIe) has parameters and no process: the fabric delays each flit by its rule. An *active*
block takes whole packets: the fabric hands it each packet that is addressed to it or must stop there, and it answers,
forwards, or runs a SimPy process. The fabric charges `entry_ns` to whatever enters a block, so a store-and-forward block pays
its overhead once, after the last byte. Blocks reach the fabric, the routes and each other only through their context.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import simpy

from kernbench.common.errors import ComponentError
from kernbench.common.flits import FlitArrival
from kernbench.common.messages import Request
from kernbench.policy.routing.router import AddressResolver, PathRouter
from kernbench.topology.graph import Node, TopologyGraph

Process = Generator[simpy.Event, Any, Any]


@dataclass(slots=True, eq=False)
class Packet:
    """What travels between active blocks. Without bytes it is a control message.

    A read is a control message that asks for `wanted_bytes`, answered by a packet that carries them; a write carries its bytes
    and is answered by a control message. `answer` happens at the issuer when the reply has arrived.
    """

    request: Request
    path: tuple[str, ...]
    nbytes: int = 0
    wanted_bytes: int = 0
    address: int | None = None  # in the memory at the end of the path
    is_reply: bool = False
    answer: simpy.Event | None = None
    payload: object = None
    place: int = 0  # index in `path` of the node where it stands
    legs: list[Any] | None = field(default=None, repr=False)  # finished transfers, when hops are traced

    @property
    def node(self) -> str:
        return self.path[self.place]

    @property
    def at_end(self) -> bool:
        return self.place == len(self.path) - 1


class Context(Protocol):
    """What a block may use of the machine around it."""

    env: simpy.Environment
    graph: TopologyGraph
    router: PathRouter
    resolver: AddressResolver

    def send(self, packet: Packet) -> None:
        """Let a packet travel from where it stands to the next active block on its path."""

    def latency_ns(self, path: Sequence[str]) -> float:
        """How long a control message takes along `path`."""


class Component:
    """One hardware block. Subclasses are named in the components table, or in YAML as `module:Class`."""

    takes_packets = False

    def __init__(self, node: Node, ctx: Context) -> None:
        self.node = node
        self.ctx = ctx
        self.env = ctx.env

    @property
    def entry_ns(self) -> float:
        """What the fabric charges to a flit, or a control message, that enters this block."""
        return self.node.overhead_ns

    def start(self) -> None:
        """Called once before time begins; a block with processes of its own starts them here."""


class TransitComponent(Component):
    """A pipeline stage of the fabric. Override `flit_delay_ns` to delay each flit by a rule of your own."""

    def flit_delay_ns(self, flit: FlitArrival) -> float:
        """How long `flit` stays in this block. Order within a transfer is kept whatever this answers."""
        return self.node.overhead_ns


class ActiveComponent(Component):
    """A block that takes whole packets: those that end here, and those that pass."""

    takes_packets = True

    def handle(self, packet: Packet) -> Process | None:
        """A whole packet is here. Answer it, send it on, or return a SimPy process that will."""
        if packet.at_end:
            return self.accept(packet)
        self.ctx.send(packet)
        return None

    def accept(self, packet: Packet) -> Process | None:
        """A packet has reached its end here."""
        raise ComponentError(
            f"{self.node.id} cannot serve a {type(packet.request).__name__}",
            where=f"impl {self.node.impl}",
            mend="send it to a block that can, or give this one another impl",
        )

    # ---- what an issuer calls

    def read(self, request: Request, path: Sequence[str], address: int, nbytes: int, legs: list[Any] | None) -> simpy.Event:
        """Ask the memory at the end of `path` for bytes; the event happens when the last one is here."""
        return self._issue(Packet(request, tuple(path), wanted_bytes=nbytes, address=address, legs=legs))

    def write(self, request: Request, path: Sequence[str], address: int, nbytes: int, legs: list[Any] | None) -> simpy.Event:
        """Write bytes to the memory at the end of `path`; the event happens when its acknowledgement is here."""
        return self._issue(Packet(request, tuple(path), nbytes=nbytes, address=address, legs=legs))

    def command(self, request: Request, path: Sequence[str], payload: object, legs: list[Any] | None) -> simpy.Event:
        """Send a control message; the event happens when the answer is here, with the reply packet as its value."""
        return self._issue(Packet(request, tuple(path), payload=payload, legs=legs))

    def _issue(self, packet: Packet) -> simpy.Event:
        packet.answer = self.env.event()
        self.ctx.send(packet)
        return packet.answer

    def reply(self, packet: Packet, nbytes: int = 0, payload: object = None) -> None:
        """Answer a packet along the way it came."""
        answer = replace(
            packet, path=packet.path[::-1], nbytes=nbytes, wanted_bytes=0, is_reply=True, payload=payload, place=0
        )
        self.ctx.send(answer)

    def pause(self, ns: float) -> Process:
        """`yield from self.pause(ns)`: let time pass, if there is any to pass."""
        if ns > 0:
            yield self.env.timeout(ns)


class MemoryComponent(ActiveComponent):
    """A memory at the end of a path: a write is acknowledged once it is in, a read is answered with its bytes."""

    def accept(self, packet: Packet) -> Process | None:
        if packet.address is None:
            return super().accept(packet)
        self.reply(packet, nbytes=packet.wanted_bytes)
        return None
