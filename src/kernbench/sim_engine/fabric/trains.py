"""The fast path: an uncontended transfer is moved as one train, all its hops at once, planned in closed form.

A train is planned when a transfer sets out and is uncontended on every link of its path: no transfer there is moved
flit by flit, and no earlier train has its last flit ready as late as its own first. A newcomer that could contend with
it splits it into flits (`planned_trains.py`). When a transfer that is moved flit by flit is alone again on what is left
of its path, it becomes a train once more.
"""

from __future__ import annotations

from kernbench.sim_engine.fabric.channels import ChannelGroup, Pace
from kernbench.sim_engine.fabric.flits import DONE, REFILL, Event
from kernbench.sim_engine.fabric.forecast import Times, first_ready, forecast_transfer, last_ready, moved
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.planned_trains import LARGE, Mode, PlannedTrains, TrainQueue
from kernbench.sim_engine.fabric.progressions import Progression, append_progression, part_of
from kernbench.sim_engine.fabric.train import TemplateTrain, Train, TrainTemplate, template_of
from kernbench.sim_engine.fabric.transfers import Transfer

WORTH_REPLANNING = (
    256  # flits times hops still to go that make it worth while to look for a transfer's flits in the queue
)
MAX_TEMPLATES = 64  # kept of one route and size of last flit
MAX_REPLAN_DOUBLINGS = 6  # doublings of the ends waited for before a transfer is planned again

Waiting = list[
    list[tuple[int, list[Progression], int]]
]  # per hop: index of the first flit, times (none for a read), count


