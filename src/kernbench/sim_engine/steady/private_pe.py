"""A PE on its own: a clock, and a fabric that has nothing but its ways. What happens there happens to nobody else.

The PE's blocks may be new ones, of the same classes (`new_blocks`), or those of the machine, lent for a while
(`lend`). Both run the very code that the machine runs, so the times are the machine's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Protocol, cast

from kernbench.common.errors import FabricError
from kernbench.components.base import Component, Context, Initiator, MemoryPort, OnArrival, OnLeft
from kernbench.components.builtin.operand_access import OperandAccess, OperandExtent
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.components.builtin.pe_fetch_store import PeFetchStoreComponent
from kernbench.components.builtin.pe_scheduler import PeSchedulerComponent
from kernbench.components.builtin.pe_tcm import PeTcmComponent
from kernbench.components.table import make_component
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment, Transfer
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.model import Route
from kernbench.sim_engine.memory_ports import DirectPort, PortOwner
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.simulation_stats import SimulationStats
from kernbench.sim_engine.steady.ways import Ways
from kernbench.sim_engine.write_listeners import WriteListeners

SentKind = tuple[Route, int, int]  # of a transfer: its route, bytes, and block


class Machine(PortOwner, Protocol):
    """What is needed of the machine."""

    listeners: WriteListeners
    fabric: Fabric
    stats: SimulationStats

    @property
    def log(self) -> OpLog | None: ...

    @property
    def env(self) -> FabricEnvironment: ...

    def class_of(self, node_id: str) -> type[Component]:
        """The class of the block at a node."""


class PeBlocks:
    """The blocks of a PE that a composite uses. All are made here, if they were not yet."""

    def __init__(self, scheduler: PeSchedulerComponent) -> None:
        self.scheduler = scheduler
        engines = scheduler.engines
        dma, fetch_store = engines["pe_dma"], engines["pe_fetch_store"]
        assert isinstance(dma, PeDmaComponent)
        assert isinstance(fetch_store, PeFetchStoreComponent)
        self.dma, self.fetch_store = dma, fetch_store
        tcm = fetch_store.tcm
        assert isinstance(tcm, PeTcmComponent)
        self.tcm = tcm
        self.compute = [engine for engine in engines.values() if isinstance(engine, ComputeEngine)]
        dma.request_ns  # noqa: B018  asks the MMU, which is made now

    def all(self) -> list[Component]:
        return [self.scheduler, self.dma, self.fetch_store, self.tcm, *self.compute]


class _Tokens:
    """An op log that only numbers tokens."""

    def __init__(self) -> None:
        self.new_token = count().__next__


class SentTransfers:
    """What a lent PE has sent since its ways were last idle, and how much before."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._under_way = 0
        self.since_idle: list[Transfer] = []
        self.before: Counter[SentKind] = Counter()
        self.directions: dict[int, tuple[int, ...]] = {}  # of channels, when the ways were last idle

    def note(self, transfer: Transfer) -> None:
        """A transfer is sent."""
        self.since_idle.append(transfer)
        self._under_way += 1

    def look(self) -> None:
        """Another one is about to be sent."""
        if not self._under_way:
            for sent in self.since_idle:
                self.before[sent.route, sent.nbytes, sent.block & (1 << 20) - 1] += 1
            self.since_idle = []
            self.directions = {at: group.directions for at, group in self._fabric.engine.groups.items()}

    def done(self) -> None:
        self._under_way -= 1


class NotedPort:
    """A `MemoryPort` that keeps what it sends. Its times are those of a `DirectPort`."""

    def __init__(self, pe: PrivatePe, path: tuple[str, ...], burst_bytes: int, sent: SentTransfers) -> None:
        self.path = path
        self.burst_bytes = burst_bytes
        self._pe = pe
        self._sent = sent
        self._there, self._back = pe.fabric.network.route(path), pe.fabric.network.route(path[::-1])
        self._turns = pe.turns_of(path[0])

    def read(self, nbytes: int, address: int, at_ns: float, done: OnArrival, tag: Initiator) -> None:
        where = address if self.burst_bytes else None
        sent, fabric = self._sent, self._pe.fabric

        def arrived(transfer: Transfer) -> None:
            sent.done()
            transfer.on_done = None
            done(transfer)

        sent.look()
        at_ns, turn = at_ns + self._there.control_ns, next(self._turns)
        sent.note(fabric.inject(self._back, nbytes, at_ns, read_from=where, on_done=arrived, tag=tag, turn=turn))

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
        where = address if self.burst_bytes else None
        sent, pe = self._sent, self._pe

        def arrived(transfer: Transfer) -> None:
            sent.done()
            transfer.on_done = None
            if done is not None:
                pe.at(transfer.done_ns + self._back.control_ns, done, transfer)
            pe.listeners.notify(self.path[-1], address, nbytes, payload)

        sent.look()
        turn = next(self._turns)
        sent.note(
            pe.fabric.inject(
                self._there, nbytes, at_ns, write_to=where, on_done=arrived, on_left=on_left, tag=tag, turn=turn
            )
        )

    def update(
        self, nbytes: int, address: int, at_ns: float, apply: Callable[[], object], done: OnArrival, tag: Initiator
    ) -> None:
        raise FabricError("a read-modify-write within a composite", hint="tiles are read and written")


