"""Trains that are under way: which links and memories they use, and how they are split into flits.

A train is planned in closed form, and the plan holds as long as nothing interferes. A transfer that could contend with
it *splits* it: at that instant the flits that have passed a link stay passed, the others go on flit by flit from where
they stand. All that is undone lies in the future. Trains planned behind a split one on a shared link are split with
it.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import islice
from typing import Literal

from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.engine import FlitEngine
from kernbench.sim_engine.fabric.links import Booking
from kernbench.sim_engine.fabric.progressions import Pace, Times
from kernbench.sim_engine.fabric.train import Train
from kernbench.sim_engine.fabric.transfers import Transfer, TransferPlan

Mode = Literal["adaptive", "flits"]

MAX_PASSED = 8  # trains kept in the queue of a link, though they may have passed; or half of a longer queue

TrainQueue = list[tuple[float, Train]]  # in order: when the last flit is ready, and whose it is


class PlannedTrains:
    """Trains under way, by link and by the memory they write to. `trains.TrainPlanner` plans them."""

    def __init__(self, engine: FlitEngine) -> None:
        self._engine = engine
        self.active: dict[int, Train] = {}  # by number: trains whose end is to come
        self.on_link: list[TrainQueue] = [[] for _ in engine.links.free]
        self.to_memory: dict[int, TrainQueue] = {node: [] for node in engine.groups}

    def add(self, train: Train, bookings: list[Booking], at: float, arrival: Times, index: int, end: float) -> None:
        """A plan is in force: it books its links from `at` on, and what flits from `index` on do to a memory is known.

        They arrive at `arrival`, the last at `end`.
        """
        transfer, queues, engine = train.transfer, self.on_link, self._engine
        now, free = engine.now, engine.links.free
        for link, _, last, after in bookings:
            free[link] = at + after
            queue = queues[link]
            if queue:  # trains that have passed are dropped; not always all of them, but so that few remain
                if queue[-1][0] < now:
                    queue.clear()
                elif len(queue) > MAX_PASSED and queue[len(queue) // 2][0] < now:
                    del queue[: bisect_left(queue, (now,))]
            queue.append((at + last, train))
        group = transfer.sink
        if group is not None and not isinstance(arrival, Pace):
            self.to_memory[group.node].append((end, train))
            block, flits = transfer.block + index, transfer.flits
            end, train.channels_before = group.commit_writes(block, arrival, flits, transfer.spare)
            if transfer.finish_ns > end:
                end = transfer.finish_ns
        transfer.train = train
        self.active[train.seq] = train
        engine.finish(transfer, end)

    def end(self, transfer: Transfer, train: TransferPlan) -> None:
        """A train has come to its end as planned."""
        activity = self._engine.counters.activity
        if activity is not None:
            train.report(activity)
        transfer.train = None
        del self.active[train.seq]
        links = self._engine.links
        worst, worst_at = links.worst, links.worst_at
        for link, wait, at in train.longest_waits(worst):
            if wait > worst[link] or (wait == worst[link] and at < worst_at[link]):
                worst[link], worst_at[link] = wait, at

    def contending_trains(self, transfer: Transfer, now: float) -> list[Train]:
        """Trains that a transfer moved flit by flit from now on could contend with."""
        order, queues = transfer.order, self.on_link
        found: list[Train] = []
        for link in transfer.links:
            queue = queues[link]
            if not queue or queue[-1][0] < now:
                continue
            for last, train in islice(queue, bisect_left(queue, (now,)), None):
                if last > now or train.transfer.order > order:
                    found.append(train)
        if transfer.sink is not None:
            found += self.writes_after(transfer.sink, now)
        return found

    def writes_after(self, group: ChannelGroup, now: float) -> list[Train]:
        """Trains with bursts that arrive at a memory after `now`."""
        return [train for last, train in self.to_memory[group.node] if last > now]

    def last_write(self, group: ChannelGroup, now: float) -> float:
        """When the last burst of a train arrives at a memory; 0.0 if all have."""
        queue = self.to_memory[group.node]
        if not queue:
            return 0.0
        last = queue[-1][0]
        if last <= now:
            queue.clear()
            return 0.0
        return last

    # ---- splitting into flits

    def split_all(self, now: float, order: float) -> list[Transfer]:
        """Split every train; of one that is through, its longest waits are noted. None is left."""
        split = self.split(list(self.active.values()), now, order)
        for train in list(self.active.values()):
            self.end(train.transfer, train)
        return split

    def split(self, trains: list[Train], now: float, order: float) -> list[Transfer]:
        """Split trains into flits, and those planned behind them: what has not happened by now goes on flit by flit.

        Now is the moment at which injection `order` comes. Returns the transfers, in the order of planning.
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
            for segment in train.transfer.tree or ():
                if isinstance(segment.train, Train):
                    trains.append(segment.train)
            for link in train.transfer.links:
                trains += _behind(self.on_link[link], train, now)
            if train.transfer.sink is not None:
                trains += _behind(self.to_memory[train.transfer.sink.node], train, now)
        restored: dict[int, None] = {}
        split = [chosen[seq] for seq in sorted(chosen)]
        fed = [_fed(train.transfer, now, order) for train in split]
        for train, behind in zip(split, fed, strict=True):
            self._split_one(train, now, order, restored, behind)
        return [train.transfer for train in split]

    def _split_one(self, train: Train, now: float, order: float, restored: dict[int, None], behind: int) -> None:
        """`restored`: links and memories (as ~node) that are back at what the first train planned there has done.
        `behind`: how many flits have passed the hop before, which for the first hop are all that there are.
        """
        transfer, links = train.transfer, self._engine.links
        activity = self._engine.counters.activity
        transfer.slow = transfer.slow or activity is not None or transfer.tree is not None
        transfer.train = None
        transfer.epoch += 1  # its end as forecast no longer holds
        del self.active[train.seq]
        for hop, link in enumerate(transfer.links):
            passed = train.passed(hop, now, order)
            links.note_wait(link, *train.longest_wait(hop, passed))
            if activity is not None:
                train.report_hop(activity, hop, passed)
            if passed < transfer.flits:
                if link not in restored:
                    restored[link] = None
                    moved = passed > train.start[hop]
                    links.restore(link, train.leave(hop, passed - 1) if moved else train.hops[hop][1])
                links.users[link] += 1
                self.on_link[link] = [entry for entry in self.on_link[link] if entry[1] is not train]
            self._put_back(train, hop, passed, behind)
            behind = passed
        if transfer.sink is not None:
            arrived = self._split_writes(train, transfer.sink, now, order, restored)
            self._put_back(train, transfer.hops, arrived, behind)

    def _split_writes(
        self, train: Train, group: ChannelGroup, now: float, order: float, restored: dict[int, None]
    ) -> int:
        """Take back the bursts that have not arrived by `now`; returns how many have."""
        transfer = train.transfer
        first = train.start[transfer.hops]
        assert train.channels_before is not None
        self.to_memory[group.node] = [entry for entry in self.to_memory[group.node] if entry[1] is not train]
        group.users += 1
        if ~group.node not in restored:
            restored[~group.node] = None
            group.restore(train.channels_before)
        arrived = train.passed(transfer.hops, now, order)
        progressions = train.part(transfer.hops, first, arrived)
        assert not isinstance(progressions, Pace)
        spare = transfer.spare if arrived == transfer.flits else 0  # else the last burst has yet to come
        finish, _ = group.commit_writes(transfer.block + first, progressions, transfer.flits, spare)
        transfer.finish_ns = max(transfer.finish_ns, finish)
        return arrived

    def _put_back(self, train: Train, hop: int, start: int, stop: int) -> None:
        """Flits `start` to `stop` wait for `hop`, one by one."""
        if start < stop:
            self._engine.schedule(train.transfer, hop, start, stop, train.part(hop, start, stop))


def _fed(transfer: Transfer, now: float, order: float) -> int:
    """How many flits of a transfer have reached its first node: of a segment of a multicast, those that the one before
    it has passed on.
    """
    feeder = None if transfer.fed_by is None else transfer.fed_by.train
    if not isinstance(feeder, Train):
        return transfer.flits
    return feeder.passed(transfer.fed_at - 1, now, order)


def _behind(queue: TrainQueue, train: Train, now: float) -> list[Train]:
    """Trains planned after `train` on something that it has yet to pass."""
    for place, (last, other) in enumerate(queue):
        if other is train:
            return [later for _, later in queue[place + 1 :]] if last >= now else []
    return []
