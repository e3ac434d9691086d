"""Record: a private PE, with a clock of its own and a fabric that has nothing but the sub-network of one composite.

Its blocks are new ones, of the machine's classes, so the times are the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Protocol, TypeVar, cast

from kernbench.components.base import Component, Context
from kernbench.components.builtin.operand_access import OperandAccess, OperandExtent
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.components.builtin.pe_fetch_store import PeFetchStoreComponent
from kernbench.components.builtin.pe_scheduler import PeSchedulerComponent
from kernbench.components.builtin.pe_tcm import PeTcmComponent
from kernbench.components.memory_port import MemoryPort
from kernbench.components.table import make_component
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.memo.sub_network import SubNetwork
from kernbench.sim_engine.memory_ports import DirectPort, PortOwner
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.simulation_stats import SimulationStats
from kernbench.sim_engine.write_listeners import WriteListeners

T = TypeVar("T")


class MachineParts(PortOwner, Protocol):
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
        mmus = () if dma.baaw is not None else (dma.mmu,)  # with logical addresses there is none
        self.all: tuple[Component, ...] = (
            scheduler, *(part for part in (*engines.values(), tcm, *mmus) if isinstance(part, Component)),
        )  # fmt: skip


class _Tokens:
    """An op log that only numbers tokens."""

    def __init__(self) -> None:
        self._numbers = count()

    def new_token(self) -> int:
        """The number of the next stage."""
        return next(self._numbers)


class _NoListeners:
    """Writes of a recording reach no listener of the machine."""

    def notify(self, node: str, address: int, nbytes: int, payload: object) -> None:
        pass


class PrivatePe:
    """The context of a PE that is recorded."""

    composite_replayer = None

    def __init__(self, machine: MachineParts, sub_network: SubNetwork) -> None:
        self._machine = machine
        self._components: dict[str, Component] = {}
        self.graph, self.resolver, self.router = machine.graph, machine.resolver, machine.router
        self.log = _Tokens()
        # One composite does not pay for loading a loop; that of finite buffers is loaded if the machine has it.
        has_loop = machine.fabric.engine.buffered is not None and machine.fabric.engine.is_compiled
        self.fabric = Fabric(sub_network.network(), compile_after=0.0 if has_loop else INFINITY)
        self.env = FabricEnvironment(self.fabric)
        self.listeners = _NoListeners()
        for ours, node in sub_network.channels:
            self.fabric.engine.groups[ours].set_directions(machine.fabric.engine.groups[node].directions)
        self._sequence = count()
        owner = cast(PortOwner, self)
        self.ports: list[MemoryPort] = [DirectPort(owner, path) for path in sub_network.paths]

    def at(self, at_ns: float, action: Callable[[T], object], subject: T) -> None:
        """Call `action` with `subject` at a time of now or later."""
        self.env.at(at_ns, action, subject)

    def sequence_of(self, node: str) -> Iterator[int]:
        return self._sequence

    def component(self, node_id: str) -> Component:
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
