"""Tile tokens that route themselves through a PE, and what every engine of a PE has in common.

A command becomes tokens, one per tile; a simple command is a token of one stage. A token carries its stages. The engine
that has served one hands it to the engine of the next, as a done wire would, at no cost in time; after the last stage
the token reports to its command's context, exactly once. Waiting between stages costs nobody else: only the feeder,
which lets tokens in, is held up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from math import ceil
from typing import NamedTuple, Protocol

from kernbench.common.commands import DmaRequest
from kernbench.common.dtypes import dtype_of
from kernbench.common.errors import ComponentError
from kernbench.common.ids import PeId
from kernbench.common.messages import LaunchStream, Request, stream_of
from kernbench.common.units import GRID_NS, on_grid
from kernbench.common.work_units import BYTES, macs_of, vector_ops_of
from kernbench.components.base import ActiveComponent, Context
from kernbench.components.builtin.operand_access import OperandAccess
from kernbench.components.recording import LANE, NOBODY, STAGE_BITS, FieldValue, Release
from kernbench.topology.graph import Node

Fields = dict[str, FieldValue]
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

    @property
    def op_kind(self) -> str:
        return "memory"

    @property
    def unit(self) -> str:
        return BYTES

    @property
    def amount(self) -> int:
        return self.nbytes

    def fields(self, addresses: Sequence[int]) -> Fields:
        """What the op log says of it; operands lie at `addresses`."""
        return {"address": addresses[self.operand] + self.offset, "nbytes": self.nbytes}


class RunsStage(NamedTuple):
    """One request of a simple command: runs of bytes anywhere in memory. `apply` makes it a read-modify-write."""

    type: StageType
    component: str
    runs: DmaRequest
    nbytes: int
    apply: Callable[[], object] | None = None

    @property
    def op_kind(self) -> str:
        return "memory"

    @property
    def unit(self) -> str:
        return BYTES

    @property
    def amount(self) -> int:
        return self.nbytes

    def fields(self, addresses: Sequence[int]) -> Fields:
        return {"nbytes": self.nbytes}


class MoveStage(NamedTuple):
    """Bytes between TCM and the register file. A fetch takes `registers` bytes of it, a store gives them back."""

    type: StageType
    component: str
    nbytes: int
    registers: int

    @property
    def op_kind(self) -> str:
        return "memory"

    @property
    def unit(self) -> str:
        return BYTES

    @property
    def amount(self) -> int:
        return self.nbytes

    def fields(self, addresses: Sequence[int]) -> Fields:
        return {"nbytes": self.nbytes}


class GemmStage(NamedTuple):
    """A product on the MAC array; gives back the registers of its operands where it is their last reader."""

    type: StageType
    component: str
    m: int
    k: int
    n: int
    dtype: str
    registers: int = 0

    @property
    def op_kind(self) -> str:
        return "gemm"

    def fields(self, addresses: Sequence[int]) -> Fields:
        return {"m": self.m, "k": self.k, "n": self.n, "dtype": self.dtype}

    @property
    def unit(self) -> str:
        return macs_of(self.dtype)

    @property
    def amount(self) -> int:
        return self.m * self.k * self.n


class MathStage(NamedTuple):
    """One vector op on the lanes; gives back the registers of its operands where it is their last reader."""

    type: StageType
    component: str
    op: str
    elements: int
    dtype: str
    registers: int = 0

    @property
    def op_kind(self) -> str:
        return "math"

    def fields(self, addresses: Sequence[int]) -> Fields:
        return {"op": self.op, "elements": self.elements, "dtype": self.dtype}

    @property
    def unit(self) -> str:
        return vector_ops_of(self.dtype)

    @property
    def amount(self) -> int:
        return self.elements


Stage = DmaStage | RunsStage | MoveStage | GemmStage | MathStage


class TilePlan(NamedTuple):
    """One tile: its stages, and the tile buffers it needs in the scheduler's part of the TCM."""

    tile_id: int
    stages: tuple[Stage, ...]
    in_bytes: int = 0  # until it is fetched
    out_bytes: int = 0  # until it is done
    kind: tuple[int, ...] = ()  # the very same for tiles that differ only in where their bytes lie


class OperandGrid(NamedTuple):
    """Where the parts of an operand begin that tiles move: at the sum of what row, column and depth of a tile say."""

    operand: int
    rows: tuple[int, ...]  # offsets in bytes
    cols: tuple[int, ...]
    depths: tuple[int, ...]


class Outline(NamedTuple):
    """The tiles of a first pass, M first, then N, then K, without making them: their sizes and where operands lie."""

    rows: tuple[int, ...]  # sizes
    cols: tuple[int, ...]
    operands: tuple[OperandGrid, ...]


