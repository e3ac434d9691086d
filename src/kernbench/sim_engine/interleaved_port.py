"""A port to memory that is interleaved over several paths (`interleaving`): one port for each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn, Protocol

from kernbench.common.channel_traffic import NO_TRAFFIC, ChannelTraffic
from kernbench.common.errors import FabricError
from kernbench.common.ipcq import Chunk
from kernbench.common.last_of import LastOf
from kernbench.components.memory_port import (
    Arrival,
    Initiator,
    MemoryAccess,
    MemoryPort,
    Notice,
    OnArrival,
    OnLeft,
    PartialRead,
)
from kernbench.sim_engine.interleaving import Interleaving
from kernbench.sim_engine.write_listeners import WriteListeners


class SinglePort(MemoryPort, Protocol):
    """A port of one path."""

    def put(self, access: MemoryAccess, landed: Callable[[], object]) -> None:
        """Write bytes; `landed` is called when the last one is in memory, instead of the listeners there."""


class InterleavedPort:
    """An access is one request for each path that it uses; they depart together, travel separately, and the access is
    done when the last of them is. The bursts of a write leave the engine in the order of their addresses, so its
    requests alternate on the first link; those of a posted write follow one another, because the time at which its last
    byte leaves must be known when it departs.
    """

    __slots__ = ("_interleaving", "_listeners", "_ports", "burst_bytes", "granule_bytes", "path")

    def __init__(
        self, listeners: WriteListeners, path: tuple[str, ...], interleaving: Interleaving, ports: Sequence[SinglePort]
    ) -> None:
        self.path = path
        self.burst_bytes, self.granule_bytes = ports[0].burst_bytes, ports[0].granule_bytes
        self._listeners, self._interleaving, self._ports = listeners, interleaving, ports

    @property
    def exit_node(self) -> str:
        return self._ports[0].exit_node

    def read(self, access: MemoryAccess) -> None:
        for port, part in self._parts(access):
            port.read(part)

    def read_together(self, parts: Sequence[PartialRead], at_ns: float, done: OnArrival, tag: Initiator) -> bool:
        return False

    def write(self, access: MemoryAccess) -> None:
        nbytes, address, _, _, _, payload, on_left, _, _ = access
        parts = self._parts(access)
        landed = LastOf(len(parts), partial(self._listeners.notify, self.path[-1], address, nbytes, payload))
        in_parts = _ChunkInParts(payload, self.path[-1], len(parts), landed) if isinstance(payload, Chunk) else None
        left = None if on_left is None else _LastLeft(len(parts), on_left)
        for place, (port, part) in enumerate(parts):
            bursts = -(-part.nbytes // self.burst_bytes) * self.burst_bytes
            counted = (
                landed if in_parts is None else partial(in_parts, ChannelTraffic(bursts, written_bytes=part.nbytes))
            )
            port.put(part._replace(on_left=left, slot=(place, len(parts))), counted)

    def multicast_to(self, others: Sequence[MemoryPort], nbytes: int) -> Callable[[Sequence[MemoryAccess]], None]:
        return refuse_multicast(self.path)

    def notify(self, notice: Notice) -> None:
        self._ports[self._interleaving.index_of_notice(notice.address)].notify(notice)

    def update(self, access: MemoryAccess, apply: Callable[[], object]) -> None:
        parts = self._parts(access)
        applied = LastOf(len(parts), apply)
        for port, part in parts:
            port.update(part, applied)

    def _parts(self, access: MemoryAccess) -> list[tuple[SinglePort, MemoryAccess]]:
        """The requests of an access, each with its port. Granules are those of its last burst."""
        nbytes, address, at_ns, done, tag, *_, granules = access
        requests = self._interleaving.requests(address, nbytes)
        last = self._interleaving.index_of_last(address, nbytes)
        joined = None if done is None else _Joined(len(requests), done)
        return [
            (self._ports[at], MemoryAccess(size, start, at_ns, joined, tag, granules=granules if at == last else 0))
            for at, start, size in requests
        ]


def refuse_multicast(path: Sequence[str]) -> NoReturn:
    """A path that other blocks take part in, or several paths to one memory."""
    raise FabricError(
        f"a multicast from '{path[0]}' to '{path[-1]}', which is not reached by one path of links and routers",
        hint="write to PEs of one SIP, without a router for each channel of HBM or a class of your own on the way",
    )


class _ChunkInParts:
    """Called for the landing of each request of a message's chunk, which its sender counts: its kernel may end between
    two of them.
    """

    __slots__ = ("_earlier", "_landed", "_memory", "_missing", "_sender")

    def __init__(self, chunk: Chunk, memory: str, parts: int, landed: LastOf) -> None:
        self._sender, self._memory, self._missing, self._landed = chunk.sender, memory, parts, landed
        self._earlier = NO_TRAFFIC

    def __call__(self, part: ChannelTraffic) -> None:
        self._missing -= 1
        if self._missing:
            self._earlier = self._earlier.plus(part)
            self._sender.land_part(self._memory, part)
        elif self._earlier != NO_TRAFFIC:
            self._sender.land_part(self._memory, NO_TRAFFIC.minus(self._earlier))
        self._landed()


class _Joined:
    """Called for the arrival of each part of an access; calls `done` for the last."""

    __slots__ = ("_done", "_missing")

    def __init__(self, parts: int, done: OnArrival) -> None:
        self._missing = parts
        self._done = done

    def __call__(self, arrival: Arrival) -> None:
        self._missing -= 1
        if not self._missing:
            self._done(arrival)


class _LastLeft:
    """The same for departures from each node, of which the latest counts."""

    __slots__ = ("_left_ns", "_parts", "_then")

    def __init__(self, parts: int, then: OnLeft) -> None:
        self._parts = parts
        self._then = then
        self._left_ns: dict[str, list[float]] = {}

    def __call__(self, node: str, left_ns: float) -> None:
        left = self._left_ns.setdefault(node, [])
        left.append(left_ns)
        if len(left) == self._parts:
            self._then(node, max(left))
