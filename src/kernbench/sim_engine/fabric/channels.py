"""Memory channels behind a node: which burst goes to which channel, and when it is finished.

A flit is one burst; its address names the channel, `(address / burst bytes) mod channels`. A transfer either rotates
over all channels of its memory, one burst after the other, or, where channels are `separate`, has all its bursts on the
channel of its address: its next burst lies `channels` bursts further on. A burst starts at max(ready, channel free),
plus the switch penalty where the channel's direction turns, and holds the channel for one burst time.
A last burst that is not full takes the time of its granules, and at least `open_ns`, unless its transfer has used that
channel before. Where writes are drained in batches (`drain_bytes`), the penalty is not paid at each change of direction
but once for every so many bytes written, if there was a read since the last time.
Reads and writes share a channel. A read commits all its bursts when it arrives. A write commits each flit when that
arrives, in order of arrival; it is not read before something depends on it, so arrivals are committed in batches.
Banks, and the limits of the controller's own queue, are not modelled here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import ClassVar, NamedTuple, Protocol

from kernbench.common.declared_state import Derived, StateField, instants, quantity
from kernbench.common.units import on_grid
from kernbench.sim_engine.fabric.progressions import Pace, Progression

READ, WRITE = 1, 2
CHANNEL_SHIFT = 56  # a block of separate channels is `channel << CHANNEL_SHIFT | place on that channel`
MOST_PENDING = 64  # write flits on their way in that are kept at least

DRAINED = 4  # directions from this on are `DRAINED + 2 * granules written since the last drain + whether one was read`

ChannelState = tuple[list[float], list[int], list[int], int, list[float], list[float]]


class ChannelSpec(NamedTuple):
    """The channels behind one node, as `ChannelGroup` takes them. All durations are on the time grid."""

    channels: int
    burst_bytes: int
    burst_ns: float
    penalty_ns: float
    separate: bool = False  # whether a transfer uses one channel only
    granule_bytes: int = 0  # what a short burst is counted in; 0: bursts are always whole
    open_ns: float = 0.0  # the least time of a short burst
    drain_bytes: int = 0  # writes are drained in batches of so many; 0: each change of direction costs the penalty


class WriteBursts(Protocol):
    """What a write passes to its memory, and gets back."""

    block: int  # its address in bursts, as `ChannelGroup.block_of` counts them
    flits: int
    last: int  # index of the last flit
    spare: int  # granules that its last burst lacks
    finish_ns: float  # of its latest burst committed so far


class ChannelGroup:
    """The memory channels behind one node: when each is free, which way it is turned, what it has done."""

    STATE = (
        instants("_free_ns"),
        StateField("_direction", lambda group, view: group.directions if group.penalty_ns else ()),
        quantity("users"),
        StateField("pending", lambda group, view: view.pending(group.pending)),
    )
    DERIVED: ClassVar[Derived] = (
        "_all_waited_ns", "_busy_with", "_counted", "_extra", "_rounds", "_worst_at_ns", "_worst_ns", "even", "lent_to",
        "most_pending",
    )  # fmt: skip

    __slots__ = (
        "_all_waited_ns", "_busy_with", "_counted", "_direction", "_extra", "_free_ns", "_rounds",
        "_worst_at_ns", "_worst_ns",
        "burst_ns", "drain", "even", "granule_ns", "granule_shift", "lent_to", "mask", "most_pending", "node",
        "open_ns", "penalty_ns", "pending", "per_burst", "separate", "shift", "users",
    )  # fmt: skip

    def __init__(
        self,
        node: int,
        channels: int,
        burst_bytes: int,
        burst_ns: float,
        penalty_ns: float,
        separate: bool = False,
        granule_bytes: int = 0,
        open_ns: float = 0.0,
        drain_bytes: int = 0,
    ) -> None:
        """The arguments are those of a `ChannelSpec`."""
        self.node = node
        self.separate = separate
        self.mask = 0 if separate else channels - 1  # of the channels that one transfer rotates over
        self.shift = burst_bytes.bit_length() - 1
        self.burst_ns = burst_ns
        self.penalty_ns = penalty_ns
        self.granule_shift = (granule_bytes or burst_bytes).bit_length() - 1
        self.per_burst = burst_bytes >> self.granule_shift  # of a whole burst
        self.granule_ns = on_grid(burst_ns / self.per_burst)
        self.open_ns = open_ns
        self.drain = -(-drain_bytes >> self.granule_shift) if penalty_ns else 0  # granules of a batch of writes
        self.pending: list[tuple[float, float, int, WriteBursts]] = []  # write flits on their way: ready, order, index
        self.most_pending = MOST_PENDING  # above this, those that have arrived are committed
        self.users = 0  # writes moved flit by flit whose last burst is not committed
        self.even: bool | None = None  # whether all went as it would from any other channel on; None: not asked for
        self._busy_with: WriteBursts | None = (
            None  # the write that has all channels that are taken, where that is asked
        )
        self.lent_to: object = None  # who has its state for now (`loop_reads.py`)
        self._free_ns = [0.0] * channels
        self._direction = [0] * channels
        self._rounds = 0  # bursts that every channel has had,
        self._extra = [0] * channels  # and granules beyond them
        self._counted = [
            0
        ] * channels  # granules of replayed accesses: they stay, whatever state `restore` goes back to
        self._worst_ns = [0.0] * channels  # longest wait for the channel
        self._worst_at_ns = [0.0] * channels  # when it began
        self._all_waited_ns = 0.0  # at least as long as this, every channel has kept a request waiting

    @property
    def channels(self) -> int:
        return len(self._free_ns)

    def block_of(self, address: int) -> int:
        """An address in bursts; of separate channels, the channel and the place on it."""
        block = address >> self.shift
        if not self.separate:
            return block
        place, channel = divmod(block, self.channels)
        return channel << CHANNEL_SHIFT | place

    def address_of(self, block: int) -> int:
        """The address of a block: the inverse of `block_of`."""
        if self.separate:
            channel, place = divmod(block, 1 << CHANNEL_SHIFT)
            block = place * self.channels + channel
        return block << self.shift

    def channel_of(self, block: int) -> int:
        """The channel that a block is on."""
        return (block >> CHANNEL_SHIFT) + (block & self.mask)

    def spare_of(self, last_bytes: int) -> int:
        """How many granules a last burst of so many bytes lacks, from the beginning of a granule on."""
        return self.per_burst - (-(-last_bytes >> self.granule_shift))

    def last_ns(self, flits: int, spare: int) -> float:
        """How long the last burst of a transfer takes that lacks `spare` granules."""
        if not spare:
            return self.burst_ns
        least_ns = self.open_ns if flits <= self.mask + 1 else 0.0  # else the row was opened by a burst before it
        return max(self.burst_ns - spare * self.granule_ns, least_ns)

    def done(self) -> list[tuple[int, float, float]]:
        """Of every channel: granules, longest wait and when that began."""
        rounds = self._rounds * self.per_burst
        rows = zip(self._extra, self._counted, self._worst_ns, self._worst_at_ns, strict=True)
        return [(rounds + extra + counted, wait, at) for extra, counted, wait, at in rows]

    def total_granules(self) -> int:
        return self._rounds * self.per_burst * len(self._extra) + sum(self._extra) + sum(self._counted)

    def is_idle(self, now: float) -> bool:
        """Whether every burst is finished, and no write is under way."""
        return not self.pending and not self.users and max(self._free_ns) <= now

    # ---- writes, flit by flit

    def flush(self, now: float) -> None:
        """Commit the write flits that have arrived by `now`. What is not known yet arrives later."""
        pending = self.pending
        if not pending:
            return
        pending.sort()
        n = len(pending) if pending[-1][0] <= now else bisect_right(pending, now, key=itemgetter(0))
        mask, burst_ns, free_ns, granules = self.mask, self.burst_ns, self._free_ns, self._extra
        direction, worst_ns, whole = self._direction, self._worst_ns, self.per_burst
        for ready, _, i, transfer in pending[:n]:
            # `_commit` and `channel_of`, written out: calls for each flit would double its cost
            block = transfer.block + i
            channel = (block >> CHANNEL_SHIFT) + (block & mask)
            if self.even:
                self._judge_write(transfer, ready)
            start = free_ns[channel]
            if start <= ready:
                start = ready
            elif start - ready > worst_ns[channel]:
                self._note_wait(channel, start - ready, ready)
            spare = transfer.spare if i == transfer.last else 0
            if direction[channel] != WRITE:
                start = self._with_turnaround(channel, start, WRITE, whole - spare)
            free_ns[channel] = finish = start + (self.last_ns(transfer.flits, spare) if spare else burst_ns)
            granules[channel] += whole - spare
            if finish > transfer.finish_ns:
                transfer.finish_ns = finish
        del pending[:n]
        self.most_pending = max(MOST_PENDING, 2 * len(pending))

    def _judge_write(self, transfer: WriteBursts, ready: float) -> None:
        """A burst of a write comes: another first channel would do as well if it has all of them to itself."""
        if max(self._free_ns) <= ready:
            self._busy_with = transfer
        is_whole = not transfer.flits & self.mask and not transfer.spare
        self.even = not self.separate and self._busy_with is transfer and is_whole

    # ---- writes, as progressions of arrival times

    def commit_writes(
        self, block: int, progressions: list[Progression], flits: int = 0, spare: int = 0
    ) -> tuple[float, ChannelState]:
        """Commit flits from `block` on that arrive at `progressions`. With `spare`, the very last one lacks so many
        granules of a burst, as the last of a transfer of `flits`.

        Returns when the last burst is finished, and the state before, to which `restore` goes back: that is not changed
        but replaced.
        """
        before = self._free_ns, self._direction, self._extra, self._rounds, self._worst_ns, self._worst_at_ns
        end, channels = 0.0, self.mask + 1
        short_ns: float | None = None  # when the short burst arrives
        if spare and progressions:
            t, dt, n = progressions[-1]
            short_ns = t + (n - 1) * dt
            progressions = [*progressions[:-1], (t, dt, n - 1)] if n > 1 else progressions[:-1]
        for t, dt, n in progressions:
            if n >= channels and channels * dt >= self.burst_ns and self._is_idle(t, WRITE):
                finish = self._write_to_idle(block, t, dt, n)
            else:
                self._copy_state()
                finish = self._write_progression(block, t, dt, n)
            if finish > end:
                end = finish
            block += n
        if short_ns is not None:
            self._copy_state()
            end = max(end, self._commit(self.channel_of(block), short_ns, WRITE, flits, spare))
        return end, before

    def _copy_state(self) -> None:
        """What follows is done to a copy, so that the state before can be restored."""
        if self.even:
            self.even = False
        self._free_ns, self._direction, self._extra = self._free_ns[:], self._direction[:], self._extra[:]
        self._worst_ns, self._worst_at_ns = self._worst_ns[:], self._worst_at_ns[:]

    def restore(self, state: ChannelState) -> None:
        self._free_ns, self._direction, self._extra, self._rounds, self._worst_ns, self._worst_at_ns = state
        self._all_waited_ns = 0.0

    def _is_idle(self, now: float, direction: int) -> bool:
        """Whether a transfer rotates over channels that are all free at `now` and turn for nothing."""
        if self.separate or max(self._free_ns) > now:
            return False
        if self.drain:
            return direction == READ or not any(map(self._will_turn, range(len(self._direction))))
        return not self.penalty_ns or self._direction.count(direction) == len(self._direction)

    def _write_to_idle(self, block: int, t: float, dt: float, n: int) -> float:
        """No faster than the channels take it, so nothing waits, and the last round says when they are free."""
        channels = self.mask + 1
        rounds, more = divmod(n, channels)
        self._rounds += rounds
        if more:
            if self.even:
                self.even = False
            self._extra = self._extra[:]
            for i in range(more):
                self._extra[(block + i) & self.mask] += self.per_burst
        first = t + (n - channels) * dt + self.burst_ns
        free_ns = [first + i * dt for i in range(channels)]
        begins_at = (block + n) & self.mask  # the last round: its first channel
        self._free_ns = free_ns[-begins_at:] + free_ns[:-begins_at] if begins_at else free_ns
        if self.drain:
            self._direction = self._direction[:]
            for i in range(channels):
                self._note_written((block + i) & self.mask, rounds + (i < more))
        else:
            self._direction = [WRITE] * channels
        return t + (n - 1) * dt + self.burst_ns

    def _write_progression(self, block: int, t: float, dt: float, n: int) -> float:
        channels, end = self.mask + 1, 0.0
        for j in range(min(n, channels)):
            channel, ready = self.channel_of(block + j), t + j * dt
            finish = self._commit(channel, ready, WRITE)
            more = (n - j - 1) // channels
            while more and self.drain and self._will_turn(channel):
                ready, more = ready + channels * dt, more - 1
                finish = self._commit(channel, ready, WRITE)
            if more:
                finish = self._follow(channel, ready, channels * dt, more, finish)
                if self.drain:
                    self._note_written(channel, more)
            if finish > end:
                end = finish
        return end

    # ---- reads

    def commit_reads(self, block: int, flits: int, now: float, spare: int = 0) -> Pace:
        """Commit a read of `flits` bursts from `block` on, all at `now`; returns when each flit may leave. The last
        one lacks `spare` granules.
        """
        channels, burst_ns = self.mask + 1, self.burst_ns
        if flits >= channels and self._is_idle(now, READ):
            self._read_from_idle(block, flits, now, spare)
            return self.pace_from_idle(now, flits, spare)
        if self.even:
            self.even = False
        latest, own_end = 0.0, 0.0
        firsts: list[float] = []
        for j in range(min(flits, channels)):
            channel = self.channel_of(block + j)
            more = (flits - j - 1) // channels
            is_short = spare > 0 and j + more * channels == flits - 1  # this channel has the last burst
            first = self._commit(channel, now, READ, flits, spare if is_short and not more else 0)
            if is_short and more:
                if more > 1:
                    self._follow(channel, now, 0.0, more - 1, first)
                own_end = self._commit(channel, now, READ, flits, spare)
            elif more:
                self._follow(channel, now, 0.0, more, first)
            if first > latest:
                latest = first
            firsts.append(latest)
        pace = Pace(firsts, burst_ns, flits, simultaneous=firsts[0] == latest)
        if own_end:
            pace.end = max(own_end, pace.time(flits - 2))
        return pace

    def pace_from_idle(self, now: float, flits: int, spare: int) -> Pace:
        """When the flits of a read may leave if all channels are idle at `now`."""
        channels, burst_ns = self.mask + 1, self.burst_ns
        firsts, end = [now + burst_ns] * min(flits, channels), None
        rounds, place = divmod(flits - 1, channels)
        if spare and not place:  # in any other place it waits for the flit before it
            short_ns = now + rounds * burst_ns + self.last_ns(flits, spare)
            if rounds:
                end = short_ns
            else:
                firsts = [short_ns]
        return Pace(firsts, burst_ns, flits, simultaneous=True, end=end)

    def read_if_idle(self, block: int, flits: int, now: float, spare: int = 0) -> bool:
        """`commit_reads` where every channel is idle and none is left out; False, and nothing changed, elsewhere."""
        if self.pending or flits <= self.mask or not self._is_idle(now, READ):
            return False
        self._read_from_idle(block, flits, now, spare)
        return True

    def _read_from_idle(self, block: int, flits: int, now: float, spare: int) -> None:
        """Bursts in rounds over all channels; those from `block` on may have one more than the others."""
        channels, burst_ns = self.mask + 1, self.burst_ns
        rounds, more = divmod(flits, channels)
        if (more or spare) and self.even:
            self.even = False
        self._rounds += rounds
        self._free_ns = [now + rounds * burst_ns] * channels
        if self.drain:
            self._direction = [(code or DRAINED) | 1 for code in self._direction]
        else:
            self._direction = [READ] * channels
        for i in range(more):
            channel = (block + i) & self.mask
            self._extra[channel] += self.per_burst
            self._free_ns[channel] += burst_ns
        longest_ns = (flits - 1) // channels * burst_ns
        if longest_ns > self._all_waited_ns:
            for channel, free in enumerate(self._free_ns):
                self._note_wait(channel, free - burst_ns - now, now)
            self._all_waited_ns = min(self._worst_ns)
        if spare:
            channel = (block + flits - 1) & self.mask
            self._extra[channel] -= spare
            self._free_ns[channel] += self.last_ns(flits, spare) - burst_ns

    def busy_for(self, now: float) -> tuple[float, ...]:
        """For how long every channel is still taken."""
        return tuple(free - now if free > now else 0.0 for free in self._free_ns)

    # ---- what was done elsewhere

    def add_done(self, rows: Sequence[tuple[int, float, float]], since: float = 0.0) -> None:
        """Count what every channel has done: granules, longest wait and when that began, from `since` on."""
        self._counted = [counted + granules for counted, (granules, _, _) in zip(self._counted, rows, strict=True)]
        for channel, (_, wait, at) in enumerate(rows):
            self._note_wait(channel, wait, since + at)

    def take_waits(self) -> list[tuple[float, float]]:
        """The longest wait for every channel since this was last asked, and when it began."""
        waits = list(zip(self._worst_ns, self._worst_at_ns, strict=True))
        self._worst_ns, self._worst_at_ns = [0.0] * len(waits), [0.0] * len(waits)
        self._all_waited_ns = 0.0
        return waits

    @property
    def directions(self) -> tuple[int, ...]:
        """Which way every channel is turned."""
        return tuple(self._direction)

    def turn_to(self, directions: Sequence[int]) -> None:
        """Every channel is turned as `directions` say, 0 for one that has done nothing."""
        self._direction = list(directions)

    # ---- one channel

    def _commit(self, channel: int, ready_ns: float, direction: int, flits: int = 0, spare: int = 0) -> float:
        """Put one burst on a channel; returns when it is finished. With `spare` it is the last of `flits`."""
        start = self._free_ns[channel]
        if start > ready_ns:
            self._note_wait(channel, start - ready_ns, ready_ns)
        else:
            start = ready_ns
        if self._direction[channel] != direction:
            start = self._with_turnaround(channel, start, direction, self.per_burst - spare)
        self._free_ns[channel] = finish = start + (self.last_ns(flits, spare) if spare else self.burst_ns)
        self._extra[channel] += self.per_burst - spare
        return finish

    def _with_turnaround(self, channel: int, start: float, direction: int, granules: int) -> float:
        """The channel takes another direction, or notes what it is given; returns when it can start. The first
        direction of all is free.
        """
        code = self._direction[channel]
        if not self.drain:
            self._direction[channel] = direction
            return start + self.penalty_ns if code else start
        if direction == READ:
            self._direction[channel] = (code or DRAINED) | 1
            return start
        written, was_read = divmod((code or DRAINED) - DRAINED, 2)
        written += granules
        if written >= self.drain:
            written %= self.drain
            if was_read:
                start, was_read = start + self.penalty_ns, 0
        self._direction[channel] = DRAINED + 2 * written + was_read
        return start

    def _will_turn(self, channel: int) -> bool:
        """Whether some write to come will pay for a drain."""
        code = self._direction[channel]
        return code >= DRAINED and code % 2 == 1

    def _note_written(self, channel: int, bursts: int) -> None:
        """So many whole bursts are written to a channel that has not been read since its last drain."""
        written = ((self._direction[channel] or DRAINED) - DRAINED) // 2 + bursts * self.per_burst
        self._direction[channel] = DRAINED + 2 * (written % self.drain)

    def _follow(self, channel: int, ready_ns: float, step_ns: float, more: int, finish: float) -> float:
        """`more` bursts in one direction after one that was ready at `ready_ns` and is over at `finish`."""
        burst_ns = self.burst_ns
        end = max(finish + more * burst_ns, ready_ns + more * step_ns + burst_ns)
        # Waits grow or shrink evenly along the progression, so the longest is the first one's or the last one's.
        self._note_wait(channel, finish - ready_ns - step_ns, ready_ns + step_ns)
        self._note_wait(channel, end - burst_ns - ready_ns - more * step_ns, ready_ns + more * step_ns)
        self._free_ns[channel] = end
        self._extra[channel] += more * self.per_burst
        return end

    def _note_wait(self, channel: int, wait_ns: float, at_ns: float) -> None:
        if wait_ns > self._worst_ns[channel]:
            self._worst_ns[channel] = wait_ns
            self._worst_at_ns[channel] = at_ns
