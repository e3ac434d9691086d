"""The fast path: a transfer that meets nobody is moved as one train, all its hops at once, in closed form.

A train is laid down when a transfer sets out and finds, on every link of its path, nobody in its way: no transfer that is
being moved flit by flit, and no earlier train whose last flit is ready there as late as its own first. What was laid down is
a forecast that holds as long as nobody interferes. A newcomer that could meet it *lifts* it: at that instant the flits that
have passed a link stay passed, the others go on flit by flit from where they stand. All that is undone lies in the future.
Trains that were laid behind a lifted one on a common link are lifted with it. When a transfer that is moved flit by flit is
again alone on what is left of its way, it becomes a train once more.
"""

from __future__ import annotations

from heapq import heapify
from itertools import count
from typing import Literal

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric.flits import COMMIT, DONE, Event, Feed, FlitFabric, Transfer
from kernbench.sim_engine.fabric.model import WRITE, BankState, Network, Pace
from kernbench.sim_engine.fabric.runs import (
    Run,
    append_run,
    count_until,
    last_time,
    nth_time,
    part_of,
    serve_with_last,
    shifted,
)

Mode = Literal["adaptive", "flits"]

MOST_RUNS = 64  # a description longer than this is no shorter than its flits
LARGE = 64  # flits: laying a train for a transfer this large pays even if it is lifted later
TRUST, DISTRUST = 8, -8  # bounds of the credit that a first link earns by trains that run through


class Train:
    """A transfer laid down as runs. `ready[h]` are the times at which flits `start[h]`, ... are ready for hop h."""

    __slots__ = ("bank_before", "free_before", "pace", "ready", "seq", "start", "transfer")

    def __init__(self, seq: int, transfer: Transfer, start: list[int]) -> None:
        self.seq = seq
        self.transfer = transfer
        self.start = start
        self.ready: list[list[Run]] = []  # one for each hop, and one for the arrival at the end
        self.free_before: list[float] = []
        self.pace: Pace | None = None  # of a read that sets out: stands for ready[0]
        self.bank_before: BankState | None = None

    def passed(self, hop: int, now: float) -> int:
        """How many of the transfer's flits have been taken by the link of `hop` (or have arrived) by `now`."""
        if hop == 0 and self.pace is not None:
            return self.pace.count_until(now)
        return self.start[hop] + count_until(self.ready[hop], now)

    def leave(self, hop: int, index: int, tail: float) -> float:
        """When flit `index` has left the link of `hop`."""
        return nth_time(self.ready[hop + 1], index - self.start[hop + 1]) - tail

    def ready_time(self, hop: int, index: int) -> float:
        if hop == 0 and self.pace is not None:
            return self.pace.time(index)
        return nth_time(self.ready[hop], index - self.start[hop])

    def turning_points(self, hop: int, stop: int) -> list[int]:
        """Flits up to `stop` between which the wait at `hop` changes evenly, so that the longest is at one of them."""
        first = self.start[hop]
        if hop == 0 and self.pace is not None:
            steady = first + 2 * len(self.pace.firsts)
            return [*range(first, min(stop, steady)), *range(max(stop - len(self.pace.firsts), steady), stop)]
        points = {first: None, stop - 1: None}
        if self.transfer.last_ns is not self.transfer.route.flit_ns:
            points[stop - 2] = None
        for runs, index in ((self.ready[hop], first), (self.ready[hop + 1], self.start[hop + 1])):
            if len(runs) > 1:
                for _, _, n in runs:
                    points[index] = points[index + n - 1] = None
                    index += n
        return [i for i in sorted(points) if first <= i < stop]


Held = list[tuple[float, Train]]


