"""The steps of single flits: into the queue, over a link, through a delay rule, to the end of the path.

`FlitEngine` (`engine.py`) takes these steps in the order of time. The link takes a flit by the rule in `fifo.py`.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, ClassVar

from kernbench.common.declared_state import Derived, State, StateField, differs, part, timing_state
from kernbench.common.errors import FabricError
from kernbench.common.flits import FlitArrival
from kernbench.common.units import MAX_TIME_NS, on_grid
from kernbench.sim_engine.fabric.activity import Activity, WatchedChannels
from kernbench.sim_engine.fabric.agenda import Agenda
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.counters import Counters
from kernbench.sim_engine.fabric.fifo import leave_ns, leave_together, wait_ns
from kernbench.sim_engine.fabric.flit_events import AT_COMMIT, AT_DONE, ENTER, REFILL, WATCHED, Event, other
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.progressions import Times, each_time
from kernbench.sim_engine.fabric.routes import FINAL, IN_SERIES
from kernbench.sim_engine.fabric.transfers import INJECTED, FlitSchedule, Transfer

if TYPE_CHECKING:
    from kernbench.sim_engine.fabric.buffered_flits import BufferedFlits
    from kernbench.sim_engine.fabric.flit_queues import FlitQueues

MOST_QUEUED = 1 << 16  # flits of a transfer that a compiled loop is given at once: each takes memory
CHUNK = 16  # flits that a schedule queues at a time
TIE = 2.0**-32  # flits that a delay rule made ready at one instant on one link keep the order in which it was asked


class FlitSteps:
    """Links, memory channels and the agenda, and what a flit does to them."""

    STATE: ClassVar[State] = (
        StateField("agenda", lambda engine, view: view.events),
        part("links"),
        StateField("groups", lambda engine, view: tuple(timing_state(each, view) for each in engine.groups.values())),
        StateField("queues", lambda engine, view: differs() if engine.queues is not None else ()),
        StateField(
            "buffered", lambda engine, view: () if engine.buffered is None else timing_state(engine.buffered, view)
        ),
    )
    DERIVED: ClassVar[Derived] = ("_tie", "counters", "network", "now")

    def __init__(self, network: Network, *, record: bool, activity: Activity | None) -> None:
        self.network = network
        self.now = 0.0
        self.links = Links(len(network.link_ends))
        self.groups: dict[int, ChannelGroup] = network.put_to_use()
        if activity is not None:
            activity.attach(network)
            specs = network.channel_specs
            self.groups = {node: WatchedChannels(activity, node, spec) for node, spec in specs.items()}
        self._hop_ns = network.typical_hop_ns
        self.agenda: Agenda[Event] = Agenda(self._hop_ns)
        self.counters = Counters(network, self.links, self.groups, record=record, activity=activity)
        self.queues: FlitQueues | None = None  # flits that a compiled loop moves
        self.buffered: BufferedFlits | None = None  # on a network with buffers: all flits
        self._tie = count()

    # ---- into the queue

    def commit_read(self, transfer: Transfer, group: ChannelGroup, now: float) -> None:
        """The request of a read is at its memory: its bursts take their channels."""
        group.flush(now)
        if isinstance(group, WatchedChannels):
            group.read_for(transfer)
        transfer.pace = group.commit_reads(transfer.block, transfer.flits, now, transfer.spare)

    def begin(self, transfer: Transfer, now: float) -> None:
        """Move a transfer flit by flit, from its first link on."""
        links, flits = self.links, transfer.flits
        if transfer.sink is not None:
            transfer.sink.users += 1
        if self.queues is not None and transfer.hops > 1 and flits <= MOST_QUEUED and _is_ready_at_once(transfer):
            self.queues.begin(transfer, now)
            return
        users = links.users
        for link in transfer.links:
            users[link] += 1
        if self.buffered is not None:
            self.buffered.begin(transfer, now, is_watched=self.counters.sees_flits)
            return
        if transfer.fed_by is not None:
            return  # its flits come from the segment that it begins at
        if transfer.pace is not None:
            self.schedule(transfer, 0, 0, flits, transfer.pace)
            return
        ready = transfer.ready
        if ready is not None:
            self.schedule(transfer, 0, 0, flits, ready)
            return
        link, flit_ns, tail_ns, _, special = transfer.traversals[0]
        if transfer.slow or special & IN_SERIES:
            self.schedule(transfer, 0, 0, flits, [(now, 0.0, flits)])
            return
        # All flits are ready at once, so they follow one another on the first link whatever else comes.
        last, last_ns = transfer.last, transfer.last_traversals[0].occupy_ns
        first_leave, leave = leave_together(now, links.free[link], flit_ns, last_ns, last)
        links.free[link] = leave
        links.note_wait(link, wait_ns(now, leave, last_ns), now)
        users[link] -= 1
        if transfer.hops == 1 and transfer.sink is None:
            self._arrive(transfer, leave + tail_ns, link, last, 1)
            return
        progressions = [(leave + tail_ns, 0.0, 1)]
        if last:
            progressions.insert(0, (first_leave + tail_ns, flit_ns, last))
        self.schedule(transfer, 1, 0, flits, progressions)

    def schedule(self, transfer: Transfer, hop: int, index: int, stop: int, source: Times) -> None:
        """Flits `index` to `stop` go on singly; when they are ready for `hop`, or for a memory at the end, is known."""
        is_plain = not (transfer.slow or hop == transfer.hops)
        if self.queues is not None and is_plain and stop - index <= MOST_QUEUED:
            self.queues.add(transfer, hop, index, stop, source)
            return
        times = each_time(source, index, stop)
        if stop - index <= CHUNK:
            self._queue_flits(transfer, hop, index, list(times))
            return
        if transfer.schedules is None:
            transfer.schedules = {}
        transfer.schedules[hop] = FlitSchedule(index, stop, source, times)
        self._queue_next_flits(transfer, hop)

    def _queue_next_flits(self, transfer: Transfer, hop: int) -> None:
        """The next few flits of a schedule go into the queue; those behind them follow when half are gone."""
        assert transfer.schedules is not None
        schedule = transfer.schedules[hop]
        index, times = schedule.index, list(islice(schedule.times, CHUNK))
        schedule.index += len(times)
        self._queue_flits(transfer, hop, index, times)
        if schedule.index < schedule.stop:
            order = transfer.links[hop - 1] if hop else transfer.order
            half = CHUNK // 2
            self.agenda.push((times[half], order, index + half, transfer, other(REFILL, hop)))

    def _queue_flits(self, transfer: Transfer, hop: int, index: int, times: list[float]) -> None:
        """Flits from `index` on take their places in the queue."""
        order = transfer.links[hop - 1] if hop else transfer.order
        if transfer.slow or hop == transfer.hops:
            for i, ready in enumerate(times, index):
                self._arrive(transfer, ready, order, i, hop)
            return
        if self.queues is not None:
            self.queues.add_at(transfer, hop, index, times)
            return
        traversal = transfer.traversals[hop]
        events: list[Event] = [(ready, order, i, transfer, traversal) for i, ready in enumerate(times, index)]
        if events[-1][2] == transfer.last:
            events[-1] = (times[-1], order, transfer.last, transfer, transfer.last_traversals[hop])
        self.agenda.extend(events)

    # ---- over a link

    def _cross(self, transfer: Transfer, now: float, i: int, hop: int) -> None:
        """Flit `i` is ready for the link of `hop`: what `advance` does, for flits that are watched, of delay rules, or
        left beside a compiled loop."""
        links, special = self.links, IN_SERIES
        hop -= 1
        ready = now
        while special & IN_SERIES:
            hop += 1
            link, occupy_ns, tail_ns, _, special = transfer.traversal(hop, i)
            if special & FINAL:
                links.users[link] -= 1
            links.free[link] = leave = leave_ns(ready, links.free[link], occupy_ns)
            wait = wait_ns(ready, leave, occupy_ns)
            if wait:
                links.note_wait(link, wait, ready)
            self.counters.watch(transfer, i, hop, ready, leave, occupy_ns)
            ready = leave + tail_ns
            if transfer.branches is not None:
                for branch in transfer.branches.get(hop + 1, ()):
                    self._arrive(branch, ready, branch.order, i, 0)
        if self.network.delay_rule[transfer.route.nodes[hop + 1]] is None:
            self._arrive(transfer, leave + tail_ns, link, i, hop + 1)
        else:
            arrival = leave + self.network.propagation_ns[link]
            order = link - len(links.free)  # delay rules are asked before flits move on, in order of link
            self.agenda.push((arrival, order, i, transfer, other(ENTER, hop)))

    def _arrive(self, transfer: Transfer, ready: float, order: float, i: int, hop: int) -> None:
        """Flit `i` will be ready at `ready` for the next link, or for what stands at the end."""
        if hop < transfer.hops:
            traversal = other(WATCHED, hop) if transfer.slow else transfer.traversal(hop, i)
            self.agenda.push((ready, order, i, transfer, traversal))
        elif transfer.sink is not None:
            group = transfer.sink
            group.pending.append((ready, order, i, transfer))
            if i == transfer.last:
                self.agenda.push((ready, order, i, transfer, AT_COMMIT))
            elif len(group.pending) > group.most_pending:
                group.flush(self.now)
        elif i == transfer.last:
            self.agenda.push((ready, order, transfer.epoch, transfer, AT_DONE))

    def _ask_delay_rule(self, transfer: Transfer, now: float, i: int, hop: int) -> None:
        route, names = transfer.route, self.network.names
        node, came_from = names[route.nodes[hop + 1]], names[route.nodes[hop]]
        rule = self.network.delay_rule[route.nodes[hop + 1]]
        assert rule is not None
        nbytes = transfer.flit_bytes(i, self.network.flit_bytes)
        delay = rule(FlitArrival(node, came_from, now, i, transfer.flits, nbytes, transfer.nbytes, transfer.tag))
        if not (isinstance(delay, int | float) and 0 <= delay < MAX_TIME_NS):
            raise FabricError(f"the delay rule of {node!r} answered {delay!r}", hint="answer ns, 0 or more")
        # Order within a transfer is kept: a flit is never ready before the one ahead of it.
        if transfer.delayed_until_ns is None:
            transfer.delayed_until_ns = {}
        transfer.delayed_until_ns[hop] = ready = max(now + on_grid(delay), transfer.delayed_until_ns.get(hop, 0.0))
        self._arrive(transfer, ready, transfer.links[hop] + next(self._tie) * TIE, i, hop + 1)

    def finish(self, transfer: Transfer, at: float) -> None:
        """A transfer will be done at `at`, as long as its epoch does not change."""
        self.agenda.push((at, INJECTED + transfer.seq, transfer.epoch, transfer, AT_DONE))


def _is_ready_at_once(transfer: Transfer) -> bool:
    """Whether the flits of a plain transfer are all ready for its first link when it departs."""
    if transfer.slow or transfer.pace is not None or transfer.slot is not None or transfer.fed_by is not None:
        return False
    return not transfer.traversals[0].special & IN_SERIES
