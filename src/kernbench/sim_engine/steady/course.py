"""The course of a composite that is alone: every stage of every tile, and what it leaves, timed from its begin.

It is found by running it on a PE of its own. Whoever begins with the same plan, over ways of the same kind and with
operands at the same places among the channels, takes the same course.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kernbench.components.base import MemoryPort
from kernbench.components.builtin.pe_scheduler import Cause, TileFeed
from kernbench.components.builtin.pipeline import PipelinePlan, TilePlan, TileToken
from kernbench.components.recording import NOBODY, STAGE_BITS
from kernbench.sim_engine.steady.private_pe import Machine, PeBlocks, PrivatePe
from kernbench.sim_engine.steady.ways import Ways

TileRow = tuple[int, list[float], list[float]]  # which tile, as fed; its times; its causes
Row = tuple[TilePlan, list[float], list[float], int]  # tile; times; causes; token


class Use(NamedTuple):
    """For how long blocks were busy."""

    dma_ns: float
    slot_ns: float
    tcm_read_ns: float
    tcm_write_ns: float
    tcm_ns: float


class Moved(NamedTuple):
    """Transfers of one kind: along which way, back or there, the size of the last flit, whole flits, transfers."""

    way: int
    is_read: bool
    last_bytes: int
    flits: int
    transfers: int


class Course:
    """From the begin, at 0, to `end_ns`."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan = plan
        self.end_ns = 0.0
        self.rows: list[TileRow] = []  # in the order in which tiles end
        self.records = 0
        self.work: dict[str, tuple[int, float, int]] = {}  # by part of the PE: ops, for how long, flops
        self.use = Use(0.0, 0.0, 0.0, 0.0, 0.0)
        self.moved: list[Moved] = []
        self.waits: list[tuple[int, float, float]] = []  # by link of the ways: the longest, and when it began
        self.channels: list[list[tuple[int, float, float]]] = []  # of each memory: bursts, longest wait, when it began
        self.directions: list[tuple[int, ...]] = []

    def all_rows(self, begin_ns: float, token: int, cause: Cause) -> Iterator[Row]:
        """Every tile, in the order in which they end, as the op log has them; the first tile is `token`."""
        tiles = enumerate(self.plan.tiles())
        waiting: dict[int, TilePlan] = {}  # fed, and yet to end
        for tile, times, causes in self.rows:
            while tile not in waiting:
                number, plan = next(tiles)
                waiting[number] = plan
            placed = _placed(causes, begin_ns, token, cause)
            yield waiting.pop(tile), [begin_ns + t for t in times], placed, token + tile


def _placed(causes: list[float], begin_ns: float, token: int, cause: Cause) -> list[float]:
    placed = causes[:]
    for at in range(0, len(causes), 4):
        placed[at + 2] += begin_ns
        if causes[at + 1] == NOBODY:
            placed[at + 1], placed[at + 3] = cause
        elif causes[at + 3] >= 0:
            placed[at + 3] += token << STAGE_BITS
    return placed


def run_course(machine: Machine, ways: Ways, blocks: PeBlocks, feed: TileFeed, ports: Sequence[MemoryPort]) -> Course:
    """The course of a composite that is about to begin; nothing of the machine is changed."""
    private = PrivatePe(machine, ways, blocks.dma.node.id, 0.0, lent=False)
    pe = private.new_blocks(blocks.scheduler.node.id)
    course = Course(feed.plan)
    ended: list[int] = []

    def record(token: TileToken) -> int:
        course.rows.append((token.number, token.times, token.causes))
        return 0

    operands = private.operands(feed.context.operands, ports)
    own = pe.scheduler.feed_of(feed.plan, feed.context.request, operands, (NOBODY, NOBODY), ended.append, record)
    pe.scheduler.let_in(own)
    env = private.env
    while not ended:
        env.step()
    course.end_ns = env.now
    _note_work(course)
    _note_use(course, private, pe, ways)
    return course


def _note_work(course: Course) -> None:
    """What every part of the PE has done, added up over the rows."""
    work = course.work
    for tile, times, _, _ in course.all_rows(0.0, 0, (NOBODY, NOBODY)):
        course.records += len(tile.stages)
        for at, stage in enumerate(tile.stages):
            ops, busy_ns, flops = work.get(stage.component, (0, 0.0, 0))
            lasted_ns = times[2 * at + 1] - times[2 * at]
            work[stage.component] = (ops + 1, busy_ns + lasted_ns, flops + stage.flops)


def _note_use(course: Course, private: PrivatePe, pe: PeBlocks, ways: Ways) -> None:
    tcm = pe.tcm
    course.use = Use(
        pe.dma.busy_ns,
        pe.scheduler.compute_slots[0].busy_ns,
        tcm.read_port.busy_ns,
        tcm.write_port.busy_ns,
        tcm.busy_ns,
    )
    for last_flit, (flits, transfers) in private.fabric.done_so_far().items():
        path = last_flit.route.path
        is_read = path[0] != ways.paths[0][0]
        way = ways.paths.index(tuple(map(str, path[::-1] if is_read else path)))
        course.moved.append(Moved(way, is_read, last_flit.nbytes, flits, transfers))
    links = private.fabric.engine.links
    course.waits = [(at, wait, links.worst_at[at]) for at, wait in enumerate(links.worst) if wait]
    groups = private.fabric.engine.groups
    course.channels = [groups[ours].done() for ours, _ in ways.channels]
    course.directions = [groups[ours].directions for ours, _ in ways.channels]


class CourseRows:
    """The records of one composite, as the op log keeps them: told when somebody reads."""

    def __init__(self, course: Course, begin_ns: float, token: int, cause: Cause) -> None:
        self._course = course
        self._begin_ns = begin_ns
        self._token = token
        self._cause = cause

    @property
    def records(self) -> int:
        return self._course.records

    def work(self) -> dict[str, tuple[int, float, int]]:
        return self._course.work

    def __iter__(self) -> Iterator[Row]:
        return self._course.all_rows(self._begin_ns, self._token, self._cause)
