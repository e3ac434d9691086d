"""PE_SCHEDULER: the only block that hands work to a PE's engines.

A command costs the overhead and goes on. A simple command is passed to its engine. A composite becomes a plan of
tiles, and one feeder lets tiles in, command after command in the order of issue and never mixed: a tile enters when
the queue of its first engine has a place and its buffers fit the TCM that is kept for tiles. A full queue or TCM
holds up the feeder only. It also keeps the PE's compute slot. Not modelled: a limit on commands waiting here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import cached_property

import simpy

from kernbench.common.commands import CompositeCmd, DmaReadCmd, DmaWriteCmd, EngineCommand, GemmCmd, MathCmd
from kernbench.common.errors import ComponentError
from kernbench.common.messages import Request
from kernbench.components.base import Context
from kernbench.components.builtin.command_log import composite_entry, simple_entry
from kernbench.components.builtin.pipeline import (
    DmaStage,
    GemmStage,
    MathStage,
    PeEngine,
    PipelineContext,
    PipelinePlan,
    Port,
    Stage,
    StageType,
    TilePlan,
    TileToken,
)
from kernbench.components.builtin.tile_choice import TileLimits, choose_gemm_tile, choose_math_tile
from kernbench.components.builtin.tiling import EngineNames, generate_gemm_plan, generate_math_plan
from kernbench.topology.graph import Node

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
        self._names = EngineNames.of(str(self.pe))
        self._feeds: deque[Feed] = deque()
        self._feeding = False
        self._held_up = False  # by tile buffers or by a barrier: what ends a tile may let the next one in
        self._tile_bytes = ctx.graph.spec.cube.tcm_reserved_bytes  # free for tile buffers

    @cached_property
    def engines(self) -> dict[str, PeEngine]:
        """The engines that stages name."""
        found: dict[str, PeEngine] = {}
        for name in (self._names.dma, self._names.fetch_store, self._names.gemm, self._names.math):
            engine = self.ctx.component(name)
            if not isinstance(engine, PeEngine):
                raise ComponentError(
                    f"{name} takes no commands",
                    where=f"impl {engine.node.impl}",
                    mend="derive its class from kernbench.components.builtin.pipeline.PeEngine",
                )
            found[name] = engine
        return found

    @cached_property
    def limits(self) -> TileLimits:
        """What tiles must fit, and their native size."""
        gemm = self.ctx.graph.node(self._names.gemm).attrs
        math = self.ctx.graph.node(self._names.math).attrs
        registers = self.ctx.graph.node(self._names.fetch_store).attrs["register_file_bytes"]
        return TileLimits(
            self.ctx.graph.spec.cube.tcm_reserved_bytes,
            int(registers),
            (int(gemm["tile_m"]), int(gemm["tile_k"]), int(gemm["tile_n"])),
            (int(math["tile_m"]), int(math["tile_n"])),
        )

    def submit(self, cmd: EngineCommand, request: Request, done: Done) -> None:
        """Take a command; `done` is called when it is finished. Raises KernelError for a composite that cannot be
        tiled.
        """
        if isinstance(cmd, CompositeCmd):
            self._after_overhead(self._composite(cmd, request, done))
            return
        stage = self._stage(cmd)
        name, params = simple_entry(cmd)

        def finished(token: TileToken) -> None:
            done(token.records)

        context = PipelineContext(self.engines, 1, finished, request, name=name, params=params, deps=cmd.deps)
        token = TileToken(TilePlan(0, (stage,)), context)
        engine = self.engines[stage.component]
        self._after_overhead(lambda: engine.take(token))

    def _after_overhead(self, action: Callable[[], None]) -> None:
        event = simpy.Event(self.env)
        event._ok, event._value = True, None
        event.callbacks.append(lambda _: action())
        self.env.schedule(event, delay=self.overhead_ns)

    def _stage(self, cmd: DmaReadCmd | DmaWriteCmd | GemmCmd | MathCmd) -> Stage:
        """The one stage of a simple command."""
        names = self._names
        if isinstance(cmd, DmaReadCmd):
            nbytes = cmd.source.nbytes
            return DmaStage(StageType.DMA_READ, names.dma, cmd.source.address, 1, nbytes, nbytes)
        if isinstance(cmd, DmaWriteCmd):
            nbytes = cmd.target.nbytes
            return DmaStage(StageType.DMA_WRITE, names.dma, cmd.target.address, 1, nbytes, nbytes)
        if isinstance(cmd, GemmCmd):
            return GemmStage(StageType.GEMM, names.gemm, cmd.batch * cmd.m, cmd.k, cmd.n, cmd.dtype)
        return MathStage(StageType.MATH, names.math, cmd.op, cmd.elements, cmd.dtype)

    # ---- composites

    def _composite(self, cmd: CompositeCmd, request: Request, done: Done) -> Callable[[], None]:
        """Plan now, so that what cannot be planned is refused at the call; feed when the overhead is paid."""
        if cmd.op == "gemm":
            plan = generate_gemm_plan(cmd, choose_gemm_tile(cmd, self.limits), str(self.pe))
        else:
            plan = generate_math_plan(cmd, choose_math_tile(cmd, self.limits), str(self.pe))
        start_ns = self.env.now + self.overhead_ns

        def tile_done(token: TileToken) -> None:
            context = token.context
            if token.plan.out_bytes:
                self._tile_bytes += token.plan.out_bytes
            if context.completed_tiles == context.total_tiles:
                ids: tuple[int, ...] = ()
                if self.ctx.log is not None:
                    kind, name, params = composite_entry(cmd)
                    now = self.env.now
                    ids = (self.ctx.log.record(start_ns, now, self.node.id, kind, name, params, token.records),)
                done(ids)
            if self._held_up:
                self._feed()

        context = PipelineContext(
            self.engines, plan.total_tiles, tile_done, request, deps=cmd.deps, on_fetched=self._fetched
        )

        def begin() -> None:
            self._feeds.append(Feed(plan, context))
            self._feed()

        return begin

    def _fetched(self, token: TileToken) -> None:
        """A tile's inputs are in registers: their buffers are free."""
        if token.plan.in_bytes:
            self._tile_bytes += token.plan.in_bytes
            if self._held_up:
                self._feed()

    def _feed(self) -> None:
        if self._feeding:  # a tile that enters may free a place at once; the loop below sees it
            return
        self._feeding, self._held_up = True, False
        while self._feeds and self._feed_one(self._feeds[0]):
            pass
        self._feeding = False

    def _feed_one(self, feed: Feed) -> bool:
        """Let the next tile in; False when the feeder has to wait."""
        tile = feed.following
        if tile is None:
            self._feeds.popleft()
            return True
        if feed.fed == feed.barrier and feed.context.completed_tiles < feed.barrier:
            self._held_up = True
            return False
        engine = self.engines[tile.stages[0].component]
        if not engine.has_room():
            engine.on_room = self._feed
            return False
        need = tile.in_bytes + tile.out_bytes
        if need > self._tile_bytes:
            self._held_up = True
            return False
        self._tile_bytes -= need
        feed.fed += 1
        feed.following = next(feed.tiles, None)
        engine.take(TileToken(tile, feed.context))
        return True
