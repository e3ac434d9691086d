"""The relative state of a fabric: equal for two instants from which the same follows.

All that is under way is split into flits first. Transfers are numbered in the order of injections; of a block's place
in memory only the channel at which it begins matters, which is noted beside the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kernbench.common.declared_state import timing_state
from kernbench.sim_engine.fabric.fabric import Fabric
from kernbench.sim_engine.fabric.flit_events import AT_DONE
from kernbench.sim_engine.fabric.transfers import INJECTED, FlitSchedule, Transfer

FabricState = tuple[object, ...]


def any_first_channel(fabric: Fabric, now: float) -> bool:
    """Whether all channels of each memory are in one state, and no write is under way: all must be split."""
    for group in fabric.engine.groups.values():
        if group.users or group.pending or len(set(group.busy_for(now))) > 1:
            return False
        if group.penalty_ns and len(set(group.directions)) > 1:
            return False
    under_way = [event[3] for event in fabric.engine.agenda]
    if fabric.engine.buffered is not None:
        under_way += fabric.engine.buffered.under_way.values()
    return not any(transfer.sink is not None for transfer in under_way)


class FabricView:
    """A fabric as seen from an instant at which all is split: transfers are numbered in the order of injections."""

    def __init__(self, fabric: Fabric, now: float, tag_state: Callable[[object], object]) -> None:
        self.now = now
        self.tag = tag_state
        events = [event for event in fabric.engine.agenda if event[4] is not AT_DONE or event[2] == event[3].epoch]
        by_seq = {event[3].seq: event[3] for event in events}
        if fabric.engine.buffered is not None:
            by_seq |= {transfer.seq: transfer for transfer in fabric.engine.buffered.under_way.values()}
        self.transfers = [transfer for _, transfer in sorted(by_seq.items())]
        self._number = {transfer.seq: number for number, transfer in enumerate(self.transfers)}
        self.events = tuple(
            sorted(
                (
                    time - now,
                    self._order(order),
                    -1 if traversal is AT_DONE else i,
                    self._number[transfer.seq],
                    traversal.link,
                    traversal.final,
                )
                for time, order, i, transfer, traversal in events
            )
        )

    def number_of(self, transfer: Transfer) -> int:
        """A transfer's place in the order of injections."""
        return self._number[transfer.seq]

    def _order(self, order: float) -> float:
        return INJECTED + self._number[int(order) - INJECTED] if order >= INJECTED else order

    def pending(self, flits: Iterable[tuple[float, float, int, object]]) -> FabricState:
        """Write flits on their way to a memory."""
        found: list[tuple[float, float, int, int]] = []
        for time, order, i, owner in flits:
            assert isinstance(owner, Transfer)
            found.append((time - self.now, self._order(order), i, self._number[owner.seq]))
        return tuple(sorted(found))

    def schedules(self, schedules: Mapping[int, FlitSchedule]) -> FabricState:
        """Flits of a transfer whose times at a hop are known, by hop."""
        return tuple((hop, *timing_state(schedule, self)) for hop, schedule in sorted(schedules.items()))


def state_of(fabric: Fabric, now: float, tag_state: Callable[[object], object], places: list[int]) -> FabricState:
    """The state at `now`, when all that comes up to then has happened and all is split. `places` gets the channels."""
    view = FabricView(fabric, now, tag_state)
    for transfer in view.transfers:
        group = transfer.source or transfer.sink
        if group is not None:
            places.append(group.channel_of(transfer.block))
    return timing_state(fabric.engine, view), tuple(timing_state(transfer, view) for transfer in view.transfers)
