"""The fastest path: reads that come one after the other along one route, on links and a memory that nobody else uses.

A reader that streams from a memory makes the same train again and again. A `Lane` *owns* its links and its channels
from a moment at which they are all idle. While it does, its next read costs no look at any of them: it ends a known
time after it sets out, and is the only one. Nothing is written down for it but that end. Whoever else sets out over one
of the links, or to or from the memory, makes the lane give them up first: a read that is under way is then planned as
the train that it is, one that has yet to set out takes the general path, and times are the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable

from kernbench.common.errors import FabricError
from kernbench.common.units import MAX_TIME_NS, on_grid
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.channels import ChannelGroup
from kernbench.sim_engine.fabric.flits import AT_DONE, AT_INJECT
from kernbench.sim_engine.fabric.model import Network, Route
from kernbench.sim_engine.fabric.planned_trains import Mode
from kernbench.sim_engine.fabric.train import TrainTemplate, template_of
from kernbench.sim_engine.fabric.trains import TrainFabric
from kernbench.sim_engine.fabric.transfers import INJECTED, Transfer

MAX_BACKOFF = 64  # reads that take the general path before a lane that was disturbed is tried again


class ReadProfile:
    """What reads of one profile have in common."""

    __slots__ = ("end_ns", "group", "last", "last_flit", "nbytes", "noted", "reads", "rounds", "template")

    def __init__(self, nbytes: int, group: ChannelGroup | None, template: TrainTemplate, transfer: Transfer) -> None:
        assert transfer.last_flit is not None
        self.nbytes = nbytes
        self.group = group
        self.template = template
        self.end_ns = template.end  # from when it sets out
        self.last_flit = transfer.last_flit
        self.last = transfer.last  # index of the last flit
        self.rounds = 0 if group is None else transfer.flits // (group.mask + 1)  # bursts on every channel
        self.reads = 0  # done, and not yet counted elsewhere
        self.noted = False  # whether its waits are written down: they are the same for all that follow


class Lane(Transfer):
    """Reads along one route, one at a time. It stands for the one under way, and is what `on_done` is called with."""

    __slots__ = ("_backoff", "_fabric", "_lead_ns", "_owns", "_profiles", "_reads", "address", "busy", "profile")

    def __init__(self, fabric: Fabric, route: Route, group: ChannelGroup | None, lead_ns: float) -> None:
        super().__init__(-1, route, 0, 0.0, None, None)
        self._fabric = fabric
        self._lead_ns = lead_ns
        self.source = group
        self._profiles: dict[int, ReadProfile | None] = {}  # by bytes; None: such reads take the general path
        self._owns = False
        self._reads = 0  # that took the general path since it owned nothing
        self._backoff = 0
        self.busy = False
        self.address = 0
        self.profile: ReadProfile | None = None  # of the last read

    def read(
        self, nbytes: int, address: int, at_ns: float, done: Callable[[Transfer], None] | None, tag: object
    ) -> None:
        """Ask for a read at `at_ns`, which is on the grid and not over. It sets out when the request is there."""
        at_ns += self._lead_ns
        fabric = self._fabric
        if not self.busy and (self._owns or self._take_over()):
            profile = self.profile
            if profile is None or profile.nbytes != nbytes:
                profile = self._profile_of(nbytes)
            if profile is not None:
                self.busy = True
                self.address, self.at_ns, self.on_done, self.tag = address, at_ns, done, tag
                self.seq = seq = next(fabric._seq)
                fabric._agenda.push((at_ns + profile.end_ns, INJECTED + seq, self.epoch, self, AT_DONE))
                return
        read_from = None if self.source is None else address
        fabric.inject(self.route, nbytes, at_ns, read_from=read_from, on_done=done, tag=tag)

    def end(self, now: float) -> None:
        """The read under way is done."""
        profile = self.profile
        assert profile is not None
        self.busy = False
        self.done_ns = now
        if not profile.reads:
            self._fabric._uncounted.append(profile)
        profile.reads += 1
        if self._backoff:
            self._backoff >>= 1
        if not profile.noted:
            profile.noted = True
            for link, wait, at in profile.template.waits:
                self._fabric._note_wait(link, wait, self.at_ns + at)
            if profile.group is not None:
                profile.group.note_rounds(profile.rounds, self.at_ns)

    def give_up(self, now: float, order: int) -> None:
        """Somebody else sets out here at `now`, as injection `order`: own nothing from now on."""
        fabric, group, profile = self._fabric, self.source, self.profile
        fabric._release(self)
        self._owns = False
        self._reads = 0
        self._backoff = min(2 * self._backoff + 1, MAX_BACKOFF)
        if not self.busy:
            return  # all that it owned is idle, as it was taken over
        assert profile is not None
        self.busy = False
        self.epoch += 1  # its end no longer holds
        transfer = Transfer(self.seq, self.route, profile.nbytes, self.at_ns, self.on_done, self.tag)
        transfer.epoch = self.epoch  # its end comes at the same instant as the one that no longer holds
        transfer.source, transfer.block = group, 0 if group is None else self.address >> group.shift
        transfer.last, transfer.flits = profile.last, profile.last + 1
        transfer.last_flit, transfer.last_crossings = profile.last_flit, profile.last_flit.crossings
        if (self.at_ns, transfer.order) > (now, order):
            fabric._agenda.push((self.at_ns, transfer.order, -1, transfer, AT_INJECT))
            return
        if group is not None:
            group.read_rounds(profile.rounds, self.at_ns)
        fabric._commit_template(transfer, profile.template, self.at_ns, profile.template.arrival)

    def _take_over(self) -> bool:
        """Own the links and the memory, if nobody is there and it has been quiet for long enough."""
        self._reads += 1
        if self._reads <= self._backoff or not self._fabric._take(self):
            return False
        self._owns = True
        return True

    def _profile_of(self, nbytes: int) -> ReadProfile | None:
        """The profile of reads of a size, made the present one; None if such reads must take the general path."""
        if nbytes not in self._profiles:
            self._profiles[nbytes] = self._fabric._profile_of(self, nbytes)
        profile = self._profiles[nbytes]
        if profile is not None:
            self.profile = profile
        return profile


class Fabric(TrainFabric):
    """Exact and adaptive: lanes where a reader has its way for itself, trains where a transfer is uncontended, one
    event per flit and hop where flows meet.

    `mode="flits"` does without lanes and trains; times are the same bit for bit.
    """

    def __init__(self, network: Network, *, mode: Mode = "adaptive", record: bool = False) -> None:
        super().__init__(network, mode=mode, record=record)
        self._owner: list[Lane | None] = [None] * len(network.link_ends)
        self._group_owner: dict[int, Lane] = {}
        self._owned = 0  # lanes that own something
        self._uncounted: list[ReadProfile] = []  # with reads that the counters do not know of

    def lane(self, route: Route, *, with_channels: bool, lead_ns: float = 0.0) -> Lane:
        """For somebody who reads along `route` again and again.

        `with_channels`: from the memory channels at its start. `lead_ns` is how long a request takes to get there.
        """
        if with_channels and route.nodes[0] not in self._groups:
            raise FabricError(f"node {route.path[0]!r} has no memory channels", hint="add_channels there")
        return Lane(self, route, self._groups[route.nodes[0]] if with_channels else None, on_grid(lead_ns))

    # ---- ownership

    def _set_out(self, transfer: Transfer, now: float) -> None:
        if self._owned:
            owner, order = self._owner, transfer.order
            for link in transfer.links:
                lane = owner[link]
                if lane is not None:
                    lane.give_up(now, order)
            group = transfer.sink or transfer.source
            if group is not None and group.node in self._group_owner:
                self._group_owner[group.node].give_up(now, order)
        super()._set_out(transfer, now)

    def _take(self, lane: Lane) -> bool:
        """Make a lane the owner of its links and its memory; False where a transfer is there, or under way to it."""
        now, group, route = self.now, lane.source, lane.route
        if not self._adaptive or route.loops or route.has_delay_rule or self.recorded is not None:
            return False
        for link in route.links:
            if self._users[link] or self._free[link] > now or self._owner[link] is not None:
                return False
            if self._trains_on[link] and self._trains_on[link][-1][0] > now:
                return False
        if group is not None:
            ahead = self._writes_planned[group.node]
            if group.node in self._group_owner or (ahead and ahead[-1][0] > now) or not group.is_quiet(now):
                return False
            self._group_owner[group.node] = lane
        for link in route.links:
            self._owner[link] = lane
        self._owned += 1
        return True

    def _release(self, lane: Lane) -> None:
        for link in lane.route.links:
            self._owner[link] = None
        if lane.source is not None:
            del self._group_owner[lane.source.node]
        self._owned -= 1

    def _profile_of(self, lane: Lane, nbytes: int) -> ReadProfile | None:
        """What reads of one size have in common; None if they do not come in whole rounds, or are not simple."""
        if nbytes <= 0 or lane.route.control_only_link is not None:
            return None
        transfer = Transfer(-1, lane.route, nbytes, 0.0, None, None)
        self._cut_into_flits(transfer, nbytes)
        group, last_flit = lane.source, transfer.last_flit
        assert last_flit is not None
        if group is not None and transfer.flits % (group.mask + 1):
            return None
        key = (transfer.flits, group is not None)
        template = last_flit.templates.get(key)
        if template is None:
            template = last_flit.templates[key] = template_of(transfer, group) or False
        return ReadProfile(nbytes, group, template, transfer) if isinstance(template, TrainTemplate) else None

    def _count_all(self) -> None:
        for profile in self._uncounted:
            tally = self._tally.setdefault(profile.last_flit, [0, 0])
            tally[0] += profile.reads * profile.last
            tally[1] += profile.reads
            if profile.group is not None:
                profile.group.add_rounds(profile.reads * profile.rounds)
            profile.reads = 0
        self._uncounted.clear()

    # ---- the end

    def advance(self, until: float = INFINITY) -> list[Transfer]:
        """As the per-flit engine does; the end of a lane's read that comes alone needs nothing of its loop."""
        agenda = self._agenda
        current = agenda.current
        if current or agenda.load():
            current = agenda.current
            now, _, epoch, lane, event = current[0]
            alone = event is AT_DONE and (len(current) == 1 or current[1][0] > now)
            if alone and now <= until and now <= MAX_TIME_NS and type(lane) is Lane and epoch == lane.epoch:
                self.now = now
                self.events += 1
                agenda.drop(1)
                lane.end(now)
                done: list[Transfer] = [lane]
                if self._large:
                    self._after(done)
                return done
        return super().advance(until)

    def _complete(self, transfer: Transfer, now: float) -> None:
        if isinstance(transfer, Lane) and now <= MAX_TIME_NS:
            transfer.end(now)
        else:
            super()._complete(transfer, now)
