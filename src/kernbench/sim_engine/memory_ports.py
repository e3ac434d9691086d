"""How a DMA engine reaches a memory: one `MemoryPort`, directly by the fabric or by packets. Both take the same times;
only simultaneous requests of several PEs may be served in another order. Memory that is interleaved over several paths
has one such port for each (`interleaved_port`).

A built-in memory without active blocks on the path is reached directly by the fabric: the request of a read, and the
acknowledgement of a write, are control messages, which never wait, so their times can be added up. With
`fabric.control_bytes` they are packets of so many bytes, which take links and wait as others do. Transfers of several
engines that depart at one instant are ordered by engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from kernbench.components.base import ActiveComponent, Component, Context, MemoryComponent, Packet
from kernbench.components.builtin.sip_port import SipPortComponent
from kernbench.components.memory_port import (
    Initiator,
    MemoryAccess,
    MemoryPort,
    Notice,
    OnArrival,
    OnLeft,
    PartialRead,
)
from kernbench.sim_engine.fabric import Fabric, JoinedRead, Network, Transfer
from kernbench.sim_engine.fabric.routes import Route
from kernbench.sim_engine.interleaved_port import InterleavedPort, refuse_multicast
from kernbench.sim_engine.interleaving import Interleaving
from kernbench.sim_engine.wiring import PacketLegs, Wiring
from kernbench.sim_engine.write_listeners import WriteListeners

OnLanded = Callable[[], object]
T = TypeVar("T")


class PortOwner(Context, Protocol):
    """What ports use of the machine."""

    fabric: Fabric
    listeners: WriteListeners

    def sequence_of(self, node: str) -> Iterator[int]:
        """Places in the order of injections, for one initiator of transfers."""

    def legs_of(self, path: tuple[str, ...]) -> PacketLegs:
        """From each block on a path that accepts packets: up to which one they travel, and how."""

    def forwarded_ns(self, path: tuple[str, ...]) -> float:
        """How long a control message takes along a path on which blocks forward it at once."""


def make_port(
    machine: PortOwner, wiring: Wiring, path: tuple[str, ...], interleaving: Interleaving | None
) -> MemoryPort:
    """The memory at the end of `path`."""
    if interleaving is None:
        return _port_to(machine, wiring, path)
    ports = [_port_to(machine, wiring, each) for each in interleaving.paths]
    return InterleavedPort(machine.listeners, path, interleaving, ports)


def _port_to(machine: PortOwner, wiring: Wiring, path: tuple[str, ...]) -> DirectPort | PacketPort:
    node = path[-1]
    kind = wiring.classes[node]
    if wiring.stops.isdisjoint(path[1:-1]) and _is_plain_memory(kind):
        return DirectPort(machine, path)
    return PacketPort(machine, wiring, path)


def _is_plain_memory(kind: type[Component]) -> bool:
    """Whether a memory answers every request at once; a class of the user's may do anything with a packet."""
    if not issubclass(kind, MemoryComponent):
        return False
    return kind.accept is MemoryComponent.accept and kind.handle is MemoryComponent.handle


def _forwards_control(wiring: Wiring, path: tuple[str, ...], stops: Sequence[str]) -> bool:
    """Whether every block on a path that stores and forwards does so at once with control messages, and a memory is at
    its end.
    """
    forwards = (ActiveComponent.handle, SipPortComponent.handle)
    kinds = map(wiring.classes.__getitem__, stops)
    return _is_plain_memory(wiring.classes[path[-1]]) and all(
        issubclass(kind, ActiveComponent) and kind.handle in forwards for kind in kinds
    )


def _access_bytes(network: Network, node: str) -> tuple[int, int]:
    """A burst and a granule of the memory channels at a node; 0 where there are none."""
    spec = network.channel_specs.get(network.node_index(node))
    return (0, 0) if spec is None else (spec.burst_bytes, spec.granule_bytes)


