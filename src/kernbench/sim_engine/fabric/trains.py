"""The fast path: an uncontended transfer is moved as one train, all its hops at once, planned in closed form.

A train is planned when a transfer departs and is uncontended on every link of its path: no transfer there is moved
flit by flit, and no earlier train has its last flit ready as late as its own first. A transfer that could contend with
it splits it into flits (`planned_trains.py`). When a transfer that is moved flit by flit is uncontended again on what
is left of its path, it becomes a train once more.
"""

from __future__ import annotations

from itertools import count

from kernbench.common.declared_state import aside
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.engine import FlitEngine
from kernbench.sim_engine.fabric.fifo import leave_ns, wait_ns
from kernbench.sim_engine.fabric.forecast import HopForecast, forecast_transfer
from kernbench.sim_engine.fabric.links import Booking
from kernbench.sim_engine.fabric.planned_trains import PlannedTrains
from kernbench.sim_engine.fabric.progressions import Times, first_of, last_of, moved
from kernbench.sim_engine.fabric.train import TemplateTrain, Train, TrainTemplate, template_of
from kernbench.sim_engine.fabric.transfers import Transfer
from kernbench.sim_engine.fabric.whereabouts import find_flits, forget_flits

LARGE = 64  # flits: planning a train for a transfer this large pays even if it is split later
SHORTEST_PAUSE, LONGEST_PAUSE = 4, 64  # small transfers that a first link sends flit by flit before the next try
WORTH_REPLANNING = 256  # flits times hops still to go that make it worth while to look for a transfer's flits
WORTH_REPLANNING_COMPILED = 16384  # the same where a compiled loop moves them, for far less than a plan costs
MAX_TEMPLATES = 64  # kept of one route and size of last flit
MAX_REPLAN_DOUBLINGS = 6  # doublings of the ends waited for before a transfer is planned again


