"""The fastest path: reads that come one after the other along one route, on links and a memory that nobody else uses.

A reader that streams from a memory makes the same train again and again. A `Lane` *claims* its links and its channels
(`claims.py`) when they are all idle. While it owns them, its next read costs no look at any of them: it ends a known
time after it sets out, and is the only one. Nothing is written down for it but that end. Whoever else comes makes the
lane tell of the read that is under way, and times are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.claims import Claim
from kernbench.sim_engine.fabric.counters import Counters
from kernbench.sim_engine.fabric.engine import AT_DONE, FlitEngine
from kernbench.sim_engine.fabric.model import Route
from kernbench.sim_engine.fabric.train import TrainTemplate, template_of
from kernbench.sim_engine.fabric.transfer_maker import TransferMaker
from kernbench.sim_engine.fabric.transfers import INJECTED, Transfer

MAX_BACKOFF = 64  # reads that take the general path before a lane that was disturbed is tried again


class ReadProfile:
    """What reads of one size along one route have in common."""

    __slots__ = ("_counters", "end_ns", "group", "last_flit", "nbytes", "noted", "reads", "rounds", "template", "whole")

    def __init__(self, transfer: Transfer, template: TrainTemplate, counters: Counters) -> None:
        assert transfer.last_flit is not None
        self.nbytes = transfer.nbytes
        self.group = group = transfer.source
        self.template = template
        self.end_ns = template.end  # from when it sets out
        self.last_flit = transfer.last_flit
        self.whole = transfer.last  # flits before the last one
        self.rounds = 0 if group is None else transfer.flits // (group.mask + 1)  # bursts on every channel
        self.reads = 0  # done, and not yet counted elsewhere
        self.noted = -1  # how often waits had been taken when its own were written down: they are always the same
        self._counters = counters

    def count(self) -> None:
        """Tell the counters of all reads that they do not know of."""
        self._counters.count(self.last_flit, self.reads * self.whole, self.reads)
        if self.group is not None:
            self.group.add_rounds(self.reads * self.rounds)
        self.reads = 0


class Lane:
    """Reads along one route, one at a time. `on_done` is called with the one transfer that stands for all of them."""

    __slots__ = (
        "_address", "_backoff", "_busy", "_claim", "_engine", "_group", "_lead_ns", "_maker", "_profile", "_profiles",
        "_read", "_reads", "_route", "_turns",
    )  # fmt: skip

    def __init__(
        self,
        engine: FlitEngine,
        maker: TransferMaker,
        route: Route,
        group: ChannelGroup | None,
        lead_ns: float,
        turns: Iterator[int],
    ) -> None:
        self._engine = engine
        self._maker = maker
        self._turns = turns
        self._route = route
        self._group = group
        self._lead_ns = lead_ns
        self._profiles: dict[int, ReadProfile | None] = {}  # by bytes; None: such reads take the general path
        self._profile: ReadProfile | None = None  # of the last read
        self._claim: Claim | None = None
        self._reads = 0  # that took the general path since it owned nothing
        self._backoff = 0
        self._busy = False
        self._address = 0
        self._read = Transfer(-1, route, 0, 0.0, None, None)
        self._read.owner = self

    def read(
        self, nbytes: int, address: int, at_ns: float, done: Callable[[Transfer], None] | None, tag: object
    ) -> None:
        """Ask for a read at `at_ns`, which is on the grid and not over. It sets out when the request is there."""
        at_ns += self._lead_ns
        if not self._busy and (self._claim is not None or self._take_over()):
            profile = self._profile
            if profile is None or profile.nbytes != nbytes:
                profile = self._profile_of(nbytes)
            if profile is not None:
                self._busy = True
                self._address = address
                read = self._read
                read.at_ns, read.on_done, read.tag = at_ns, done, tag
                read.seq = seq = next(self._turns)
                self._engine.agenda.push((at_ns + profile.end_ns, INJECTED + seq, read.epoch, read, AT_DONE))
                return
        engine = self._engine
        transfer = self._made(nbytes, address, at_ns, done, tag, next(self._turns))
        if not transfer.flits:
            engine.send_control(transfer)
            return
        transfer.slow = self._route.has_delay_rule or engine.counters.is_slow(transfer)
        engine.send(transfer)

    def _made(
        self,
        nbytes: int,
        address: int,
        at_ns: float,
        done: Callable[[Transfer], None] | None,
        tag: object,
        seq: int,
    ) -> Transfer:
        """A read as any other."""
        read_from = None if self._group is None else address
        return self._maker.make(self._route, nbytes, at_ns, done, tag, read_from=read_from, seq=seq)

    def ended(self, now: float) -> None:
        """The read under way is done."""
        profile = self._profile
        assert profile is not None
        self._busy = False
        if not profile.reads:
            self._engine.counters.count_later(profile.count)
        profile.reads += 1
        if self._backoff:
            self._backoff >>= 1
        links = self._engine.links
        if profile.noted != links.taken:
            profile.noted = links.taken
            at_ns = self._read.at_ns
            for link, wait, at in profile.template.waits:
                links.note_wait(link, wait, at_ns + at)
            if profile.group is not None:
                profile.group.note_rounds(profile.rounds, at_ns)

    def _give_up(self, now: float) -> None:
        """Somebody else comes: tell of the read under way, and own nothing for a while."""
        claim, profile, read = self._claim, self._profile, self._read
        assert claim is not None
        self._claim = None
        self._reads = 0
        self._backoff = min(2 * self._backoff + 1, MAX_BACKOFF)
        if not self._busy:
            return  # all that it owned is idle, as it was taken over
        assert profile is not None
        self._busy = False
        read.epoch += 1  # its end no longer holds
        again = self._made(profile.nbytes, self._address, read.at_ns, read.on_done, read.tag, read.seq)
        again.epoch = read.epoch  # its end may come at the same instant as the one that no longer holds
        claim.replay([again])

    def _take_over(self) -> bool:
        """Own the links and the memory, if nobody is there and it has been quiet for long enough."""
        self._reads += 1
        group, route = self._group, self._route
        if self._reads <= self._backoff or route.loops or (group is not None and not group.is_turned_to_reads()):
            return False
        nodes = () if group is None else (group.node,)
        self._claim = self._engine.claims.take(route.links, nodes, self._give_up, self._engine.now, yields=True)
        return self._claim is not None

    def _profile_of(self, nbytes: int) -> ReadProfile | None:
        """The profile of reads of a size, made the present one; None if such reads must take the general path."""
        if nbytes not in self._profiles:
            self._profiles[nbytes] = self._make_profile(nbytes)
        profile = self._profiles[nbytes]
        if profile is not None:
            self._profile = profile
        return profile

    def _make_profile(self, nbytes: int) -> ReadProfile | None:
        """None if such reads do not come in whole rounds, or are not simple."""
        if nbytes <= 0 or self._route.control_only_link is not None:
            return None
        group = self._group
        transfer = self._made(nbytes, 0, 0.0, None, None, -1)
        if group is not None and transfer.flits % (group.mask + 1):
            return None
        assert transfer.last_flit is not None
        templates, key = transfer.last_flit.templates, (transfer.flits, group is not None)
        template = templates.get(key)
        if template is None:
            template = templates[key] = template_of(transfer, group) or False
        return ReadProfile(transfer, template, self._engine.counters) if isinstance(template, TrainTemplate) else None
