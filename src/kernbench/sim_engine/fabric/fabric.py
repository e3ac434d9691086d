"""A network at work, put together: a `FlitEngine` that moves flits, a planner of trains, reservations and counters.

Exact and adaptive: trains where a transfer is uncontended, one event per
flit and hop where flows meet. Driven by `inject`, `run` (or `advance`) and `next_time`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence

from kernbench.common.channel_traffic import ChannelTraffic
from kernbench.common.errors import FabricError
from kernbench.common.units import MAX_TIME_NS, on_grid
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.buffered_trains import BufferedTrains
from kernbench.sim_engine.fabric.done_tally import DoneCounts, DoneTransfers
from kernbench.sim_engine.fabric.engine import FlitEngine
from kernbench.sim_engine.fabric.joined_reads import JoinedRead, JoinedReads
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.multicast import TreeSegment, join, segments_of
from kernbench.sim_engine.fabric.planned_trains import Mode
from kernbench.sim_engine.fabric.reservations import OnInterrupt, Reservation
from kernbench.sim_engine.fabric.routes import Route
from kernbench.sim_engine.fabric.trains import TrainPlanner
from kernbench.sim_engine.fabric.transfer_maker import TransferMaker
from kernbench.sim_engine.fabric.transfers import FlitHop, HopTimes, LinkCounters, Transfer

Tree = tuple[Sequence[TreeSegment], Sequence[Route]]

MANY_EVENTS = 150_000  # after which a compiled loop is worth what it takes to load it: about as much as they took


class Fabric:
    """Moves bytes by the rules of this package.

    `mode="flits"` does without trains and reservations; times are the same bit for bit. An `activity` sees every flit
    on every link and channel: nothing can be reserved then. After `compile_after` events a compiled loop moves
    flits that contend, where numba is installed; times are the same. Infinity leaves it off. On a network with finite
    buffers flits are moved by a compiled loop from the first on, but for lone transfers (`buffered_trains.py`).
    """

    def __init__(
        self,
        network: Network,
        *,
        mode: Mode = "adaptive",
        record: bool = False,
        activity: Activity | None = None,
        compile_after: float = MANY_EVENTS,
    ) -> None:
        if mode not in ("adaptive", "flits"):
            raise FabricError(f"unknown fabric mode '{mode}'", hint="use 'adaptive' or 'flits'")
        self.network = network
        self.mode = mode
        self.engine = FlitEngine(network, record=record, activity=activity)  # for what drives the fabric
        self._counters = self.engine.counters
        self._trains: TrainPlanner | BufferedTrains | None = None
        if network.buffers is not None:
            self.engine.use_buffers(is_compiled=compile_after < INFINITY)
            self.engine.reservations.are_allowed = mode == "adaptive" and not self._counters.sees_flits
            if self.engine.reservations.are_allowed:
                self.engine.planner = self._trains = BufferedTrains(self.engine)
        elif not self._counters.sees_flits:
            self.engine.compile_after = compile_after
            if compile_after <= 0:
                self.engine.compile()
        self._maker = TransferMaker(network, self.engine.groups)
        self._trees: dict[tuple[tuple[Hashable, ...], ...], Tree] = {}
        if mode == "adaptive" and network.buffers is None:
            self.engine.planner = self._trains = TrainPlanner(self.engine)
            if not self._counters.sees_flits:
                self.engine.reservations.are_allowed = True

    # ---- what drives it

    def inject(
        self,
        path: Sequence[Hashable] | Route,
        nbytes: int,
        at_ns: float | None = None,
        *,
        header_bytes: int = 0,
        read_from: int | None = None,
        write_to: int | None = None,
        on_done: Callable[[Transfer], None] | None = None,
        on_left: Callable[[float], None] | None = None,
        trace: bool = False,
        tag: object = None,
        seq: int | None = None,
        slot: tuple[int, int] | None = None,
        granules: int = 0,
        is_control: bool = False,
    ) -> Transfer:
        """Send `nbytes` along `path` at `at_ns` (now, if left out). Zero bytes travel as a control message.

        `read_from` is an address in the memory at the first node: a flit may leave once its burst is committed.
        `write_to` is an address in the memory at the last node: the transfer is done once its last burst is.
        `on_done` is called by `run`. `on_left`, of a transfer that reads no memory channels, is called when it sets
        out, with the time at which its last flit will have left the first link. `seq` breaks ties
        among transfers that depart at the same instant, as injected if left out. With `slot` (i, n) its flits take
        every n-th place on the first link, from the i-th on: n such transfers share the link flit by flit. `granules`
        is how many of them the last burst of a memory access touches; 0: as many as its bytes fill. A transfer that
        `is_control` is no traffic of the memory at its end. Raises FabricError for a path, size or time that the
        network cannot carry.
        """
        route = path if isinstance(path, Route) else self.network.route(path)
        engine = self.engine
        at = engine.now if at_ns is None else at_ns
        if not engine.now <= at < MAX_TIME_NS:
            raise FabricError(
                f"a transfer at {at} ns, when the clock stands at {engine.now} ns",
                hint=f"inject now or later, and before {MAX_TIME_NS:.0f} ns",
            )
        transfer = self._maker.make(
            route, nbytes, on_grid(at), on_done, tag, header_bytes, read_from, write_to, seq, granules, is_control,
            on_left,
        )  # fmt: skip
        if not transfer.flits:
            engine.send_control(transfer)
            return transfer
        if trace or route.has_delay_rule or (self._counters.sees_flits and self._counters.is_slow(transfer)):
            transfer.slow = True
            if trace:
                transfer.times = [[0.0] * 4 for _ in range(route.hops)]
        if slot is not None and slot[1] > 1 and on_left is None and read_from is None:
            transfer.slot = slot
        engine.send(transfer)
        return transfer

    def multicast(
        self,
        paths: Sequence[Sequence[Hashable]],
        nbytes: int,
        at_ns: float | None = None,
        *,
        header_bytes: int = 0,
        write_to: Sequence[int | None] | None = None,
        granules: Sequence[int] | None = None,
        on_done: Callable[[Transfer], None] | None = None,
        tag: object = None,
        seqs: Sequence[int] | None = None,
    ) -> list[Transfer]:
        """Send `nbytes` along several paths that form a tree: a link that several paths share carries them once.

        Returns a transfer for each path, done when its destination has the bytes: `on_done` is called for each.
        `write_to`, `granules` and `seqs` are those of `inject`, one for each. Raises FabricError for what `inject` and
        `tree` refuse.
        """
        engine = self.engine
        at = engine.now if at_ns is None else at_ns
        if not engine.now <= at < MAX_TIME_NS or nbytes + header_bytes <= 0:
            raise FabricError(
                f"a multicast of {nbytes} bytes at {at} ns, when the clock stands at {engine.now} ns",
                hint="send at least one byte, now or later",
            )
        segments, routes = self.tree(paths, nbytes + header_bytes)
        transfers = [
            self._maker.make(
                route, nbytes, on_grid(at), on_done, tag, header_bytes,
                write_to=None if write_to is None else write_to[number], seq=None if seqs is None else seqs[number],
                granules=0 if granules is None else granules[number],
            )
            for number, route in enumerate(routes)
        ]  # fmt: skip
        join(segments, transfers)
        for transfer in transfers:
            transfer.slow = self._counters.is_slow(transfer)
        engine.send(transfers[0])
        return transfers

    def tree(self, paths: Sequence[Sequence[Hashable]], nbytes: int) -> Tree:
        """Segments of a multicast of `nbytes` and their routes; found once, then looked up. Raises FabricError for
        paths that form no tree, where users' delay rules are on them, and where it could deadlock.
        """
        key = tuple(map(tuple, paths))
        found = self._trees.get(key)
        if found is None:
            network = self.network
            segments = segments_of(key)
            routes = [network.segment(segment.path, key[0][0]) for segment in segments]
            if any(route.has_delay_rule for route in routes):
                raise FabricError("a multicast through a node with a delay rule", hint="take paths that avoid the node")
            if network.buffers is not None:
                for path, segment, route in zip(key, segments, routes, strict=True):
                    if segment.hop:
                        network.add_branch(route, path, routes[segment.fed_by], segment.hop)
                    else:
                        network.layers_of(route)
            found = self._trees[key] = segments, routes
        if self.network.buffers is not None and any(segment.hop for segment in found[0]):
            self.network.buffers.check_multicast(nbytes, self.network.flit_bytes)
        return found

    def note_reads(self, count: int) -> None:
        """So many reads are about to depart at one instant, together or not."""
        self.engine.note_reads(count)

    def may_join_reads(self, count: int) -> bool:
        """Whether `inject_reads` may be called for so many, now."""
        return self.engine.may_join_reads(count)

    def inject_reads(self, reads: list[JoinedRead], on_done: Callable[[Transfer], None], tag: object) -> None:
        """Have reads depart together, each as `inject` does with `read_from`; `on_done` is called when the last one is
        done. Only where `may_join_reads` says so, at the same instant.
        """
        assert self.engine.reads is not None
        self.engine.reads.add(reads, on_done, tag, self._as_single)

    def _as_single(self, read: JoinedRead, together: JoinedReads) -> Transfer:
        """One of several reads as a transfer of its own."""
        route, nbytes, at_ns, address, granules, seq = read
        made = self._maker.make(
            route, nbytes, on_grid(at_ns), together.part_done, together.tag, 0, address, None, seq, granules
        )
        made.slow = route.has_delay_rule
        return made

    def run(self, until: float = INFINITY) -> None:
        """Move everything up to `until`, calling `on_done` of each transfer at its time."""
        engine = self.engine
        while (done := engine.advance(until)) or engine.has_new_calls:
            engine.has_new_calls = False
            for transfer in done:
                if transfer.on_done is not None:
                    transfer.on_done(transfer)

    def advance(self, until: float = INFINITY) -> list[Transfer]:
        """Move flits up to `until` or the first instant at which transfers are done; returns those, as injected."""
        return self.engine.advance(until)

    def next_time(self) -> float:
        """When the next thing happens; infinity when nothing is under way."""
        return self.engine.next_time()

    @property
    def now(self) -> float:
        return self.engine.now

    # ---- reservations

    def reserve(
        self, links: Iterable[int], channels: Iterable[Hashable], on_interrupt: OnInterrupt
    ) -> Reservation | None:
        """Reserve links and memory channels until another transfer comes; None where one is in use or reserved.

        `links` are indices, as `add_link` answers and `Route.links` has them; `channels` are the nodes that they stand
        behind. `on_interrupt` is called with the time before an interfering transfer goes on, and the reservation has
        ended by then. Always None with mode="flits" or record=True. The rules are in `reservations.py`. Raises
        FabricError for links and nodes that do not exist.
        """
        links, nodes = list(links), [self.network.node_index(node) for node in channels]
        for link in links:
            if not 0 <= link < len(self.network.link_ends):
                raise FabricError(f"the network has no link {link}", hint="give what add_link answered")
        for node in nodes:
            if node not in self.engine.groups:
                raise FabricError(
                    f"node {self.network.names[node]!r} has no memory channels", hint="add_channels there"
                )
        return self.engine.reservations.reserve(links, nodes, on_interrupt, self.engine.now)

    @property
    def credited_ns(self) -> float:
        """When the last slot of a buffer is credited, as far as flits have moved so far; 0 without finite buffers."""
        return 0.0 if self.engine.buffered is None else self.engine.buffered.credited_ns()

    @property
    def sequence(self) -> Iterator[int]:
        """Places in the order of injections: where times are equal, the place that was taken first goes first."""
        return self._maker.seq

    def split_all(self, now: float, order: float) -> None:
        """Move all that is under way flit by flit from now on, the moment at which injection `order` comes."""
        self.engine.reservations.interrupt_all(now, order)
        if self._trains is not None:
            self._trains.split_all(now, order)
        for group in self.engine.groups.values():
            group.flush(now)

    # ---- what can be read, at any time

    def _commit_to_now(self) -> None:
        """Make counters those of what has happened: plans that reach beyond this instant become flits."""
        if self.engine.next_time() < INFINITY:
            self.split_all(self.engine.now, INFINITY)

    def link_counters(self, src: Hashable, dst: Hashable) -> LinkCounters:
        """What the link from `src` to `dst` has done for transfers that are done, and how long flits waited so far."""
        self._commit_to_now()
        return self._counters.link_counters(src, dst)

    def all_link_counters(self) -> dict[tuple[Hashable, Hashable], LinkCounters]:
        """Every link that has carried bytes, in order of index."""
        self._commit_to_now()
        return self._counters.all_link_counters()

    def channel_counters(self, node: Hashable) -> list[LinkCounters]:
        """What each memory channel at `node` has done, or has been given to do."""
        self._commit_to_now()
        return self._counters.channel_counters(node, self.engine.now)

    def channel_bytes(self, node: Hashable) -> int:
        """What the memory channels at `node` have been given to do, in whole bursts."""
        self._commit_to_now()
        return self._counters.channel_bytes(node, self.engine.now)

    def traffic_by(self, node: Hashable) -> dict[int, ChannelTraffic]:
        """What transfers between `node` and memory channels have moved, by index of the memory's node."""
        return self._counters.traffic_by(node)

    def done(self) -> Iterator[DoneTransfers]:
        """All transfers that are done."""
        return self._counters.done()

    def done_so_far(self) -> DoneCounts:
        """Which transfers are done, for `done_since` and `busy_since`."""
        return self._counters.done_so_far()

    def done_since(self, before: DoneCounts) -> Iterator[DoneTransfers]:
        """Transfers that are done since `done_so_far` gave `before`."""
        return self._counters.done_since(before)

    def busy_since(
        self, before: DoneCounts, parts: Collection[Hashable] | None = None
    ) -> dict[tuple[Hashable, Hashable], float]:
        """How long links were busy with what is done since `done_so_far` gave `before`, in order of index; with what
        has touched `parts` of the network, or with all.
        """
        return self._counters.busy_since(before, parts)

    def hop_times(self, transfer: Transfer) -> list[HopTimes]:
        """Arrival and departure of the first and last flit at every node of a traced transfer that is done."""
        return self._counters.hop_times(transfer)

    @property
    def recorded(self) -> list[FlitHop] | None:
        """Every flit on every link, with record=True."""
        return self._counters.recorded

    @property
    def events(self) -> int:
        """Taken from the queue so far."""
        return self.engine.events

    @property
    def planned(self) -> int:
        """Trains so far."""
        return self._trains.planned if self._trains else 0

    @property
    def replanned(self) -> int:
        """Trains so far of transfers that were moved flit by flit before."""
        return self._trains.replanned if self._trains else 0

    @property
    def split(self) -> int:
        """Trains so far that were split into flits."""
        return self._trains.split if self._trains else 0
