"""The fastest path: a transfer that has its whole way for itself runs as the same one did before.

Every time of a transfer that meets nobody, told from the instant it sets out, depends on its route and its size only.
So the train of such a transfer is worked out once, its *shape*, and later ones take it over, moved to their own time:
exact, because all times are on the grid. A way is free when no flit is on it or forecast for it at the times of the
newcomer, and a bank when its channels are idle. Whatever interferes later lifts the train as any other: it is then
unfolded into runs.
"""

from __future__ import annotations

from kernbench.sim_engine.fabric.flits import INJECT, Transfer
from kernbench.sim_engine.fabric.model import READ, WRITE, Network, Pace
from kernbench.sim_engine.fabric.runs import Run, last_time, serve_with_last, shifted
from kernbench.sim_engine.fabric.trains import LARGE, MOST_RUNS, TRUST, Train, TrainFabric, serve_paced


class Shape:
    """A train of some size on a route of its own, as times since it set out."""

    __slots__ = ("arrival", "busy", "hops", "nbytes", "pace", "ready", "waits")

    def __init__(self, train: Train, network: Network, after: list[float]) -> None:
        transfer = train.transfer
        route, last, hops = transfer.route, transfer.last, range(transfer.hops)
        self.ready = train.ready
        self.pace = train.pace
        # Of each hop: its link, when the first and the last flit are ready for it, and when it is free again.
        self.hops = [(route.links[h], train.ready_time(h, 0), train.ready_time(h, last), after[h]) for h in hops]
        self.arrival = last_time(train.ready[-1])
        self.nbytes = last * network.flit_bytes + transfer.last_bytes
        self.busy = [(route.links[h], last * route.flit_ns[h] + transfer.last_ns[h]) for h in hops]
        waits = [(route.links[h], *_longest_wait(train, network, h)) for h in hops]
        self.waits = [(link, wait, at) for link, wait, at in waits if wait]


class QuietTrain(Train):
    """A train that was laid by its shape. Unfolded, it is a train as any other."""

    __slots__ = ("at_ns", "shape")

    def __init__(self, seq: int, transfer: Transfer, shape: Shape, at_ns: float, free_before: list[float]) -> None:
        self.seq = seq
        self.transfer = transfer
        self.shape: Shape | None = shape
        self.at_ns = at_ns
        self.free_before = free_before
        self.bank_before = None

    def unfold(self) -> None:
        shape, at_ns = self.shape, self.at_ns
        if shape is None:
            return
        self.shape = None
        self.start = [0] * len(shape.ready)
        self.ready = [shifted(runs, at_ns) for runs in shape.ready]
        pace = shape.pace
        self.pace = pace and Pace([at_ns + first for first in pace.firsts], pace.burst_ns, pace.flits)


