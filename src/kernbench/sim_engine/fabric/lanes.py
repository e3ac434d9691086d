"""The fastest path: reads that come one after the other along one route, on links and a memory that nobody else uses.

A reader that streams from a memory makes the same train again and again. A `Lane` *owns* its links and its channels
from a moment at which they are all idle. While it does, its next read costs no look at any of them: it ends a known
time after it sets out, and is the only one. Nothing is written down for it but that end. Whoever else sets out over one
of the links, or to or from the memory, makes the lane give them up first: a read that is under way is then laid as the
train that it is, one that has yet to set out goes the common way, and times are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.common.errors import FabricError
from kernbench.common.units import MAX_TIME_NS, on_grid
from kernbench.sim_engine.fabric.banks import Bank
from kernbench.sim_engine.fabric.flits import AT_DONE, AT_INJECT
from kernbench.sim_engine.fabric.model import Network, Route
from kernbench.sim_engine.fabric.rails import Mode
from kernbench.sim_engine.fabric.train import Shape, shape_of
from kernbench.sim_engine.fabric.trains import TrainFabric
from kernbench.sim_engine.fabric.transfers import INJECTED, Transfer

MOST_PATIENCE = 64  # reads that go the common way before a lane that was disturbed is tried again


class Size:
    """What reads of one size have in common."""

    __slots__ = ("bank", "end_ns", "ending", "last", "nbytes", "noted", "reads", "rounds", "shape")

    def __init__(self, nbytes: int, bank: Bank | None, shape: Shape, transfer: Transfer) -> None:
        assert transfer.ending is not None
        self.nbytes = nbytes
        self.bank = bank
        self.shape = shape
        self.end_ns = shape.end  # from when it sets out
        self.ending = transfer.ending
        self.last = transfer.last  # index of the last flit
        self.rounds = 0 if bank is None else transfer.flits // (bank.mask + 1)  # bursts on every channel
        self.reads = 0  # done, and not yet counted elsewhere
        self.noted = False  # whether its waits are written down: they are the same for all that follow


class Lane(Transfer):
    """Reads along one route, one at a time. It stands for the one under way, and is what `on_done` is called with."""

    __slots__ = ("_fabric", "_lead_ns", "_owns", "_patience", "_reads", "_sizes", "address", "busy", "size")

    def __init__(self, fabric: Fabric, route: Route, bank: Bank | None, lead_ns: float) -> None:
        super().__init__(-1, route, 0, 0.0, None, None)
        self._fabric = fabric
        self._lead_ns = lead_ns
        self.source = bank
        self._sizes: dict[int, Size | None] = {}  # None: reads of this size go the common way
        self._owns = False
        self._reads = 0  # that went the common way since it owned nothing
        self._patience = 0
        self.busy = False
        self.address = 0
        self.size: Size | None = None  # of the last read

    def read(
        self, nbytes: int, address: int, at_ns: float, done: Callable[[Transfer], None] | None, tag: object
    ) -> None:
        """Ask for a read at `at_ns`, which is on the grid and not over. It sets out when the request is there."""
        at_ns += self._lead_ns
        fabric = self._fabric
        if not self.busy and (self._owns or self._take_over()):
            size = self.size
            if size is None or size.nbytes != nbytes:
                size = self._size_of(nbytes)
            if size is not None:
                self.busy = True
                self.address, self.at_ns, self.on_done, self.tag = address, at_ns, done, tag
                self.seq = seq = next(fabric._seq)
                fabric._agenda.push((at_ns + size.end_ns, INJECTED + seq, self.epoch, self, AT_DONE))
                return
        bank_address = None if self.source is None else address
        fabric.inject(self.route, nbytes, at_ns, read_from=bank_address, on_done=done, tag=tag)

    def end(self, now: float) -> None:
        """The read under way is done."""
        size = self.size
        assert size is not None
        self.busy = False
        self.done_ns = now
        if not size.reads:
            self._fabric._uncounted.append(size)
        size.reads += 1
        if self._patience:
            self._patience >>= 1
        if not size.noted:
            size.noted = True
            for link, wait, at in size.shape.waits:
                self._fabric._note_wait(link, wait, self.at_ns + at)
            if size.bank is not None:
                size.bank.note_rounds(size.rounds, self.at_ns)

    def give_up(self, now: float, order: int) -> None:
        """Somebody else sets out here at `now`, as injection `order`: own nothing from now on."""
        fabric, bank, size = self._fabric, self.source, self.size
        fabric._release(self)
        self._owns = False
        self._reads = 0
        self._patience = min(2 * self._patience + 1, MOST_PATIENCE)
        if not self.busy:
            return  # all that it owned is idle, as it was taken over
        assert size is not None
        self.busy = False
        self.epoch += 1  # its end no longer holds
        transfer = Transfer(self.seq, self.route, size.nbytes, self.at_ns, self.on_done, self.tag)
        transfer.epoch = self.epoch  # its end comes at the same instant as the one that no longer holds
        transfer.source, transfer.block = bank, 0 if bank is None else self.address >> bank.shift
        transfer.last, transfer.flits = size.last, size.last + 1
        transfer.ending, transfer.last_steps = size.ending, size.ending.steps
        if (self.at_ns, transfer.order) > (now, order):
            fabric._agenda.push((self.at_ns, transfer.order, -1, transfer, AT_INJECT))
            return
        if bank is not None:
            bank.read_rounds(size.rounds, self.at_ns)
        fabric._lay_shape(transfer, size.shape, self.at_ns, size.shape.arrival)

    def _take_over(self) -> bool:
        """Own the links and the memory, if nobody is there and it has been quiet for long enough."""
        self._reads += 1
        if self._reads <= self._patience or not self._fabric._take(self):
            return False
        self._owns = True
        return True

    def _size_of(self, nbytes: int) -> Size | None:
        """Make a size the present one, unless reads of it must go the common way."""
        if nbytes not in self._sizes:
            self._sizes[nbytes] = self._fabric._size_of(self, nbytes)
        size = self._sizes[nbytes]
        if size is not None:
            self.size = size
        return size


class Fabric(TrainFabric):
    """Exact and adaptive: lanes where a reader has its way for itself, trains where a transfer meets nobody, one event
    a flit and hop where flows meet.

    `mode="flits"` does without lanes and trains; times are the same bit for bit.
    """

    def __init__(self, network: Network, *, mode: Mode = "adaptive", record: bool = False) -> None:
        super().__init__(network, mode=mode, record=record)
        self._owner: list[Lane | None] = [None] * len(network.link_ends)
        self._bank_owner: dict[int, Lane] = {}
        self._owned = 0  # lanes that own something
        self._uncounted: list[Size] = []  # with reads that the counters do not know of

    def lane(self, route: Route, *, banked: bool, lead_ns: float = 0.0) -> Lane:
        """For somebody who reads along `route` again and again, from the memory channels at its start if `banked`.

        `lead_ns` is how long a request takes to get there.
        """
        if banked and route.nodes[0] not in self._banks:
            raise FabricError(f"node {route.path[0]!r} has no memory channels", hint="add_bank there")
        return Lane(self, route, self._banks[route.nodes[0]] if banked else None, on_grid(lead_ns))

    # ---- ownership

    def _set_out(self, transfer: Transfer, now: float) -> None:
        if self._owned:
            owner, order = self._owner, transfer.order
            for link in transfer.links:
                lane = owner[link]
                if lane is not None:
                    lane.give_up(now, order)
            bank = transfer.sink or transfer.source
            if bank is not None and bank.node in self._bank_owner:
                self._bank_owner[bank.node].give_up(now, order)
        super()._set_out(transfer, now)

    def _take(self, lane: Lane) -> bool:
        """Make a lane the owner of its links and its memory; False where somebody is there, or on the way."""
        now, bank, route = self.now, lane.source, lane.route
        if not self._adaptive or route.loops or route.hooked or self.recorded is not None:
            return False
        for link in route.links:
            if self._users[link] or self._free[link] > now or self._owner[link] is not None:
                return False
            if self._held[link] and self._held[link][-1][0] > now:
                return False
        if bank is not None:
            ahead = self._bank_held[bank.node]
            if bank.node in self._bank_owner or (ahead and ahead[-1][0] > now) or not bank.is_quiet(now):
                return False
            self._bank_owner[bank.node] = lane
        for link in route.links:
            self._owner[link] = lane
        self._owned += 1
        return True

    def _release(self, lane: Lane) -> None:
        for link in lane.route.links:
            self._owner[link] = None
        if lane.source is not None:
            del self._bank_owner[lane.source.node]
        self._owned -= 1

    def _size_of(self, lane: Lane, nbytes: int) -> Size | None:
        """What reads of a size have in common; None if they do not come in whole rounds, or are not simple."""
        if nbytes <= 0 or lane.route.dead_link is not None:
            return None
        transfer = Transfer(-1, lane.route, nbytes, 0.0, None, None)
        self._cut_into_flits(transfer, nbytes)
        bank, ending = lane.source, transfer.ending
        assert ending is not None
        if bank is not None and transfer.flits % (bank.mask + 1):
            return None
        key = (transfer.flits, bank is not None)
        shape = ending.shapes.get(key)
        if shape is None:
            shape = ending.shapes[key] = shape_of(transfer, bank) or False
        return Size(nbytes, bank, shape, transfer) if isinstance(shape, Shape) else None

    def _count_all(self) -> None:
        for size in self._uncounted:
            tally = self._tally.setdefault(size.ending, [0, 0])
            tally[0] += size.reads * size.last
            tally[1] += size.reads
            if size.bank is not None:
                size.bank.add_rounds(size.reads * size.rounds)
            size.reads = 0
        self._uncounted.clear()

    # ---- the end

    def _complete(self, transfer: Transfer, now: float) -> None:
        if isinstance(transfer, Lane) and now <= MAX_TIME_NS:
            transfer.end(now)
        else:
            super()._complete(transfer, now)
