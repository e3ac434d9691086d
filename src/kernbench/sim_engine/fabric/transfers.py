"""A message under way, and what can be read of it and of its links afterwards."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import ClassVar, Protocol

from kernbench.common.declared_state import Derived, StateField, View, differs, idle, instant, quantity
from kernbench.common.frozen import frozen
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.progressions import Pace, Progression, Times, part_of, times_of
from kernbench.sim_engine.fabric.routes import LastFlit, LinkTraversal, Route

INJECTED = 1 << 40  # order of injections: behind every link index


@frozen
class HopTimes:
    """First and last flit at one node: when each has arrived, and when each has left on the next link."""

    node: Hashable
    first_arrival_ns: float
    first_departure_ns: float
    last_arrival_ns: float
    last_departure_ns: float


@frozen
class FlitHop:
    """One flit on one link, as `record=True` keeps it."""

    link: int
    transfer: int
    flit: int
    nbytes: int
    ready_ns: float
    leave_ns: float


@frozen
class LinkCounters:
    """What a link, or a memory channel, did. A queue is counted in the time that it takes to empty."""

    nbytes: int
    busy_ns: float
    longest_queue_bytes: int
    longest_queue_ns: float
    longest_queue_at_ns: float


class FlitObserver(Protocol):
    """An observer of flits (`activity.py`)."""

    def passed(
        self, transfer: Transfer, hop: int, ready: list[float], leave: list[float], first: int, before: float
    ) -> None:
        """Flits of a train have passed a hop."""


class TransferPlan(Protocol):
    """How a transfer is moved whole, as the fast path has planned it (`train.py`)."""

    seq: int

    def longest_waits(self, known: Sequence[float]) -> list[tuple[int, float, float]]:
        """Of every link where a flit waits: the link, the longest wait and when it began. Those that are shorter than
        what is `known` of a link may be left out.
        """

    def report(self, activity: FlitObserver) -> None:
        """Report every flit on every link to the observer."""


class Transfer:
    """A message under way. Read `done_ns` once it is done."""

    STATE = (
        StateField("route", lambda transfer, view: transfer.route.path),
        quantity("nbytes"),
        quantity("spare"),
        instant("finish_ns"),
        StateField("schedules", lambda transfer, view: view.schedules(transfer.schedules or {})),
        StateField("tag", lambda transfer, view: view.tag(transfer.tag)),
        idle("delayed_until_ns"),
        StateField("tree", lambda transfer, view: () if transfer.tree is None else differs()),
    )
    # from its route and size, from its events in the agenda; a plan is split before its state is taken
    DERIVED: ClassVar[Derived] = (
        "block", "branches", "traversals", "done_ns", "epoch", "fed_at", "fed_by", "flits", "hops", "last",
        "last_traversals", "last_flit", "links", "on_done", "on_left", "order", "pace", "seq", "sink", "slot", "slow",
        "source", "times", "train", "tries",
    )  # fmt: skip

    __slots__ = (
        "at_ns", "block", "branches", "delayed_until_ns", "done_ns", "epoch", "fed_at", "fed_by", "finish_ns",
        "flits", "hops", "last", "last_flit", "last_traversals", "links", "nbytes", "on_done", "on_left", "order",
        "pace", "route", "schedules", "seq", "sink", "slot", "slow", "source", "spare", "tag", "times", "train",
        "traversals", "tree", "tries",
    )  # fmt: skip

    def __init__(
        self,
        seq: int,
        route: Route,
        nbytes: int,
        at_ns: float,
        on_done: Callable[[Transfer], None] | None,
        tag: object,
        on_left: Callable[[float], None] | None = None,
    ) -> None:
        self.seq = seq
        self.order: float = INJECTED + seq
        self.route = route
        self.links = route.links
        self.hops = route.hops
        self.traversals = self.last_traversals = route.traversals
        self.last_flit: LastFlit | None = None
        self.nbytes = nbytes
        self.flits = 0
        self.last = -1  # index of the last flit
        self.spare = 0  # granules that its last burst lacks, where it reads or writes memory channels
        self.block = 0  # address in bursts
        self.at_ns = at_ns
        self.on_done = on_done
        self.tag = tag
        self.done_ns = INFINITY
        self.on_left = on_left
        self.finish_ns = 0.0  # of the latest burst committed so far
        self.source: ChannelGroup | None = None  # the memory it reads
        self.sink: ChannelGroup | None = None  # the memory it writes
        self.pace: Pace | None = None  # of a read, once its bursts are committed
        self.slot: tuple[int, int] | None = None  # (i, n): its flits take every n-th place on the first link, from i on
        self.slow = False
        self.times: list[list[float]] | None = None  # per hop: first ready, first leave, last ready, last leave
        self.epoch = 0  # an expected end that no longer holds is known by its older epoch
        self.train: TransferPlan | None = None
        self.tries = 0  # to plan it again, in vain
        self.schedules: dict[int, FlitSchedule] | None = None  # by hop
        # Of a multicast: all its segments, those that begin at a node of this one, by hop, and where this one begins.
        self.tree: tuple[Transfer, ...] | None = None
        self.branches: dict[int, list[Transfer]] | None = None
        self.fed_by: Transfer | None = None
        self.fed_at = 0
        self.delayed_until_ns: dict[int, float] | None = None  # by hop: when a delay rule made the flit ahead ready

    @property
    def ready(self) -> list[Progression] | None:
        """When its flits are ready for the first link, where that is not all at once: those that alternate there."""
        if self.slot is None:
            return None
        (place, slots), flit_ns = self.slot, self.traversals[0].occupy_ns
        return [(self.at_ns + place * flit_ns, slots * flit_ns, self.flits)]

    def traversal(self, hop: int, index: int) -> LinkTraversal:
        return self.last_traversals[hop] if index == self.last else self.traversals[hop]

    def hop_of(self, traversal: LinkTraversal) -> int:
        """Which hop a traversal of one of the flits is."""
        traversals = self.last_traversals if traversal.final else self.traversals
        return next(hop for hop, own in enumerate(traversals) if own is traversal)

    def flit_bytes(self, index: int, whole: int) -> int:
        """The size of a flit, where `whole` is that of all but the last."""
        return self.last_flit.nbytes if self.last_flit is not None and index == self.last else whole

    @property
    def total_ns(self) -> float:
        return self.done_ns - self.at_ns

    def __repr__(self) -> str:
        return f"<Transfer {self.seq}: {self.nbytes} B, {self.route.path[0]!r} to {self.route.path[-1]!r}>"


def _relative_times(schedule: FlitSchedule, view: View) -> tuple[float, ...]:
    """The flits that are not in the queue by themselves."""
    index, stop, source = schedule.index, schedule.stop, schedule.source
    if isinstance(source, Pace):
        times = source.times(index, stop)
    else:
        times = times_of(part_of(source, index - schedule.base, stop - schedule.base))
    return tuple(t - view.now for t in times)


class FlitSchedule:
    """Flits of one transfer whose times at a hop are known: a few are in the queue, the others wait here."""

    STATE = (quantity("index"), quantity("stop"), StateField("source", _relative_times))
    DERIVED = ("times",)

    __slots__ = ("base", "index", "source", "stop", "times")

    def __init__(self, index: int, stop: int, source: Times, times: Iterator[float]) -> None:
        self.index = self.base = index  # of the first that is not in the queue by itself, and of the first in `source`
        self.stop = stop
        self.source = source
        self.times = times