class TrainFabric(PlannedTrains):
    """Trains where a transfer is alone, one event per flit and hop where flows meet.

    `mode="flits"` never plans a train; times are the same bit for bit.
    """

    def __init__(self, network: Network, *, mode: Mode = "adaptive", record: bool = False) -> None:
        super().__init__(network, mode=mode, record=record)
        self._ends = 0

    # ---- setting out

    def _set_out(self, transfer: Transfer, now: float) -> None:
        if transfer.source is None or not self._read_from_template(transfer, transfer.source, now):
            super()._set_out(transfer, now)

    def _read_from_template(self, transfer: Transfer, group: ChannelGroup, now: float) -> bool:
        """Plan a read from idle channels over idle links as one of its size was before, all at once."""
        assert transfer.last_flit is not None
        template = transfer.last_flit.templates.get((transfer.flits, True))
        if not isinstance(template, TrainTemplate) or transfer.slow or not self._adaptive:
            return False
        if transfer.flits <= LARGE and self._pause[transfer.links[0]]:
            return False
        free_ns, users = self._free, self._users
        for link, first, _, _ in template.links:
            if users[link] or free_ns[link] > now + first:
                return False
        ahead = self._writes_planned[group.node]
        if ahead:
            if ahead[-1][0] > now:
                return False
            ahead.clear()
        if not group.read_if_idle(transfer.block, transfer.flits, now):
            return False
        self._commit_template(transfer, template, now, template.arrival)
        return True

    def _commit_read(self, transfer: Transfer, group: ChannelGroup, now: float) -> None:
        ahead = self._writes_planned[group.node]
        if ahead:
            self._split([train for arrival, train in ahead if arrival > now], now, transfer.order)
        super()._commit_read(transfer, group, now)

    def _begin(self, transfer: Transfer, now: float) -> None:
        if self._adaptive:
            if self._may_plan(transfer) and (self._plan_from_template(transfer, now) or self._plan_new(transfer, now)):
                return
            if self._active_trains:
                self._split_conflicting(transfer, now)
            if transfer.flits > LARGE and not (transfer.slow or transfer.route.loops):
                self._large[transfer.seq] = transfer
        super()._begin(transfer, now)

    def _may_plan(self, transfer: Transfer) -> bool:
        """Whether no transfer moves flit by flit there. A small transfer also needs a link where trains run through."""
        links, users = transfer.links, self._users
        if transfer.flits <= LARGE and self._pause[links[0]]:
            self._pause[links[0]] -= 1
            return False
        for link in links:
            if users[link]:
                return False
        return not (transfer.slow or transfer.route.loops)

    def _split_conflicting(self, transfer: Transfer, now: float) -> None:
        """Split the trains that a transfer moved flit by flit could contend with."""
        meets: list[Train] = []
        queues, order = self._trains_on, transfer.order
        for link in transfer.links:
            for last, train in queues[link]:
                if last > now or (last == now and train.transfer.order > order):
                    meets.append(train)
        if transfer.sink is not None:
            meets += [train for last, train in self._writes_planned[transfer.sink.node] if last > now]
        if meets:
            self._split(meets, now, order)

    # ---- planning

    def _plan_new(self, transfer: Transfer, now: float) -> bool:
        """Plan a transfer that sets out; False when it would be contended."""
        if self._active_trains and not self._comes_behind_all(transfer, now):
            return False
        hops = transfer.hops
        ready: Times = transfer.pace or [(now, 0.0, transfer.flits)]
        train = Train(next(self._train_seq), transfer, [0] * (hops + 1))
        return self._plan(train, [ready, *([] for _ in range(hops))], now)

    def _comes_behind_all(self, transfer: Transfer, now: float) -> bool:
        """Whether the first flit comes behind all trains on its path; cheaper to find out than by planning."""
        queues, free_ns = self._trains_on, self._free
        ready = now if transfer.pace is None else transfer.pace.firsts[0]
        for hop, (link, occupy_ns, tail_ns, _, _) in enumerate(transfer.crossings):
            ahead = queues[link]
            if ahead and ahead[-1][0] >= ready and not _may_follow(ahead[-1], ready, hop, transfer, now):
                return False
            free = free_ns[link]
            ready = (free if free > ready else ready) + occupy_ns + tail_ns
        return True

    def _plan(self, train: Train, under_way: list[Times], now: float) -> bool:
        """Plan a train from where its flits stand; False, and nothing changed, when it would be contended."""
        transfer, queues = train.transfer, self._trains_on
        forecast = forecast_transfer(transfer, train.start, under_way, [self._free[link] for link in transfer.links])
        if forecast is None:
            return False
        train.hops, train.arrival = hops, arrival = forecast
        for hop, link in enumerate(transfer.links):
            ahead, ready = queues[link], hops[hop][0]
            if ahead and ready:
                first = train.ready_time(hop, train.start[hop])
                if ahead[-1][0] >= first and not _may_follow(ahead[-1], first, hop, transfer, now):
                    return False
        group = transfer.sink
        if group is not None and not self._channels_are_clear(
            group, first_ready(arrival), now, transfer.seq in self._large
        ):
            return False
        for hop, (ready, _, after, _, _) in enumerate(hops):
            if ready:
                link = transfer.links[hop]
                self._free[link] = after
                _forget(queues[link], now)
                queues[link].append((last_ready(ready), train))
        self._commit_plan(train, arrival, train.start[-1], last_ready(arrival))
        return True

    def _plan_from_template(self, transfer: Transfer, now: float) -> bool:
        """Plan a transfer as one of its size was before; False when a link or memory is not idle."""
        pace, last_flit = transfer.pace, transfer.last_flit
        assert last_flit is not None
        key = transfer.flits, pace is not None
        template = last_flit.templates.get(key)
        if template is None:
            self._learn_template(transfer, last_flit.templates, key)
            return False
        if not isinstance(template, TrainTemplate) or (
            pace is not None and not (pace.simultaneous and pace.firsts[0] == now + pace.burst_ns)
        ):
            return False
        free_ns, group = self._free, transfer.sink
        for link, first, _, _ in template.links:
            if free_ns[link] > now + first:
                return False
        arrival = template.arrival
        if group is not None:
            arrival = moved(arrival, now)
            if not self._channels_are_clear(group, first_ready(arrival), now, False):
                return False
        self._commit_template(transfer, template, now, arrival)
        return True

    def _commit_template(self, transfer: Transfer, template: TrainTemplate, now: float, arrival: Times) -> None:
        """Put the plan of a transfer whose links are idle into force."""
        train = TemplateTrain(next(self._train_seq), transfer, template, now)
        queues, free_ns, free_before = self._trains_on, self._free, train.free_before
        for link, _, last, after in template.links:
            free_before.append(free_ns[link])
            free_ns[link] = now + after
            trains = queues[link]
            if trains:
                _forget(trains, now)
            trains.append((now + last, train))
        self._commit_plan(train, arrival, 0, now + template.end)

    def _learn_template(
        self, transfer: Transfer, templates: dict[tuple[int, bool], object], key: tuple[int, bool]
    ) -> None:
        """A size that comes for the second time on a route is worth a template; `False` if it has none."""
        if key not in templates:
            if len(templates) >= MAX_TEMPLATES:
                templates.clear()
            templates[key] = None
        else:
            templates[key] = template_of(transfer, transfer.source) or False

    def _channels_are_clear(self, group: ChannelGroup, first: float, now: float, own: bool) -> bool:
        """Whether flits that arrive from `first` on come behind all others; `own` if the channels know of them."""
        ahead = self._writes_planned[group.node]
        if ahead and ahead[-1][0] <= now:
            ahead.clear()
        return group.users == own and not (ahead and ahead[-1][0] >= first)

    def _commit_plan(self, train: Train, arrival: Times, index: int, end: float) -> None:
        """The plan is in force: the train's end, and what its flits from `index` on do to a memory, are as forecast."""
        transfer = train.transfer
        group = transfer.sink
        if group is not None and not isinstance(arrival, Pace):
            self._writes_planned[group.node].append((end, train))
            end, train.channels_before = group.commit_writes(transfer.block + index, arrival)
            if transfer.finish_ns > end:
                end = transfer.finish_ns
        transfer.train = train
        self._active_trains += 1
        self.planned += 1
        self._finish(transfer, end)

    # ---- planning again what is alone once more

    def _after(self, done: list[Transfer]) -> None:
        if self._large:
            users = self._users
            self._ends += 1
            for transfer in list(self._large.values()):
                if self._ends & ((1 << transfer.tries) - 1):
                    continue
                most = max(map(users.__getitem__, transfer.links))
                if most == 0:
                    del self._large[transfer.seq]  # its last flit has passed the last link
                elif most == 1 and (transfer.sink is None or transfer.sink.users == 1):
                    self._replan(transfer, self.now)

    def _replan(self, transfer: Transfer, now: float) -> None:
        """Make a train of a transfer that is moved flit by flit, if it is uncontended on what is left of its path."""
        train, pending = self._gather(transfer, now)
        if sum(transfer.flits - start for start in train.start[:-1]) < WORTH_REPLANNING:
            del self._large[transfer.seq]
            return
        transfer.epoch += 1
        if not self._plan(train, pending, now):
            transfer.tries = min(transfer.tries + 1, MAX_REPLAN_DOUBLINGS)
            return
        self.replanned += 1
        epoch = transfer.epoch
        self._agenda.keep(lambda event: event[3] is not transfer or (event[4].link == -DONE and event[2] == epoch))
        for hop, link in enumerate(transfer.links):
            if train.start[hop] < transfer.flits:
                self._users[link] -= 1
        if transfer.sink is not None:
            transfer.sink.users -= 1
            transfer.sink.pending.clear()
        del self._large[transfer.seq]

    def _gather(self, transfer: Transfer, now: float) -> tuple[Train, list[Times]]:
        """Where the flits of a transfer stand that is moved flit by flit."""
        waiting: Waiting = [[] for _ in range(transfer.hops + 1)]
        for event in self._agenda:
            if event[3] is transfer:
                _find(event, waiting)
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
        return Train(next(self._train_seq), transfer, start), pending