class TrainFabric(FlitFabric):
    """Exact and adaptive: trains where a transfer is alone, one event a flit and hop where flows meet.

    `mode="flits"` never lays a train; times are the same bit for bit.
    """

    def __init__(self, network: Network, *, mode: Mode = "adaptive", record: bool = False) -> None:
        super().__init__(network, record=record)
        if mode not in ("adaptive", "flits"):
            raise FabricError(f"unknown fabric mode '{mode}'", mend="use 'adaptive' or 'flits'")
        self.mode = mode
        self.lifted = 0
        self._trains = count()
        self._held: list[Held] = [[] for _ in network.link_ends]  # trains on each link, in order: (last ready, train)
        self._bank_held: dict[int, Held] = {node: [] for node in self._banks}
        self._bank_users = dict.fromkeys(self._banks, 0)
        self._credit = [TRUST] * len(network.link_ends)
        self._laid: dict[int, Train] = {}  # by transfer
        self._large: dict[int, Transfer] = {}  # moved flit by flit for now, and worth laying again

    # ---- setting out

    def _commit_read(self, transfer: Transfer, now: float) -> None:
        if transfer.bank is not None:
            ahead = self._bank_held[transfer.bank.node]
            if ahead:
                self._lift([train for arrival, train in ahead if arrival > now], now)
        super()._commit_read(transfer, now)

    def _begin(self, transfer: Transfer, now: float) -> None:
        if self.mode == "adaptive":
            if not transfer.slow and self._may_lay(transfer, now) and self._lay_new(transfer, now):
                return
            self._clear_the_way(transfer, now)
            if transfer.access == WRITE and transfer.bank is not None:
                self._bank_users[transfer.bank.node] += 1
            if transfer.flits > LARGE and not transfer.slow:
                self._large[transfer.seq] = transfer
        super()._begin(transfer, now)

    def _may_lay(self, transfer: Transfer, now: float) -> bool:
        """Whether nobody is on the way flit by flit. Small transfers also need a first link where trains run through."""
        users, held, links = self._users, self._held, transfer.links
        for link in links:
            if users[link]:
                return False
            ahead = held[link]
            if ahead and ahead[-1][0] <= now:
                ahead.clear()
        if transfer.flits <= LARGE and self._credit[links[0]] <= 0:
            self._credit[links[0]] += 1
            return False
        return not transfer.route.loops

    def _clear_the_way(self, transfer: Transfer, now: float) -> None:
        """Lift the trains that a transfer moved flit by flit could meet."""
        meets: list[Train] = []
        for link in transfer.links:
            if self._held[link]:
                meets += [train for last, train in self._held[link] if last > now]
        if transfer.access == WRITE and transfer.bank is not None:
            meets += [train for last, train in self._bank_held[transfer.bank.node] if last > now]
        if meets:
            self._lift(meets, now)

    # ---- laying

    def _lay_new(self, transfer: Transfer, now: float) -> bool:
        start = [0] * (transfer.hops + 1)
        train = Train(next(self._trains), transfer, start)
        pending: list[list[Run]] = [[] for _ in start]
        if transfer.pace is not None:
            train.pace = transfer.pace
        else:
            pending[0] = [(now, 0.0, transfer.flits)]
        return self._lay(train, pending, now)

    def _lay(self, train: Train, pending: list[list[Run]], now: float) -> bool:
        """Lay a train from where its flits stand; False, and nothing changed, when it would meet somebody."""
        transfer = train.transfer
        route, held, tail_ns = transfer.route, self._held, self.network.tail_ns
        after: list[float] = []
        ready = pending[0]
        for hop, link in enumerate(route.links):
            train.ready.append(ready)
            free = self._free[link]
            train.free_before.append(free)
            if hop == 0 and train.pace is not None:
                first = train.pace.time(train.start[0])
                out = serve_paced(train.pace, train.start[0], route.flit_ns[0], transfer.last_ns[0], free)
                if not out:
                    return False
                free = last_time(out)
            elif ready:
                first = ready[0][0]
                out, free = serve_with_last(ready, route.flit_ns[hop], transfer.last_ns[hop], free)
            else:
                first, out = now, []
            ahead = held[link]
            if (ahead and ahead[-1][0] >= first) or len(out) > MOST_RUNS:
                return False
            after.append(free)
            ready = pending[hop + 1]
            ready = ready + shifted(out, tail_ns[link]) if ready else shifted(out, tail_ns[link])
        train.ready.append(ready)
        if transfer.access == WRITE and not self._bank_is_clear(transfer, ready[0][0], now):
            return False
        self._hold(train, after, now)
        return True

    def _bank_is_clear(self, transfer: Transfer, first: float, now: float) -> bool:
        assert transfer.bank is not None
        node = transfer.bank.node
        ahead = self._bank_held[node]
        if ahead and ahead[-1][0] <= now:
            ahead.clear()
        own = 1 if transfer.seq in self._large else 0
        return self._bank_users[node] == own and not (ahead and ahead[-1][0] >= first)

    def _hold(self, train: Train, after: list[float], now: float) -> None:
        """The train is laid: its links and its end are taken as forecast."""
        transfer = train.transfer
        held, last = self._held, transfer.last
        for hop, link in enumerate(transfer.links):
            if train.start[hop] <= last:
                self._free[link] = after[hop]
                if len(held[link]) > 8:
                    held[link] = [entry for entry in held[link] if entry[0] > now]
                held[link].append((train.ready_time(hop, last), train))
        arrival = last_time(train.ready[-1])
        if transfer.access == WRITE:
            bank = transfer.bank
            assert bank is not None
            train.bank_before = bank.snapshot()
            end = bank.commit_writes(transfer.block, train.start[-1], train.ready[-1])
            self._bank_held[bank.node].append((arrival, train))
            arrival = max(end, transfer.finish_ns)
        self._laid[transfer.seq] = train
        self._finish(transfer, arrival)

    # ---- lifting

    def _lift(self, trains: list[Train], now: float) -> None:
        """Take trains up again, and those laid behind them: what has not happened by `now` goes on flit by flit."""
        chosen: dict[int, Train] = {}
        while trains:
            train = trains.pop()
            if train.seq in chosen:
                continue
            chosen[train.seq] = train
            for link in train.transfer.links:
                trains += _behind(self._held[link], train, now)
            if train.bank_before is not None and train.transfer.bank is not None:
                trains += _behind(self._bank_held[train.transfer.bank.node], train, now)
        taken_back: dict[int, None] = {}
        for seq in sorted(chosen):
            self._lift_one(chosen[seq], now, taken_back)

    def _lift_one(self, train: Train, now: float, taken_back: dict[int, None]) -> None:
        transfer, tail_ns = train.transfer, self.network.tail_ns
        del self._laid[transfer.seq]
        self.lifted += 1
        transfer.epoch += 1  # its end as forecast no longer holds
        first_link = transfer.links[0]
        self._credit[first_link] = max(DISTRUST, self._credit[first_link] - 4)
        if transfer.flits > LARGE:
            self._large[transfer.seq] = transfer
        behind = transfer.flits  # how many have passed the hop before
        for hop, link in enumerate(transfer.links):
            passed = train.passed(hop, now)
            self._note_waits(train, hop, passed)
            if passed < transfer.flits:
                if link not in taken_back:
                    taken_back[link] = None
                    moved = passed > train.start[hop]
                    self._free[link] = train.leave(hop, passed - 1, tail_ns[link]) if moved else train.free_before[hop]
                self._users[link] += 1
                self._held[link] = [entry for entry in self._held[link] if entry[1] is not train]
            self._put_back(train, hop, passed, behind)
            behind = passed
        if transfer.access == WRITE:
            arrived = self._lift_bank(train, now, taken_back)
            self._put_back(train, transfer.hops, arrived, behind)

    def _lift_bank(self, train: Train, now: float, taken_back: dict[int, None]) -> int:
        """Take back the bursts that have not arrived by `now`; returns how many have."""
        transfer = train.transfer
        bank, hops = transfer.bank, transfer.hops
        assert bank is not None
        assert train.bank_before is not None
        self._bank_held[bank.node] = [entry for entry in self._bank_held[bank.node] if entry[1] is not train]
        self._bank_users[bank.node] += 1
        key = ~bank.node  # links and banks share the list of what was taken back
        if key not in taken_back:
            taken_back[key] = None
            bank.restore(train.bank_before)
        arrived = train.passed(hops, now)
        runs = part_of(train.ready[hops], 0, arrived - train.start[hops])
        transfer.finish_ns = max(transfer.finish_ns, bank.commit_writes(transfer.block, train.start[hops], runs))
        return arrived

    def _put_back(self, train: Train, hop: int, start: int, stop: int) -> None:
        """Flits `start` to `stop` wait for `hop`, one by one."""
        if start == stop:
            return
        if hop == 0 and train.pace is not None:
            self._feed(train.transfer, 0, start, stop, train.pace)
        else:
            first = train.start[hop]
            self._feed(train.transfer, hop, start, stop, part_of(train.ready[hop], start - first, stop - first))

    # ---- laying again what is alone once more

    def _complete(self, transfer: Transfer, now: float) -> None:
        super()._complete(transfer, now)
        train = self._laid.pop(transfer.seq, None)
        if train is not None:
            for hop in range(transfer.hops):
                self._note_waits(train, hop, transfer.flits)
            first_link = transfer.links[0]
            if self._credit[first_link] < TRUST:
                self._credit[first_link] += 1
        elif self.mode == "adaptive":
            self._large.pop(transfer.seq, None)
            if transfer.access == WRITE and transfer.bank is not None:
                self._bank_users[transfer.bank.node] -= 1
        if self._large:
            users = self._users
            for other in list(self._large.values()):
                if max(map(users.__getitem__, other.links)) <= 1:
                    self._lay_again(other, now)

    def _lay_again(self, transfer: Transfer, now: float) -> None:
        hops = transfer.hops
        waiting: list[list[tuple[int, list[Run] | Pace, int]]] = [[] for _ in range(hops + 1)]  # per hop: index, times, count
        for event in self._queue:
            _gather(event, transfer, waiting)
        behind, start, pending = transfer.flits, [], []
        train = Train(next(self._trains), transfer, start)
        for parts in waiting:
            parts.sort(key=lambda part: part[0])
            runs: list[Run] = []
            for index, source, n in parts:
                behind -= n
                if isinstance(source, Pace):
                    train.pace = source
                    continue
                for t, dt, m in source:
                    append_run(runs, t, dt, m)
                del index
            start.append(behind)
            pending.append(runs)
        if transfer.flits - start[0] < LARGE:
            self._large.pop(transfer.seq)
            return
        transfer.epoch += 1
        if not self._lay(train, pending, now):
            return
        queue = self._queue
        queue[:] = [event for event in queue if not _belongs(event, transfer) or _is_end(event, transfer)]
        heapify(queue)
        for hop, link in enumerate(transfer.links):
            if start[hop] < transfer.flits:
                self._users[link] -= 1
        if transfer.access == WRITE and transfer.bank is not None:
            self._bank_users[transfer.bank.node] -= 1
        del self._large[transfer.seq]

    def _note_waits(self, train: Train, hop: int, stop: int) -> None:
        """Count the longest wait at `hop` among the train's flits up to `stop`."""
        if stop <= train.start[hop]:
            return
        transfer = train.transfer
        link = transfer.links[hop]
        tail, flit_ns = self.network.tail_ns[link], transfer.route.flit_ns[hop]
        for i in train.turning_points(hop, stop):
            ready = train.ready_time(hop, i)
            occupied = transfer.last_ns[hop] if i == transfer.last else flit_ns
            wait = train.leave(hop, i, tail) - occupied - ready
            if wait > 0:
                self._note_wait(link, wait, ready)


