"""Record: simulates one composite on a private PE, and skips segments that repeat.

Whenever a step of tiles has been fed (`tile_steps.py`), the timing state of the PE and its fabric is taken
(`pe_state.py`, `fabric/snapshot.py`), relative to that instant. A segment (`segments.py`) leads from such a state, over
a step of certain tiles, to the next one. Where recorded segments form a cycle from the current state back to it, all of
them are skipped at once. States are compared as a whole, so this is exact, and no period has to be guessed.

Mostly it does not matter at which channels of a memory the tiles begin: transfers in whole rounds over channels that
are all alike. Then states and steps are compared without that, and the tiles under way are given their new places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from marshal import dumps
from typing import Any, NamedTuple

from kernbench.components.builtin.pe_scheduler import TileFeed
from kernbench.components.builtin.pe_state import ChannelPlacement, RelativeView
from kernbench.components.builtin.pipeline import TileToken
from kernbench.components.builtin.stages import DmaStage
from kernbench.components.memory_port import MemoryPort
from kernbench.components.recording import NO_REF
from kernbench.sim_engine.fabric import Transfer
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.snapshot import any_first_channel, state_of
from kernbench.sim_engine.memo.composite_recording import (
    BusyTimes,
    CompositeRecording,
    MovedKind,
    RecordedTile,
    ShiftedSegment,
    WorkByPart,
)
from kernbench.sim_engine.memo.private_pe import MachineParts, PeBlocks, PrivatePe
from kernbench.sim_engine.memo.segments import (
    RecordedSegment,
    RecordedSegments,
    RecordedState,
    SegmentOrRepeat,
    WorkTotals,
    segments_of,
    shifted,
)
from kernbench.sim_engine.memo.sub_network import SubNetwork
from kernbench.sim_engine.memo.tile_steps import TILES_BETWEEN, TileSteps

RECORDING_BYTES, ROW_BYTES, NUMBER_BYTES = 4096, 192, 32  # of memory: a recording, a row of it, and a number in a row
WORTH_TILES = 3 * TILES_BETWEEN


Wait = tuple[float, float]  # how long, and since when


class Mark(NamedTuple):
    """An instant at which the state was recorded."""

    state: RecordedState | None  # None where it is between places
    ns: float
    fed: int
    rows: int  # ended so far
    totals: WorkTotals


class CompositeRecorder:
    """Runs one composite."""

    def __init__(
        self,
        machine: MachineParts,
        sub_network: SubNetwork,
        blocks: PeBlocks,
        feed: TileFeed,
        ports: Sequence[MemoryPort],
    ) -> None:
        self._sub_network = sub_network
        self._private = private = PrivatePe(machine, sub_network)
        self._pe = pe = private.new_blocks(blocks.scheduler.node.id)
        self._recording = CompositeRecording(feed.plan)
        self._ended: list[int] = []
        self._rows: list[RecordedTile] = []  # of the tiles that were run
        self._work: WorkByPart = {}
        self._records = 0
        self._later_tiles, self._later_ns = 0, 0.0  # than the tiles and the time of the private PE
        self._added_rows = 0  # rows that are in the recording
        operands = private.operands(feed.context.operands, ports)
        self._feed = pe.scheduler.feed_of(
            feed.plan, feed.context.request, operands, (NO_REF, NO_REF), self._ended.append, self._record
        )
        self._placements = _placements(self._feed, private)
        self._passed: dict[int, tuple[RecordedSegment, int]] = {}  # segments, and how often, by identity
        self._under_way: list[TileToken] = []  # at the last mark
        self._waits: dict[int, Wait] = {}  # by link
        self._channel_waits: dict[tuple[int, int], Wait] = {}  # by memory and channel

    def run(self) -> CompositeRecording:
        plan, env = self._feed.plan, self._private.env
        can_skip = plan.outline is not None and plan.total_tiles >= WORTH_TILES and self._placements is not None
        self._pe.scheduler.admit(self._feed)
        if can_skip:
            self._run_with_marks()
        while not self._ended:
            env.step()
        self._add_rows()
        self._add_waits()
        self._recording.end_ns = env.now + self._later_ns
        self._note_totals()
        buffered = self._private.fabric.engine.buffered
        if buffered is not None:
            late = buffered.late_credits(env.now)
            self._recording.credits = [
                (link, at, [time + self._later_ns for time in times]) for link, at, times in late
            ]
        self._recording.kept_rows = len(self._rows)
        numbers = sum(len(times) + len(causes) for _, times, causes in self._rows)
        self._recording.nbytes = RECORDING_BYTES + ROW_BYTES * len(self._rows) + NUMBER_BYTES * numbers
        return self._recording

    def _record(self, token: TileToken) -> int:
        """A tile has ended."""
        times, work = token.times, self._work
        self._rows.append((token.number, times, token.causes))
        self._records += len(token.stages)
        for at, stage in enumerate(token.stages):
            key = stage.component, stage.unit
            ops, busy_ns, amount = work.get(key, (0, 0.0, 0))
            work[key] = (ops + 1, busy_ns + times[2 * at + 1] - times[2 * at], amount + stage.amount)
        return 0

    # ---- recorded segments

    def _run_with_marks(self) -> None:
        """Run the first pass, up to where all that follows can be skipped."""
        feed, plan, env = self._feed, self._feed.plan, self._private.env
        assert plan.outline is not None
        assert self._placements is not None
        steps = TileSteps(plan.loop, plan.outline(), self._placements)
        recorded = RecordedSegments(steps)
        groups = self._private.fabric.engine.groups.values()
        last: Mark | None = None
        while not self._ended:
            following = steps.following(feed.fed + self._later_tiles)
            if following is None:
                return
            while feed.fed < following - self._later_tiles and not self._ended:
                env.step()
            mark = self._mark(steps)
            self._add_segment(recorded, steps, last, mark, all(group.any_first_channel for group in groups))
            while (passed := self._skip(recorded, steps, mark)) is not None:
                mark = passed
            last = mark
            for group in groups:
                group.any_first_channel = True

    def _mark(self, steps: TileSteps) -> Mark:
        env, feed, fabric = self._private.env, self._feed, self._private.fabric
        fabric.split_all(env.now, INFINITY)
        place = steps.place_of(feed.fed + self._later_tiles)
        recorded = None
        if place is not None:
            state, plain = self._state(place[1])
            # Of rows that are runs of their own it matters where in a burst they begin: no other place is as good.
            is_plain = not self._feed.plan.by_rows and any_first_channel(fabric, env.now)
            recorded = RecordedState(place[0], state, plain if is_plain else b"")
        return Mark(recorded, env.now, feed.fed, len(self._rows), self._totals())

    def _add_segment(
        self, recorded: RecordedSegments, steps: TileSteps, start: Mark | None, end: Mark, any_first_channel: bool
    ) -> None:
        """What was run between two marks; `any_first_channel` if its timing does not depend on it."""
        if start is None or start.state is None or end.state is None:
            return
        if end.state.place - start.state.place == steps.places_per_step:
            rows = self._rows[start.rows : end.rows]
            segment = RecordedSegment(
                end.fed - start.fed, end.ns - start.ns, rows, start.ns, start.fed, start.totals, end.totals
            )
            recorded.add(start.state, end.state, segment)
            if start.state.plain and end.state.plain and any_first_channel:
                recorded.add_plain(start.state, end.state, segment)

    def _skip(self, recorded: RecordedSegments, steps: TileSteps, mark: Mark) -> Mark | None:
        """Skip all recorded segments that lead back to the current state; returns where that is, or None."""
        if mark.state is None:
            return None
        found, plain = recorded.cycle(mark.state), recorded.plain_cycle(mark.state)
        if plain is not None and (found is None or plain[0] > found[0].place):
            place, segment = plain
            self._skip_over(segment, mark.ns)
            over = steps.place_of(self._feed.fed + self._later_tiles)
            assert over is not None
            end = RecordedState(place, self._state(over[1])[0], mark.state.plain)
            if steps.is_in_one_loop(mark.state.place, place):
                recorded.add(mark.state, end, segment)
        elif found is not None:
            end, segment = found
            self._skip_over(segment, mark.ns)
        else:
            return None
        return mark._replace(state=end)

    def _skip_over(self, skipped: SegmentOrRepeat, now: float) -> None:
        """Continue as if all of it had been simulated."""
        self._add_rows()
        self._add_waits()
        self._recording.segments.append(shifted(skipped, self._feed.fed + self._later_tiles, now + self._later_ns))
        for segment, times in segments_of(skipped):
            self._passed[id(segment)] = (segment, self._passed.get(id(segment), (segment, 0))[1] + times)
        self._feed.skip(skipped.tiles)
        self._later_tiles += skipped.tiles
        self._later_ns += skipped.ns
        self._give_places()

    def _give_places(self) -> None:
        """Tiles under way are now others, of the same kind: their bytes lie elsewhere."""
        assert self._placements is not None
        if not self._under_way:
            return
        first = min(token.number for token in self._under_way)
        last = max(token.number for token in self._under_way)
        tiles = self._feed.plan.tiles(first + self._later_tiles)
        plans = dict(zip(range(first, last + 1), tiles, strict=False))
        for token in self._under_way:
            token.plan = plans[token.number]
            token.stages = token.plan.stages
        for event in self._private.fabric.engine.agenda:
            transfer = event[3]
            whose = transfer.tag
            assert isinstance(whose, TileToken)
            stage = whose.stages[whose.index]
            if isinstance(stage, DmaStage) and transfer.source is not None and not stage.is_by_rows:
                address, shift, _ = self._placements[stage.operand]
                transfer.block = (address + stage.offset) >> shift

    def _add_rows(self) -> None:
        """Tiles that have ended since this was last called become part of the recording."""
        if self._added_rows < len(self._rows):
            self._recording.segments.append(
                ShiftedSegment(self._rows[self._added_rows :], self._later_tiles, self._later_ns)
            )
            self._added_rows = len(self._rows)

    def _add_waits(self) -> None:
        """So are the longest waits: of equal ones the earliest."""
        engine, later_ns = self._private.fabric.engine, self._later_ns
        for link, wait, at in engine.links.take_waits():
            self._waits[link] = _longer(self._waits.get(link), wait, at + later_ns)
        for ours, _ in self._sub_network.channels:
            for channel, (wait, at) in enumerate(engine.groups[ours].take_waits()):
                if wait:
                    key = (ours, channel)
                    self._channel_waits[key] = _longer(self._channel_waits.get(key), wait, at + later_ns)

    # ---- the state

    def _state(self, over: int) -> tuple[bytes, bytes]:
        """The state relative to now, `over` tiles beyond a place; and the same without channels."""
        private, pe = self._private, self._pe
        env = private.env
        assert self._placements is not None
        view = RelativeView(env.now, self._feed.fed, self._placements)

        def subject_state(subject: object) -> object:
            if isinstance(subject, Transfer):
                return subject_state(subject.tag)
            assert isinstance(subject, TileToken)
            return view.token(subject)

        fabric = state_of(private.fabric, env.now, subject_state, view.first_channels)
        calls = tuple(
            (time - env.now, getattr(action, "__qualname__", ""), subject_state(subject))
            for time, action, subject in env.calls()
        )
        parts = [block.timing_state(view) for block in pe.all]
        self._under_way = list(view.tokens.values())
        state: Any = (over, *parts, calls, fabric)  # of numbers, strings and tuples of them
        plain = blake2b(dumps(state, 2), digest_size=24)  # version 2: the same bytes for equal values
        placed = plain.copy()
        placed.update(dumps(view.first_channels, 2))
        return placed.digest(), plain.digest()

    # ---- totals

    def _totals(self) -> WorkTotals:
        pe, private = self._pe, self._private
        tcm, groups = pe.tcm, private.fabric.engine.groups
        use = BusyTimes(
            pe.dma.busy_ns,
            pe.scheduler.compute_slots[0].busy_ns,
            tcm.read_port.busy_ns,
            tcm.write_port.busy_ns,
            tcm.busy_ns,
        )
        moved: dict[MovedKind, tuple[int, int]] = {}
        sub_network = self._sub_network
        for last_flit, flits, transfers in private.fabric.done():
            path = tuple(map(str, last_flit.route.path))
            is_read = path[0] != sub_network.paths[0][0]
            way = sub_network.paths.index(path[::-1] if is_read else path)
            moved[way, is_read, last_flit.kind_bytes, last_flit.spare] = flits, transfers
        bursts = [[row[0] for row in groups[ours].done()] for ours, _ in sub_network.channels]
        return WorkTotals(use, moved, bursts, dict(self._work), self._records)

    def _note_totals(self) -> None:
        recording, sub_network = self._recording, self._sub_network
        use, moved, bursts, work, records = self._totals()
        for segment, times in self._passed.values():
            before, after = segment.before, segment.after
            use = BusyTimes(*(now + times * (b - a) for now, a, b in zip(use, before.use, after.use, strict=True)))
            for kind, (flits, transfers) in after.moved.items():
                (old_flits, old), (had_flits, had) = before.moved.get(kind, (0, 0)), moved.get(kind, (0, 0))
                moved[kind] = (had_flits + times * (flits - old_flits), had + times * (transfers - old))
            for at, channels in enumerate(after.bursts):
                rows = zip(bursts[at], before.bursts[at], channels, strict=True)
                bursts[at] = [now + times * (b - a) for now, a, b in rows]
            for key, (ops, busy_ns, amount) in after.work.items():
                old_ops, old_ns, old_amount = before.work.get(key, (0, 0.0, 0))
                had_ops, had_ns, had_amount = work.get(key, (0, 0.0, 0))
                work[key] = (
                    had_ops + times * (ops - old_ops),
                    had_ns + times * (busy_ns - old_ns),
                    had_amount + times * (amount - old_amount),
                )
            records += times * (after.records - before.records)
        recording.use, recording.moved, recording.work, recording.records = use, moved, work, records
        recording.waits = [(link, *self._waits[link]) for link in sorted(self._waits)]
        for at, (ours, _) in enumerate(sub_network.channels):
            waits = [self._channel_waits.get((ours, channel), (0.0, 0.0)) for channel in range(len(bursts[at]))]
            recording.channels.append([(n, *wait) for n, wait in zip(bursts[at], waits, strict=True)])
            recording.directions.append(self._private.fabric.engine.groups[ours].directions)


def _longer(recorded: Wait | None, wait: float, at: float) -> Wait:
    """The longer of two waits, the earlier of equal ones."""
    if recorded is None or wait > recorded[0] or (wait == recorded[0] and at < recorded[1]):
        return wait, at
    return recorded


def _placements(feed: TileFeed, private: PrivatePe) -> Mapping[int, ChannelPlacement] | None:
    """Where operands lie that are behind memory channels; None where one lies in several pieces. Of one that moves by
    rows every byte of a round over the channels is a place of its own.
    """
    found: dict[int, ChannelPlacement] = {}
    groups = private.fabric.engine.groups
    network = private.fabric.network
    for number, access in enumerate(feed.context.operands):
        if access is None:
            continue
        if access.port is None:
            return None
        group = groups.get(network.node_index(access.port.path[-1]))
        if group is not None:
            is_by_rows = number in feed.plan.by_rows
            whole = (access.address, 0, (group.mask + 1 << group.shift) - 1)
            found[number] = whole if is_by_rows else (access.address, group.shift, group.mask)
    return found
