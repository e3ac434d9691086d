"""Where the flits of a transfer stand that is moved flit by flit, found among the events."""

from __future__ import annotations

from kernbench.sim_engine.fabric.engine import FlitEngine
from kernbench.sim_engine.fabric.flit_events import DONE, REFILL, Event
from kernbench.sim_engine.fabric.progressions import Pace, Progression, Times, append_progression, part_of
from kernbench.sim_engine.fabric.transfers import Transfer

# Per hop: index of the first flit, times (none for a read), count.
Waiting = list[list[tuple[int, list[Progression], int]]]


def find_flits(engine: FlitEngine, transfer: Transfer, now: float) -> tuple[list[int], list[Times]]:
    """Of every hop, and of the end: the first flit that has yet to pass it, and when those before it are ready."""
    waiting: Waiting = [[] for _ in range(transfer.hops + 1)]
    for event in engine.agenda:
        if event[3] is transfer:
            _note(event, waiting)
    if engine.queues is not None:
        for hop, index, time in engine.queues.flits_of(transfer):
            waiting[hop].append((index, [(time, 0.0, 1)], 1))
    if transfer.sink is not None:
        transfer.sink.flush(now)
        waiting[-1] += [(i, [(t, 0.0, 1)], 1) for t, _, i, owner in transfer.sink.pending if owner is transfer]
    behind = transfer.flits
    start: list[int] = []
    pending: list[Times] = []
    for parts in waiting:
        progressions: list[Progression] = []
        for _, times, n in sorted(parts):
            behind -= n
            for t, dt, m in times:
                append_progression(progressions, t, dt, m)
        start.append(behind)
        pending.append(progressions)
    if transfer.pace is not None and waiting[0]:
        pending[0] = transfer.pace
    return start, pending


def forget_flits(engine: FlitEngine, transfer: Transfer, start: list[int]) -> None:
    """A transfer is no longer moved flit by flit; its end stays as it is expected now. `start` is from `find_flits`."""
    epoch = transfer.epoch
    engine.agenda.keep(lambda event: event[3] is not transfer or (event[4].link == -DONE and event[2] == epoch))
    if engine.queues is not None:
        engine.queues.forget(transfer)
    for hop, link in enumerate(transfer.links):
        if start[hop] < transfer.flits:
            engine.links.users[link] -= 1
    if transfer.sink is not None:
        transfer.sink.users -= 1
        transfer.sink.pending.clear()


def _note(event: Event, waiting: Waiting) -> None:
    """What an event says of where its transfer's flits stand."""
    time, _, index, transfer, traversal = event
    if traversal.link >= 0:
        waiting[transfer.links.index(traversal.link)].append((index, [(time, 0.0, 1)], 1))
        return
    hop, kind = divmod(-traversal.link, 8)
    if kind == REFILL:
        assert transfer.schedules is not None
        schedule = transfer.schedules[hop]
        times = (
            []
            if isinstance(schedule.source, Pace)
            else part_of(schedule.source, schedule.index - schedule.base, schedule.stop - schedule.base)
        )
        waiting[hop].append((schedule.index, times, schedule.stop - schedule.index))
