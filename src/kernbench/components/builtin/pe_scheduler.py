"""PE_SCHEDULER: the only block that hands work to a PE's engines.

A command costs the overhead and goes on. A simple command is passed to its engine. A composite becomes a plan of
tiles, and one feeder lets tiles in, command after command in the order of issue and never mixed: a tile enters when
the queue of its first engine has a place and its buffers fit the TCM that is kept for tiles. A full queue or TCM
holds up the feeder only. It also keeps the PE's compute slot. Not modelled: a limit on commands waiting here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property

from kernbench.common.commands import CompositeCmd, DmaReadCmd, DmaWriteCmd, EngineCommand, GemmCmd, MathCmd
from kernbench.common.composite_use import CompositeUse, PathTiming
from kernbench.common.messages import Request
from kernbench.components.base import Context
from kernbench.components.builtin.command_log import composite_entry, simple_entry, simple_record, tile_record
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.components.builtin.pipeline import (
    DmaStage,
    GemmStage,
    MathStage,
    PeEngine,
    PipelineContext,
    PipelinePlan,
    Port,
    Reach,
    Stage,
    StageType,
    TilePlan,
    TileToken,
)
from kernbench.components.builtin.tile_choice import TileLimits, fastest_tile, limits_of, plan_of, rates_of
from kernbench.components.builtin.tile_model import PeRates
from kernbench.components.builtin.tiling import DMA, FETCH_STORE, GEMM, MATH, operands_of, placeless
from kernbench.topology.graph import Node

_PIECEMEAL = (None,)  # where the bytes of a single transfer lie is looked up when it starts
Done = Callable[[tuple[int, ...]], None]  # told the op-log id of what is done


class Feed:
    """A composite whose tiles are being let in."""

    __slots__ = ("barrier", "context", "fed", "following", "tiles")

    def __init__(self, plan: PipelinePlan, context: PipelineContext) -> None:
        self.tiles: Iterator[TilePlan] = plan.tiles()
        self.following: TilePlan | None = next(self.tiles, None)
        self.barrier = plan.barrier
        self.context = context
        self.fed = 0


class PeSchedulerComponent(PeEngine):
    """Takes commands from PE_CPU."""

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self.compute_slot = Port()
        self._feeds: deque[Feed] = deque()
        self._feeding = False
        self._held_up = False  # by tile buffers or by a barrier: what ends a tile may let the next one in
        self._composites: dict[PipelinePlan, CompositeUse] = {}  # since they were last told
        self._tile_bytes = ctx.graph.spec.cube.tcm_reserved_bytes  # free for tile buffers

    @cached_property
    def engines(self) -> dict[str, PeEngine]:
        """The engines that stages name."""
        parts = (DMA, FETCH_STORE, GEMM, MATH)
        return {part: self.beside(self.pe.part(part), PeEngine, "takes no commands") for part in parts}

    @cached_property
    def limits(self) -> TileLimits:
        """What tiles must fit, and their native size."""
        return limits_of(self.ctx.graph, self.pe)

    @cached_property
    def rates(self) -> PeRates:
        """How fast the engines are, for the model that chooses tiles."""
        return rates_of(self.ctx.graph, self.pe)

    def submit(self, cmd: EngineCommand, request: Request, done: Done) -> None:
        """Take a command; `done` is called when it is finished. Raises KernelError for a composite that cannot be
        tiled.
        """
        if isinstance(cmd, CompositeCmd):
            feed = self._composite(cmd, request, done)
            self.ctx.at(self.env.now + self.overhead_ns, self._begin, feed)
            return
        stage = self._stage(cmd)
        name, params = simple_entry(cmd)
        log = self.ctx.log

        def finished(token: TileToken) -> None:
            done(() if log is None else (token.record,))

        addresses: tuple[int, ...] = ()
        if isinstance(cmd, DmaReadCmd | DmaWriteCmd):
            addresses = (cmd.source.address if isinstance(cmd, DmaReadCmd) else cmd.target.address,)
        context = PipelineContext(
            self.engines,
            1,
            finished,
            request,
            addresses=addresses,
            ways=_PIECEMEAL,
            record=None if log is None else simple_record(log, self.pe, stage, name, params, cmd.deps),
        )
        token = TileToken(TilePlan(0, (stage,)), context)
        self.ctx.at(self.env.now + self.overhead_ns, self.engines[stage.component].take, token)

    def _stage(self, cmd: DmaReadCmd | DmaWriteCmd | GemmCmd | MathCmd) -> Stage:
        """The one stage of a simple command."""
        if isinstance(cmd, DmaReadCmd):
            nbytes = cmd.source.nbytes
            return DmaStage(StageType.DMA_READ, DMA, 0, 0, nbytes, 1, nbytes, nbytes)
        if isinstance(cmd, DmaWriteCmd):
            nbytes = cmd.target.nbytes
            return DmaStage(StageType.DMA_WRITE, DMA, 0, 0, nbytes, 1, nbytes, nbytes)
        if isinstance(cmd, GemmCmd):
            return GemmStage(StageType.GEMM, GEMM, cmd.batch * cmd.m, cmd.k, cmd.n, cmd.dtype)
        return MathStage(StageType.MATH, MATH, cmd.op, cmd.elements, cmd.dtype)

    # ---- composites

    def _composite(self, cmd: CompositeCmd, request: Request, done: Done) -> Feed:
        """Plan now, so that what cannot be planned is refused at the call; feed when the overhead is paid."""
        numbered, addresses = placeless(cmd)
        if numbered.tile_shape == "auto":
            numbered = replace(numbered, tile_shape=fastest_tile(numbered, self.limits, self.rates, self._paths(cmd)))
        plan = plan_of(numbered, self.limits)
        self._count(plan, cmd, numbered)
        start_ns, log = self.env.now + self.overhead_ns, self.ctx.log

        def tile_done(token: TileToken) -> None:
            context = token.context
            if token.plan.out_bytes:
                self._tile_bytes += token.plan.out_bytes
            if context.completed_tiles == context.total_tiles:
                ids: tuple[int, ...] = ()
                if log is not None:
                    kind, name, params = composite_entry(cmd, plan.tile)
                    now = self.env.now
                    ids = (log.record(start_ns, now, self.node.id, kind, name, params, (token.record,)),)
                done(ids)
            if self._held_up:
                self._feed()

        context = PipelineContext(
            self.engines,
            plan.total_tiles,
            tile_done,
            request,
            addresses=addresses,
            ways=self._ways(cmd),
            record=None if log is None else tile_record(log, self.pe, addresses, cmd.deps),
            on_fetched=self._fetched,
        )

        return Feed(plan, context)

    def _count(self, plan: PipelinePlan, cmd: CompositeCmd, numbered: CompositeCmd) -> None:
        use = self._composites.get(plan)
        if use is None:
            use = CompositeUse(numbered, plan.tile, plan.total_tiles, 0, self._paths(cmd))
        self._composites[plan] = use._replace(composites=use.composites + 1)

    def take_composites(self) -> tuple[CompositeUse, ...]:
        """The composites since this was last asked, which is at the end of every launch."""
        told = tuple(self._composites.values())
        self._composites.clear()
        return told

    def _begin(self, feed: Feed) -> None:
        self._feeds.append(feed)
        self._feed()

    def _ways(self, cmd: CompositeCmd) -> list[Reach | None]:
        """How the DMA reaches each operand, in the order of their numbers; those in TCM are not reached at all."""
        operands = operands_of(cmd)
        dma = self.engines[DMA]
        if not isinstance(dma, PeDmaComponent):
            return [None] * len(operands)
        return [None if x.space == "tcm" else dma.way_to(x.address, x.nbytes) for x in operands]

    def _paths(self, cmd: CompositeCmd) -> tuple[PathTiming | None, ...]:
        """How far each operand lies, in the order of their numbers."""
        dma, link_gbs = self.engines[DMA], self.rates.dma_gbs
        if not isinstance(dma, PeDmaComponent):
            return tuple(None if x.space == "tcm" else PathTiming(0.0, link_gbs) for x in operands_of(cmd))
        return tuple(None if x.space == "tcm" else dma.timing_to(x.address, x.nbytes) for x in operands_of(cmd))

    def _fetched(self, token: TileToken) -> None:
        """A tile's inputs are in registers: their buffers are free."""
        if token.plan.in_bytes:
            self._tile_bytes += token.plan.in_bytes
            if self._held_up:
                self._feed()

    def _feed(self) -> None:
        """Let tiles in, until there is none or the next has to wait."""
        if self._feeding:  # a tile that enters may free a place at once; the loop below sees it
            return
        self._feeding, self._held_up = True, False
        feeds, engines = self._feeds, self.engines
        while feeds:
            feed = feeds[0]
            tile = feed.following
            if tile is None:
                feeds.popleft()
                continue
            engine = engines[tile.stages[0].component]
            if not engine.has_room():
                engine.on_room = self._feed
                break
            need = tile.in_bytes + tile.out_bytes
            barred = feed.fed == feed.barrier and feed.context.completed_tiles < feed.barrier
            if barred or need > self._tile_bytes:
                self._held_up = True
                break
            self._tile_bytes -= need
            feed.fed += 1
            feed.following = next(feed.tiles, None)
            engine.take(TileToken(tile, feed.context))
        self._feeding = False
