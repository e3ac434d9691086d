"""Reservations of links and memory channels: a fast path that forecasts reserves what its forecast depends on.

A transfer that departs over a reserved link, or to or from reserved channels, interrupts the reservation: its owner is
called first (`on_interrupt(now)`), at the instant at which the transfer departs and before anything of it happens.
The reservation is released as a whole by then. Then the transfer goes on as if nothing had been reserved. So a fast
path may be added or removed without changing a single time.

- Only idle resources can be reserved: every flit sent has left the link, every burst is finished, every slot of its
  buffer, if it has one, is credited, and no other reservation covers it. Else the answer is None. A link into a node
  with a user's delay rule is refused: such a rule cannot be forecast.
- Links are directions: a pair of nodes has two. One reservation may have any number, and channels of several nodes.
- An owner may have several reservations; only those that are interrupted end. Of several that one transfer interrupts,
  those of links come first, in order of its path, then that of the channels. An owner may release any when called.
- Control messages neither wait nor interrupt. A transfer for a later time interrupts then, not now.
- While it is held, links and channels stay as they were. When it is interrupted, the owner has the clock rewound
  (`FabricEnvironment.rewind`) and sends what it has forecast; when it ends uninterrupted, all of it is idle again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from kernbench.common.declared_state import aside
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.transfers import Transfer

OnInterrupt = Callable[[float], None]


class CreditedBuffers(Protocol):
    """What is needed of finite buffers."""

    def credited_ns(self, links: Iterable[int], /) -> float: ...


class Reservation:
    """Links and channels that are reserved as long as `held`."""

    __slots__ = ("_reservations", "channels", "held", "links", "on_interrupt")

    def __init__(
        self, reservations: Reservations, links: dict[int, None], channels: dict[int, None], on_interrupt: OnInterrupt
    ) -> None:
        self._reservations = reservations
        self.links = links  # indices, as an ordered set
        self.channels = channels  # nodes that have them
        self.on_interrupt = on_interrupt
        self.held = True

    def release(self) -> None:
        """Give all of it up. Does nothing when the reservation is over already."""
        if self.held:
            self._reservations.release(self)


class Reservations:
    """All reservations on one fabric's links and channels. Nothing can be reserved unless they `are_allowed`."""

    DERIVED = (  # a reservation changes no time
        "_buffers", "_by_link", "_by_node", "_groups", "_links", "_network", "are_allowed", "held",
    )  # fmt: skip
    SET_ASIDE = (aside("_interfering_order", lambda reservations: INFINITY),)

    __slots__ = (
        "_buffers", "_by_link", "_by_node", "_groups", "_interfering_order", "_links", "_network", "are_allowed",
        "held",
    )  # fmt: skip

    def __init__(self, network: Network, links: Links, groups: dict[int, ChannelGroup]) -> None:
        self._network = network
        self._links = links
        self._groups = groups
        self.are_allowed = False
        self._buffers: CreditedBuffers | None = None
        self._by_link: list[Reservation | None] = [None] * len(links.free)
        self._by_node: dict[int, Reservation] = {}
        self._interfering_order: float = INFINITY  # order of the transfer that interrupts owners now
        self.held: dict[Reservation, None] = {}  # all of them, as an ordered set

    def use_buffers(self, buffers: CreditedBuffers) -> None:
        """Links have finite buffers: none is idle before all slots are credited."""
        self._buffers = buffers

    def reserve(
        self, links: Iterable[int], nodes: Iterable[int], on_interrupt: OnInterrupt, now: float
    ) -> Reservation | None:
        """A reservation of links and of the channels of nodes; None where one of them is in use."""
        if not self.are_allowed:
            return None
        wanted, channels = dict.fromkeys(links), dict.fromkeys(nodes)
        by_link, users, free = self._by_link, self._links.users, self._links.free
        delay_rule, ends = self._network.delay_rule, self._network.link_ends
        for link in wanted:
            if by_link[link] is not None or users[link] or free[link] > now or delay_rule[ends[link][1]] is not None:
                return None
        if self._buffers is not None and self._buffers.credited_ns(wanted) > now:
            return None
        for node in channels:
            if node in self._by_node or not self._groups[node].is_idle(now):
                return None
        reservation = Reservation(self, wanted, channels, on_interrupt)
        for link in wanted:
            by_link[link] = reservation
        for node in channels:
            self._by_node[node] = reservation
        self.held[reservation] = None
        return reservation

    def release(self, reservation: Reservation) -> None:
        for link in reservation.links:
            self._by_link[link] = None
        for node in reservation.channels:
            del self._by_node[node]
        reservation.held = False
        del self.held[reservation]

    def interrupt(self, transfer: Transfer, now: float, order: float) -> None:
        """A transfer departs as injection `order`: every reservation of what it will use is over, and then
        interrupted, once.

        An owner whose clock is rewound may leave later reservations of the same behind: their owners are called next.
        """
        by_link = self._by_link
        for link in transfer.links:
            while (reservation := by_link[link]) is not None:
                self._interrupt(reservation, now, order)
        group = transfer.sink or transfer.source
        if group is not None:
            while (reservation := self._by_node.get(group.node)) is not None:
                self._interrupt(reservation, now, order)

    def interrupt_all(self, now: float, order: float) -> None:
        """Interrupt every reservation, as injection `order` would."""
        for reservation in sorted(self.held, key=_first_link):
            if reservation.held:  # an owner whose clock is rewound may end others
                self._interrupt(reservation, now, order)

    @property
    def interfering_order(self) -> float:
        """The injection order of the transfer that interrupts owners just now; infinity if none does."""
        return self._interfering_order

    def _interrupt(self, reservation: Reservation, now: float, order: float) -> None:
        self.release(reservation)
        before, self._interfering_order = self._interfering_order, order
        try:
            reservation.on_interrupt(now)
        finally:
            self._interfering_order = before


def _first_link(reservation: Reservation) -> float:
    """The least of its links; reservations of channels alone come last, in the order in which they were made."""
    return min(reservation.links, default=INFINITY)