class Fabric(TrainFabric):
    """Exact and adaptive: shapes where a way is free, trains where it soon will be, one event a flit and hop where
    flows meet.

    `mode="flits"` lays neither; times are the same bit for bit.
    """

    def _other(self, transfer: Transfer, now: float, i: int, code: int) -> None:
        if code != INJECT or transfer.slow or self.mode != "adaptive" or not self._lay_shape(transfer, now):
            super()._other(transfer, now, i, code)

    def _lay_shape(self, transfer: Transfer, now: float) -> bool:
        """Lay a transfer by its shape; False, and nothing changed, when its way is not free."""
        route = transfer.route
        shapes = route.shapes
        key = (transfer.flits, transfer.last_bytes, transfer.access)
        shape = shapes.get(key)
        if shape is None:
            if key in shapes:
                return False
            shape = shapes[key] = _shape_of(self.network, transfer)
            if shape is None:
                return False
        assert isinstance(shape, Shape)
        users, held, free = self._users, self._held, self._free
        for link, first, _, _ in shape.hops:
            if users[link] or free[link] > now + first:
                return False
        if transfer.flits <= LARGE and self._credit[route.links[0]] <= 0:
            return False
        if transfer.bank is not None and not self._bank_is_free(transfer, shape, now):
            return False
        free_before: list[float] = []
        train = QuietTrain(next(self._trains), transfer, shape, now, free_before)
        for link, _, last, after in shape.hops:
            free_before.append(free[link])
            free[link] = now + after
            ahead = held[link]
            if ahead and ahead[-1][0] <= now:
                ahead.clear()
            elif len(ahead) > 8:
                ahead = held[link] = [entry for entry in ahead if entry[0] > now]
            ahead.append((now + last, train))
        self._laid[transfer.seq] = train
        self._finish(transfer, self._bank_finish(train, shape, now + shape.arrival))
        return True

    def _bank_is_free(self, transfer: Transfer, shape: Shape, now: float) -> bool:
        bank = transfer.bank
        assert bank is not None
        ahead = self._bank_held[bank.node]
        if ahead and ahead[-1][0] <= now:
            ahead.clear()
        if transfer.access == WRITE:
            return not self._bank_users[bank.node] and not (ahead and ahead[-1][0] >= now + shape.ready[-1][0][0])
        return not ahead and bank.is_idle(now, READ)

    def _bank_finish(self, train: QuietTrain, shape: Shape, arrival: float) -> float:
        """Commit the bursts of a memory access; returns when the transfer is done."""
        transfer = train.transfer
        bank = transfer.bank
        if bank is None:
            return arrival
        if transfer.access == READ:
            bank.commit_idle_reads(transfer.block, transfer.flits, train.at_ns)
            return arrival
        train.bank_before = bank.snapshot()
        self._bank_held[bank.node].append((arrival, train))
        end = bank.commit_writes(transfer.block, 0, shifted(shape.ready[-1], train.at_ns))
        return max(end, transfer.finish_ns)

    def _lift_one(self, train: Train, now: float, taken_back: dict[int, None]) -> None:
        if isinstance(train, QuietTrain):
            train.unfold()
        super()._lift_one(train, now, taken_back)

    def _complete(self, transfer: Transfer, now: float) -> None:
        train = self._laid.get(transfer.seq)
        if not isinstance(train, QuietTrain):
            super()._complete(transfer, now)
            return
        shape = train.shape
        if shape is None or self._large:  # unfolded, or others may now be laid again
            train.unfold()
            super()._complete(transfer, now)
            return
        del self._laid[transfer.seq]
        transfer.done_ns = now
        for link, busy_ns in shape.busy:
            self._bytes[link] += shape.nbytes
            self._busy[link] += busy_ns
        for link, wait, at in shape.waits:
            if wait >= self._worst[link]:
                self._note_wait(link, wait, train.at_ns + at)
        first_link = transfer.links[0]
        if self._credit[first_link] < TRUST:
            self._credit[first_link] += 1


def _shape_of(network: Network, transfer: Transfer) -> Shape | None:
    """How a transfer runs on a way of its own that it sets out on at 0; None when that has no short description."""
    route = transfer.route
    if route.loops:
        return None
    train = Train(0, transfer, [0] * (transfer.hops + 1))
    after: list[float] = []
    ready: list[Run] = []
    if transfer.access == READ:
        assert transfer.bank is not None
        burst_ns, channels = transfer.bank.burst_ns, transfer.bank.mask + 1
        train.pace = Pace([burst_ns] * min(transfer.flits, channels), burst_ns, transfer.flits)
    else:
        ready = [(0.0, 0.0, transfer.flits)]
    for hop, link in enumerate(route.links):
        train.ready.append(ready)
        if hop == 0 and train.pace is not None:
            out = serve_paced(train.pace, 0, route.flit_ns[0], transfer.last_ns[0], 0.0)
            free = last_time(out) if out else 0.0
        else:
            out, free = serve_with_last(ready, route.flit_ns[hop], transfer.last_ns[hop], 0.0)
        if not out or len(out) > MOST_RUNS:
            return None
        after.append(free)
        ready = shifted(out, network.tail_ns[link])
    train.ready.append(ready)
    return Shape(train, network, after)


def _longest_wait(train: Train, network: Network, hop: int) -> tuple[float, float]:
    """The longest wait of a train's flits at a hop, and when it began."""
    transfer = train.transfer
    tail, flit_ns = network.tail_ns[transfer.links[hop]], transfer.route.flit_ns[hop]
    longest, at = 0.0, 0.0
    for i in train.turning_points(hop, transfer.flits):
        ready = train.ready_time(hop, i)
        occupied = transfer.last_ns[hop] if i == transfer.last else flit_ns
        wait = train.leave(hop, i, tail) - occupied - ready
        if wait > longest:
            longest, at = wait, ready
    return longest, at
