"""The fast path: a transfer that meets nobody is moved as one train, all its hops at once, in closed form.

A train is laid down when a transfer sets out and finds, on every link of its path, nobody in its way: no transfer that
is being moved flit by flit, and no earlier train whose last flit is ready there as late as its own first. What was laid
down is a forecast that holds as long as nobody interferes. A newcomer that could meet it *lifts* it: at that instant
the flits that have passed a link stay passed, the others go on flit by flit from where they stand. All that is undone
lies in the future. Trains that were laid behind a lifted one on a common link are lifted with it. When a transfer that
is moved flit by flit is again alone on what is left of its way, it becomes a train once more.
"""

from __future__ import annotations

from itertools import count
from typing import Literal

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric.banks import Bank, Pace
from kernbench.sim_engine.fabric.flits import DONE, FEED, Event, FlitFabric
from kernbench.sim_engine.fabric.forecast import Times, first_ready, last_ready, moved, run_through
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.runs import Run, append_run, part_of
from kernbench.sim_engine.fabric.train import Shape, ShapedTrain, Train, shape_of
from kernbench.sim_engine.fabric.transfers import Transfer

Mode = Literal["adaptive", "flits"]

LARGE = 64  # flits: laying a train for a transfer this large pays even if it is lifted later
WORTH_LAYING = 256  # flits times hops still to go that make it worth while to look for a transfer's flits in the queue
SHORTEST_PAUSE, LONGEST_PAUSE = 4, 64  # small transfers that a first link sends flit by flit before the next try
MOST_SHAPES = 64  # kept of one route and size of last flit
MOST_PATIENCE = 6  # doublings of the ends waited for before a transfer is looked at again for laying

Held = list[tuple[float, Train]]
Waiting = list[list[tuple[int, list[Run], int]]]  # per hop: index of the first flit, times (none for a read), count


class TrainFabric(FlitFabric):
    """Trains where a transfer is alone, one event a flit and hop where flows meet.

    `mode="flits"` never lays a train; times are the same bit for bit.
    """

    def __init__(self, network: Network, *, mode: Mode = "adaptive", record: bool = False) -> None:
        super().__init__(network, record=record)
        if mode not in ("adaptive", "flits"):
            raise FabricError(f"unknown fabric mode '{mode}'", mend="use 'adaptive' or 'flits'")
        self.mode = mode
        self.laid = self.laid_again = self.lifted = 0  # how often; of use to see what a run was made of
        self._adaptive = mode == "adaptive"
        self._on_rails = 0  # trains laid now
        self._held: list[Held] = [[] for _ in network.link_ends]  # trains on each link, in order: (last ready, train)
        self._bank_held: dict[int, Held] = {node: [] for node in self._banks}
        self._pause = [0] * len(network.link_ends)  # per first link: small transfers that go before the next try
        self._next_pause = [SHORTEST_PAUSE] * len(network.link_ends)
        self._trains = count()
        self._ends = 0
        self._large: dict[int, Transfer] = {}  # moved flit by flit for now, and worth laying again

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

    # ---- lifting

    def _lift(self, trains: list[Train], now: float, order: int) -> None:
        """Take trains up again, and those laid behind them: what has not happened by now goes on flit by flit.

        Now is the moment at which injection `order` comes.
        """
        chosen: dict[int, Train] = {}
        while trains:
            train = trains.pop()
            if train.seq in chosen or train.transfer.train is not train:
                continue
            train.unfold()
            if train.is_through(now, order):
                continue
            chosen[train.seq] = train
            for link in train.transfer.links:
                trains += _behind(self._held[link], train, now)
            if train.transfer.sink is not None:
                trains += _behind(self._bank_held[train.transfer.sink.node], train, now)
        taken_back: dict[int, None] = {}
        for seq in sorted(chosen):
            self._lift_one(chosen[seq], now, order, taken_back)

    def _lift_one(self, train: Train, now: float, order: int, taken_back: dict[int, None]) -> None:
        transfer = train.transfer
        transfer.train = None
        transfer.epoch += 1  # its end as forecast no longer holds
        self.lifted += 1
        self._on_rails -= 1
        if transfer.flits > LARGE:
            self._large[transfer.seq] = transfer
        else:
            first_link = transfer.links[0]
            self._pause[first_link] = pause = self._next_pause[first_link]
            self._next_pause[first_link] = min(2 * pause, LONGEST_PAUSE)
        behind = transfer.flits  # how many have passed the hop before
        for hop, link in enumerate(transfer.links):
            passed = train.passed(hop, now, order)
            self._note_wait(link, *train.longest_wait(hop, passed))
            if passed < transfer.flits:
                if link not in taken_back:
                    taken_back[link] = None
                    moved = passed > train.start[hop]
                    self._free[link] = train.leave(hop, passed - 1) if moved else train.hops[hop][1]
                self._users[link] += 1
                self._held[link] = [entry for entry in self._held[link] if entry[1] is not train]
            self._put_back(train, hop, passed, behind)
            behind = passed
        if transfer.sink is not None:
            arrived = self._lift_bank(train, transfer.sink, now, order, taken_back)
            self._put_back(train, transfer.hops, arrived, behind)

    def _lift_bank(self, train: Train, bank: Bank, now: float, order: int, taken_back: dict[int, None]) -> int:
        """Take back the bursts that have not arrived by `now`; returns how many have."""
        transfer = train.transfer
        first = train.start[transfer.hops]
        assert train.bank_before is not None
        self._bank_held[bank.node] = [entry for entry in self._bank_held[bank.node] if entry[1] is not train]
        bank.users += 1
        key = ~bank.node  # links and banks share the list of what was taken back
        if key not in taken_back:
            taken_back[key] = None
            bank.restore(train.bank_before)
        arrived = train.passed(transfer.hops, now, order)
        runs = train.part(transfer.hops, first, arrived)
        assert not isinstance(runs, Pace)
        finish, _ = bank.commit_writes(transfer.block + first, runs)
        transfer.finish_ns = max(transfer.finish_ns, finish)
        return arrived

    def _put_back(self, train: Train, hop: int, start: int, stop: int) -> None:
        """Flits `start` to `stop` wait for `hop`, one by one."""
        if start < stop:
            self._feed(train.transfer, hop, start, stop, train.part(hop, start, stop))

    # ---- the end, and laying again what is alone once more

    def _complete(self, transfer: Transfer, now: float) -> None:
        super()._complete(transfer, now)
        train = transfer.train
        if train is None:
            self._large.pop(transfer.seq, None)
            return
        transfer.train = None
        self._on_rails -= 1
        worst = self._worst
        for link, wait, at in train.longest_waits():
            if wait >= worst[link]:
                self._note_wait(link, wait, at)
        first_link = transfer.links[0]
        if self._next_pause[first_link] > SHORTEST_PAUSE:
            self._next_pause[first_link] //= 2

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


def _behind(held: Held, train: Train, now: float) -> list[Train]:
    """Trains laid after `train` on something that it has yet to pass."""
    for place, (last, other) in enumerate(held):
        if other is train:
            return [later for _, later in held[place + 1 :]] if last >= now else []
    return []


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
