"""How the flits of a lone transfer pass links with finite buffers: all times at once.

A flit starts on a link when it is ready, the link is free, and there is a slot: flit i + B waits until the slot of flit
i, which has gone on to the next link, is credited. So starts are worked out flit by flit, along the path: those on
later links that a flit waits for are of earlier flits. Once all links repeat at one pace, flits are skipped: what a
flit waits for lies no further back than the slots of a buffer.
"""

from __future__ import annotations

from itertools import pairwise
from math import lcm

from kernbench.sim_engine.fabric.fifo import leave_ns, wait_ns
from kernbench.sim_engine.fabric.forecast import MAX_PROGRESSIONS
from kernbench.sim_engine.fabric.links import Booking
from kernbench.sim_engine.fabric.progressions import Pace, Progression, append_progression
from kernbench.sim_engine.fabric.transfers import Transfer

MOST_STEPS = 1 << 15  # flits times links that are worked out one by one; beyond, a transfer is not planned


class LoneTransfer:
    """A transfer on idle links, timed from the instant at which it departs."""

    __slots__ = ("arrival", "end", "firsts", "links", "pace", "returns", "waits")

    def __init__(self, pace: Pace | None, passing: _Passing) -> None:
        stages, every = passing.stages, passing.links
        self.pace = pace  # of a read
        self.arrival = passing.arrival
        self.end = passing.end_ns
        self.links: list[Booking] = [(link.number, link.first_ns, link.last_ns, link.free_ns) for link in every]
        self.waits = [(link.number, link.wait_ns, link.wait_at_ns) for link in every if link.wait_ns]
        # Links that have a buffer, and when the first flit asks for a slot of it.
        self.firsts = [(stage.links[-1].number, stage.links[0].first_ns) for stage in stages[:-1]]
        # By hop: when the slots of its last flits are credited.
        self.returns = [
            (stage.hop, [start + passing.credit_ns for start in onward.starts[-passing.slots :]])
            for stage, onward in pairwise(stages)
        ]

    def has_pace(self, pace: Pace, now: float) -> bool:
        """Whether a read that begins at `now` leaves its memory as here: from channels that are idle."""
        own = self.pace
        assert own is not None
        end = None if own.end is None else now + own.end
        return pace.simultaneous and pace.firsts[0] == now + own.firsts[0] and pace.end == end


class _Link:
    """A link, as far as flits have passed it."""

    __slots__ = ("first_ns", "free_ns", "last_ns", "number", "occupy_ns", "tail_ns", "wait_at_ns", "wait_ns")

    def __init__(self, number: int, occupy_ns: float, tail_ns: float) -> None:
        self.number, self.occupy_ns, self.tail_ns = number, occupy_ns, tail_ns
        self.free_ns = self.wait_ns = self.wait_at_ns = 0.0
        self.first_ns = self.last_ns = -1.0  # when the first and the latest flit are ready for it

    def take(self, ready: float, not_before: float = 0.0) -> float:
        """A flit passes, from `not_before` on; returns when it is behind the link."""
        if self.first_ns < 0:
            self.first_ns = ready
        leave = leave_ns(max(ready, not_before), self.free_ns, self.occupy_ns)
        wait = wait_ns(ready, leave, self.occupy_ns)
        if wait > self.wait_ns:
            self.wait_ns, self.wait_at_ns = wait, ready
        self.last_ns, self.free_ns = ready, leave
        return leave + self.tail_ns


class _Stage:
    """Links in series, which have one buffer behind the last."""

    __slots__ = ("hop", "links", "starts")

    def __init__(self, hop: int, links: list[_Link]) -> None:
        self.hop, self.links = hop, links
        self.starts: list[float] = []  # of flits on the first link


