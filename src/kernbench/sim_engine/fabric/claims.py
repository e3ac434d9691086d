"""Reservations of links and memory channels: a fast path that forecasts reserves what its forecast depends on.

A transfer that sets out over a reserved link, or to or from reserved channels, interrupts the reservation: its owner is
called first (`on_disturbed(now)`), at the instant at which the transfer sets out and before anything of it happens.
The reservation is released as a whole by then. Then the transfer goes on as if nothing had been reserved. So a fast
path may be added or removed without changing a single time.

- Only idle resources can be reserved: every flit sent has left the link, every burst is finished, and no other
  reservation covers it. Else the answer is None. A link into a node with a user's delay rule is refused: such a rule
  cannot be forecast.
- Links are directions: a pair of nodes has two. One reservation may have any number, and channels of several nodes.
- An owner may have several reservations; only those that are interrupted end. Of several that one transfer interrupts,
  those of links come first, in order of its path, then that of the channels. An owner may release any when called.
- Control messages neither wait nor interrupt. A transfer for a later time interrupts then, not now.
- While it is held, links and channels stay as they were. When it is interrupted, the owner has the clock rewound
  (`FabricEnvironment.go_back`) and sends what it has forecast; when it ends undisturbed, all of it is idle again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.transfers import Transfer

OnDisturbed = Callable[[float], None]


class Claim:
    """Links and channels that somebody owns as long as `held`."""

    __slots__ = ("_claims", "channels", "held", "links", "on_disturbed")

    def __init__(self, claims: Claims, links: dict[int, None], channels: dict[int, None], told: OnDisturbed) -> None:
        self._claims = claims
        self.links = links  # indices, as an ordered set
        self.channels = channels  # nodes that have them
        self.on_disturbed = told
        self.held = True

    def release(self) -> None:
        """Give all of it up. Does nothing when the claim is over already."""
        if self.held:
            self._claims.drop(self)


class Claims:
    """All claims on one fabric's links and channels. Nobody can claim anything before `allow`."""

    __slots__ = ("_channel_owner", "_groups", "_links", "_network", "_owner", "_turn", "are_allowed", "held")

    def __init__(self, network: Network, links: Links, groups: dict[int, ChannelGroup]) -> None:
        self._network = network
        self._links = links
        self._groups = groups
        self.are_allowed = False
        self._owner: list[Claim | None] = [None] * len(links.free)
        self._channel_owner: dict[int, Claim] = {}
        self._turn: float = INFINITY  # order of the newcomer on whose behalf owners are being called
        self.held = 0  # claims

    def take(self, links: Iterable[int], nodes: Iterable[int], on_disturbed: OnDisturbed, now: float) -> Claim | None:
        """A claim to links and to the channels of nodes; None where somebody is there."""
        if not self.are_allowed:
            return None
        wanted, channels = dict.fromkeys(links), dict.fromkeys(nodes)
        owner, users, free = self._owner, self._links.users, self._links.free
        delay_rule, ends = self._network.delay_rule, self._network.link_ends
        for link in wanted:
            if owner[link] is not None or users[link] or free[link] > now or delay_rule[ends[link][1]] is not None:
                return None
        for node in channels:
            if node in self._channel_owner or not self._groups[node].is_idle(now):
                return None
        claim = Claim(self, wanted, channels, on_disturbed)
        for link in wanted:
            owner[link] = claim
        for node in channels:
            self._channel_owner[node] = claim
        self.held += 1
        return claim

    def drop(self, claim: Claim) -> None:
        for link in claim.links:
            self._owner[link] = None
        for node in claim.channels:
            del self._channel_owner[node]
        claim.held = False
        self.held -= 1

    def disturb(self, transfer: Transfer, now: float) -> None:
        """A transfer sets out: whoever owns what it will use is called, once, with nothing of it owned any more.

        An owner that goes back in time may leave others behind who own some of it since then: they are called next.
        """
        owner = self._owner
        for link in transfer.links:
            while (claim := owner[link]) is not None:
                self._tell(claim, now, transfer.order)
        group = transfer.sink or transfer.source
        if group is not None:
            while (claim := self._channel_owner.get(group.node)) is not None:
                self._tell(claim, now, transfer.order)

    def tell_all(self, now: float, order: float) -> None:
        """Disturb every claim, as injection `order` would."""
        for claim in dict.fromkeys([*self._owner, *self._channel_owner.values()]):
            if claim is not None and claim.held:
                self._tell(claim, now, order)

    @property
    def turn(self) -> float:
        """Order of the newcomer on whose behalf owners are being called; infinity if there is none."""
        return self._turn

    @contextmanager
    def on_behalf_of_nobody(self) -> Iterator[None]:
        """Within a call of an owner: for a while, as if none was being called."""
        before, self._turn = self._turn, INFINITY
        try:
            yield
        finally:
            self._turn = before

    def _tell(self, claim: Claim, now: float, order: float) -> None:
        self.drop(claim)
        before, self._turn = self._turn, order
        try:
            claim.on_disturbed(now)
        finally:
            self._turn = before
