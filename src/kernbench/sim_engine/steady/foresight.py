"""Composites that cost their command, not their tiles.

A composite that begins on an idle PE, and whose links and memory channels are all idle and can be claimed, takes a
course that depends on its plan and the kind of its ways only. It is worked out once. Then the composite is one event
at its end. Whoever crosses one of its links, comes to one of its memories, or needs the PE, interrupts it: the blocks
of the PE go through the course again, up to that instant, and what is under way there then joins the machine. Times,
records and counters are those of the tile-by-tile run.

Not foreseen: composites that begin while the PE has something else to do; ways with delay rules, or over blocks that
store and forward; PEs with blocks of the user's own.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from functools import lru_cache, partial

from kernbench.common.messages import stream_of
from kernbench.common.units import on_grid
from kernbench.components.base import MemoryPort
from kernbench.components.builtin.command_log import TileDescriber
from kernbench.components.builtin.operand_access import OperandAccess
from kernbench.components.builtin.pe_scheduler import PeSchedulerComponent, TileFeed
from kernbench.sim_engine.bounded_dict import BoundedDict
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.claims import Claim
from kernbench.sim_engine.memory_ports import DirectPort
from kernbench.sim_engine.simulation_stats import INTERRUPTED
from kernbench.sim_engine.steady.course import Course, CourseRows
from kernbench.sim_engine.steady.explore import Explorer
from kernbench.sim_engine.steady.private_pe import Machine, PeBlocks
from kernbench.sim_engine.steady.ways import Ways
from kernbench.topology.graph import TopologyGraph

LEAST_TILES = 4
PATIENCE_NS = 2048.0  # a course that is not known is worked out when its composite has been left alone for so long
MOST_BACKOFF = 64  # composites of a PE that go tile by tile after one that was disturbed
BUILTIN = "kernbench.components.builtin."


MOST_KEPT_BYTES = 1 << 28  # of all courses of a machine


class KnownCourses:
    """What is known of a machine, for all engines on it."""

    def __init__(self) -> None:
        self.ways: dict[tuple[tuple[str, ...], ...], Ways] = {}
        self.courses: BoundedDict[Hashable, Course] = BoundedDict(MOST_KEPT_BYTES)


@lru_cache(maxsize=4)
def known_courses(graph: TopologyGraph) -> KnownCourses:
    """What all engines on a machine know."""
    return KnownCourses()


class Foresight:
    """Foresees composites of one engine's machine."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._known = known_courses(machine.graph)
        self._blocks: dict[PeSchedulerComponent, PeBlocks | None] = {}
        self._under_way: dict[int, ForeseenComposite] = {}
        self._count = 0
        self._backoffs: dict[PeSchedulerComponent, Backoff] = {}

    def try_replay(self, scheduler: object, feed: object, *, is_only_command: bool) -> ForeseenComposite | None:
        """Take over a composite that begins now, where it is the only command on its PE."""
        assert isinstance(scheduler, PeSchedulerComponent)
        assert isinstance(feed, TileFeed)
        begun = self._begin(scheduler, feed) if is_only_command else "its PE has another command"
        if isinstance(begun, ForeseenComposite):
            return begun
        self._machine.stats.composites.given_up[begun] += 1
        return None

    def _begin(self, scheduler: PeSchedulerComponent, feed: TileFeed) -> ForeseenComposite | str:
        """A composite that is one event, or why it goes tile by tile."""
        blocks = self._blocks_of(scheduler)
        if blocks is None:
            return "an engine of its PE is not built in"
        if feed.plan.total_tiles < LEAST_TILES:
            return "it has few tiles"
        if not blocks.dma.is_idle:
            return "its DMA engine is in use"
        backoff = self._backoffs.get(scheduler)
        if backoff is None:
            backoff = self._backoffs[scheduler] = Backoff()
        if not backoff.is_over():
            return "composites of its PE were interrupted before"
        operands = feed.context.operands
        ports = list({e.port.path: e.port for x in operands if x is not None for e in x.extents}.values())
        if not all(isinstance(port, DirectPort) for port in ports):
            return "an operand is not reached directly"
        if any(self._machine.listeners.has_any(port.path[-1]) for port in ports):
            return "writes to a memory of its operands are awaited"
        ways = self._ways_of(ports)
        if not ways.can_be_owned:
            return "its links cannot be reserved"
        if not ways.has_latency:
            return "its requests take no time"
        foreseen = ForeseenComposite(self, self._machine, blocks, feed, ways, ports, backoff)
        claim = self._machine.fabric.claim(ways.links, ways.memories, foreseen.disturbed)
        if claim is None:
            return "its links or channels are in use"
        key = self._key_of(ways, feed, ports)
        course = self._known.courses.get(key)
        if course is not None:
            foreseen.begin(claim, course)
        else:
            foreseen.wait(claim, _shortest_ns(ways, feed) / 2, key)
        self._count += 1
        self._under_way[self._count] = foreseen
        foreseen.number = self._count
        return foreseen

    def interrupt(self, sips: Collection[int] | None = None) -> None:
        """Have all composites that are under way, or those on some SIPs, go on tile by tile."""
        for foreseen in list(self._under_way.values()):
            if sips is None or foreseen.sip in sips:
                foreseen.interrupt()

    def earliest_begin_ns(self) -> float:
        """When the first of the composites that are under way began; infinity when there is none."""
        return min((foreseen.begin_ns for foreseen in self._under_way.values()), default=INFINITY)

    def forget(self, foreseen: ForeseenComposite) -> None:
        """It is over, or goes on tile by tile."""
        del self._under_way[foreseen.number]

    def _blocks_of(self, scheduler: PeSchedulerComponent) -> PeBlocks | None:
        """The blocks of a PE; None where one of them is not ours."""
        if scheduler not in self._blocks:
            engines: list[object] = [scheduler, *scheduler.engines.values()]
            pe = scheduler.pe
            engines += [self._machine.component(pe.part(part)) for part in ("pe_tcm", "pe_mmu")]
            is_ours = all(type(engine).__module__.startswith(BUILTIN) for engine in engines)
            self._blocks[scheduler] = PeBlocks(scheduler) if is_ours else None
        return self._blocks[scheduler]

    def _ways_of(self, ports: list[MemoryPort]) -> Ways:
        paths = tuple(port.path for port in ports)
        ways = self._known.ways.get(paths)
        if ways is None:
            ways = self._known.ways[paths] = Ways(self._machine.fabric.network, paths)
        return ways

    def _key_of(self, ways: Ways, feed: TileFeed, ports: list[MemoryPort]) -> Hashable:
        """What the course of a composite depends on."""
        groups = self._machine.fabric.engine.groups
        turned = tuple(groups[node].directions if groups[node].penalty_ns else () for _, node in ways.channels)
        places = tuple(self._place_of(x, ways, ports) for x in feed.context.operands)
        return ways.kind, feed.plan, places, turned

    def work_out(self, key: Hashable, ways: Ways, blocks: PeBlocks, feed: TileFeed, ports: list[MemoryPort]) -> Course:
        """A course that is not known, unless somebody else has worked it out since."""
        course = self._known.courses.get(key)
        if course is None:
            course = Explorer(self._machine, ways, blocks, feed, ports).run()
            self._known.courses.put(key, course, course.nbytes)
        return course

    def _place_of(self, access: OperandAccess | None, ways: Ways, ports: list[MemoryPort]) -> Hashable:
        """Where an operand lies, as far as it matters: which memories, and where among their channels."""
        if access is None:
            return None
        found = []
        rounds = {str(at): spec[0] * spec[1] for at, spec in ways.kind[3]}
        paths = [port.path for port in ports]
        for start, nbytes, port, address in access.extents:
            way = paths.index(port.path)
            found.append((start, nbytes, way, address % rounds.get(ways.paths[way][-1], 1)))
        return tuple(found)


