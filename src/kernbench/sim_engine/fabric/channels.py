"""Memory channels behind a node: which burst goes to which channel, and when it is finished.

A flit is one burst; its address names the channel, `(address / burst bytes) mod channels`. A transfer either rotates
over all channels of its memory, one burst after the other, or, where channels are `separate`, has all its bursts on the
channel of its address: its next burst lies `channels` bursts further on. When a burst starts, and for how long it holds
its channel, is in `channel_bank.py`.
Reads and writes share a channel. A read commits all its bursts when it arrives. A write commits each flit when that
arrives, in order of arrival; it is not read before something depends on it, so arrivals are committed in batches.
Banks, and the limits of the controller's own queue, are not modelled here.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

from kernbench.sim_engine.fabric.channel_bank import (
    CHANNEL_SHIFT,
    DRAINED,
    MOST_PENDING,
    READ,
    WRITE,
    ChannelBank,
    ChannelState,
    WriteBursts,
)
from kernbench.sim_engine.fabric.progressions import Pace, Progression


class ChannelGroup(ChannelBank):
    """The memory channels behind one node, as reads and writes of many bursts use them."""

    __slots__ = ()

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
            if self.any_first_channel:
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
        self.any_first_channel = not self.separate and self._busy_with is transfer and is_whole

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
        if self.any_first_channel:
            self.any_first_channel = False
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
            if self.any_first_channel:
                self.any_first_channel = False
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
        if self.any_first_channel:
            self.any_first_channel = False
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
        if (more or spare) and self.any_first_channel:
            self.any_first_channel = False
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
