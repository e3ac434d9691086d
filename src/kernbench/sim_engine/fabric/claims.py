"""Who owns which links and memory channels: "until told otherwise nobody else is here".

A fast path forecasts. What it forecasts holds as long as nobody else comes to the links and channels that it counts on,
so it *claims* them. Whoever sends bytes over a claimed link, or to or from claimed channels, disturbs the claim: the
owner is called first (`on_disturbed(now)`), at the instant at which the newcomer sets out and before anything of it
happens, then the newcomer goes on as if nothing had been owned. The claim is over by then, as a whole. So a fast path
may be added or taken away without changing a single time.

- A claim is given for what is idle: every flit sent has left the link, every burst is finished, and nobody else has a
  claim to it. Else it is refused. A node with a delay rule of the user's cannot be forecast: refused.
- Links are directions: both of them are two links. One claim may have any number, and channels of several nodes.
- An owner that can do without `yields`: it is disturbed by who wants a claim and does not yield, not only by bytes.
- An owner may have several claims; only those that are disturbed end. Of several that one newcomer disturbs, the claims
  of links come first, in order of its path, then that of the channels. An owner may release any of them when called.
- Control messages wait for nobody and disturb nobody. What is sent for a later time disturbs then, not now. Transfers
  that the owner sends under its claim (`inject(..., claim=...)`) do not disturb that one.
- While it has a claim the owner alone says what happens there, and need not tell: links and channels stay as they were.
  When it is disturbed it tells what it has sent (`Claim.replay`); when it releases by itself, too, or leaves all idle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from kernbench.common.errors import FabricError
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.links import Links
from kernbench.sim_engine.fabric.model import Network
from kernbench.sim_engine.fabric.transfers import Transfer

OnDisturbed = Callable[[float], None]


class Replay(Protocol):
    """Moves transfers of the past (`replay.py`)."""

    def told(
        self, transfers: list[Transfer], order: float, repeated_ns: float, links: Iterable[int], nodes: Iterable[int]
    ) -> None: ...


class Claim:
    """Links and channels that somebody owns as long as `held`."""

    __slots__ = ("_claims", "channels", "held", "links", "on_disturbed", "yields")

    def __init__(self, claims: Claims, links: dict[int, None], channels: dict[int, None], told: OnDisturbed) -> None:
        self._claims = claims
        self.links = links  # indices, as an ordered set
        self.channels = channels  # nodes that have them
        self.on_disturbed = told
        self.held = True
        self.yields = False  # to whoever wants to own some of it

    def release(self) -> None:
        """Give all of it up. Does nothing when the claim is over already."""
        if self.held:
            self._claims.drop(self)

    def replay(self, transfers: list[Transfer], repeated_ns: float = 0.0) -> None:
        """Tell what has been sent while this was owned, once the claim is over and before anybody else goes on.

        `transfers` come from `Fabric.prepare`, with their times and places in the order of injections. What of them has
        happened by now then has happened: links, channels and counters are as if they had been injected. `on_done` is
        called for those that end now or later, so give none to one that was reported. One whose time has not come is
        sent at its time.

        An owner that has sent the same again and again tells only the beginning, as if the last `repeated_ns` had not
        been: the state is that of `repeated_ns` ago, and moves on by that time with all that is under way. It counts
        what it did not tell (`Fabric.count`).

        Raises FabricError when the claim is held, or did not cover one of them.
        """
        if self.held:
            raise FabricError("a replay under a claim that is held", hint="release it first")
        if repeated_ns < 0:
            raise FabricError(f"a replay with a repetition of {repeated_ns} ns", hint="give 0 or more")
        for transfer in transfers:
            group = transfer.source or transfer.sink
            covered = group is None or group.node in self.channels
            for link in transfer.links:
                if link not in self.links:
                    covered = False
            if not covered:
                raise FabricError(
                    f"{transfer!r} uses what was not claimed", hint="claim every link and channel it uses"
                )
        self._claims.replay(self, transfers, repeated_ns)


class Claims:
    """All claims on one fabric's links and channels. Nobody can claim anything before `allow`."""

    __slots__ = ("_channel_owner", "_groups", "_links", "_network", "_owner", "_replay", "_turn", "held")

    def __init__(self, network: Network, links: Links, groups: dict[int, ChannelGroup]) -> None:
        self._network = network
        self._links = links
        self._groups = groups
        self._replay: Replay | None = None
        self._owner: list[Claim | None] = [None] * len(links.free)
        self._channel_owner: dict[int, Claim] = {}
        self._turn: float = INFINITY  # order of the newcomer on whose behalf owners are being called
        self.held = 0  # claims

    def allow(self, replay: Replay) -> None:
        """From now on things can be claimed; owners tell `replay`."""
        self._replay = replay

    def take(
        self,
        links: Iterable[int],
        nodes: Iterable[int],
        on_disturbed: OnDisturbed,
        now: float,
        *,
        yields: bool = False,
    ) -> Claim | None:
        """A claim to links and to the channels of nodes; None where somebody is there."""
        if self._replay is None:
            return None
        wanted, channels = dict.fromkeys(links), dict.fromkeys(nodes)
        if not yields and self.held:
            owners = [self._owner[link] for link in wanted] + [self._channel_owner.get(node) for node in channels]
            for claim in owners:
                if claim is not None and claim.held and claim.yields:
                    self._tell(claim, now, self._turn)
        owner, users, free = self._owner, self._links.users, self._links.free
        delay_rule, ends = self._network.delay_rule, self._network.link_ends
        for link in wanted:
            if owner[link] is not None or users[link] or free[link] > now or delay_rule[ends[link][1]] is not None:
                return None
        for node in channels:
            if node in self._channel_owner or not self._groups[node].is_idle(now):
                return None
        claim = Claim(self, wanted, channels, on_disturbed)
        claim.yields = yields
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
        owner, own = self._owner, transfer.claim
        for link in transfer.links:
            while (claim := owner[link]) is not None and claim is not own:
                self._tell(claim, now, transfer.order)
        group = transfer.sink or transfer.source
        if group is not None:
            while (claim := self._channel_owner.get(group.node)) is not None and claim is not own:
                self._tell(claim, now, transfer.order)

    def replay(self, claim: Claim, transfers: list[Transfer], repeated_ns: float) -> None:
        assert self._replay is not None
        self._replay.told(transfers, self._turn, repeated_ns, claim.links, claim.channels)

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
