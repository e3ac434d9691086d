"""Transfers under way go from one fabric to another, which has the same links and channels among others.

The receiver's links and channels are idle before, as they were claimed for what the other fabric has done. What is
moved: when links and channels are free, who has yet to pass, all events, and what the counters say. Trains and lanes
are split into flits first, so an event for each flit is all there is.
"""

from __future__ import annotations

from typing import Protocol

from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.engine import AT_DONE, Event, FlitEngine
from kernbench.sim_engine.fabric.fabric import Fabric
from kernbench.sim_engine.fabric.model import Route
from kernbench.sim_engine.fabric.transfers import INJECTED, Transfer


class Places(Protocol):
    """Where the links and channels of a part lie in the whole."""

    links: list[int]  # of each of the part's
    channels: list[tuple[int, int]]  # nodes with channels: the part's, the whole's

    def in_whole(self, route: Route) -> Route:
        """A route of the part in the whole network."""


def transplant(part: Fabric, whole: Fabric, places: Places, now: float, order: float) -> None:
    """Move what is under way in `part` to `whole`, at the moment at which injection `order` comes.

    All before `now` has happened in `part`.
    """
    engine, target = part.engine, whole.engine
    late = _catch_up(engine, now, order)
    engine.now = now
    part.split_all(now, order)
    _move_links(engine, target, places)
    done = part.done_so_far()
    groups = {at: (engine.groups[at], target.groups[node]) for at, node in places.channels}
    for ours, theirs in groups.values():
        ours.pending = [(t, _moved_order(by, places), i, transfer) for t, by, i, transfer in ours.pending]
        theirs.take_over(ours)
    for last_flit, (flits, transfers) in done.items():
        route = places.in_whole(last_flit.route)
        target.counters.count(route.last_flit(whole.network, last_flit.nbytes), flits, transfers)
    events = [event for event in engine.agenda if event[4] is not AT_DONE or event[2] == event[3].epoch]
    hops = [event[3].hop_of(event[4]) if event[4].link >= 0 else -1 for event in events]
    for transfer in {event[3].seq: event[3] for event in [*events, *late]}.values():
        _move_transfer(transfer, whole, places, groups)
    for event, hop in zip(events, hops, strict=True):
        target.agenda.push(_moved_event(event, hop, places))
    for number, (_, _, epoch, transfer, crossing) in enumerate(late, 1):
        target.agenda.push((now, order + 0.5 + number * 2.0**-11, epoch, transfer, crossing))


def _catch_up(engine: FlitEngine, now: float, order: float) -> list[Event]:
    """Let happen what comes at `now` before injection `order`; returns the ends that are to be reported behind it."""
    agenda = engine.agenda
    late: list[Event] = []
    while agenda.load() and agenda.current[0][:2] < (now, order):
        event = agenda.current[0]
        agenda.drop(1)
        _, _, i, transfer, crossing = event
        if crossing is AT_DONE and order < INFINITY:
            if i == transfer.epoch:
                late.append(event)
            continue
        engine.happen(event)
    return late


def _move_links(engine: FlitEngine, target: FlitEngine, places: Places) -> None:
    ours, theirs = engine.links, target.links
    for link, there in enumerate(places.links):
        theirs.free[there] = max(theirs.free[there], ours.free[link])
        theirs.users[there] += ours.users[link]
        if ours.worst[link]:
            theirs.note_wait(there, ours.worst[link], ours.worst_at[link])


def _move_transfer(
    transfer: Transfer, whole: Fabric, places: Places, groups: dict[int, tuple[ChannelGroup, ChannelGroup]]
) -> None:
    """A transfer is on the links of the whole."""
    last = transfer.last_flit
    transfer.route = route = places.in_whole(transfer.route)
    transfer.links = route.links
    assert last is not None
    transfer.last_flit = route.last_flit(whole.network, last.nbytes)
    transfer.crossings, transfer.last_crossings = route.crossings, transfer.last_flit.crossings
    transfer.train = None
    if transfer.source is not None:
        transfer.source = groups[transfer.source.node][1]
    if transfer.sink is not None:
        transfer.sink = groups[transfer.sink.node][1]


def _moved_event(event: Event, hop: int, places: Places) -> Event:
    time, order, i, transfer, crossing = event
    return time, _moved_order(order, places), i, transfer, crossing if hop < 0 else transfer.crossing(hop, i)


def _moved_order(order: float, places: Places) -> float:
    """Flits are ordered by the link that they came in on, injections as such."""
    return places.links[int(order)] if order < INJECTED else order
