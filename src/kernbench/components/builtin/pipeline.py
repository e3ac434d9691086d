"""Tile tokens that route themselves through a PE, and what every engine of a PE has in common.

A command becomes tokens, one per tile; a simple command is a token of one stage. A token carries its stages. The engine
that has served a stage hands the token to the engine of the next, as a done signal would, in zero time; after the last
stage the token reports to its command's context, exactly once. A token that waits between stages blocks no engine: only
the feeder, which admits tokens, is stalled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from kernbench.common.declared_state import (
    Derived,
    State,
    StateField,
    TileView,
    holder,
    instant,
    is_set,
    quantity,
    tile_number,
    times,
)
from kernbench.common.dtypes import F16
from kernbench.common.errors import ComponentError
from kernbench.common.ids import PeId
from kernbench.common.messages import LaunchStream, Request, stream_of
from kernbench.common.units import on_grid
from kernbench.components.base import ActiveComponent, Context
from kernbench.components.builtin.engine_cycles import compute_ns
from kernbench.components.builtin.operand_access import OperandAccess
from kernbench.components.builtin.stages import GemmStage, MathStage, Stage
from kernbench.components.builtin.tile_plan import TilePlan
from kernbench.components.recording import LANE, NO_REF, STAGE_BITS, Release
from kernbench.topology.graph import Node

# What user-defined engines are built from, including stages.
__all__ = [
    "CommandContext", "GemmStage", "MathStage", "PeEngine", "PipelineContext", "ServerQueue", "StageServer",
    "TileToken", "compute_ns", "lanes_ns", "work_ns",
]  # fmt: skip


class CommandContext:
    """One command under way: where its tokens go, and how many are done. Subclasses say what happens at its end."""

    DERIVED: ClassVar[Derived] = (  # from its tokens and their plan
        "completed_tiles", "engines", "on_fetched", "operands", "request", "total_tiles",
    )  # fmt: skip

    __slots__ = (
        "completed_tiles", "engines", "is_communication", "on_fetched", "operands", "request", "stream", "total_tiles",
    )  # fmt: skip

    def __init__(
        self,
        engines: Mapping[str, StageServer],
        total_tiles: int,
        request: Request,
        operands: Sequence[OperandAccess | None] = (),
        on_fetched: Callable[[TileToken], None] | None = None,
    ) -> None:
        self.engines = engines  # by part of the PE
        self.total_tiles = total_tiles
        self.completed_tiles = 0
        self.request = request
        self.stream = stream = stream_of(request)
        self.is_communication = stream == "communication"
        self.operands = operands  # how the DMA reaches each of a composite's; None for one that is pinned
        self.on_fetched = on_fetched

    def complete_tile(self, token: TileToken) -> None:
        """The token's last stage is over; raises ComponentError when it was reported before."""
        if token.done:
            raise ComponentError(
                f"tile {token.plan.tile_id} is reported done twice",
                hint="an engine must hand each token on exactly once",
            )
        token.done = True
        self.completed_tiles += 1


class PipelineContext(CommandContext):
    """The tiles of a composite: each is recorded and reported when it is done."""

    __slots__ = ("addresses", "on_done", "record")

    def __init__(
        self,
        engines: Mapping[str, StageServer],
        total_tiles: int,
        on_done: Callable[[TileToken], None],
        request: Request,
        *,
        addresses: tuple[int, ...] = (),
        operands: Sequence[OperandAccess | None] = (),
        record: Callable[[TileToken], int] | None = None,
        on_fetched: Callable[[TileToken], None] | None = None,
    ) -> None:
        super().__init__(engines, total_tiles, request, operands, on_fetched)
        self.addresses = addresses  # of the command's operands, as the kernel gave them
        self.on_done = on_done  # called for every tile, after it is counted
        self.record = record  # records a tile, returns the op-log id of its last stage; None without a log

    def complete_tile(self, token: TileToken) -> None:
        super().complete_tile(token)
        if self.record is not None:
            token.record = self.record(token)
        self.on_done(token)


def _relative_causes(tile: TileToken, view: TileView) -> tuple[float, ...]:
    """The causes of its starts, as its record will hold them."""
    found: list[float] = []
    causes, now = tile.causes, view.now
    for at in range(0, len(causes), 4):
        stage, release, ready, reference = causes[at : at + 4]
        found += (stage, int(release), ready - now, view.ref(reference))
    return tuple(found)


