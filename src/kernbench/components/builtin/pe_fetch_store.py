"""PE_FETCH_STORE: the only way between a PE's TCM and its register file.

A fetch waits for room in the register file, takes it, and reads the TCM's read port; the compute stage that uses the
operands last gives their room back, a store gives back the result's. Fetches are served in order: one without room
stalls those behind it, and nobody else. Not modelled: register banks, and partial fetches.
"""

from __future__ import annotations

from collections import deque

from kernbench.components.base import Context
from kernbench.components.builtin.pe_tcm import PeTcmComponent
from kernbench.components.builtin.pipeline import MoveStage, PeEngine, StageType, TileToken
from kernbench.topology.graph import Node


class PeFetchStoreComponent(PeEngine):
    """Serves FETCH and STORE stages."""

    __slots__ = ("_tcm", "_waiting", "free_bytes", "register_bytes")

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self.register_bytes = int(node.attrs["register_file_bytes"])
        self.free_bytes = self.register_bytes
        self._waiting: deque[TileToken] = deque()
        self._tcm: PeTcmComponent | None = None

    @property
    def tcm(self) -> PeTcmComponent:
        if self._tcm is None:
            self._tcm = self.beside(self.pe.part("pe_tcm"), PeTcmComponent, "has no ports to fetch from")
        return self._tcm

    def has_room(self) -> bool:
        return len(self._waiting) < self.queue_depth

    def take(self, token: TileToken) -> None:
        stage = token.stages[token.index]
        assert isinstance(stage, MoveStage)
        if stage.type is StageType.FETCH:
            self._waiting.append(token)
            self._start_fetches()
        else:
            token.start_ns, end = self.tcm.store(stage.nbytes)
            self.ctx.at(end + self.overhead_ns, self._stored, token)

    def give_back(self, registers: int) -> None:
        """Room in the register file is free again."""
        self.free_bytes += registers
        if self._waiting:
            self._start_fetches()

    def _start_fetches(self) -> None:
        waiting, started = self._waiting, False
        while waiting:
            token = waiting[0]
            stage = token.stages[token.index]
            assert isinstance(stage, MoveStage)
            if stage.registers > self.free_bytes:
                break
            waiting.popleft()
            started = True
            self.free_bytes -= stage.registers
            token.start_ns, end = self.tcm.fetch(stage.nbytes)
            self.ctx.at(end + self.overhead_ns, self._fetched, token)
        if started and self.on_room is not None:
            self.tell_room()

    def _fetched(self, token: TileToken) -> None:
        if token.context.on_fetched is not None:
            token.context.on_fetched(token)
        self.finish(token)

    def _stored(self, token: TileToken) -> None:
        stage = token.stage
        assert isinstance(stage, MoveStage)
        self.give_back(stage.registers)
        self.finish(token)
