"""Trains that are under way: which links and memories they use, how they end, and how they are split into flits.

A train is planned in closed form, and the plan holds as long as nobody interferes. A newcomer that could contend with
it *splits* it: at that instant the flits that have passed a link stay passed, the others go on flit by flit from where
they stand. All that is undone lies in the future. Trains planned behind a split one on a shared link are split with
it.
"""

from __future__ import annotations

from itertools import count
from typing import Literal

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric.channels import ChannelGroup, Pace
from kernbench.sim_engine.fabric.flits import FlitFabric
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.train import Train
from kernbench.sim_engine.fabric.transfers import Transfer

Mode = Literal["adaptive", "flits"]

LARGE = 64  # flits: planning a train for a transfer this large pays even if it is split later
SHORTEST_PAUSE, LONGEST_PAUSE = 4, 64  # small transfers that a first link sends flit by flit before the next try

TrainQueue = list[tuple[float, Train]]


class PlannedTrains(FlitFabric):
    """Trains under way. `trains.TrainFabric` plans them."""

    def __init__(self, network: Network, *, mode: Mode = "adaptive", record: bool = False) -> None:
        super().__init__(network, record=record)
        if mode not in ("adaptive", "flits"):
            raise FabricError(f"unknown fabric mode '{mode}'", hint="use 'adaptive' or 'flits'")
        self.mode = mode
        self.planned = self.replanned = self.split = 0  # how often; of use to see what a run was made of
        self._adaptive = mode == "adaptive"
        self._active_trains = 0  # trains under way
        self._trains_on: list[TrainQueue] = [
            [] for _ in network.link_ends
        ]  # trains on each link, in order: (last ready, train)
        self._writes_planned: dict[int, TrainQueue] = {node: [] for node in self._groups}
        self._pause = [0] * len(network.link_ends)  # per first link: small transfers that go before the next try
        self._next_pause = [SHORTEST_PAUSE] * len(network.link_ends)
        self._train_seq = count()
        self._large: dict[int, Transfer] = {}  # moved flit by flit for now, and worth planning again

    # ---- splitting into flits

    def _split(self, trains: list[Train], now: float, order: int) -> None:
        """Split trains into flits, and those planned behind them: what has not happened by now goes on flit by flit.

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
                trains += _behind(self._trains_on[link], train, now)
            if train.transfer.sink is not None:
                trains += _behind(self._writes_planned[train.transfer.sink.node], train, now)
        taken_back: dict[int, None] = {}
        for seq in sorted(chosen):
            self._split_one(chosen[seq], now, order, taken_back)

    def _split_one(self, train: Train, now: float, order: int, taken_back: dict[int, None]) -> None:
        transfer = train.transfer
        transfer.train = None
        transfer.epoch += 1  # its end as forecast no longer holds
        self.split += 1
        self._active_trains -= 1
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
                self._trains_on[link] = [entry for entry in self._trains_on[link] if entry[1] is not train]
            self._put_back(train, hop, passed, behind)
            behind = passed
        if transfer.sink is not None:
            arrived = self._split_writes(train, transfer.sink, now, order, taken_back)
            self._put_back(train, transfer.hops, arrived, behind)

    def _split_writes(
        self, train: Train, group: ChannelGroup, now: float, order: int, taken_back: dict[int, None]
    ) -> int:
        """Take back the bursts that have not arrived by `now`; returns how many have."""
        transfer = train.transfer
        first = train.start[transfer.hops]
        assert train.channels_before is not None
        self._writes_planned[group.node] = [
            entry for entry in self._writes_planned[group.node] if entry[1] is not train
        ]
        group.users += 1
        key = ~group.node  # links and channel groups share the list of what was taken back
        if key not in taken_back:
            taken_back[key] = None
            group.restore(train.channels_before)
        arrived = train.passed(transfer.hops, now, order)
        progressions = train.part(transfer.hops, first, arrived)
        assert not isinstance(progressions, Pace)
        finish, _ = group.commit_writes(transfer.block + first, progressions)
        transfer.finish_ns = max(transfer.finish_ns, finish)
        return arrived

    def _put_back(self, train: Train, hop: int, start: int, stop: int) -> None:
        """Flits `start` to `stop` wait for `hop`, one by one."""
        if start < stop:
            self._schedule(train.transfer, hop, start, stop, train.part(hop, start, stop))

    # ---- the end

    def _complete(self, transfer: Transfer, now: float) -> None:
        super()._complete(transfer, now)
        train = transfer.train
        if train is None:
            self._large.pop(transfer.seq, None)
            return
        transfer.train = None
        self._active_trains -= 1
        worst = self._worst
        for link, wait, at in train.longest_waits():
            if wait >= worst[link]:
                self._note_wait(link, wait, at)
        first_link = transfer.links[0]
        if self._next_pause[first_link] > SHORTEST_PAUSE:
            self._next_pause[first_link] //= 2


def _behind(queue: TrainQueue, train: Train, now: float) -> list[Train]:
    """Trains planned after `train` on something that it has yet to pass."""
    for place, (last, other) in enumerate(queue):
        if other is train:
            return [later for _, later in queue[place + 1 :]] if last >= now else []
    return []