class TrainPlanner:
    """Trains where a transfer is uncontended; one event per flit and hop, which is the engine's, where flows meet."""

    DERIVED = (  # a train comes to the times of its flits
        "_engine", "_ends", "_is_paused", "_links", "_next_pause", "_pause", "_train_seq", "_trains", "planned",
        "replanned", "split",
    )  # fmt: skip
    SET_ASIDE = (aside("waiting", lambda planner: {}, lambda planner, left: planner.waiting.update(left)),)

    def __init__(self, engine: FlitEngine) -> None:
        self.planned = self.replanned = self.split = 0  # how often; of use to see what a run was made of
        self._engine = engine
        self._links = engine.links
        self._trains = PlannedTrains(engine)
        self._train_seq = count()
        self._pause = [0] * len(engine.links.free)  # per first link: small transfers that go before the next try
        self._next_pause = [SHORTEST_PAUSE] * len(engine.links.free)
        self.waiting: dict[int, Transfer] = {}  # moved flit by flit for now, and worth planning again
        self._ends = 0
        self._is_paused = False

    # ---- departure

    def depart(self, transfer: Transfer, now: float) -> None:
        trains, engine, group = self._trains, self._engine, transfer.source
        if transfer.tree is not None:
            self._depart_tree(transfer.tree, now)
            return
        if self._is_paused:
            if group is not None:
                engine.commit_read(transfer, group, now)
            if not transfer.route.loops:
                self._replan_when_uncontended(transfer)
            engine.begin(transfer, now)
            return
        if group is not None:
            if self._read_from_template(transfer, group, now):
                return
            if trains.last_write(group, now):
                self._split(trains.writes_after(group, now), now, transfer.order)
            engine.commit_read(transfer, group, now)
        if self._count_down_pause(transfer) and (
            self._plan_from_template(transfer, now) or self._plan_new(transfer, now)
        ):
            return
        if trains.active:
            contending_trains = trains.contending_trains(transfer, now)
            if contending_trains:
                self._split(contending_trains, now, transfer.order)
        if engine.counters.sees_flits:
            transfer.slow = True
        elif not transfer.route.loops:
            self._replan_when_uncontended(transfer)
        engine.begin(transfer, now)

    def _depart_tree(self, segments: tuple[Transfer, ...], now: float) -> None:
        """A multicast departs: all its segments are planned, or none."""
        if not self._is_paused and self._plan_tree(segments, now):
            return
        contending_trains = [train for segment in segments for train in self._trains.contending_trains(segment, now)]
        if contending_trains:
            self._split(contending_trains, now, segments[0].order)
        for segment in segments:
            segment.slow = True
            self._engine.begin(segment, now)

    def _plan_tree(self, segments: tuple[Transfer, ...], now: float) -> bool:
        """Plan a multicast; False, and nothing changed, when it would be contended. A segment begins with what the one
        that feeds it forecasts for the node between them.
        """
        if any(each.slow or each.route.loops or not self._links.are_unused(each.links) for each in segments):
            return False
        trains: dict[int, Train] = {}
        for segment in segments:
            ready: Times = [(now, 0.0, segment.flits)]
            if segment.fed_by is not None:
                ready = trains[segment.fed_by.seq].ready(segment.fed_at)
            train = trains[segment.seq] = Train(next(self._train_seq), segment, [0] * (segment.hops + 1))
            if not self._forecast(train, [ready, *([] for _ in range(segment.hops))], now):
                return False
        for train in trains.values():
            self._commit_plan(train)
        return True

    def _count_down_pause(self, transfer: Transfer) -> bool:
        """Count down the pause of its first link, if it has one; returns whether a plan is worth trying. A small
        transfer needs a link where trains run through; a compiled loop moves it for less than a plan costs. A transfer
        that alternates with others on its first link is never uncontended.
        """
        if transfer.slot is not None:
            return False
        if transfer.flits <= LARGE:
            if self._engine.queues is not None:
                return False
            first_link = transfer.links[0]
            if self._pause[first_link]:
                self._pause[first_link] -= 1
                return False
        return not (transfer.slow or transfer.route.loops)

    def _split(self, trains: list[Train], now: float, order: float) -> None:
        """Split trains that a new transfer could contend with."""
        for transfer in self._trains.split(trains, now, order):
            self.split += 1
            if transfer.flits > LARGE:
                self._replan_when_uncontended(transfer)
            else:
                first_link = transfer.links[0]
                self._pause[first_link] = pause = self._next_pause[first_link]
                self._next_pause[first_link] = min(2 * pause, LONGEST_PAUSE)

    def split_all(self, now: float, order: float) -> None:
        """Split every train into flits. One whose flits have all passed only has its end to come."""
        for transfer in self._trains.split_all(now, order):
            self.split += 1
            self._replan_when_uncontended(transfer)

    def _replan_when_uncontended(self, transfer: Transfer) -> None:
        """A transfer is moved flit by flit: plan it again once uncontended, if it is so large that this may pay."""
        if transfer.slow or transfer.flits <= LARGE:
            return
        is_compiled = self._engine.queues is not None
        if not is_compiled or transfer.flits * transfer.hops >= WORTH_REPLANNING_COMPILED:
            self.waiting[transfer.seq] = transfer

    def pause(self, now: float) -> None:
        """No event of this very instant has affected a train: an interfering transfer would have split it."""
        self.split_all(now, -1)
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False

    # ---- planning from where the flits stand

    def _plan_new(self, transfer: Transfer, now: float) -> bool:
        """Plan a transfer that departs; False when it would be contended."""
        if not self._links.are_unused(transfer.links):
            return False
        if not transfer.last:
            return self._plan_one_flit(transfer, now)
        if self._trains.active and not self._comes_behind_all(transfer, now):
            return False
        hops = transfer.hops
        ready: Times = transfer.pace or [(now, 0.0, transfer.flits)]
        train = Train(next(self._train_seq), transfer, [0] * (hops + 1))
        return self._plan(train, [ready, *([] for _ in range(hops))], now)

    def _plan_one_flit(self, transfer: Transfer, now: float) -> bool:
        """The same for a transfer of a single flit, which takes each link by the rule itself."""
        pace, queues, links = transfer.pace, self._trains.on_link, self._links
        times: Times = pace or [(now, 0.0, 1)]
        ready = now if pace is None else pace.firsts[0]
        hops: list[HopForecast] = []
        bookings: list[Booking] = []
        for hop, (link, occupy_ns, tail_ns, _, _) in enumerate(transfer.last_traversals):
            ahead, before = queues[link], links.free[link]
            if ahead and ahead[-1][0] >= ready and not _may_follow(ahead[-1], ready, hop, transfer, now):
                return False
            after = leave_ns(ready, before, occupy_ns)
            hops.append((times, before, after, wait_ns(ready, after, occupy_ns), ready))
            bookings.append((link, ready, ready, after))
            ready = after + tail_ns
            times = [(ready, 0.0, 1)]
        if not self._memory_is_clear(transfer, times, now, own=False):
            return False
        train = Train(next(self._train_seq), transfer, [0] * (transfer.hops + 1))
        train.hops, train.arrival = hops, times
        self.planned += 1
        self._trains.add(train, bookings, 0.0, times, 0, ready)
        return True

    def _comes_behind_all(self, transfer: Transfer, now: float) -> bool:
        """Whether the first flit comes behind all trains on its path; cheaper to find out than by planning."""
        queues, free_ns = self._trains.on_link, self._links.free
        ready = now if transfer.pace is None else transfer.pace.firsts[0]
        for hop, (link, occupy_ns, tail_ns, _, _) in enumerate(transfer.traversals):
            ahead = queues[link]
            if ahead and ahead[-1][0] >= ready and not _may_follow(ahead[-1], ready, hop, transfer, now):
                return False
            ready = leave_ns(ready, free_ns[link], occupy_ns) + tail_ns
        return True

    def _plan(self, train: Train, under_way: list[Times], now: float) -> bool:
        """Plan a train from where its flits stand; False, and nothing changed, when it would be contended."""
        if not self._forecast(train, under_way, now):
            return False
        self._commit_plan(train)
        return True

    def _forecast(self, train: Train, under_way: list[Times], now: float) -> bool:
        """Forecast a train from where its flits stand; False when it would be contended."""
        transfer, queues, links = train.transfer, self._trains.on_link, self._links
        forecast = forecast_transfer(transfer, train.start, under_way, [links.free[link] for link in transfer.links])
        if forecast is None:
            return False
        train.hops, train.arrival = hops, arrival = forecast
        for hop, link in enumerate(transfer.links):
            ahead, ready = queues[link], hops[hop][0]
            if ahead and ready:
                first = train.ready_time(hop, train.start[hop])
                if ahead[-1][0] >= first and not _may_follow(ahead[-1], first, hop, transfer, now):
                    return False
        return self._memory_is_clear(transfer, arrival, now, own=transfer.seq in self.waiting)

    def _commit_plan(self, train: Train) -> None:
        """What a train forecasts is planned."""
        bookings, arrival = train.bookings(), train.arrival
        self.planned += 1
        self._trains.add(train, bookings, 0.0, arrival, train.start[-1], last_of(arrival))

    def _memory_is_clear(self, transfer: Transfer, arrival: Times, now: float, *, own: bool) -> bool:
        """Whether the flits of a write come behind all others at its memory; `own` if that knows of them already."""
        group = transfer.sink
        if group is None:
            return True
        last = self._trains.last_write(group, now)
        return group.users == own and not (last and last >= first_of(arrival))

    # ---- planning from a template

    def _read_from_template(self, transfer: Transfer, group: ChannelGroup, now: float) -> bool:
        """Plan a read from idle channels over idle links as one of its size was before, all at once."""
        assert transfer.last_flit is not None
        template = transfer.last_flit.templates.get((transfer.flits, True))
        if not isinstance(template, TrainTemplate) or transfer.slow:
            return False
        if transfer.flits <= LARGE and self._pause[transfer.links[0]]:
            return False
        if not self._links.are_free(template.links, now) or self._trains.last_write(group, now):
            return False
        if not group.read_if_idle(transfer.block, transfer.flits, now, transfer.spare):
            return False
        self._apply_template(transfer, template, now, template.arrival)
        return True

    def _plan_from_template(self, transfer: Transfer, now: float) -> bool:
        """Plan a transfer as one of its size was before; False when a link or memory is not idle."""
        pace, last_flit = transfer.pace, transfer.last_flit
        assert last_flit is not None
        key = transfer.flits, pace is not None
        template = last_flit.templates.get(key)
        if template is None:
            if self._links.are_unused(transfer.links):
                _learn_template(transfer, last_flit.templates, key)
            return False
        if not isinstance(template, TrainTemplate) or (pace is not None and not template.has_pace(pace, now)):
            return False
        if not self._links.are_free(template.links, now):
            return False
        arrival = template.arrival
        if transfer.sink is not None:
            arrival = moved(arrival, now)
            if not self._memory_is_clear(transfer, arrival, now, own=False):
                return False
        self._apply_template(transfer, template, now, arrival)
        return True

    def _apply_template(self, transfer: Transfer, template: TrainTemplate, now: float, arrival: Times) -> None:
        """Put the plan of a transfer whose links are idle into force."""
        free_before = list(map(self._links.free.__getitem__, transfer.links))
        train = TemplateTrain(next(self._train_seq), transfer, template, now, free_before)
        self.planned += 1
        self._trains.add(train, template.links, now, arrival, 0, now + template.end)

    # ---- the end, and planning again what is uncontended once more

    def ended(self, transfer: Transfer, now: float) -> None:
        train = transfer.train
        if train is None:
            self.waiting.pop(transfer.seq, None)
            return
        self._trains.end(transfer, train)
        first_link = transfer.links[0]
        if self._next_pause[first_link] > SHORTEST_PAUSE:
            self._next_pause[first_link] //= 2

    def instant_ended(self, now: float) -> None:
        if self._is_paused:
            return
        users = self._links.users
        self._ends += 1
        for transfer in list(self.waiting.values()):
            if self._ends & ((1 << transfer.tries) - 1):
                continue
            most = max(map(users.__getitem__, transfer.links))
            if most == 0:
                del self.waiting[transfer.seq]  # its last flit has passed the last link
            elif most == 1 and (transfer.sink is None or transfer.sink.users == 1):
                self._replan(transfer, now)

    def _replan(self, transfer: Transfer, now: float) -> None:
        """Make a train of a transfer that is moved flit by flit, if it is uncontended on what is left of its path."""
        start, pending = find_flits(self._engine, transfer, now)
        if sum(transfer.flits - first for first in start[:-1]) < WORTH_REPLANNING:
            del self.waiting[transfer.seq]
            return
        transfer.epoch += 1
        if not self._plan(Train(next(self._train_seq), transfer, start), pending, now):
            transfer.tries = min(transfer.tries + 1, MAX_REPLAN_DOUBLINGS)
            return
        self.replanned += 1
        forget_flits(self._engine, transfer, start)
        del self.waiting[transfer.seq]


def _learn_template(transfer: Transfer, templates: dict[tuple[int, ...], object], key: tuple[int, bool]) -> None:
    """A size that comes for the second time on a route is worth a template; `False` if it has none."""
    if key not in templates:
        if len(templates) >= MAX_TEMPLATES:
            templates.clear()
        templates[key] = None
    else:
        templates[key] = template_of(transfer, transfer.source) or False


def _may_follow(ahead: tuple[float, Train], first: float, hop: int, transfer: Transfer, now: float) -> bool:
    """Whether a train may be planned although the one ahead is ready as late: injected at one instant, in order."""
    last, train = ahead
    return hop == 0 and last == first == now and train.transfer.order < transfer.order
