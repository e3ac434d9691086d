"""Record: what one composite does on reserved links. Every stage of every tile and all counters, timed from its begin.

A composite with the same plan, over a sub-network of the same shape and with operands at the same places among the
channels, has the same recording. Segments that repeat are kept once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kernbench.components.builtin.pe_scheduler import Cause
from kernbench.components.builtin.tile_plan import PipelinePlan, TilePlan
from kernbench.components.recording import NO_REF, STAGE_BITS
from kernbench.sim_engine.fabric.buffered_flits import BufferLateCredits

RecordedTile = tuple[int, list[float], list[float]]  # which tile, as fed; its times; its causes
ComputedRow = tuple[TilePlan, list[float], list[float], int]  # tile; times; causes; token


class BusyTimes(NamedTuple):
    """For how long blocks were busy."""

    dma_ns: float
    slot_ns: float
    tcm_read_ns: float
    tcm_write_ns: float
    tcm_ns: float


# Of transfers: along which way, whether it is a read, bytes of the last flit, and granules that its burst lacks.
MovedKind = tuple[int, bool, int, int]
WorkByPart = dict[tuple[str, str], tuple[int, float, int]]  # by part of the PE and unit: ops, busy ns, how much


class ShiftedSegment(NamedTuple):
    """Tiles that end one after the other, moved to another time and to other tiles: all of it so much later."""

    rows: list[RecordedTile]
    tiles: int
    ns: float


class ShiftedRepeat(NamedTuple):
    """Segments that come `times` times, each time so many tiles and ns after the last."""

    segments: list[ShiftedSegment | ShiftedRepeat]
    times: int
    tiles: int
    ns: float


def _in_order(segments: list[ShiftedSegment | ShiftedRepeat], tiles: int, ns: float) -> Iterator[ShiftedSegment]:
    """Every single segment, so much later."""
    for segment in segments:
        if isinstance(segment, ShiftedSegment):
            yield ShiftedSegment(segment.rows, segment.tiles + tiles, segment.ns + ns)
        else:
            for n in range(segment.times):
                yield from _in_order(segment.segments, tiles + n * segment.tiles, ns + n * segment.ns)


class CompositeRecording:
    """From the begin, at 0, to `end_ns`."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.plan = plan
        self.end_ns = 0.0
        self.segments: list[ShiftedSegment | ShiftedRepeat] = []  # in the order in which tiles end
        self.kept_rows = 0
        self.nbytes = 0  # about how much memory it takes
        self.records = 0
        self.work: WorkByPart = {}
        self.use = BusyTimes(0.0, 0.0, 0.0, 0.0, 0.0)
        self.moved: dict[MovedKind, tuple[int, int]] = {}
        self.waits: list[tuple[int, float, float]] = []  # by link of the paths: the longest, and when it began
        self.channels: list[list[tuple[int, float, float]]] = []  # of each memory: bursts, longest wait, when it began
        self.directions: list[tuple[int, ...]] = []
        self.credits: list[BufferLateCredits] = []  # of finite buffers, by link of the paths: after the end

    def all_rows(self, begin_ns: float, token: int, cause: Cause) -> Iterator[ComputedRow]:
        """Every tile, in the order in which they end, as the op log has them; the first tile is `token`."""
        tiles = enumerate(self.plan.tiles())
        waiting: dict[int, TilePlan] = {}  # fed, and yet to end
        for rows, later, ns in _in_order(self.segments, 0, 0.0):
            since, first = begin_ns + ns, token + later
            for number, times, causes in rows:
                tile = number + later
                while tile not in waiting:
                    at, plan = next(tiles)
                    waiting[at] = plan
                yield (
                    waiting.pop(tile),
                    [since + t for t in times],
                    _placed(causes, since, first, cause),
                    first + number,
                )


def _placed(causes: list[float], begin_ns: float, token: int, cause: Cause) -> list[float]:
    placed = causes[:]
    for at in range(0, len(causes), 4):
        placed[at + 2] += begin_ns
        if causes[at + 1] == NO_REF:
            placed[at + 1], placed[at + 3] = cause
        elif causes[at + 3] >= 0:
            placed[at + 3] += token << STAGE_BITS
    return placed


class RecordedTiles:
    """The records of one composite, as the op log keeps them: expanded when the log is read."""

    def __init__(self, recording: CompositeRecording, begin_ns: float, token: int, cause: Cause) -> None:
        self._recording = recording
        self._begin_ns = begin_ns
        self._token = token
        self._cause = cause

    @property
    def records(self) -> int:
        return self._recording.records

    def work(self) -> WorkByPart:
        return self._recording.work

    def __iter__(self) -> Iterator[ComputedRow]:
        return self._recording.all_rows(self._begin_ns, self._token, self._cause)
