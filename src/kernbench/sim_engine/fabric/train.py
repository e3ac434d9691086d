"""A transfer planned in closed form: its forecast, and what must be known to split it into flits again."""

from __future__ import annotations

from collections.abc import Sequence

from kernbench.common.units import GRID_NS
from kernbench.sim_engine.fabric.channel_bank import ChannelState
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.fifo import EXAMINE, wait_ns
from kernbench.sim_engine.fabric.forecast import Forecast, HopForecast, on_idle_links
from kernbench.sim_engine.fabric.links import Booking
from kernbench.sim_engine.fabric.progressions import (
    Pace,
    Progression,
    Times,
    append_progression,
    count_until,
    first_of,
    last_of,
    moved,
    nth_time,
    part_of,
    times_at,
    times_of,
)
from kernbench.sim_engine.fabric.transfers import FlitObserver, Transfer


class Train:
    """`hops[h]` is about flits `start[h]`, ... at hop h; `arrival` is when they have arrived at the end."""

    __slots__ = ("arrival", "channels_before", "hops", "seq", "start", "transfer")

    def __init__(self, seq: int, transfer: Transfer, start: list[int]) -> None:
        self.seq = seq
        self.transfer = transfer
        self.start = start
        self.hops: list[HopForecast] = []
        self.arrival: Times = []
        self.channels_before: ChannelState | None = None

    def unfold(self) -> None:
        """Work out what was left for later."""

    def longest_waits(self, known: Sequence[float] | None = None) -> list[tuple[int, float, float]]:
        """Of every link where a flit waits: the link, the longest wait and when it began. Where no flit can have waited
        as long as is `known` of a link, it is left out.
        """
        waits: list[tuple[int, float, float]] = []
        for hop, link in enumerate(self.transfer.links):
            _, _, _, wait, at = self.hops[hop]
            if wait == EXAMINE:
                if known is not None and self._longest_stay(hop) < known[link]:
                    continue
                wait, at = self.longest_wait(hop, self.transfer.flits)
            if wait:
                waits.append((link, wait, at))
        return waits

    def _longest_stay(self, hop: int) -> float:
        """No flit waits longer at `hop`: from the first one's coming to the last one's leaving."""
        ready = self.ready(hop)
        return last_of(self.ready(hop + 1)) - first_of(ready) if ready else 0.0

    def report(self, activity: FlitObserver) -> None:
        """Report every flit on every link to the observer."""
        self.unfold()
        for hop in range(self.transfer.hops):
            self.report_hop(activity, hop, self.transfer.flits)

    def report_hop(self, activity: FlitObserver, hop: int, stop: int) -> None:
        """Report the flits up to `stop` at a hop to the observer."""
        start, tail_ns = self.start[hop], self.transfer.traversals[hop].tail_ns
        leave = [time - tail_ns for time in self._times(hop + 1, start, stop)]
        activity.passed(self.transfer, hop, self._times(hop, start, stop), leave, start, self.hops[hop][1])

    def _times(self, hop: int, start: int, stop: int) -> list[float]:
        """When flits `start` to `stop` are ready for a hop, one by one."""
        times = self.ready(hop)
        if isinstance(times, Pace):
            return list(times.times(start, stop))
        return list(times_of(part_of(times, start - self.start[hop], stop - self.start[hop])))

    def times(self, hop: int) -> list[float]:
        """When all flits are ready for a hop, or have arrived."""
        return self._times(hop, self.start[hop], self.transfer.flits)

    def bookings(self) -> list[Booking]:
        """Of every link that it has yet to pass."""
        rows = zip(self.transfer.links, self.hops, strict=True)
        return [(link, first_of(ready), last_of(ready), after) for link, (ready, _, after, _, _) in rows if ready]

    def ready(self, hop: int) -> Times:
        """When flits `start[hop]`, ... are ready for a hop, or for what is at the end."""
        return self.hops[hop][0] if hop < len(self.hops) else self.arrival

    def ready_time(self, hop: int, index: int) -> float:
        times = self.ready(hop)
        return times.time(index) if isinstance(times, Pace) else nth_time(times, index - self.start[hop])

    def leave(self, hop: int, index: int) -> float:
        """When flit `index` has left the link of `hop`."""
        return self.ready_time(hop + 1, index) - self.transfer.traversals[hop].tail_ns

    def part(self, hop: int, start: int, stop: int) -> Times:
        """When flits `start` to `stop` are ready for a hop."""
        times = self.ready(hop)
        if not isinstance(times, Pace):
            return part_of(times, start - self.start[hop], stop - self.start[hop])
        if hop == 0:
            return times
        progressions: list[Progression] = []
        for time in times.times(start, stop):  # few: they are on their way from the link before
            append_progression(progressions, time, 0.0, 1)
        return progressions

    def passed(self, hop: int, now: float, order: float) -> int:
        """How many flits the link of `hop` has taken (or have arrived) when injection `order` comes at `now`.

        At one instant flits that come in on a link go before injections, and injections go in their own order. Links in
        series take a flit all at once.
        """
        hop = self.transfer.route.heads[hop]
        times = self.ready(hop)
        if isinstance(times, Pace):
            return times.count_until(now, inclusive=hop > 0 or self.transfer.order < order)
        is_later = hop == 0 and self.transfer.slot is not None and self.transfer.order > order
        return self.start[hop] + count_until(times, now - GRID_NS if is_later else now)

    def is_through(self, now: float, order: float) -> bool:
        """Whether there is nothing left to take back."""
        last_place = self.transfer.hops - (self.transfer.sink is None)
        return self.passed(last_place, now, order) == self.transfer.flits

    def longest_wait(self, hop: int, stop: int) -> tuple[float, float]:
        """The longest wait at `hop` among flits up to `stop`, and when it began."""
        _, _, _, longest, at = self.hops[hop]
        if longest != EXAMINE and (stop == self.transfer.flits or not longest):
            return longest, at
        longest, at = 0.0, 0.0
        points, traversal = self._turning_points(hop, stop), self.transfer.traversals[hop]
        for i, ready, after in zip(points, self._times_at(hop, points), self._times_at(hop + 1, points), strict=True):
            occupy_ns = (traversal if i < self.transfer.last else self.transfer.last_traversals[hop]).occupy_ns
            wait = wait_ns(ready, after - traversal.tail_ns, occupy_ns)
            if wait > longest:
                longest, at = wait, ready
        return longest, at

    def _times_at(self, hop: int, indices: list[int]) -> list[float]:
        """When some flits are ready for a hop, in order."""
        times, start = self.ready(hop), self.start[hop]
        return times.times_at(indices) if isinstance(times, Pace) else times_at(times, [i - start for i in indices])

    def _turning_points(self, hop: int, stop: int) -> list[int]:
        """Flits up to `stop` between which the wait at `hop` changes evenly: the longest is at one of them."""
        first = self.start[hop]
        times = self.ready(hop)
        if isinstance(times, Pace):
            channels = len(times.firsts)
            steady = first + 2 * channels
            return [*range(first, min(stop, steady)), *range(max(stop - channels, steady), stop)]
        points = {first, stop - 1, stop - 2}
        for h in (hop, hop + 1):
            index, progressions = self.start[h], self.ready(h)
            for _, _, n in progressions if not isinstance(progressions, Pace) else ():
                points |= {index, index + n - 1}
                index += n
        return sorted(i for i in points if first <= i < stop)