class TileToken:
    """A tile under way. One engine owns it at a time. While it waits, `start_ns` is 0 or that of a stage in `times`."""

    STATE: ClassVar[State] = (
        tile_number("number"),
        StateField("plan", lambda tile, view: tile.plan.kind),
        quantity("index"),
        StateField("start_ns", lambda tile, view: tile.start_ns and tile.start_ns - view.now),
        times("times"),
        StateField("causes", _relative_causes),
        quantity("pending"),
    )
    DERIVED: ClassVar[Derived] = ("context", "done", "order", "record", "stages")

    __slots__ = (
        "causes", "context", "done", "index", "number", "order", "pending", "plan", "record", "stages",
        "start_ns", "times",
    )  # fmt: skip

    def __init__(
        self,
        plan: TilePlan,
        context: CommandContext,
        number: int = NO_REF,
        issued_ns: float = 0.0,
        release: int = Release.PROGRAM,
        released_by: int = NO_REF,
        order: int = 0,
    ) -> None:
        self.plan = plan
        self.stages = plan.stages
        self.index = 0
        self.context = context
        self.number = number  # its token in the op log
        self.order = order  # among the tiles admitted on its PE
        self.start_ns = 0.0  # of the stage being served
        self.times: list[float] = []  # start and end of the stages that are over
        self.causes: list[float] = [0, release, issued_ns, released_by]  # see `recording.Causes`
        self.record = -1  # op-log id of its last stage, once it is done and if there is a log
        self.pending = 0  # transfers of this stage that are under way
        self.done = False

    @property
    def stage(self) -> Stage:
        return self.stages[self.index]

    @property
    def request(self) -> Request:
        return self.context.request

    @property
    def ref(self) -> int:
        """Reference of the present stage, as the cause of stages that it releases."""
        return self.number << STAGE_BITS | self.index

    def waited(self, release: Release, ready_ns: float, released_by: int) -> None:
        """Note a cause of the present stage's start other than the end of the stage before."""
        self.causes += (self.index, release, ready_ns, released_by)


class ServerQueue:
    """A FIFO server: one request at a time, in the order of arrival."""

    STATE = (instant("free_ns"), holder("holder", until="free_ns"))
    DERIVED = ("busy_ns", "communication_ns")

    __slots__ = ("busy_ns", "communication_ns", "free_ns", "holder")

    def __init__(self) -> None:
        self.free_ns = 0.0
        self.busy_ns = 0.0
        self.communication_ns = 0.0  # of that, for kernels of the communication stream
        self.holder = NO_REF  # the last stage that it serves, see `TileToken.ref`

    def serve(self, token: TileToken, now: float, ns: float) -> float:
        """Serve the present stage of a token that is ready at `now`; returns the end time."""
        start = self.free_ns
        if start <= now:
            start = now
        else:
            token.causes += (token.index, LANE, now, self.holder)
        self.holder = token.number << STAGE_BITS | token.index
        self.busy_ns += ns
        if token.context.is_communication:
            self.communication_ns += ns
        token.start_ns = start
        self.free_ns = end = start + ns
        return end

    def add_busy(self, ns: float, *, is_communication: bool) -> None:
        """Add busy time of a replay, which bypasses the server."""
        self.busy_ns += ns
        if is_communication:
            self.communication_ns += ns

    def busy_ns_for(self, stream: LaunchStream) -> float:
        """For how long it was busy for one of the two streams."""
        return self.communication_ns if stream == "communication" else self.busy_ns - self.communication_ns


def work_ns(amount: int, per_ns: float) -> float:
    """`compute_ns` of work whose rate does not depend on a type."""
    return compute_ns(amount, per_ns, F16)


lanes_ns = compute_ns  # public alias for user-defined engines


class StageServer(Protocol):
    """An engine of a PE, as the scheduler and the engines before it need it."""

    def take(self, token: TileToken) -> None:
        """Serve the token's present stage."""

    def has_room(self) -> bool:
        """Whether the feeder may admit a token to this engine's queue."""

    def await_room(self, feed: Callable[[int], None]) -> None:
        """Call `feed` once, when there is a place in the queue again, with the stage that is over since then."""


class PeEngine(ActiveComponent):
    """An engine of a PE. Subclasses implement `take`, and call `finish` when a token's stage is over."""

    STATE: ClassVar[State] = (is_set("_waiting_feeder"),)

    __slots__ = ("_waiting_feeder", "overhead_ns", "pe", "queue_depth")

    stores_and_forwards = False

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        place = node.place
        self.pe = PeId(place.sip, place.cube, place.pe)
        self.overhead_ns = on_grid(self.entry_ns)
        self.queue_depth = int(node.attrs.get("queue_depth", 1))
        self._waiting_feeder: Callable[[int], None] | None = None  # it waits for a place in the queue

    def take(self, token: TileToken) -> None:
        """Serve the token's present stage."""
        raise ComponentError(
            f"{self.node.id} cannot serve a {token.stage.type.name} stage",
            where=f"impl {self.node.impl}",
            hint="give this block an impl whose class defines take(token)",
        )

    def has_room(self) -> bool:
        """Whether the feeder may admit a token to this engine's queue."""
        return True

    def await_room(self, feed: Callable[[int], None]) -> None:
        """Call `feed` once, when there is a place in the queue again, with the stage that is over since then."""
        self._waiting_feeder = feed

    def notify_room(self, left: int) -> None:
        """A place in the queue is free, since stage `left` is over: call the feeder, if it waits here."""
        feed, self._waiting_feeder = self._waiting_feeder, None
        if feed is not None:
            feed(left)

    def finish(self, token: TileToken) -> None:
        """The stage is over: record its times and hand the token on."""
        token.times += (token.start_ns, self.env.now)
        index = token.index + 1  # `hand_on`, written out
        if index < len(token.stages):
            token.index = index
            token.context.engines[token.stages[index].component].take(token)
        else:
            token.context.complete_tile(token)

    def hand_on(self, token: TileToken) -> None:
        """Pass the token to the engine of its next stage, or complete it."""
        index = token.index + 1
        if index < len(token.stages):
            token.index = index
            token.context.engines[token.stages[index].component].take(token)
        else:
            token.context.complete_tile(token)