def _shortest_ns(ways: Ways, feed: TileFeed) -> float:
    """A time that the composite takes at least: its largest operand passes a link, whole."""
    fastest = max((bw_gbs or 0.0 for _, _, bw_gbs, _ in ways.kind[1]), default=0.0)
    sizes = (sum(e.nbytes for e in x.extents) for x in feed.context.operands if x is not None)
    return min(max(sizes, default=0) / fastest if fastest else 0.0, 2 * PATIENCE_NS)


class Backoff:
    """How often the composites of a PE are disturbed: those that are often go tile by tile at once."""

    __slots__ = ("_left", "_next")

    def __init__(self) -> None:
        self._left = self._next = 0

    def is_over(self) -> bool:
        """Whether to try again; asked for every composite."""
        if not self._left:
            return True
        self._left -= 1
        return False

    def disturbed(self) -> None:
        self._next = self._left = min(2 * self._next + 1, MOST_BACKOFF)

    def ended(self) -> None:
        self._next >>= 1


class ForeseenComposite:
    """One composite under way."""

    def __init__(
        self,
        foresight: Foresight,
        machine: Machine,
        blocks: PeBlocks,
        feed: TileFeed,
        ways: Ways,
        ports: list[MemoryPort],
        backoff: Backoff,
    ) -> None:
        self._backoff = backoff
        self._foresight = foresight
        self._machine = machine
        self._blocks = blocks
        self._feed = feed
        self._ways = ways
        self._ports = ports
        self.begin_ns = machine.env.now
        self.sip = blocks.scheduler.pe.sip  # which its ways do not leave: endpoints between SIPs store and forward
        self._claim: Claim | None = None
        self.number = 0

    def begin(self, claim: Claim, course: Course) -> None:
        """Its course is known."""
        self._claim = claim
        self._blocks.dma.before_use = self.interrupt
        self._machine.at(self.begin_ns + course.end_ns, self._end, course)

    def wait(self, claim: Claim, ns: float, key: Hashable) -> None:
        """Its course is not known: whether it is worth while to work it out will be seen after a while."""
        self._claim = claim
        self._blocks.dma.before_use = self.interrupt
        self._machine.at(on_grid(self.begin_ns + ns), self._work_out, key)

    def _work_out(self, key: Hashable) -> None:
        if self._claim is not None:
            course = self._foresight.work_out(key, self._ways, self._blocks, self._feed, self._ports)
            self.begin(self._claim, course)

    def interrupt(self) -> None:
        """Go on tile by tile from now on."""
        if self._claim is not None:
            self._claim.release()
            self._interrupt()

    def disturbed(self, now: float) -> None:
        """Somebody comes to a link or a memory."""
        self._interrupt()

    def _interrupt(self) -> None:
        """Simulate the composite tile by tile from its begin."""
        self._over()
        self._backoff.disturbed()
        self._machine.stats.composites.given_up[INTERRUPTED] += 1
        self._machine.env.go_back(self.begin_ns, partial(self._blocks.scheduler.admit, self._feed), is_call=False)

    # ---- undisturbed

    def _end(self, course: Course) -> None:
        if self._claim is None:
            return
        self._claim.release()
        self._over()
        self._backoff.ended()
        self._machine.stats.composites.one_event += 1
        blocks, feed = self._blocks, self._feed
        tiles, is_communication = feed.plan.total_tiles, feed.context.is_communication
        blocks.scheduler.skip_tiles(tiles)
        blocks.fetch_store.skip_tiles(tiles)
        blocks.dma.add_busy(course.use.dma_ns)
        blocks.scheduler.compute_slots[0].add_busy(course.use.slot_ns, is_communication=is_communication)
        blocks.tcm.add_busy(*course.use[2:], is_communication=is_communication)
        self._count(course)
        feed.finished(self._record(course))

    def _record(self, course: Course) -> int:
        """Write the tiles down; returns the record of the last one."""
        log, feed = self._machine.log, self._feed
        if log is None:
            return -1
        context = feed.context
        describer = TileDescriber(str(self._blocks.scheduler.pe), context.addresses, stream_of(context.request))
        rows = CourseRows(course, self.begin_ns, log.new_tokens(feed.plan.total_tiles), feed.cause)
        return log.record_composite(describer, feed.deps, rows)

    def _count(self, course: Course) -> None:
        """What links and channels have done."""
        engine, ways, begin_ns = self._machine.fabric.engine, self._ways, self.begin_ns
        network = self._machine.fabric.network
        for (way, is_read, last_bytes), (flits, transfers) in course.moved.items():
            route = ways.routes[way][is_read]
            engine.counters.count(route.last_flit(network, last_bytes), flits, transfers)
        for at, wait, since in course.waits:
            engine.links.note_wait(ways.links[at], wait, begin_ns + since)
        for (_, node), rows, directions in zip(ways.channels, course.channels, course.directions, strict=True):
            group = engine.groups[node]
            group.add_done(rows, begin_ns)
            group.turn_to(directions)

    def _over(self) -> None:
        self._claim = None
        self._blocks.scheduler.replayed = None
        self._blocks.dma.before_use = None
        self._foresight.forget(self)
