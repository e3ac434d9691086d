"""The fast path: a transfer that meets nobody is moved as one train, all its hops at once, in closed form.

A train is laid down when a transfer sets out and finds, on every link of its path, nobody in its way: no transfer that
is being moved flit by flit, and no earlier train whose last flit is ready there as late as its own first. A newcomer
that could meet it lifts it (`rails.py`). When a transfer that is moved flit by flit is again alone on what is left of
its way, it becomes a train once more.
"""

from __future__ import annotations

from kernbench.sim_engine.fabric.banks import Bank, Pace
from kernbench.sim_engine.fabric.flits import DONE, FEED, Event
from kernbench.sim_engine.fabric.forecast import Times, first_ready, last_ready, moved, run_through
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.rails import LARGE, Held, Mode, Rails
from kernbench.sim_engine.fabric.runs import Run, append_run, part_of
from kernbench.sim_engine.fabric.train import Shape, ShapedTrain, Train, shape_of
from kernbench.sim_engine.fabric.transfers import Transfer

WORTH_LAYING = 256  # flits times hops still to go that make it worth while to look for a transfer's flits in the queue
MOST_SHAPES = 64  # kept of one route and size of last flit
MOST_PATIENCE = 6  # doublings of the ends waited for before a transfer is looked at again for laying

Waiting = list[list[tuple[int, list[Run], int]]]  # per hop: index of the first flit, times (none for a read), count


