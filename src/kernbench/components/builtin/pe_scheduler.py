"""PE_SCHEDULER: the only block that hands work to a PE's engines.

Every command pays the overhead. A simple command is then passed to its engine. A composite becomes a plan of tiles, and
one feeder admits tiles, command after command in the order of issue and never interleaved: a tile is admitted when the
queue of its first engine has a place and its buffers fit the TCM reserved for tiles. A full queue or TCM stalls the
feeder only. Commands of both streams share the feeder and the engines. A math op goes to the engine that declares it,
else to PE_MATH. The scheduler also holds the PE's compute slots. Not modelled: a limit on commands waiting here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

from kernbench.common.commands import (
    AtomicCmd,
    CompositeCmd,
    DmaCommand,
    DmaReadCmd,
    DmaWriteCmd,
    GemmCmd,
    MathCmd,
    ScheduledCommand,
    SimpleCmd,
)
from kernbench.common.composite_use import CompositeUse, PathTiming
from kernbench.common.declared_state import StateField, is_set, parts, quantity, size, tile_number
from kernbench.common.engine_declaration import EngineDeclaration
from kernbench.common.errors import KernelError
from kernbench.common.messages import LaunchStream, Request, stream_of
from kernbench.components.base import Context
from kernbench.components.builtin.command_log import SimpleRecords, composite_entry, tile_record
from kernbench.components.builtin.interfaces import DATA_MOVER, STAGE_SERVER, DataMover
from kernbench.components.builtin.op_servers import op_servers
from kernbench.components.builtin.operand_access import OperandAccess
from kernbench.components.builtin.pipeline import PeEngine, PipelineContext, ServerQueue, StageServer, TileToken
from kernbench.components.builtin.simple_command import SimpleCommand
from kernbench.components.builtin.stages import GemmStage, RunsStage, Stage, StageType
from kernbench.components.builtin.tile_choice import TileLimits, fastest_tile, limits_of, plan_of, rates_of
from kernbench.components.builtin.tile_model import PeRates
from kernbench.components.builtin.tile_plan import PipelinePlan, TilePlan
from kernbench.components.builtin.tiling import (
    DMA,
    FETCH_STORE,
    GEMM,
    LANES,
    MATH,
    OpServers,
    operands_of,
    without_addresses,
)
from kernbench.components.recording import NO_REF, Release, op_ref
from kernbench.components.replays import ReplayedComposite
from kernbench.topology.graph import Node
from kernbench.triton_emu.kernel_runner import RecordsCallback

Cause = tuple[int, int]  # a Release and a reference: why a command was issued then, and by which op


class TileFeed:
    """A composite whose tiles are being admitted. `finished` is called at its end, with the record of its last tile."""

    DERIVED = (
        "barrier",
        "cause",
        "context",
        "deps",
        "fed",
        "finished",
        "following",
        "plan",
        "tiles",
    )  # see `tile_steps.py`

    __slots__ = ("barrier", "cause", "context", "deps", "fed", "finished", "following", "plan", "tiles")

    def __init__(
        self,
        plan: PipelinePlan,
        context: PipelineContext,
        cause: Cause,
        finished: Callable[[int], None],
        deps: tuple[int, ...],
    ) -> None:
        self.plan = plan
        self.deps = deps
        self.cause = cause
        self.finished = finished
        self.tiles: Iterator[TilePlan] = plan.tiles()
        self.following: TilePlan | None = next(self.tiles, None)
        self.barrier = plan.barrier
        self.context = context
        self.fed = 0

    def skip(self, tiles: int) -> None:
        """Continue as if `tiles` more had been admitted and were done."""
        self.tiles = self.plan.tiles(self.plan.total_tiles - self.context.total_tiles + self.fed + tiles)
        self.following = next(self.tiles, None)
        self.barrier -= tiles
        self.context.total_tiles -= tiles


class PeSchedulerComponent(PeEngine):
    """Takes commands from PE_CPU."""

    declaration = EngineDeclaration(role="control")

    STATE = (
        parts("compute_slots"),
        quantity("_tile_bytes"),
        StateField("_held_up", lambda scheduler, view: int(scheduler._held_up or NO_REF)),
        quantity("_feeding"),
        quantity("_commands"),
        size("_feeds"),
        tile_number("_fed"),
        is_set("replayed"),
    )
    DERIVED = (
        "_compute_plans", "_composites", "_dma", "_ended_by", "_records",
        "engines", "limits", "rates", "servers",
    )  # fmt: skip

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        self.compute_slots = [ServerQueue()]  # the one that engines share; those with their own add it
        self._feeds: deque[TileFeed] = deque()
        self._fed = 0  # tiles so far
        self._feeding = False
        self._held_up: int | None = None  # Release.SLOT or BARRIER: the end of a tile may admit the next
        self._ended_by: dict[int, int] = {}  # from a composite's record to that of the stage that ended it
        self._records = None if ctx.log is None else SimpleRecords(ctx.log, self.pe)
        self._compute_plans: dict[tuple[object, ...], tuple[TilePlan]] = {}  # of simple commands, by their work
        self._composites: dict[LaunchStream, dict[PipelinePlan, CompositeUse]] = {}  # since they were last taken
        self._tile_bytes = ctx.graph.cube_at(node.id).tcm_reserved_bytes  # free for tile buffers
        self._commands = 0  # under way
        self.replayed: ReplayedComposite | None = None  # a composite that is being replayed

    @cached_property
    def engines(self) -> dict[str, StageServer]:
        """The engines that stages name."""
        parts = dict.fromkeys((DMA, FETCH_STORE, GEMM, MATH, *(server.part for server in self.servers.values())))
        return {part: self.sibling(self.pe.part(part), STAGE_SERVER) for part in parts}

    @cached_property
    def servers(self) -> OpServers:
        """The servers of math ops that a part declares."""
        return op_servers(self.ctx.graph.cube_at(self.node.id).pe_template.components)

    @cached_property
    def limits(self) -> TileLimits:
        """The capacities that bound tiles, and their native size."""
        return limits_of(self.ctx.graph, self.pe, self.servers)

    @cached_property
    def rates(self) -> PeRates:
        """How fast the engines are, for the model that chooses tiles."""
        return rates_of(self.ctx.graph, self.pe)

    def submit(self, cmd: ScheduledCommand, request: Request, done: RecordsCallback, after: int | None = None) -> None:
        """Take a command; `done` is called when it is finished. Raises KernelError for a composite that cannot be
        tiled, and for a DMA command that moves nothing, which would never end. `after` is the op that the kernel waited
        for last, None when it has just begun.
        """
        self.interrupt_replay()
        cause = (Release.LAUNCH, NO_REF)
        if after is not None:
            release = Release.DATA if after in cmd.deps else Release.PROGRAM
            cause = (release, op_ref(self._ended_by.get(after, after)))
        if isinstance(cmd, CompositeCmd):
            feed = self._composite(cmd, request, done, cause)
            self._commands += 1
            self.ctx.at(self.env.now + self.overhead_ns, self._begin, feed)
            return
        plans = self._plans(cmd)
        self._commands += 1
        command = SimpleCommand(self.engines, plans, request, cmd, self._records, self._ended, done)
        number, issued_ns = self._new_token(), self.env.now
        for plan in plans:
            token = TileToken(plan, command, number, issued_ns, *cause)
            self.ctx.at(issued_ns + self.overhead_ns, self.engines[plan.stages[0].component].take, token)

    def _ended(self) -> None:
        """A simple command is over."""
        self._commands -= 1

    def _plans(self, cmd: SimpleCmd) -> Sequence[TilePlan]:
        """The one stage of a simple command, as a tile; of one that moves bytes, one for each request."""
        if isinstance(cmd, GemmCmd | MathCmd):
            key = _work_of(cmd)
            found = self._compute_plans.get(key)
            if found is None:
                found = self._compute_plans[key] = (TilePlan(0, (self._compute_stage(cmd),)),)
            return found
        if not all(cmd.requests) or not cmd.requests:
            raise KernelError(
                f"a {type(cmd).__name__} with {'an empty request' if cmd.requests else 'no requests'}",
                hint="give runs of bytes to move; an access that touches nothing needs no command",
            )
        kind = StageType.DMA_READ if isinstance(cmd, DmaReadCmd) else StageType.DMA_WRITE
        if isinstance(cmd, DmaWriteCmd) and cmd.copies:
            return [self._multicast_plan(cmd)]
        return [
            TilePlan(0, (RunsStage(kind, DMA, runs, sum([nbytes for _, nbytes in runs]), _atomic_effect(cmd, number)),))
            for number, runs in enumerate(cmd.requests)
        ]

    def _multicast_plan(self, cmd: DmaWriteCmd) -> TilePlan:
        """One stage; raises KernelError for a PE_DMA that cannot multicast, and FabricError for places."""
        find_places = getattr(self._dma, "multicast_places", None)
        if find_places is None or len(cmd.requests) != 1:
            raise KernelError(
                f"a multicast of {len(cmd.requests)} requests by {type(self._dma).__name__}",
                hint="give one dense block, and a PE_DMA with `multicast_places`",
            )
        find_places((cmd.requests[0], *cmd.copies))  # now, so that what cannot be done is refused at the call
        nbytes = sum(nbytes for _, nbytes in cmd.requests[0])
        return TilePlan(0, (RunsStage(StageType.DMA_WRITE, DMA, cmd.requests[0], nbytes, None, cmd.copies),))

    def _compute_stage(self, cmd: GemmCmd | MathCmd) -> Stage:
        if isinstance(cmd, GemmCmd):
            return GemmStage(StageType.GEMM, GEMM, cmd.batch * cmd.m, cmd.k, cmd.n, cmd.dtype)
        along = 0 if cmd.axis is None or not cmd.inputs else cmd.inputs[0].shape[cmd.axis]
        return self.servers.get(cmd.op, LANES).stage_of(cmd.op, cmd.elements, cmd.dtype, along=along)

    # ---- composites

    def _composite(self, cmd: CompositeCmd, request: Request, done: RecordsCallback, cause: Cause) -> TileFeed:
        """Plan now, so that what cannot be planned is refused at the call; feed when the overhead is paid."""
        numbered, addresses = without_addresses(cmd)
        if numbered.tile_shape == "auto":
            numbered = replace(numbered, tile_shape=fastest_tile(numbered, self.limits, self.rates, self._paths(cmd)))
        plan = plan_of(numbered, self.limits)
        issued_ns, log, stream = self.env.now, self.ctx.log, stream_of(request)
        self._count(plan, cmd, numbered, stream)

        def finished(last: int) -> None:
            self._commands -= 1
            ids: tuple[int, ...] = ()
            if log is not None:
                kind, name, params = composite_entry(cmd, plan.tile)
                number = log.record(
                    issued_ns + self.overhead_ns,
                    self.env.now,
                    self.node.id,
                    kind,
                    name,
                    params,
                    (last,),
                    causes=(0, cause[0], issued_ns, cause[1], 0, cause[0], issued_ns + self.overhead_ns, cause[1]),
                    stream=stream,
                )
                self._ended_by[number] = last
                ids = (number,)
            done(ids)

        record = None if log is None else tile_record(log, self.pe, addresses, cmd.deps, stream, cmd.line)
        return self.feed_of(plan, request, self._accesses(cmd), cause, finished, record, addresses, cmd.deps)

    def feed_of(
        self,
        plan: PipelinePlan,
        request: Request,
        operands: Sequence[OperandAccess | None],
        cause: Cause,
        finished: Callable[[int], None],
        record: Callable[[TileToken], int] | None,
        addresses: tuple[int, ...] = (),
        deps: tuple[int, ...] = (),
    ) -> TileFeed:
        """The tiles of a plan, to be admitted with `admit`."""

        def tile_done(token: TileToken) -> None:
            context = token.context
            if token.plan.out_bytes:
                self._tile_bytes += token.plan.out_bytes
            if context.completed_tiles == context.total_tiles:
                finished(token.record)
            if self._held_up is not None:
                self._feed(self._held_up, token.ref)

        context = PipelineContext(
            self.engines,
            plan.total_tiles,
            tile_done,
            request,
            addresses=addresses,
            operands=operands,
            record=record,
            on_fetched=self._fetched,
        )
        return TileFeed(plan, context, cause, finished, deps)

    def _count(self, plan: PipelinePlan, cmd: CompositeCmd, numbered: CompositeCmd, stream: LaunchStream) -> None:
        counted = self._composites.setdefault(stream, {})
        use = counted.get(plan)
        if use is None:
            use = CompositeUse(numbered, plan.tile, plan.total_tiles, 0, self._paths(cmd))
        counted[plan] = use._replace(composites=use.composites + 1)

    def take_composites(self, stream: LaunchStream) -> tuple[CompositeUse, ...]:
        """The composites of a stream since the last call, which is at the end of every launch; clears the count."""
        return tuple(self._composites.pop(stream, {}).values())

    def _begin(self, feed: TileFeed) -> None:
        composite_replayer = self.ctx.composite_replayer
        if composite_replayer is not None:
            self.replayed = composite_replayer.begin(self, feed, is_only_command=self._commands == 1)
        if self.replayed is None:
            self.admit(feed)

    def admit(self, feed: TileFeed) -> None:
        """Admit the tiles of a composite, behind those of the composites before it."""
        self._feeds.append(feed)
        self._feed(*feed.cause)

    def interrupt_replay(self) -> None:
        """The PE is used, or its state is read: interrupt the replay of a composite, if there is one."""
        if self.replayed is not None:
            self.replayed.interrupt()

    def skip_tiles(self, tiles: int) -> None:
        """Count tiles of a replay, which bypasses this block."""
        self._fed += tiles

    def _accesses(self, cmd: CompositeCmd) -> list[OperandAccess | None]:
        """How the DMA reaches each operand, in the order of their numbers."""
        return [self._dma.access(operand) for operand in operands_of(cmd)]

    @cached_property
    def _dma(self) -> DataMover:
        return self.sibling(self.pe.part(DMA), DATA_MOVER)

    def _paths(self, cmd: CompositeCmd) -> tuple[PathTiming | None, ...]:
        """The path timing of each operand, in the order of their numbers."""
        timing_to = getattr(self._dma, "timing_to", None)
        if timing_to is None:  # a user-defined DMA without path timings
            near = PathTiming(0.0, self.rates.dma_gbs)
            return tuple(None if operand.pinned else near for operand in operands_of(cmd))
        return tuple(timing_to(operand) for operand in operands_of(cmd))

    def _fetched(self, token: TileToken) -> None:
        """A tile's inputs are in registers: free their buffers."""
        if token.plan.in_bytes:
            self._tile_bytes += token.plan.in_bytes
            if self._held_up is not None:
                self._feed(self._held_up, token.ref)

    def _new_token(self) -> int:
        """The number of a tile or of a simple command; without an op log they have none."""
        return NO_REF if self.ctx.log is None else self.ctx.log.new_token()

    def _feed_again(self, left: int) -> None:
        """The engine that the next tile goes to first has a place again, since stage `left` is over."""
        self._feed(Release.LANE, left)

    def _feed(self, release: int, released_by: int) -> None:
        """Admit tiles, until there is none left or the next has to wait."""
        if self._feeding:  # an admitted tile may free a place at once; the loop below sees it
            return
        self._feeding, self._held_up = True, None
        feeds, engines, now = self._feeds, self.engines, self.env.now
        while feeds:
            feed = feeds[0]
            tile = feed.following
            if tile is None:
                feeds.popleft()
                continue
            engine = engines[tile.stages[0].component]
            if not engine.has_room():
                engine.await_room(self._feed_again)
                break
            need = tile.in_bytes + tile.out_bytes
            if feed.fed == feed.barrier and feed.context.completed_tiles < feed.barrier:
                self._held_up = Release.BARRIER
                break
            if need > self._tile_bytes:
                self._held_up = Release.SLOT
                break
            self._tile_bytes -= need
            feed.fed += 1
            feed.following = next(feed.tiles, None)
            token = TileToken(tile, feed.context, self._new_token(), now, release, released_by, self._fed)
            self._fed += 1
            engine.take(token)
        self._feeding = False


def _work_of(cmd: GemmCmd | MathCmd) -> tuple[object, ...]:
    """Cache key of a command's stage: commands in a loop share it."""
    if isinstance(cmd, GemmCmd):
        return cmd.batch, cmd.m, cmd.k, cmd.n, cmd.dtype
    return cmd.op, cmd.elements, cmd.dtype


def _atomic_effect(cmd: DmaCommand, number: int) -> Callable[[], object] | None:
    """The memory update of an atomic's request, applied when it arrives; None for other commands."""
    return partial(cmd.apply, number) if isinstance(cmd, AtomicCmd) else None