def serve_paced(pace: Pace, start: int, flit_ns: float, last_ns: float, free: float) -> list[Run]:
    """When the flits of a read leave the first link, from flit `start` on; nothing if that has no short description.

    Flit i + channels may leave one burst time after flit i once the first round is over. A link that is no faster than the
    channels together is then held up no more: from the third round on flits leave it back to back.
    """
    channels, flits = len(pace.firsts), pace.flits
    steady = start + 2 * channels
    if flits > steady and channels * flit_ns < pace.burst_ns:
        return []
    out: list[Run] = []
    for i in range(start, min(flits, steady)):
        ready = pace.time(i)
        free = (free if free > ready else ready) + (last_ns if i == flits - 1 else flit_ns)
        append_run(out, free, 0.0, 1)
    if flits > steady:
        whole = flits - steady - 1
        if whole:
            append_run(out, free + flit_ns, flit_ns, whole)
        append_run(out, free + whole * flit_ns + last_ns, 0.0, 1)
    return out


def _behind(held: Held, train: Train, now: float) -> list[Train]:
    """Trains laid after `train` on something that it has yet to pass."""
    for place, (last, other) in enumerate(held):
        if other is train:
            return [later for _, later in held[place + 1 :]] if last > now else []
    return []


def _belongs(event: Event, transfer: Transfer) -> bool:
    owner = event[4]
    return owner is transfer or (isinstance(owner, Feed) and owner.transfer is transfer)


def _is_end(event: Event, transfer: Transfer) -> bool:
    return event[5] == DONE and event[3] == transfer.epoch


def _gather(event: Event, transfer: Transfer, waiting: list[list[tuple[int, list[Run] | Pace, int]]]) -> None:
    """Note what an event says of where the transfer's flits stand."""
    if not _belongs(event, transfer):
        return
    time, _, _, index, owner, hop = event
    if isinstance(owner, Feed):
        n = owner.stop - owner.index
        source = owner.source
        if not isinstance(source, Pace):
            source = part_of(source, owner.index - owner.base, owner.stop - owner.base)
        waiting[owner.hop].append((owner.index, source, n))
    elif hop >= 0:
        waiting[hop].append((index, [(time, 0.0, 1)], 1))
    elif hop == COMMIT:
        waiting[-1].append((index, [(time, 0.0, 1)], 1))