class TrainFabric(Rails):
    """Trains where a transfer is alone, one event a flit and hop where flows meet.

    `mode="flits"` never lays a train; times are the same bit for bit.
    """

    def __init__(self, network: Network, *, mode: Mode = "adaptive", record: bool = False) -> None:
        super().__init__(network, mode=mode, record=record)
        self._ends = 0

    # ---- setting out

    def _set_out(self, transfer: Transfer, now: float) -> None:
        if transfer.source is None or not self._read_by_shape(transfer, transfer.source, now):
            super()._set_out(transfer, now)

    def _read_by_shape(self, transfer: Transfer, bank: Bank, now: float) -> bool:
        """Lay a read from idle channels over idle links as one of its size was before, all at once."""
        assert transfer.ending is not None
        shape = transfer.ending.shapes.get((transfer.flits, True))
        if not isinstance(shape, Shape) or transfer.slow or not self._adaptive:
            return False
        if transfer.flits <= LARGE and self._pause[transfer.links[0]]:
            return False
        free_ns, users = self._free, self._users
        for link, first, _, _ in shape.links:
            if users[link] or free_ns[link] > now + first:
                return False
        ahead = self._bank_held[bank.node]
        if ahead:
            if ahead[-1][0] > now:
                return False
            ahead.clear()
        if not bank.read_if_idle(transfer.block, transfer.flits, now):
            return False
        self._lay_shape(transfer, shape, now, shape.arrival)
        return True

    def _commit_read(self, transfer: Transfer, bank: Bank, now: float) -> None:
        ahead = self._bank_held[bank.node]
        if ahead:
            self._lift([train for arrival, train in ahead if arrival > now], now, transfer.order)
        super()._commit_read(transfer, bank, now)

    def _begin(self, transfer: Transfer, now: float) -> None:
        if self._adaptive:
            if self._may_lay(transfer) and (self._lay_by_shape(transfer, now) or self._lay_new(transfer, now)):
                return
            if self._on_rails:
                self._clear_the_way(transfer, now)
            if transfer.flits > LARGE and not (transfer.slow or transfer.route.loops):
                self._large[transfer.seq] = transfer
        super()._begin(transfer, now)

    def _may_lay(self, transfer: Transfer) -> bool:
        """Whether nobody is on the way flit by flit. A small transfer also needs a link where trains run through."""
        links, users = transfer.links, self._users
        if transfer.flits <= LARGE and self._pause[links[0]]:
            self._pause[links[0]] -= 1
            return False
        for link in links:
            if users[link]:
                return False
        return not (transfer.slow or transfer.route.loops)

    def _clear_the_way(self, transfer: Transfer, now: float) -> None:
        """Lift the trains that a transfer moved flit by flit could meet."""
        meets: list[Train] = []
        held, order = self._held, transfer.order
        for link in transfer.links:
            for last, train in held[link]:
                if last > now or (last == now and train.transfer.order > order):
                    meets.append(train)
        if transfer.sink is not None:
            meets += [train for last, train in self._bank_held[transfer.sink.node] if last > now]
        if meets:
            self._lift(meets, now, order)

    # ---- laying

    def _lay_new(self, transfer: Transfer, now: float) -> bool:
        """Lay a transfer that sets out; False when it would meet somebody."""
        if self._on_rails and not self._runs_free(transfer, now):
            return False
        hops = transfer.hops
        ready: Times = transfer.pace or [(now, 0.0, transfer.flits)]
        train = Train(next(self._trains), transfer, [0] * (hops + 1))
        return self._lay(train, [ready, *([] for _ in range(hops))], now)

    def _runs_free(self, transfer: Transfer, now: float) -> bool:
        """Whether the first flit comes behind all trains on its way; cheaper to find out than by laying."""
        held, free_ns = self._held, self._free
        ready = now if transfer.pace is None else transfer.pace.firsts[0]
        for hop, (link, occupy_ns, tail_ns, _, _) in enumerate(transfer.steps):
            ahead = held[link]
            if ahead and ahead[-1][0] >= ready and not _may_follow(ahead[-1], ready, hop, transfer, now):
                return False
            free = free_ns[link]
            ready = (free if free > ready else ready) + occupy_ns + tail_ns
        return True

    def _lay(self, train: Train, under_way: list[Times], now: float) -> bool:
        """Lay a train from where its flits stand; False, and nothing changed, when it would meet somebody."""
        transfer, held = train.transfer, self._held
        forecast = run_through(transfer, train.start, under_way, [self._free[link] for link in transfer.links])
        if forecast is None:
            return False
        train.hops, train.arrival = hops, arrival = forecast
        for hop, link in enumerate(transfer.links):
            ahead, ready = held[link], hops[hop][0]
            if ahead and ready:
                first = train.ready_time(hop, train.start[hop])
                if ahead[-1][0] >= first and not _may_follow(ahead[-1], first, hop, transfer, now):
                    return False
        bank = transfer.sink
        if bank is not None and not self._bank_is_clear(bank, first_ready(arrival), now, transfer.seq in self._large):
            return False
        for hop, (ready, _, after, _, _) in enumerate(hops):
            if ready:
                link = transfer.links[hop]
                self._free[link] = after
                _forget(held[link], now)
                held[link].append((last_ready(ready), train))
        self._put_on_rails(train, arrival, train.start[-1], last_ready(arrival))
        return True

    def _lay_by_shape(self, transfer: Transfer, now: float) -> bool:
        """Lay a transfer that sets out as one of its size did before; False when a link or memory is not idle."""
        pace, ending = transfer.pace, transfer.ending
        assert ending is not None
        key = transfer.flits, pace is not None
        shape = ending.shapes.get(key)
        if shape is None:
            self._learn_shape(transfer, ending.shapes, key)
            return False
        if not isinstance(shape, Shape) or (
            pace is not None and not (pace.level and pace.firsts[0] == now + pace.burst_ns)
        ):
            return False
        free_ns, bank = self._free, transfer.sink
        for link, first, _, _ in shape.links:
            if free_ns[link] > now + first:
                return False
        arrival = shape.arrival
        if bank is not None:
            arrival = moved(arrival, now)
            if not self._bank_is_clear(bank, first_ready(arrival), now, False):
                return False
        self._lay_shape(transfer, shape, now, arrival)
        return True

    def _lay_shape(self, transfer: Transfer, shape: Shape, now: float, arrival: Times) -> None:
        """Lay a transfer whose links are idle."""
        train = ShapedTrain(next(self._trains), transfer, shape, now)
        held, free_ns, free_before = self._held, self._free, train.free_before
        for link, _, last, after in shape.links:
            free_before.append(free_ns[link])
            free_ns[link] = now + after
            trains = held[link]
            if trains:
                _forget(trains, now)
            trains.append((now + last, train))
        self._put_on_rails(train, arrival, 0, now + shape.end)

    def _learn_shape(self, transfer: Transfer, shapes: dict[tuple[int, bool], object], key: tuple[int, bool]) -> None:
        """A size that comes for the second time on a route is worth a shape. `False` stands for one that has none."""
        if key not in shapes:
            if len(shapes) >= MOST_SHAPES:
                shapes.clear()
            shapes[key] = None
        else:
            shapes[key] = shape_of(transfer, transfer.source) or False

    def _bank_is_clear(self, bank: Bank, first: float, now: float, own: bool) -> bool:
        """Whether flits that arrive from `first` on come behind all others; `own` if they are known to the bank."""
        ahead = self._bank_held[bank.node]
        if ahead and ahead[-1][0] <= now:
            ahead.clear()
        return bank.users == own and not (ahead and ahead[-1][0] >= first)

    def _put_on_rails(self, train: Train, arrival: Times, index: int, end: float) -> None:
        """The train is laid: its end, and what its flits from `index` on do to a memory, are taken as forecast."""
        transfer = train.transfer
        bank = transfer.sink
        if bank is not None and not isinstance(arrival, Pace):
            self._bank_held[bank.node].append((end, train))
            end, train.bank_before = bank.commit_writes(transfer.block + index, arrival)
            if transfer.finish_ns > end:
                end = transfer.finish_ns
        transfer.train = train
        self._on_rails += 1
        self.laid += 1
        self._finish(transfer, end)

    # ---- laying again what is alone once more

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
                    self._lay_again(transfer, self.now)

    def _lay_again(self, transfer: Transfer, now: float) -> None:
        """Make a train of a transfer that is moved flit by flit, if it meets nobody on what is left of its way."""
        train, pending = self._gather(transfer, now)
        if sum(transfer.flits - start for start in train.start[:-1]) < WORTH_LAYING:
            del self._large[transfer.seq]
            return
        transfer.epoch += 1
        if not self._lay(train, pending, now):
            transfer.tries = min(transfer.tries + 1, MOST_PATIENCE)
            return
        self.laid_again += 1
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
            runs: list[Run] = []
            for _, times, n in sorted(parts):
                behind -= n
                for t, dt, m in times:
                    append_run(runs, t, dt, m)
            start.append(behind)
            pending.append(runs)
        if transfer.pace is not None and waiting[0]:
            pending[0] = transfer.pace
        return Train(next(self._trains), transfer, start), pending


def _may_follow(ahead: tuple[float, Train], first: float, hop: int, transfer: Transfer, now: float) -> bool:
    """Whether a train may be laid although the one ahead is ready as late: injected at one instant, in order."""
    last, train = ahead
    return hop == 0 and last == first == now and train.transfer.order < transfer.order


def _forget(held: Held, now: float) -> None:
    """Drop trains that have passed; not always all of them, but so that few remain."""
    if held and held[-1][0] < now:
        held.clear()
    elif len(held) > 8:
        held[:] = [entry for entry in held if entry[0] >= now]


def _find(event: Event, waiting: Waiting) -> None:
    """Note what an event says of where its transfer's flits stand."""
    time, _, index, transfer, step = event
    if step.link >= 0:
        waiting[transfer.links.index(step.link)].append((index, [(time, 0.0, 1)], 1))
        return
    hop, kind = divmod(-step.link, 8)
    if kind == FEED:
        assert transfer.feeds is not None
        feed = transfer.feeds[hop]
        times = (
            [] if isinstance(feed.source, Pace) else part_of(feed.source, feed.index - feed.base, feed.stop - feed.base)
        )
        waiting[hop].append((feed.index, times, feed.stop - feed.index))