class _Listeners:
    """Writes that arrive here arrive there."""

    def __init__(self, machine: Machine, ways: Ways) -> None:
        self._machine = machine
        self._ways = ways

    def notify(self, node: str, address: int, nbytes: int, payload: object) -> None:
        self._machine.listeners.notify(self._ways.names[int(node)], address, nbytes, payload)


class PrivatePe:
    """The context of a PE that is alone; for blocks of the machine's, of a PE that was."""

    composite_replayer = None

    def __init__(self, machine: Machine, ways: Ways, dma: str, begin_ns: float, *, lent: bool) -> None:
        self._machine = machine
        self._ways = ways
        self._components: dict[str, Component] = {}
        self._lent = lent
        self._dma = dma
        self.graph, self.resolver, self.router = machine.graph, machine.resolver, machine.router
        self.log = machine.log if lent else _Tokens()
        self.fabric = Fabric(ways.network(), compile_after=INFINITY)  # one composite does not pay for loading a loop
        self.env = FabricEnvironment(self.fabric)
        self.env.begin_at(begin_ns)
        self.at = self.env.at
        self.listeners = _Listeners(machine, ways)
        for (ours, node), _ in zip(ways.channels, ways.memories, strict=True):
            self.fabric.engine.groups[ours].turn_to(machine.fabric.engine.groups[node].directions)
        self._turns: Iterator[int] = machine.turns_of(dma) if lent else count()
        owner = cast(PortOwner, self)
        burst_bytes = ways.kind[0]
        with_channels = {str(ours) for ours, _ in ways.channels}
        bursts = [burst_bytes if path[-1] in with_channels else 0 for path in ways.paths]
        self.sent = SentTransfers(self.fabric)
        self.ports: list[MemoryPort] = [
            NotedPort(self, path, burst, self.sent) if lent else DirectPort(owner, path, burst)
            for path, burst in zip(ways.paths, bursts, strict=True)
        ]

    def turns_of(self, node: str) -> Iterator[int]:
        return self._turns

    def component(self, node_id: str) -> Component:
        if self._lent:
            return self._machine.component(node_id)
        found = self._components.get(node_id)
        if found is None:
            kind = self._machine.class_of(node_id)
            found = make_component(kind, self.graph.node(node_id), cast(Context, self))
            self._components[node_id] = found
        return found

    def operands(
        self, operands: Sequence[OperandAccess | None], ports: Sequence[MemoryPort]
    ) -> list[OperandAccess | None]:
        """The same operands, in the memories as this PE reaches them; `ports` are the machine's."""
        ours = {port.path: here for port, here in zip(ports, self.ports, strict=True)}

        def moved(access: OperandAccess) -> OperandAccess:
            return OperandAccess.of(
                [OperandExtent(e.start, e.nbytes, ours[e.port.path], e.address) for e in access.extents]
            )

        return [None if access is None else moved(access) for access in operands]

    def new_blocks(self, scheduler: str) -> PeBlocks:
        """The PE's blocks, new and idle."""
        made = self.component(scheduler)
        assert isinstance(made, PeSchedulerComponent)
        return PeBlocks(made)

    @contextmanager
    def lend(self, blocks: PeBlocks) -> Iterator[None]:
        """Have the machine's own blocks live here for a while. What they send later goes to the machine."""
        context, env = blocks.scheduler.ctx, blocks.scheduler.env
        for block in blocks.all():
            block.ctx, block.env = cast(Context, self), self.env
        try:
            yield
        finally:
            for block in blocks.all():
                block.ctx, block.env = context, env
            self.at = self._machine.at