class _Passing:
    """The flits of a transfer on their way, one after another."""

    def __init__(self, transfer: Transfer, slots: int, credit_ns: float) -> None:
        heads, hops = transfer.route.heads, transfer.hops
        self.slots, self.credit_ns = slots, credit_ns
        self.links = [_Link(each.link, each.occupy_ns, each.tail_ns) for each in transfer.traversals]
        at = [hop for hop in range(hops) if heads[hop] == hop]
        self.stages = [_Stage(hop, self.links[hop:end]) for hop, end in zip(at, [*at[1:], hops], strict=True)]
        onward = [*(stage.starts for stage in self.stages[1:]), None]
        self._ways = list(zip(self.stages, onward, strict=True))
        self._is_written = transfer.sink is not None
        self.arrival: list[Progression] = []  # of a write
        self.end_ns = 0.0
        self._frees: list[list[float]] = []  # of all links, after each flit
        self._repeats: dict[int, tuple[float, int]] = {}  # by number of flits: how much later, for how many flits

    def take(self, ready: float) -> None:
        """The next flit departs, and passes all links."""
        slots, credit_ns = self.slots, self.credit_ns
        for stage, onward in self._ways:
            first = stage.links[0]
            credited_ns = 0.0
            if onward is not None and len(onward) >= slots:
                credited_ns = onward[-slots] + credit_ns
            ready = first.take(ready, credited_ns)
            stage.starts.append(first.free_ns - first.occupy_ns)
            for link in stage.links[1:]:
                ready = link.take(ready)
        self.end_ns = ready
        self._frees.append([link.free_ns for link in self.links])
        if self._is_written:
            append_progression(self.arrival, ready, 0.0, 1)

    def repeats_after(self, flits: int) -> float:
        """How much later all links take as many `flits` once more; 0 where they have not just done so for as long as a
        flit can wait for another. Asked after each flit.
        """
        if len(self._frees) <= flits:
            return 0.0
        now, then = self._frees[-1], self._frees[-1 - flits]
        before, often = self._repeats.get(flits, (0.0, 0))
        later = now[0] - then[0]
        is_even = all(a - b == later for a, b in zip(now, then, strict=True))
        often = 0 if not is_even else often + 1 if later == before else 1
        self._repeats[flits] = later, often
        return later if often > flits + self.slots else 0.0

    def skip(self, flits: int, later: float, gap: float) -> None:
        """Go on as if so many flits had passed, which ends `later`; flits of a write arrive with a `gap`."""
        for stage in self.stages:
            stage.starts[-self.slots :] = [start + later for start in stage.starts[-self.slots :]]
        for link in self.links:
            link.free_ns += later
        if self._is_written:
            append_progression(self.arrival, self.end_ns + gap, gap, flits)
        self.end_ns += later


def lone_transfer(transfer: Transfer, pace: Pace | None, slots: int, credit_ns: float) -> LoneTransfer | None:
    """How a transfer, a read that leaves its memory at `pace`, passes idle links; None if that is long to work out."""
    if pace is not None and transfer.sink is not None:
        return None
    passing, last = _Passing(transfer, slots, credit_ns), transfer.last
    round_flits, round_ns = (1, 0.0) if pace is None else (len(pace.firsts), pace.burst_ns)
    # Links are slowed down by a slow one, flit by flit; by a memory, round by round; by credits, slots by slots.
    periods = [round_flits] if transfer.sink is not None else [round_flits, lcm(round_flits, slots)]
    index, steps, is_skipped = 0, 0, False
    while index < last:
        passing.take(0.0 if pace is None else pace.time(index))
        index, steps = index + 1, steps + transfer.hops
        if steps > MOST_STEPS or len(passing.arrival) > MAX_PROGRESSIONS:
            return None
        if is_skipped:
            continue
        for period in periods:
            times = (last - index) // period - 1  # a last time is worked out: waits may have become longer
            later = passing.repeats_after(period) if times > 0 else 0.0
            if later and later >= round_ns * (period // round_flits):
                passing.skip(times * period, times * later, later)
                index, is_skipped = index + times * period, True
                break
    for link, traversal in zip(passing.links, transfer.last_traversals, strict=True):
        link.occupy_ns = traversal.occupy_ns
    passing.take(0.0 if pace is None else pace.time(last))
    return None if len(passing.arrival) > MAX_PROGRESSIONS else LoneTransfer(pace, passing)