def _exit_node(machine: PortOwner, path: tuple[str, ...], stops: Sequence[str]) -> str:
    """The block from which packets leave the SIP that they come from: the last one there that stores and forwards them;
    their sender, where they stay on it.
    """
    node_of, found = machine.graph.node, path[0]
    sip = node_of(path[0]).place.sip
    if node_of(path[-1]).place.sip != sip:
        for node in stops:
            if node_of(node).place.sip != sip:
                break
            found = node
    return found


class DirectPort:
    """Directly by the fabric, without packets."""

    __slots__ = (
        "_control_bytes", "_fabric", "_machine", "_sequence", "_there", "_way_back", "burst_bytes", "granule_bytes",
        "path",
    )  # fmt: skip

    def __init__(self, machine: PortOwner, path: tuple[str, ...]) -> None:
        self.path = path
        self._machine = machine
        self._fabric = fabric = machine.fabric
        self.burst_bytes, self.granule_bytes = _access_bytes(fabric.network, path[-1])
        self._there = fabric.network.route(path)
        self._way_back: Route | None = None  # messages and credits have none
        self._sequence = machine.sequence_of(path[0])
        self._control_bytes = machine.graph.spec.fabric.control_bytes

    @property
    def _back(self) -> Route:
        found = self._way_back
        if found is None:
            found = self._way_back = self._fabric.network.route(self.path[::-1])
        return found

    @property
    def exit_node(self) -> str:
        return self.path[0]

    def read(self, access: MemoryAccess) -> None:
        if self._control_bytes:
            self._send_control(self._there, access.at_ns, access.tag, partial(self._answer, access))
            return
        nbytes, address, at_ns, done, tag, _, _, _, granules = access
        where = address if self.burst_bytes else None
        at_ns, seq = at_ns + self._there.control_ns, next(self._sequence)
        self._fabric.inject(
            self._back, nbytes, at_ns, read_from=where, on_done=done, tag=tag, seq=seq, granules=granules
        )

    def _answer(self, access: MemoryAccess, request: Transfer) -> None:
        """The request of a read is at its memory, as a packet."""
        nbytes, address, _, done, tag, _, _, _, granules = access
        where = address if self.burst_bytes else None
        self._fabric.inject(
            self._back, nbytes, request.done_ns, read_from=where, on_done=done, tag=tag, seq=next(self._sequence),
            granules=granules,
        )  # fmt: skip

    def _send_control(self, route: Route, at_ns: float, tag: Initiator, done: Callable[[Transfer], None]) -> None:
        """A request, an acknowledgement or a credit as a packet."""
        self._fabric.inject(
            route, self._control_bytes, at_ns, on_done=done, tag=tag, seq=next(self._sequence), is_control=True
        )

    def _acknowledge(self, transfer: Transfer, done: OnArrival) -> None:
        """Bytes of a write are in memory: `done` is called when its acknowledgement is back."""
        if self._control_bytes:
            self._send_control(self._back, transfer.done_ns, transfer.tag, done)  # type: ignore[arg-type]  # its tag
        else:
            self._machine.at(transfer.done_ns + self._back.control_ns, done, transfer)

    def read_together(self, parts: Sequence[PartialRead], at_ns: float, done: OnArrival, tag: Initiator) -> bool:
        fabric = self._fabric
        if self._control_bytes:
            return False
        fabric.note_reads(len(parts))
        if not fabric.may_join_reads(len(parts)):
            return False
        ports = [part.port for part in parts]
        if not all(type(port) is DirectPort and port.burst_bytes for port in ports):
            return False
        reads = [
            JoinedRead(
                port._back, part.nbytes, at_ns + port._there.control_ns, part.address, part.granules,
                next(port._sequence),
            )
            for port, part in zip(ports, parts, strict=True)
            if isinstance(port, DirectPort)
        ]  # fmt: skip
        fabric.inject_reads(reads, done, tag)
        return True

    def write(self, access: MemoryAccess) -> None:
        notify = self._machine.listeners.notify
        self.put(access, partial(notify, self.path[-1], access.address, access.nbytes, access.payload))

    def put(self, access: MemoryAccess, landed: OnLanded) -> None:
        """Write bytes; `landed` is called when the last one is in memory."""
        nbytes, address, at_ns, done, tag, _, on_left, slot, granules = access

        def arrived(transfer: Transfer) -> None:
            if done is not None:
                self._acknowledge(transfer, done)
            landed()

        where = address if self.burst_bytes else None
        left = None if on_left is None else partial(on_left, self.path[0])
        seq = next(self._sequence)
        self._fabric.inject(
            self._there, nbytes, at_ns, write_to=where, on_done=arrived, on_left=left, tag=tag, seq=seq, slot=slot,
            granules=granules,
        )  # fmt: skip

    def multicast_to(self, others: Sequence[MemoryPort], nbytes: int) -> Callable[[Sequence[MemoryAccess]], None]:
        ports: list[DirectPort] = [self]
        for port in others:
            ports.append(port if isinstance(port, DirectPort) else refuse_multicast(port.path))
        self._fabric.tree([port.path for port in ports], nbytes)
        return partial(self._multicast, ports)

    def _multicast(self, ports: Sequence[DirectPort], accesses: Sequence[MemoryAccess]) -> None:
        """The first access of one port each, all of the same bytes at the same time."""
        machine, (nbytes, _, at_ns, _, tag, *_) = self._machine, accesses[0]
        targets: dict[int, tuple[DirectPort, MemoryAccess]] = {}

        def arrived(transfer: Transfer) -> None:
            port, access = targets[transfer.seq]
            if access.done is not None:
                port._acknowledge(transfer, access.done)
            machine.listeners.notify(port.path[-1], access.address, nbytes, access.payload)

        for port, access in zip(ports, accesses, strict=True):
            targets[next(self._sequence)] = port, access
        where = [access.address if port.burst_bytes else None for port, access in targets.values()]
        self._fabric.multicast(
            [port.path for port in ports], nbytes, at_ns, write_to=where, on_done=arrived, tag=tag, seqs=list(targets),
            granules=[access.granules for access in accesses],
        )  # fmt: skip

    def notify(self, notice: Notice) -> None:
        address, nbytes, at_ns, tag, payload, then = notice
        arrived = partial(self._machine.listeners.notify, self.path[-1], address, nbytes)
        if self._control_bytes:
            self._send_control(self._there, at_ns, tag, lambda _: _in_turn(arrived, payload, then))
            return
        _arrive(self._machine, at_ns + self._there.control_ns, arrived, payload, then)

    def update(self, access: MemoryAccess, apply: Callable[[], object]) -> None:
        nbytes, address, at_ns, done, tag, *_ = access
        where = address if self.burst_bytes else None

        def arrived(transfer: Transfer) -> None:
            apply()
            self._machine.listeners.notify(self.path[-1], address, nbytes, None)
            at, seq = transfer.done_ns, next(self._sequence)
            self._fabric.inject(
                self._back, nbytes, at, read_from=where, on_done=done, tag=tag, seq=seq, granules=access.granules
            )

        seq = next(self._sequence)
        self._fabric.inject(
            self._there, nbytes, at_ns, write_to=where, on_done=arrived, tag=tag, seq=seq, granules=access.granules
        )


