"""Tile tokens that route themselves through a PE, and what every engine of a PE has in common.

A command becomes tokens, one a tile; a simple command is a token of one stage. A token carries its stages. The engine
that has served one hands it to the engine of the next, as a done wire would, at no cost in time; after the last stage
the token reports to its command's context, exactly once. Waiting between stages costs nobody else: only the feeder,
which lets tokens in, is held up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from math import ceil
from typing import NamedTuple

from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import ComponentError
from kernbench.common.ids import PeId
from kernbench.common.messages import Request
from kernbench.common.units import GRID_NS, on_grid
from kernbench.components.base import ActiveComponent, Context, Move
from kernbench.components.recording import Param
from kernbench.topology.graph import Node

Params = dict[str, Param]
MOST_KEPT_TILES = 1 << 16


class StageType(Enum):
    """What happens to a tile, in the order of a plain one."""

    DMA_READ = 0
    FETCH = 1
    GEMM = 2
    MATH = 3
    STORE = 4
    DMA_WRITE = 5


class DmaStage(NamedTuple):
    """Rows of bytes between TCM and an operand in memory, `stride_bytes` apart there, the first at `offset`."""

    type: StageType
    component: str
    operand: int  # which one of the command's
    offset: int
    nbytes: int
    rows: int
    row_bytes: int
    stride_bytes: int


class MoveStage(NamedTuple):
    """Bytes between TCM and the register file. A fetch takes `registers` bytes of it, a store gives them back."""

    type: StageType
    component: str
    nbytes: int
    registers: int


class GemmStage(NamedTuple):
    """A product on the MAC array; gives back the registers of its operands where it is their last reader."""

    type: StageType
    component: str
    m: int
    k: int
    n: int
    dtype: str
    registers: int = 0


class MathStage(NamedTuple):
    """One vector op on the lanes; gives back the registers of its operands where it is their last reader."""

    type: StageType
    component: str
    op: str
    elements: int
    dtype: str
    registers: int = 0


Stage = DmaStage | MoveStage | GemmStage | MathStage


class TilePlan(NamedTuple):
    """One tile: its stages, and the tile buffers it needs in the scheduler's part of the TCM."""

    tile_id: int
    stages: tuple[Stage, ...]
    in_bytes: int = 0  # until it is fetched
    out_bytes: int = 0  # until it is done
    kind: tuple[int, ...] = ()  # the very same for tiles that differ only in where their bytes lie


class PipelinePlan:
    """All tiles of a command, the same every time. Tiles from `barrier` on wait for those before.

    A plan names no place, so PEs share it. Its tiles are made when they are first needed, and kept unless they are very
    many.
    """

    def __init__(
        self, total_tiles: int, barrier: int, make: Callable[[], Iterator[TilePlan]], tile: tuple[int, ...] = ()
    ) -> None:
        self.total_tiles = total_tiles
        self.tile = tile  # (m, k, n) of a product, (m, n) of a math op
        self.barrier = barrier
        self._make = make
        self._made: list[TilePlan] = []

    def tiles(self) -> Iterator[TilePlan]:
        """The tiles in order."""
        if self.total_tiles > MOST_KEPT_TILES:
            return self._make()
        if not self._made:
            self._made = list(self._make())
        return iter(self._made)


class Reach(NamedTuple):
    """How the DMA reaches an operand that lies in one plain memory, and its address there."""

    read: Move
    write: Move
    base: int


