"""The state of the memory channels behind a node, and what one burst does to one of them.

A burst starts at max(ready, channel free), plus the switch penalty where the channel's direction turns, and holds the
channel for one burst time. A last burst that is not full takes the time of its granules, and at least `open_ns`, unless
its transfer has used that channel before. Where writes are drained in batches (`drain_bytes`), the penalty is not paid
at each change of direction but once for every so many bytes written, if there was a read since the last time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

from kernbench.common.declared_state import Derived, StateField, instants, quantity
from kernbench.common.units import on_grid

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


class ChannelBank:
    """The memory channels behind one node: when each is free, which way it is turned, what it has done."""

    STATE = (
        instants("_free_ns"),
        StateField("_direction", lambda group, view: group.directions if group.penalty_ns else ()),
        quantity("users"),
        StateField("pending", lambda group, view: view.pending(group.pending)),
    )
    DERIVED: ClassVar[Derived] = (
        "_all_waited_ns", "_busy_with", "_counted", "_extra", "_rounds", "_worst_at_ns", "_worst_ns",
        "any_first_channel", "state_held_by", "most_pending",
    )  # fmt: skip

    __slots__ = (
        "_all_waited_ns",
        "_busy_with",
        "_counted",
        "_direction",
        "_extra",
        "_free_ns",
        "_rounds",
        "_worst_at_ns",
        "_worst_ns",
        "any_first_channel",
        "burst_ns",
        "drain",
        "granule_ns",
        "granule_shift",
        "mask",
        "most_pending",
        "node",
        "open_ns",
        "penalty_ns",
        "pending",
        "per_burst",
        "separate",
        "shift",
        "state_held_by",
        "users",
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
        # Whether accesses so far take as long with any other first channel; None: not asked for.
        self.any_first_channel: bool | None = None
        self._busy_with: WriteBursts | None = (
            None  # the write that has all channels that are taken, where that is asked
        )
        self.state_held_by: object = None  # what holds its state for now (`loop_reads.py`)
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

    def set_directions(self, directions: Sequence[int]) -> None:
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