class _Arrived(NamedTuple):
    """What packets have brought."""

    tag: Initiator


class PacketPort:
    """By packets, which active blocks on the path take and pass on."""

    __slots__ = (
        "_control_ns", "_forwards_control", "_legs", "_machine", "burst_bytes", "exit_node", "granule_bytes", "path",
    )  # fmt: skip

    def __init__(self, machine: PortOwner, wiring: Wiring, path: tuple[str, ...]) -> None:
        self.path = path
        self._legs = machine.legs_of(path)
        stops = [path[stop] for stop, _ in self._legs.values()][:-1]
        self.exit_node = _exit_node(machine, path, stops)
        self._forwards_control = not machine.graph.spec.fabric.control_bytes and _forwards_control(wiring, path, stops)
        self._control_ns: float | None = None
        self.burst_bytes, self.granule_bytes = _access_bytes(machine.fabric.network, path[-1])
        self._machine = machine

    def read(self, access: MemoryAccess) -> None:
        request = access.tag.request
        self._send(Packet(request, self.path, wanted_bytes=access.nbytes, address=access.address), access)

    def read_together(self, parts: Sequence[PartialRead], at_ns: float, done: OnArrival, tag: Initiator) -> bool:
        return False

    def write(self, access: MemoryAccess) -> None:
        nbytes, address, _, _, tag, payload, on_left, _, _ = access
        packet = Packet(tag.request, self.path, nbytes, address=address, payload=payload, on_left=_observers(on_left))
        self._send(packet, access)

    def multicast_to(self, others: Sequence[MemoryPort], nbytes: int) -> Callable[[Sequence[MemoryAccess]], None]:
        return refuse_multicast(self.path)

    def notify(self, notice: Notice) -> None:
        address, nbytes, at_ns, tag, payload, then = notice
        arrived = partial(self._machine.listeners.notify, self.path[-1], address, nbytes)
        if self._forwards_control:
            if self._control_ns is None:
                self._control_ns = self._machine.forwarded_ns(self.path)
            _arrive(self._machine, at_ns + self._control_ns, arrived, payload, then)
            return
        is_packet = self._machine.graph.spec.fabric.control_bytes > 0
        on_arrival = partial(_in_turn, arrived, payload, then if is_packet else None)
        packet = Packet(tag.request, self.path, address=address, payload=payload, on_arrival=on_arrival)
        self._send(packet, MemoryAccess(nbytes, address, at_ns, None, tag))
        if then is not None and not is_packet:
            self._machine.at(at_ns + self._machine.latency_ns(self.path), _call, then)

    def put(self, access: MemoryAccess, landed: OnLanded) -> None:
        """Write bytes; `landed` is called when the last one is in memory, instead of the listeners there."""
        nbytes, address, _, _, tag, _, on_left, slot, _ = access
        packet = Packet(
            tag.request, self.path, nbytes, address=address, on_left=_observers(on_left), on_arrival=landed, slot=slot
        )
        self._send(packet, access)

    def update(self, access: MemoryAccess, apply: Callable[[], object]) -> None:
        nbytes, address, _, _, tag, *_ = access

        def arrived() -> None:
            apply()
            self._machine.listeners.notify(self.path[-1], address, nbytes, None)

        self._send(Packet(tag.request, self.path, nbytes, nbytes, address, on_arrival=arrived), access)

    def _send(self, packet: Packet, access: MemoryAccess) -> None:
        packet.answer = partial(_answered, access.done, access.tag)
        packet.initiator = access.tag
        packet.is_posted = access.done is None
        packet.leg_routes = self._legs
        packet.granules = access.granules
        self._machine.at(access.at_ns, self._machine.send, packet)


def _observers(on_left: OnLeft | None) -> tuple[OnLeft, ...]:
    return () if on_left is None else (on_left,)


def _call(action: Callable[[], object]) -> None:
    action()


def _arrive(
    machine: PortOwner, at_ns: float, arrived: Callable[[T], object], payload: T, then: Callable[[], object] | None
) -> None:
    """A control message that nothing delays arrives at `at_ns`."""
    machine.at(at_ns, arrived, payload)
    if then is not None:
        machine.at(at_ns, _call, then)


def _in_turn(arrived: Callable[[object], object], payload: object, then: Callable[[], object] | None) -> None:
    arrived(payload)
    if then is not None:
        then()


def _answered(done: OnArrival | None, tag: Initiator, _: Packet) -> None:
    if done is not None:
        done(_Arrived(tag))
