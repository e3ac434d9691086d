"""The fast path on links with finite buffers: a lone transfer is planned.

How a transfer moves that departs on idle links, whose slots are all credited, is worked out once for a route and size
(`buffered_forecast.py`). As long as nothing else comes to its links or to the memory that it writes, only its end is an
event. When it ends, its last slots are on their way back, as if it had been moved
flit by flit. A transfer that comes before *splits* it: it is simulated from its start up to that instant, alone, as it
has been, and goes on flit by flit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from kernbench.sim_engine.fabric.buffered_forecast import LoneTransfer, lone_transfer
from kernbench.sim_engine.fabric.channel_bank import ChannelState
from kernbench.sim_engine.fabric.engine import FlitEngine
from kernbench.sim_engine.fabric.flit_events import AT_DONE
from kernbench.sim_engine.fabric.planner import FlitsOnly
from kernbench.sim_engine.fabric.progressions import shifted
from kernbench.sim_engine.fabric.transfers import FlitObserver, Transfer

MAX_TEMPLATES = 64  # kept of one route and size of last flit
WORTH_PLANNING = 8  # flits times hops: below, a plan costs more than it saves
WORTH_PLANNING_COMPILED = 256  # the same where a compiled loop moves flits
WORTH_WORKING_OUT = 16  # times as many of one route and size: below, it costs more to find out how they move

SHORTEST_PAUSE, LONGEST_PAUSE = 4, 64  # transfers that a first link sends flit by flit before the next try


class BufferedTrain:
    """A transfer planned from a template."""

    __slots__ = ("at_ns", "channels_before", "is_on_links", "seq", "template", "transfer")

    def __init__(self, seq: int, transfer: Transfer, template: LoneTransfer, at_ns: float) -> None:
        self.seq = seq
        self.transfer = transfer
        self.template = template
        self.at_ns = at_ns
        self.is_on_links = True
        self.channels_before: ChannelState | None = None  # of the memory that it writes

    def longest_waits(self, known: Sequence[float]) -> list[tuple[int, float, float]]:
        by = self.at_ns
        return [(link, wait, by + at) for link, wait, at in self.template.waits if wait >= known[link]]

    def report(self, activity: FlitObserver) -> None:
        raise AssertionError("nothing is planned where flits are watched")


class BufferedTrains(FlitsOnly):
    """The planner of a network with finite buffers."""

    DERIVED = (  # a train comes to the times of its flits
        "_engine", "_flit_engine", "_flits", "_is_paused", "_next_pause", "_on_link", "_pause", "_seq", "_to_memory",
        "planned", "replanned", "split",
    )  # fmt: skip

    def __init__(self, engine: FlitEngine) -> None:
        super().__init__(engine)
        assert engine.buffered is not None
        assert engine.network.buffers is not None
        self.planned = self.replanned = self.split = 0  # how often
        self._flit_engine, self._flits = engine, engine.buffered
        self._slots, self._credit_ns = engine.network.buffers.slots, engine.buffered.credit_ns
        self._least = WORTH_PLANNING_COMPILED if engine.is_compiled else WORTH_PLANNING
        self._seq = count()
        self._on_link: dict[int, BufferedTrain] = {}
        self._to_memory: dict[int, BufferedTrain] = {}  # by node
        self._pause: dict[int, int] = {}  # by first link: transfers that go flit by flit before the next try
        self._next_pause: dict[int, int] = {}
        self._is_paused = False

    def depart(self, transfer: Transfer, now: float) -> None:
        if self._on_link or self._to_memory:
            self._split(self._in_the_way(transfer.tree or (transfer,)), now)
        if transfer.source is not None:
            self._engine.commit_read(transfer, transfer.source, now)
        if transfer.tree is not None or not self._plan(transfer, now):
            self.begin(transfer, now)

    # ---- planning

    def _plan(self, transfer: Transfer, now: float) -> bool:
        """Plan a transfer that departs; False when it is not alone."""
        if transfer.flits * transfer.hops < self._least or self._is_paused:
            return False
        if transfer.slow or transfer.slot or transfer.on_left or transfer.route.loops:
            return False
        links, sink = self._engine.links, transfer.sink
        if not links.are_unused(transfer.links) or (sink is not None and (sink.users or sink.pending)):
            return False
        if self._pause.get(transfer.links[0], 0):
            self._pause[transfer.links[0]] -= 1
            return False
        template = self._template(transfer)
        if template is None or (transfer.pace is not None and not template.has_pace(transfer.pace, now)):
            return False
        if not links.are_free(template.links, now) or not self._are_credited(template, now):
            return False
        train = BufferedTrain(next(self._seq), transfer, template, now)
        self.planned += 1
        transfer.train = train
        for link in transfer.links:
            links.users[link] += 1
            self._on_link[link] = train
        if sink is None:
            event = now + template.end, transfer.links[-1], transfer.epoch, transfer, AT_DONE
            self._flit_engine.agenda.push(event)
            return True
        sink.users += 1
        self._to_memory[sink.node] = train
        arrival = shifted(template.arrival, now)
        end, train.channels_before = sink.commit_writes(transfer.block, arrival, transfer.flits, transfer.spare)
        self._engine.finish(transfer, max(end, transfer.finish_ns))
        return True

    def _are_credited(self, template: LoneTransfer, now: float) -> bool:
        """Whether all slots of every link are credited when its first flit comes."""
        credited_ns = self._flits.credited_ns
        return all(credited_ns((link,)) <= now + first for link, first in template.firsts)

    def _template(self, transfer: Transfer) -> LoneTransfer | None:
        """How transfers of this route and size move alone; None if that is long to work out, or not worth it yet."""
        assert transfer.last_flit is not None
        templates, key = (
            transfer.last_flit.templates,
            (transfer.flits, transfer.pace is not None, transfer.sink is not None),
        )
        found = templates.get(key, 0)
        if isinstance(found, int):  # flits times hops so far
            if len(templates) >= MAX_TEMPLATES:
                templates.clear()
            found += transfer.flits * transfer.hops
            if found >= self._least * WORTH_WORKING_OUT:
                group, pace = transfer.source, None
                if group is not None:
                    pace = group.pace_from_idle(0.0, transfer.flits, transfer.spare)
                found = lone_transfer(transfer, pace, self._slots, self._credit_ns)
            templates[key] = found
        return found if isinstance(found, LoneTransfer) else None

    # ---- the end

    def ended(self, transfer: Transfer, now: float) -> None:
        train = transfer.train
        if isinstance(train, BufferedTrain):
            transfer.train = None
            if transfer.sink is not None:
                transfer.sink.users -= 1
                del self._to_memory[transfer.sink.node]
            self._leave_links(train, now)
            self._next_pause[transfer.links[0]] = self._next_pause.get(transfer.links[0], 0) // 2

    def _leave_links(self, train: BufferedTrain, now: float) -> None:
        """All flits have arrived: links are as if they had been moved one by one."""
        if not train.is_on_links:
            return
        train.is_on_links = False
        links, transfer, by = self._engine.links, train.transfer, train.at_ns
        for link, _, _, after in train.template.links:
            links.free[link] = by + after
        for link in transfer.links:
            links.users[link] -= 1
            del self._on_link[link]
        for link, wait, at in train.longest_waits(links.worst):
            links.note_wait(link, wait, at)
        for hop, back in train.template.returns:
            late = [by + time for time in back if by + time > now]
            if late:
                self._flits.return_credits(transfer, hop, late)

    # ---- splitting

    def _in_the_way(self, transfers: Iterable[Transfer]) -> list[BufferedTrain]:
        """Trains on links of transfers, or to a memory that one of them reads or writes, each once."""
        found: dict[int, BufferedTrain] = {}
        for transfer in transfers:
            trains = [self._on_link.get(link) for link in transfer.links]
            group = transfer.sink or transfer.source
            if group is not None:
                trains.append(self._to_memory.get(group.node))
            found |= {train.seq: train for train in trains if train is not None}
        return [found[seq] for seq in sorted(found)]

    def _split(self, trains: list[BufferedTrain], now: float) -> None:
        """Simulate trains up to now, flit by flit; of one whose flits have all arrived, only the end is to come."""
        for train in trains:
            if train.at_ns + train.template.end <= now:
                self._leave_links(train, now)
                continue
            self.split += 1
            transfer, sink, engine = train.transfer, train.transfer.sink, self._flit_engine
            first_link = transfer.links[0]
            self._pause[first_link] = pause = max(self._next_pause.get(first_link, 0), SHORTEST_PAUSE)
            self._next_pause[first_link] = min(2 * pause, LONGEST_PAUSE)
            transfer.train = None
            transfer.epoch += 1  # its end as planned no longer holds
            for link in transfer.links:
                engine.links.users[link] -= 1
                del self._on_link[link]
            if sink is not None:
                assert train.channels_before is not None
                sink.users -= 1
                sink.restore(train.channels_before)
                del self._to_memory[sink.node]
            with self._flits.without_events():
                engine.begin(transfer, train.at_ns)
                while self._flits.next_ns <= now:
                    engine.move_loop(self._flits, now)

    def split_all(self, now: float, order: float) -> None:
        """Simulate every train flit by flit from now on."""
        trains = {train.seq: train for each in (self._on_link, self._to_memory) for train in each.values()}
        self._split([trains[seq] for seq in sorted(trains)], now)

    def pause(self, now: float) -> None:
        self.split_all(now, -1)
        self._is_paused = True

    def resume(self) -> None:
        self._is_paused = False
