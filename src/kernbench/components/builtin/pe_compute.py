"""The compute slot of a PE, which the MAC array and the vector lanes share: one op at a time, in the order of asking.

Base of PE_GEMM, PE_MATH and further compute engines, which say how long their stages take. One that declares a slot of
its own works in parallel with the others, one op at a time.
"""

from __future__ import annotations

from typing import ClassVar

from kernbench.common.declared_state import Derived
from kernbench.common.engine_declaration import EngineDeclaration
from kernbench.common.errors import ComponentError
from kernbench.components.base import Context
from kernbench.components.builtin.interfaces import COMPUTE_SLOTS, REGISTER_FILE, RegisterFile
from kernbench.components.builtin.pipeline import PeEngine, ServerQueue, TileToken
from kernbench.components.builtin.stages import GemmStage, MathStage
from kernbench.components.recording import STAGE_BITS
from kernbench.topology.graph import Node

_COMPUTE = (GemmStage, MathStage)


class ComputeEngine(PeEngine):
    """Serves one kind of stage on its slot. Subclasses define `stage_ns`."""

    DERIVED: ClassVar[Derived] = ("_registers", "_slot")  # the slot is state of the scheduler

    __slots__ = ("_registers", "_slot")

    declaration = EngineDeclaration()

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self._slot: ServerQueue | None = None
        self._registers: RegisterFile | None = None

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
            slot = self._slot = self._find_slot()
        self.ctx.at(slot.serve(token, self.env.now + self.overhead_ns, self.stage_ns(stage)), self._computed, token)

    def _computed(self, token: TileToken) -> None:
        stage = token.stages[token.index]
        assert isinstance(stage, _COMPUTE)
        if stage.registers:
            (self._registers or self._find_registers()).give_back(
                stage.registers, token.number << STAGE_BITS | token.index
            )
        self.finish(token)

    def _find_registers(self) -> RegisterFile:
        self._registers = found = self.sibling(self.pe.part("pe_fetch_store"), REGISTER_FILE)
        return found

    def _find_slot(self) -> ServerQueue:
        """The slot that the PE's compute engines share, or a new one where the class declares that it has its own."""
        slots = self.sibling(self.pe.part("pe_scheduler"), COMPUTE_SLOTS).compute_slots
        if self.declaration.has_own_slot:
            slots.append(ServerQueue())
            return slots[-1]
        return slots[0]
