"""Where everything stands in a fabric, seen from the present: equal for two instants that are followed by the same.

All that is under way is split into flits first. Transfers are numbered in the order of injections; of a block's place
in memory only the channel at which it begins matters, which is noted beside the state.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.engine import AT_DONE
from kernbench.sim_engine.fabric.fabric import Fabric
from kernbench.sim_engine.fabric.progressions import Pace, part_of, times_of
from kernbench.sim_engine.fabric.transfers import INJECTED, FlitSchedule, Transfer

FabricState = tuple[object, ...]


def is_even(fabric: Fabric, now: float) -> bool:
    """Whether no channel of a memory is other than the next, and no write is under way: all must be split."""
    for group in fabric.engine.groups.values():
        if group.users or group.pending or len(set(group.busy_for(now))) > 1:
            return False
        if group.penalty_ns and len(set(group.directions)) > 1:
            return False
    return not any(event[3].sink is not None for event in fabric.engine.agenda)


def state_of(fabric: Fabric, now: float, tag_state: Callable[[object], object], places: list[int]) -> FabricState:
    """The state at `now`, when all that comes up to then has happened and all is split. `places` gets the channels."""
    engine = fabric.engine
    events = [event for event in engine.agenda if event[4] is not AT_DONE or event[2] == event[3].epoch]
    found = sorted({event[3].seq: event[3] for event in events}.items())
    number = {seq: at for at, (seq, _) in enumerate(found)}

    def order_of(order: float) -> float:
        return INJECTED + number[int(order) - INJECTED] if order >= INJECTED else order

    rows = sorted(
        (
            time - now,
            order_of(order),
            -1 if crossing is AT_DONE else i,
            number[transfer.seq],
            crossing.link,
            crossing.final,
        )
        for time, order, i, transfer, crossing in events
    )
    links = engine.links
    return (
        tuple(rows),
        tuple(_transfer_state(transfer, now, tag_state, places) for _, transfer in found),
        tuple(free - now if free > now else 0.0 for free in links.free),
        tuple(links.users),
        tuple(_group_state(group, now, order_of, number) for group in engine.groups.values()),
    )


def _transfer_state(
    transfer: Transfer, now: float, tag_state: Callable[[object], object], places: list[int]
) -> FabricState:
    group = transfer.source or transfer.sink
    if group is not None:
        places.append(transfer.block & group.mask)
    return (
        transfer.route.path,
        transfer.nbytes,
        max(transfer.finish_ns - now, 0.0),
        tuple((hop, *_schedule_state(schedule, now)) for hop, schedule in sorted((transfer.schedules or {}).items())),
        tag_state(transfer.tag),
    )


def _schedule_state(schedule: FlitSchedule, now: float) -> FabricState:
    """The flits that are not in the queue by themselves."""
    index, stop, source = schedule.index, schedule.stop, schedule.source
    if isinstance(source, Pace):
        times = source.times(index, stop)
    else:
        times = times_of(part_of(source, index - schedule.base, stop - schedule.base))
    return index, stop, tuple(t - now for t in times)


def _group_state(
    group: ChannelGroup, now: float, order_of: Callable[[float], float], number: dict[int, int]
) -> FabricState:
    pending: list[tuple[float, float, int, int]] = []
    for time, order, i, owner in group.pending:
        assert isinstance(owner, Transfer)
        pending.append((time - now, order_of(order), i, number[owner.seq]))
    turned = group.directions if group.penalty_ns else ()
    return group.busy_for(now), turned, group.users, tuple(sorted(pending))
