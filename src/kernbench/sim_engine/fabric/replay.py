"""What an owner tells afterwards: transfers of the past are moved as they were, up to now.

They had their links and channels to themselves, so an agenda of their own keeps the right order. What is left in it
then joins the others. An owner whose traffic repeats need not tell all of it: it tells how it began, and how long it
then repeated. The state after the beginning is moved on by that time, as nothing but time tells the two apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from operator import attrgetter

from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.engine import AT_DONE, AT_INJECT, Event, FlitEngine, FlitsOnly
from kernbench.sim_engine.fabric.progressions import Pace, moved, times_of
from kernbench.sim_engine.fabric.transfers import Transfer


class Replay:
    """For one engine."""

    __slots__ = ("_engine",)

    def __init__(self, engine: FlitEngine) -> None:
        self._engine = engine

    def told(
        self, transfers: list[Transfer], order: float, repeated_ns: float, links: Iterable[int], nodes: Iterable[int]
    ) -> None:
        """Let `transfers` set out at their times, up to now, the moment at which injection `order` comes.

        With `repeated_ns`: up to that long ago, and from there on as they stand, on `links` and at the channels of
        `nodes`, which nobody else has used.
        """
        engine = self._engine
        now, planner = engine.now, engine.planner
        ends: list[Event] = []  # at this very instant: to be reported, though their place in the order may have passed
        agenda, past = engine.swap_agenda()
        if repeated_ns:
            engine.planner = FlitsOnly(engine)  # plans would have to be moved, too
        try:
            self._move(transfers, now - repeated_ns, order, ends)
        finally:
            engine.swap_agenda(agenda)
            engine.now, engine.planner = now, planner
        if repeated_ns:
            left = [*past, *ends]
            _move_on(engine, left, repeated_ns, links, nodes)
            for time, place, i, transfer, crossing in past:
                agenda.push((time + repeated_ns, place, i, transfer, crossing))
        else:
            past.pour_into(agenda)
        for late, (_, place, epoch, transfer, crossing) in enumerate(ends):
            behind = place if order == INFINITY else order + 0.5 + late * 2.0**-11
            agenda.push((now, behind, epoch, transfer, crossing))

    def _move(self, transfers: list[Transfer], until: float, order: float, ends: list[Event]) -> None:
        """Up to `order` at `until`; what comes later stays in the agenda."""
        engine = self._engine
        several = len(transfers) > 1
        if several:
            transfers = sorted(transfers, key=attrgetter("at_ns", "order"))
        for transfer in transfers:
            at = transfer.at_ns
            if at > until or (at == until and transfer.order > order):
                engine.agenda.push((at, transfer.order, -1, transfer, AT_INJECT))
            else:
                if several:
                    self._catch_up(at, transfer.order, until, ends)
                engine.now = at
                engine.set_out(transfer, at)
        self._catch_up(until, order, until, ends)

    def _catch_up(self, time: float, order: float, until: float, ends: list[Event]) -> None:
        """Let all happen that comes before `order` at `time`, but for ends at `until`."""
        engine, agenda = self._engine, self._engine.agenda
        while agenda.next_time() <= time:
            event = agenda.current[0]
            if event[0] == time and event[1] >= order:
                break
            agenda.drop(1)
            if event[4] is AT_DONE and event[0] == until:
                ends.append(event)
            else:
                engine.happen(event)


def _move_on(engine: FlitEngine, left: list[Event], by: float, links: Iterable[int], nodes: Iterable[int]) -> None:
    """Links, channels and the transfers that have yet to end are as they are, `by` later."""
    for link in links:
        engine.links.free[link] += by
    under_way = {event[3].seq: event[3] for event in left}
    for node in nodes:
        group = engine.groups[node]
        group.move_on(by)
        for _, _, _, write in group.pending:
            assert isinstance(write, Transfer)
            under_way[write.seq] = write
    for transfer in under_way.values():
        transfer.at_ns += by
        transfer.finish_ns += by
        if transfer.pace is not None:
            transfer.pace = transfer.pace.moved(by)
        for schedule in (transfer.schedules or {}).values():
            schedule.source = source = moved(schedule.source, by)
            first = schedule.index - schedule.base
            schedule.times = (
                source.times(schedule.index, schedule.stop)
                if isinstance(source, Pace)
                else islice(times_of(source), first, None)
            )
