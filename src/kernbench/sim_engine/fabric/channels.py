"""Memory channels behind a node: which burst goes to which channel, and when it is finished.

A flit is one burst; its address names the channel, `(address / burst bytes) mod channels`. A transfer either rotates
over all channels of its memory, one burst after the other, or, where channels are `separate`, has all its bursts on the
channel of its address: its next burst lies `channels` bursts further on. A burst starts at max(ready, channel free),
plus the switch penalty where the channel's direction turns, and holds the channel for one burst time.
Reads and writes share a channel. A read commits all its bursts when it arrives. A write commits each flit when that
arrives, in order of arrival; it is not read before something depends on it, so arrivals are committed in batches.
Rows, refresh and the limits of the controller's own queue are not modelled.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import itemgetter
from typing import ClassVar, Protocol

from kernbench.common.declared_state import Derived, StateField, instants, quantity
from kernbench.sim_engine.fabric.progressions import Pace, Progression

READ, WRITE = 1, 2
CHANNEL_SHIFT = 56  # a block of separate channels is `channel << CHANNEL_SHIFT | place on that channel`
MOST_PENDING = 64  # write flits on their way in that are kept at least

ChannelState = tuple[list[float], list[int], list[int], int, list[float], list[float]]


class WriteBursts(Protocol):
    """What a write passes to its memory, and gets back."""

    block: int  # its address in bursts, as `ChannelGroup.block_of` counts them
    flits: int
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
        "_all_waited_ns", "_busy_with", "_counted", "_extra", "_rounds", "_worst_at_ns", "_worst_ns", "even",
        "most_pending",
    )  # fmt: skip

    __slots__ = (
        "_all_waited_ns", "_busy_with", "_counted", "_direction", "_extra", "_free_ns", "_rounds",
        "_worst_at_ns", "_worst_ns",
        "burst_ns", "even", "mask", "most_pending", "node", "penalty_ns", "pending", "separate", "shift", "users",
    )  # fmt: skip

    def __init__(
        self,
        node: int,
        channels: int,
        burst_bytes: int,
        burst_ns: float,
        penalty_ns: float,
        separate: bool = False,  # whether a transfer uses one channel only
    ) -> None:
        self.node = node
        self.separate = separate
        self.mask = 0 if separate else channels - 1  # of the channels that one transfer rotates over
        self.shift = burst_bytes.bit_length() - 1
        self.burst_ns = burst_ns
        self.penalty_ns = penalty_ns
        self.pending: list[tuple[float, float, int, WriteBursts]] = []  # write flits on their way: ready, order, index
        self.most_pending = MOST_PENDING  # above this, those that have arrived are committed
        self.users = 0  # writes moved flit by flit whose last burst is not committed
        self.even: bool | None = None  # whether all went as it would from any other channel on; None: not asked for
        self._busy_with: WriteBursts | None = (
            None  # the write that has all channels that are taken, where that is asked
        )
        self._free_ns = [0.0] * channels
        self._direction = [0] * channels
        self._rounds = 0  # bursts that every channel has had,
        self._extra = [0] * channels  # and those beyond them
        self._counted = [0] * channels  # bursts of replayed accesses: they stay, whatever state `restore` goes back to
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

    def done(self) -> list[tuple[int, float, float]]:
        """Of every channel: bursts, longest wait and when that began."""
        rounds = self._rounds
        rows = zip(self._extra, self._counted, self._worst_ns, self._worst_at_ns, strict=True)
        return [(rounds + extra + counted, wait, at) for extra, counted, wait, at in rows]

    def total_bursts(self) -> int:
        return self._rounds * len(self._extra) + sum(self._extra) + sum(self._counted)

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
        mask, burst_ns, free_ns, bursts = self.mask, self.burst_ns, self._free_ns, self._extra
        direction, worst_ns = self._direction, self._worst_ns
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
            if direction[channel] != WRITE:
                start = self._with_turnaround(channel, start, WRITE)
            free_ns[channel] = finish = start + burst_ns
            bursts[channel] += 1
            if finish > transfer.finish_ns:
                transfer.finish_ns = finish
        del pending[:n]
        self.most_pending = max(MOST_PENDING, 2 * len(pending))

    def _judge_write(self, transfer: WriteBursts, ready: float) -> None:
        """A burst of a write comes: another first channel would do as well if it has all of them to itself."""
        if max(self._free_ns) <= ready:
            self._busy_with = transfer
        self.even = not self.separate and self._busy_with is transfer and not transfer.flits & self.mask

    # ---- writes, as progressions of arrival times

    def commit_writes(self, block: int, progressions: list[Progression]) -> tuple[float, ChannelState]:
        """Commit flits from `block` on that arrive at `progressions`.

        Returns when the last burst is finished, and the state before, to which `restore` goes back: that is not changed
        but replaced.
        """
        before = self._free_ns, self._direction, self._extra, self._rounds, self._worst_ns, self._worst_at_ns
        end, channels = 0.0, self.mask + 1
        for t, dt, n in progressions:
            if n >= channels and channels * dt >= self.burst_ns and self._is_idle(t, WRITE):
                finish = self._write_to_idle(block, t, dt, n)
            else:
                if self.even:
                    self.even = False
                self._free_ns, self._direction, self._extra = self._free_ns[:], self._direction[:], self._extra[:]
                self._worst_ns, self._worst_at_ns = self._worst_ns[:], self._worst_at_ns[:]
                finish = self._write_progression(block, t, dt, n)
            if finish > end:
                end = finish
            block += n
        return end, before

    def restore(self, state: ChannelState) -> None:
        self._free_ns, self._direction, self._extra, self._rounds, self._worst_ns, self._worst_at_ns = state
        self._all_waited_ns = 0.0

    def _is_idle(self, now: float, direction: int) -> bool:
        """Whether a transfer rotates over channels that are all free at `now` and turn for nothing."""
        if self.separate or max(self._free_ns) > now:
            return False
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
                self._extra[(block + i) & self.mask] += 1
        first = t + (n - channels) * dt + self.burst_ns
        in_turn = [first + i * dt for i in range(channels)]
        turn = channels - ((block + n) & self.mask)  # the last round begins at channel (block + n) mod channels
        self._free_ns = in_turn[turn:] + in_turn[:turn]
        self._direction = [WRITE] * channels
        return t + (n - 1) * dt + self.burst_ns

    def _write_progression(self, block: int, t: float, dt: float, n: int) -> float:
        channels, end = self.mask + 1, 0.0
        for j in range(min(n, channels)):
            channel = self.channel_of(block + j)
            finish = self._commit(channel, t + j * dt, WRITE)
            more = (n - j - 1) // channels
            if more:
                finish = self._follow(channel, t + j * dt, channels * dt, more, finish)
            if finish > end:
                end = finish
        return end

    # ---- reads

    def commit_reads(self, block: int, flits: int, now: float) -> Pace:
        """Commit a read of `flits` bursts from `block` on, all at `now`; returns when each flit may leave."""
        channels, burst_ns = self.mask + 1, self.burst_ns
        if flits >= channels and self._is_idle(now, READ):
            self._read_from_idle(block, flits, now)
            return Pace([now + burst_ns] * channels, burst_ns, flits, simultaneous=True)
        if self.even:
            self.even = False
        latest = 0.0
        firsts: list[float] = []
        for j in range(min(flits, channels)):
            channel = self.channel_of(block + j)
            first = self._commit(channel, now, READ)
            more = (flits - j - 1) // channels
            if more:
                self._follow(channel, now, 0.0, more, first)
            if first > latest:
                latest = first
            firsts.append(latest)
        return Pace(firsts, burst_ns, flits, simultaneous=firsts[0] == latest)

    def read_if_idle(self, block: int, flits: int, now: float) -> bool:
        """`commit_reads` where every channel is idle and none is left out; False, and nothing changed, elsewhere."""
        if self.pending or flits <= self.mask or not self._is_idle(now, READ):
            return False
        self._read_from_idle(block, flits, now)
        return True

    def _read_from_idle(self, block: int, flits: int, now: float) -> None:
        """Bursts in rounds over all channels; those from `block` on may have one more than the others."""
        channels, burst_ns = self.mask + 1, self.burst_ns
        rounds, more = divmod(flits, channels)
        if more and self.even:
            self.even = False
        self._rounds += rounds
        self._free_ns = [now + rounds * burst_ns] * channels
        self._direction = [READ] * channels
        for i in range(more):
            channel = (block + i) & self.mask
            self._extra[channel] += 1
            self._free_ns[channel] += burst_ns
        longest_ns = (flits - 1) // channels * burst_ns
        if longest_ns > self._all_waited_ns:
            for channel, free in enumerate(self._free_ns):
                self._note_wait(channel, free - burst_ns - now, now)
            self._all_waited_ns = min(self._worst_ns)

    def busy_for(self, now: float) -> tuple[float, ...]:
        """For how long every channel is still taken."""
        return tuple(free - now if free > now else 0.0 for free in self._free_ns)

    # ---- what was done elsewhere

    def add_done(self, rows: Sequence[tuple[int, float, float]], since: float = 0.0) -> None:
        """Count what every channel has done: bursts, longest wait and when that began, from `since` on."""
        self._counted = [counted + bursts for counted, (bursts, _, _) in zip(self._counted, rows, strict=True)]
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

    def _commit(self, channel: int, ready_ns: float, direction: int) -> float:
        """Put one burst on a channel; returns when it is finished."""
        start = self._free_ns[channel]
        if start > ready_ns:
            self._note_wait(channel, start - ready_ns, ready_ns)
        else:
            start = ready_ns
        if self._direction[channel] != direction:
            start = self._with_turnaround(channel, start, direction)
        self._free_ns[channel] = finish = start + self.burst_ns
        self._extra[channel] += 1
        return finish

    def _with_turnaround(self, channel: int, start: float, direction: int) -> float:
        """The channel takes another direction; returns when it can start. The first direction of all is free."""
        if self._direction[channel]:
            start += self.penalty_ns
        self._direction[channel] = direction
        return start

    def _follow(self, channel: int, ready_ns: float, step_ns: float, more: int, finish: float) -> float:
        """`more` bursts in one direction after one that was ready at `ready_ns` and is over at `finish`."""
        burst_ns = self.burst_ns
        end = max(finish + more * burst_ns, ready_ns + more * step_ns + burst_ns)
        # Waits grow or shrink evenly along the progression, so the longest is the first one's or the last one's.
        self._note_wait(channel, finish - ready_ns - step_ns, ready_ns + step_ns)
        self._note_wait(channel, end - burst_ns - ready_ns - more * step_ns, ready_ns + more * step_ns)
        self._free_ns[channel] = end
        self._extra[channel] += more
        return end

    def _note_wait(self, channel: int, wait_ns: float, at_ns: float) -> None:
        if wait_ns > self._worst_ns[channel]:
            self._worst_ns[channel] = wait_ns
            self._worst_at_ns[channel] = at_ns
