"""PE_FETCH_STORE: the only data path between a PE's TCM and its register file.

A fetch waits for room in the register file, allocates it, and uses the TCM's read port; the compute stage that uses the
operands last frees their room, a store frees the result's. Fetches are served in the order in which the scheduler
admitted their tiles, even if the DMA completed them out of order: a tile holds its accumulator until the last tile of
its K loop is done, so a tile fetched in between could wait for room that only tiles behind it free. A fetch without
room stalls the fetches behind it and no other stage. Not modelled: register banks, and partial fetches.
"""

from __future__ import annotations

from collections import deque

from kernbench.common.declared_state import quantity, tile_number
from kernbench.common.engine_declaration import QUEUE_DEPTH, Attribute, EngineDeclaration
from kernbench.components.base import Context
from kernbench.components.builtin.interfaces import TCM_PORTS, TcmPorts
from kernbench.components.builtin.pe_state import tokens
from kernbench.components.builtin.pipeline import PeEngine, TileToken
from kernbench.components.builtin.stages import MoveStage, StageType
from kernbench.components.recording import NO_REF, SLOT, STAGE_BITS, Release
from kernbench.topology.graph import Node


class PeFetchStoreComponent(PeEngine):
    """Serves FETCH and STORE stages."""

    declaration = EngineDeclaration(
        {"register_file_bytes": Attribute.whole(1, 1 << 30), "queue_depth": QUEUE_DEPTH}, role="data mover"
    )

    STATE = (quantity("free_bytes"), tokens("_waiting"), tokens("_early"), tile_number("_next"))
    DERIVED = ("_tcm",)

    __slots__ = ("_early", "_next", "_tcm", "_waiting", "free_bytes", "register_bytes")

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self.register_bytes = int(node.attrs["register_file_bytes"])
        self.free_bytes = self.register_bytes
        self._waiting: deque[TileToken] = deque()
        self._next = 0  # order of the next tile to fetch
        self._early: dict[int, TileToken] = {}  # tiles that arrived out of order, by order
        self._tcm: TcmPorts | None = None

    @property
    def tcm(self) -> TcmPorts:
        if self._tcm is None:
            self._tcm = self.sibling(self.pe.part("pe_tcm"), TCM_PORTS)
        return self._tcm

    def skip_tiles(self, tiles: int) -> None:
        """Count tiles of a replay, which bypasses this block."""
        self._next += tiles

    def has_room(self) -> bool:
        return len(self._waiting) < self.queue_depth

    def take(self, token: TileToken) -> None:
        stage = token.stages[token.index]
        assert isinstance(stage, MoveStage)
        if stage.type is StageType.STORE:
            self.ctx.at(self.tcm.store(token, stage.nbytes) + self.overhead_ns, self._stored, token)
        elif token.order != self._next:
            self._early[token.order] = token
        else:
            self._next += 1
            self._waiting.append(token)
            if self._early:
                self._admit_early(token)
            self._start_fetches(NO_REF)

    def _admit_early(self, token: TileToken) -> None:
        """Queue the tiles that overtook `token` behind it, now that its read is over."""
        while (following := self._early.pop(self._next, None)) is not None:
            following.waited(Release.LANE, self.env.now, token.ref - 1)
            self._next += 1
            self._waiting.append(following)

    def give_back(self, registers: int, left: int) -> None:
        """Room in the register file is free again, since stage `left` is over."""
        self.free_bytes += registers
        if self._waiting:
            self._start_fetches(left)

    def _start_fetches(self, left: int) -> None:
        waiting, started = self._waiting, NO_REF
        while waiting:
            token = waiting[0]
            stage = token.stages[token.index]
            assert isinstance(stage, MoveStage)
            if stage.registers > self.free_bytes:
                break
            waiting.popleft()
            started = token.number << STAGE_BITS | token.index
            self.free_bytes -= stage.registers
            if left != NO_REF:
                token.causes += (token.index, SLOT, self.env.now, left)
            self.ctx.at(self.tcm.fetch(token, stage.nbytes) + self.overhead_ns, self._fetched, token)
        if started != NO_REF and self._waiting_feeder is not None:
            self.notify_room(started)

    def _fetched(self, token: TileToken) -> None:
        if token.context.on_fetched is not None:
            token.context.on_fetched(token)
        self.finish(token)

    def _stored(self, token: TileToken) -> None:
        stage = token.stage
        assert isinstance(stage, MoveStage)
        self.give_back(stage.registers, token.ref)
        self.finish(token)