class PipelineContext:
    """One command under way: where its tokens go, how many are done, whom to tell."""

    __slots__ = (
        "addresses",
        "completed_tiles",
        "engines",
        "on_done",
        "on_fetched",
        "record",
        "request",
        "total_tiles",
        "ways",
    )

    def __init__(
        self,
        engines: Mapping[str, PeEngine],
        total_tiles: int,
        on_done: Callable[[TileToken], None],
        request: Request,
        *,
        addresses: tuple[int, ...] = (),
        ways: Sequence[Reach | None] = (),
        record: Callable[[TileToken], int] | None = None,
        on_fetched: Callable[[TileToken], None] | None = None,
    ) -> None:
        self.engines = engines  # by part of the PE
        self.total_tiles = total_tiles
        self.addresses = addresses  # of the command's operands, as the kernel gave them
        self.ways = ways  # to each operand; None for one that lies in pieces, or is not reached at all
        self.completed_tiles = 0
        self.on_done = on_done  # called for every tile, after it is counted
        self.request = request
        self.record = record  # writes a tile down, returns the op-log id of its last stage; None without a log
        self.on_fetched = on_fetched

    def complete_tile(self, token: TileToken) -> None:
        """The token's last stage is over; raises ComponentError when that was said before."""
        if token.done:
            raise ComponentError(
                f"tile {token.plan.tile_id} is reported done twice",
                hint="an engine must hand each token on exactly once",
            )
        token.done = True
        self.completed_tiles += 1
        if self.record is not None:
            token.record = self.record(token)
        self.on_done(token)


class TileToken:
    """A tile on its way. One engine owns it at a time."""

    __slots__ = ("context", "done", "index", "pending", "plan", "record", "stages", "start_ns", "times")

    def __init__(self, plan: TilePlan, context: PipelineContext) -> None:
        self.plan = plan
        self.stages = plan.stages
        self.index = 0
        self.context = context
        self.start_ns = 0.0  # of the stage being served
        self.times: list[float] = []  # start and end of the stages that are over
        self.record = -1  # op-log id of its last stage, once it is done and if there is a log
        self.pending = 0  # transfers of this stage that are under way
        self.done = False

    @property
    def stage(self) -> Stage:
        return self.stages[self.index]


class Port:
    """Something that serves one request at a time, in the order of asking."""

    __slots__ = ("busy_ns", "free_ns", "since_ns")

    def __init__(self) -> None:
        self.free_ns = 0.0
        self.since_ns = 0.0  # since when it is taken without a break, where it is
        self.busy_ns = 0.0

    def book(self, now: float, ns: float) -> tuple[float, float]:
        """Take the port for `ns` as soon as it is free; returns from when to when."""
        start = self.free_ns
        if start <= now:
            self.since_ns = start = now
        self.busy_ns += ns
        self.free_ns = end = start + ns
        return start, end


def work_ns(amount: int, per_ns: float) -> float:
    """How long `amount` of work takes at `per_ns`, on the grid."""
    return max(on_grid(amount / per_ns), GRID_NS)


def lanes_ns(elements: int, lanes_per_ns: float, dtype: str) -> float:
    """A vector op: whole ns, as a row of lanes starts every ns; f32 at half the lanes, one-byte types at double."""
    return float(max(ceil(elements / (lanes_per_ns * dtype_of(dtype).compute_scale)), 1))


class PeEngine(ActiveComponent):
    """An engine of a PE. Subclasses implement `take`, and call `finish` when a token's stage is over."""

    __slots__ = ("on_room", "overhead_ns", "pe", "queue_depth")

    stores_and_forwards = False

    def __init__(self, node: Node, ctx: Context) -> None:
        super().__init__(node, ctx)
        place = node.place
        self.pe = PeId(place.sip, place.cube, place.pe)
        self.overhead_ns = on_grid(self.entry_ns)
        self.queue_depth = int(node.attrs.get("queue_depth", 1))
        self.on_room: Callable[[], None] | None = None  # a feeder that waits for a place in the queue

    def take(self, token: TileToken) -> None:
        """Serve the token's present stage."""
        raise ComponentError(
            f"{self.node.id} cannot serve a {token.stage.type.name} stage",
            where=f"impl {self.node.impl}",
            hint="give this block an impl whose class defines take(token)",
        )

    def has_room(self) -> bool:
        """Whether the feeder may let a token into this engine's queue."""
        return True

    def tell_room(self) -> None:
        """A place in the queue is free: wake the feeder, if it waits here."""
        wake, self.on_room = self.on_room, None
        if wake is not None:
            wake()

    def finish(self, token: TileToken) -> None:
        """The stage is over: on to the engine of the next, or done."""
        token.times += (token.start_ns, self.env.now)
        index = token.index + 1
        if index < len(token.stages):
            token.index = index
            token.context.engines[token.stages[index].component].take(token)
        else:
            token.context.complete_tile(token)