def _may_follow(ahead: tuple[float, Train], first: float, hop: int, transfer: Transfer, now: float) -> bool:
    """Whether a train may be planned although the one ahead is ready as late: injected at one instant, in order."""
    last, train = ahead
    return hop == 0 and last == first == now and train.transfer.order < transfer.order


def _forget(queue: TrainQueue, now: float) -> None:
    """Drop trains that have passed; not always all of them, but so that few remain."""
    if queue and queue[-1][0] < now:
        queue.clear()
    elif len(queue) > 8:
        queue[:] = [entry for entry in queue if entry[0] >= now]


def _find(event: Event, waiting: Waiting) -> None:
    """Note what an event says of where its transfer's flits stand."""
    time, _, index, transfer, crossing = event
    if crossing.link >= 0:
        waiting[transfer.links.index(crossing.link)].append((index, [(time, 0.0, 1)], 1))
        return
    hop, kind = divmod(-crossing.link, 8)
    if kind == REFILL:
        assert transfer.schedules is not None
        schedule = transfer.schedules[hop]
        times = (
            []
            if isinstance(schedule.source, Pace)
            else part_of(schedule.source, schedule.index - schedule.base, schedule.stop - schedule.base)
        )
        waiting[hop].append((schedule.index, times, schedule.stop - schedule.index))