class TrainTemplate:
    """A train on idle links, timed from the instant at which it departs: always the same for one route and size."""

    __slots__ = ("arrival", "end", "hops", "links", "waits")

    def __init__(self, transfer: Transfer, forecast: Forecast) -> None:
        train = Train(0, transfer, [0] * (transfer.hops + 1))
        train.hops, train.arrival = self.hops, self.arrival = forecast
        self.end = last_of(self.arrival)
        self.waits = train.longest_waits()
        self.links = train.bookings()

    def has_pace(self, pace: Pace, now: float) -> bool:
        """Whether a read that begins at `now` leaves its memory as here: from channels that are idle."""
        own = self.hops[0][0]
        assert isinstance(own, Pace)
        return (
            pace.simultaneous
            and pace.firsts[0] == now + own.firsts[0]
            and pace.end == (None if own.end is None else now + own.end)
        )


def template_of(transfer: Transfer, group: ChannelGroup | None) -> TrainTemplate | None:
    """The template of transfers of this route and size, read from `group` if given; None if it is not short."""
    forecast = on_idle_links(transfer, group)
    return forecast and TrainTemplate(transfer, forecast)


class TemplateTrain(Train):
    """A train planned from a template: nothing but its time is its own, until more is asked for."""

    __slots__ = ("at_ns", "free_before", "template")

    def __init__(
        self, seq: int, transfer: Transfer, template: TrainTemplate, at_ns: float, free_before: list[float]
    ) -> None:
        self.seq = seq
        self.transfer = transfer
        self.template = template
        self.at_ns = at_ns
        self.free_before = free_before  # of every link, before the train booked it
        self.channels_before = None

    def unfold(self) -> None:
        template, by = self.template, self.at_ns
        self.start = [0] * (len(template.hops) + 1)
        rows = zip(template.hops, self.free_before, strict=True)
        self.hops = [(moved(ready, by), free, by + after, wait, by + at) for (ready, _, after, wait, at), free in rows]
        self.arrival = moved(template.arrival, by)
        ready = self.hops[0][0]
        if isinstance(ready, Pace):
            self.transfer.pace = ready

    def longest_waits(self, known: Sequence[float] | None = None) -> list[tuple[int, float, float]]:
        by = self.at_ns
        waits = self.template.waits
        return [(link, wait, by + at) for link, wait, at in waits if known is None or wait >= known[link]]