class PipelinePlan:
    """All tiles of a command, the same every time. Tiles from `barrier` on wait for those before.

    A plan names no place, so PEs share it. Its tiles are made when they are first needed, and kept unless they are very
    many.
    """

    def __init__(
        self,
        total_tiles: int,
        barrier: int,
        make: Callable[[int], Iterator[TilePlan]],
        tile: tuple[int, ...] = (),
        loop: int = 1,
        outline: Callable[[], Outline] | None = None,
    ) -> None:
        self.total_tiles = total_tiles
        self.tile = tile  # (m, k, n) of a product, (m, n) of a math op
        self.barrier = barrier
        self.loop = loop  # tiles per output tile
        self.outline = outline
        self._make = make  # the tiles from one on
        self._made: list[TilePlan] = []
        self._making: Iterator[TilePlan] | None = None

    def tiles(self, first: int = 0) -> Iterator[TilePlan]:
        """The tiles in order, from one on."""
        return self._kept() if not first and self.total_tiles <= MOST_KEPT_TILES else self._make(first)

    def _kept(self) -> Iterator[TilePlan]:
        """All tiles; what is made is kept for others."""
        made = self._made
        for at in range(self.total_tiles):
            if at == len(made):
                if self._making is None:
                    self._making = self._make(0)
                made.append(next(self._making))
            yield made[at]


class CommandContext:
    """One command under way: where its tokens go, and how many are done. Subclasses say what happens at its end."""

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
        """The token's last stage is over; raises ComponentError when that was said before."""
        if token.done:
            raise ComponentError(
                f"tile {token.plan.tile_id} is reported done twice",
                hint="an engine must hand each token on exactly once",
            )
        token.done = True
        self.completed_tiles += 1


class PipelineContext(CommandContext):
    """The tiles of a composite: each is written down when it is done, and reported."""

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
        self.record = record  # writes a tile down, returns the op-log id of its last stage; None without a log

    def complete_tile(self, token: TileToken) -> None:
        super().complete_tile(token)
        if self.record is not None:
            token.record = self.record(token)
        self.on_done(token)


class TileToken:
    """A tile under way. One engine owns it at a time."""

    __slots__ = (
        "causes", "context", "done", "index", "number", "order", "pending", "plan", "record", "stages",
        "start_ns", "times",
    )  # fmt: skip

    def __init__(
        self,
        plan: TilePlan,
        context: CommandContext,
        number: int = NOBODY,
        asked_ns: float = 0.0,
        release: int = Release.PROGRAM,
        released_by: int = NOBODY,
        order: int = 0,
    ) -> None:
        self.plan = plan
        self.stages = plan.stages
        self.index = 0
        self.context = context
        self.number = number  # that the op log knows it by
        self.order = order  # among the tiles that its PE was fed
        self.start_ns = 0.0  # of the stage being served
        self.times: list[float] = []  # start and end of the stages that are over
        self.causes: list[float] = [0, release, asked_ns, released_by]  # see `recording.Causes`
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
        """The present stage, for whoever it lets start."""
        return self.number << STAGE_BITS | self.index

    def waited(self, release: Release, ready_ns: float, released_by: int) -> None:
        """The present stage is let start by something else than the end of the stage before."""
        self.causes += (self.index, release, ready_ns, released_by)


class ServerQueue:
    """Something that serves one request at a time, in the order of asking."""

    __slots__ = ("busy_ns", "communication_ns", "free_ns", "holder")

    def __init__(self) -> None:
        self.free_ns = 0.0
        self.busy_ns = 0.0
        self.communication_ns = 0.0  # of that, for kernels of the communication stream
        self.holder = NOBODY  # the stage that it serves last, see `TileToken.ref`

    def serve(self, token: TileToken, now: float, ns: float) -> float:
        """Take the server for the present stage of a token that is ready; returns when it ends."""
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
        """It served for a while, without a word to anybody here."""
        self.busy_ns += ns
        if is_communication:
            self.communication_ns += ns

    def busy_ns_for(self, stream: LaunchStream) -> float:
        """For how long it was taken for one of the two streams."""
        return self.communication_ns if stream == "communication" else self.busy_ns - self.communication_ns


def work_ns(amount: int, per_ns: float) -> float:
    """How long `amount` of work takes at `per_ns`, on the grid."""
    return max(on_grid(amount / per_ns), GRID_NS)


def lanes_ns(elements: int, lanes_per_ns: float, dtype: str) -> float:
    """A vector op: whole ns, as a row of lanes starts every ns; f32 at half the lanes, one-byte types at double."""
    return float(max(ceil(elements / (lanes_per_ns * dtype_of(dtype).compute_scale)), 1))


class StageServer(Protocol):
    """An engine of a PE, as the scheduler and the engines before it need it."""

    on_room: Callable[[int], None] | None  # a feeder that waits for a place in the queue

    def take(self, token: TileToken) -> None:
        """Serve the token's present stage."""

    def has_room(self) -> bool:
        """Whether the feeder may let a token into this engine's queue; if not, it calls `on_room` later."""


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
        self.on_room: Callable[[int], None] | None = None  # a feeder that waits for a place in the queue

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

    def tell_room(self, left: int) -> None:
        """A place in the queue is free, since stage `left` left: wake the feeder, if it waits here."""
        wake, self.on_room = self.on_room, None
        if wake is not None:
            wake(left)

    def finish(self, token: TileToken) -> None:
        """The stage is over: on to the engine of the next, or done."""
        token.times += (token.start_ns, self.env.now)
        index = token.index + 1  # `hand_on`, written out
        if index < len(token.stages):
            token.index = index
            token.context.engines[token.stages[index].component].take(token)
        else:
            token.context.complete_tile(token)

    def hand_on(self, token: TileToken) -> None:
        """The stage is over, and its times are known."""
        index = token.index + 1
        if index < len(token.stages):
            token.index = index
            token.context.engines[token.stages[index].component].take(token)
        else:
            token.context.complete_tile(token)
