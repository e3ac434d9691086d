"""The one compute slot of a PE, which the MAC array and the vector lanes share: one op at a time, in the order of
asking.

Base of PE_GEMM and PE_MATH, which say how long their stages take.
"""

from __future__ import annotations

from kernbench.common.errors import ComponentError
from kernbench.components.base import Context
from kernbench.components.builtin.pe_fetch_store import PeFetchStoreComponent
from kernbench.components.builtin.pipeline import GemmStage, MathStage, PeEngine, ServerQueue, TileToken
from kernbench.components.recording import STAGE_BITS
from kernbench.topology.graph import Node

_COMPUTE = (GemmStage, MathStage)


class ComputeEngine(PeEngine):
    """Serves one kind of stage on the shared slot. Subclasses define `stage_ns`."""

    __slots__ = ("_registers", "_slot")

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._slot: ServerQueue | None = None
        self._registers: PeFetchStoreComponent | None = None

    def stage_ns(self, stage: GemmStage | MathStage) -> float:
        """How long the slot is taken."""
        raise ComponentError(
            f"{type(self).__name__} does not say how long a stage takes",
            where=f"{self.node.id}, impl {self.node.impl}",
            hint="define stage_ns(stage)",
        )

    def take(self, token: TileToken) -> None:
        stage = token.stages[token.index]
        assert isinstance(stage, _COMPUTE)
        slot = self._slot
        if slot is None:
            slot = self._slot = compute_slot(self)
        self.ctx.at(slot.serve(token, self.env.now + self.overhead_ns, self.stage_ns(stage)), self._computed, token)

    def _computed(self, token: TileToken) -> None:
        stage = token.stages[token.index]
        assert isinstance(stage, _COMPUTE)
        if stage.registers:
            (self._registers or self._find_registers()).give_back(
                stage.registers, token.number << STAGE_BITS | token.index
            )
        self.finish(token)

    def _find_registers(self) -> PeFetchStoreComponent:
        node = self.pe.part("pe_fetch_store")
        self._registers = found = self.sibling(node, PeFetchStoreComponent, "keeps no register file")
        return found


def compute_slot(engine: PeEngine) -> ServerQueue:
    """The slot of an engine's PE, which its PE_SCHEDULER keeps."""
    scheduler = engine.ctx.component(engine.pe.part("pe_scheduler"))
    slot = getattr(scheduler, "compute_slot", None)
    if not isinstance(slot, ServerQueue):
        raise ComponentError(
            f"{scheduler.node.id} keeps no compute slot",
            where=f"impl {scheduler.node.impl}",
            hint="derive its class from kernbench.components.builtin.pe_scheduler.PeSchedulerComponent",
        )
    return slot
