"""How a DMA engine reaches a memory: one `MemoryPort`, directly by the fabric or by packets. Both take the same times;
only simultaneous requests of several PEs may be served in another order.

A built-in memory without active blocks on the path is reached directly by the fabric: the request of a read, and the
acknowledgement of a write, are control messages, which never wait, so their times can be added up. Transfers of several
engines that depart at one instant are ordered by engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from kernbench.components.base import Context, Initiator, MemoryComponent, MemoryPort, OnArrival, OnLeft, Packet
from kernbench.sim_engine.fabric import Fabric, Transfer
from kernbench.sim_engine.wiring import Wiring
from kernbench.sim_engine.write_listeners import WriteListeners


class PortOwner(Context, Protocol):
    """What ports use of the machine."""

    fabric: Fabric
    listeners: WriteListeners

    def sequence_of(self, node: str) -> Iterator[int]:
        """Places in the order of injections, for one who asks for transfers."""


def make_port(machine: PortOwner, wiring: Wiring, path: tuple[str, ...]) -> MemoryPort:
    """The memory at the end of `path`."""
    node = path[-1]
    kind = wiring.classes[node]
    burst_bytes = machine.fabric.network.flit_bytes if node in wiring.with_channels else 0
    if not (issubclass(kind, MemoryComponent) and wiring.stops.isdisjoint(path[1:-1])):
        return PacketPort(machine, path, burst_bytes)
    if kind.accept is not MemoryComponent.accept or kind.handle is not MemoryComponent.handle:
        return PacketPort(machine, path, burst_bytes)  # a class of the user's, which may do anything with a packet
    return DirectPort(machine, path, burst_bytes)


class DirectPort:
    """Directly by the fabric, without packets."""

    __slots__ = ("_back", "_fabric", "_machine", "_sequence", "_there", "burst_bytes", "path")

    def __init__(self, machine: PortOwner, path: tuple[str, ...], burst_bytes: int) -> None:
        self.path = path
        self.burst_bytes = burst_bytes
        self._machine = machine
        self._fabric = fabric = machine.fabric
        self._there, self._back = fabric.network.route(path), fabric.network.route(path[::-1])
        self._sequence = machine.sequence_of(path[0])

    def read(self, nbytes: int, address: int, at_ns: float, done: OnArrival, tag: Initiator) -> None:
        where = address if self.burst_bytes else None
        at_ns, seq = at_ns + self._there.control_ns, next(self._sequence)
        self._fabric.inject(self._back, nbytes, at_ns, read_from=where, on_done=done, tag=tag, seq=seq)

    def write(
        self,
        nbytes: int,
        address: int,
        at_ns: float,
        done: OnArrival | None,
        tag: Initiator,
        payload: object = None,
        on_left: OnLeft | None = None,
    ) -> None:
        def arrived(transfer: Transfer) -> None:
            machine = self._machine
            if done is not None:
                machine.at(transfer.done_ns + self._back.control_ns, done, transfer)
            machine.listeners.notify(self.path[-1], address, nbytes, payload)

        where = address if self.burst_bytes else None
        seq = next(self._sequence)
        self._fabric.inject(
            self._there, nbytes, at_ns, write_to=where, on_done=arrived, on_left=on_left, tag=tag, seq=seq
        )

    def update(
        self, nbytes: int, address: int, at_ns: float, apply: Callable[[], object], done: OnArrival, tag: Initiator
    ) -> None:
        where = address if self.burst_bytes else None

        def arrived(transfer: Transfer) -> None:
            apply()
            self._machine.listeners.notify(self.path[-1], address, nbytes, None)
            at, seq = transfer.done_ns, next(self._sequence)
            self._fabric.inject(self._back, nbytes, at, read_from=where, on_done=done, tag=tag, seq=seq)

        seq = next(self._sequence)
        self._fabric.inject(self._there, nbytes, at_ns, write_to=where, on_done=arrived, tag=tag, seq=seq)


class _Arrived(NamedTuple):
    """What packets have brought."""

    tag: Initiator


class PacketPort:
    """By packets, which active blocks on the path take and pass on."""

    __slots__ = ("_machine", "burst_bytes", "path")

    def __init__(self, machine: PortOwner, path: tuple[str, ...], burst_bytes: int) -> None:
        self.path = path
        self.burst_bytes = burst_bytes
        self._machine = machine

    def read(self, nbytes: int, address: int, at_ns: float, done: OnArrival, tag: Initiator) -> None:
        self._send(Packet(tag.request, self.path, wanted_bytes=nbytes, address=address), at_ns, done, tag)

    def write(
        self,
        nbytes: int,
        address: int,
        at_ns: float,
        done: OnArrival | None,
        tag: Initiator,
        payload: object = None,
        on_left: OnLeft | None = None,
    ) -> None:
        packet = Packet(tag.request, self.path, nbytes, address=address, payload=payload, on_left=on_left)
        self._send(packet, at_ns, done, tag)

    def update(
        self, nbytes: int, address: int, at_ns: float, apply: Callable[[], object], done: OnArrival, tag: Initiator
    ) -> None:
        packet = Packet(tag.request, self.path, nbytes, nbytes, address, on_arrival=apply)
        self._send(packet, at_ns, done, tag)

    def _send(self, packet: Packet, at_ns: float, done: OnArrival | None, tag: Initiator) -> None:
        packet.answer = partial(_answered, done, tag)
        packet.initiator = tag
        self._machine.at(at_ns, self._machine.send, packet)


def _answered(done: OnArrival | None, tag: Initiator, _: Packet) -> None:
    if done is not None:
        done(_Arrived(tag))
