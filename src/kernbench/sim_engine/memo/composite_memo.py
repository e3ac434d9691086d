"""Match, replay and interrupt at the scope of a composite: it costs its command, not its tiles.

A composite that begins on an idle PE, and whose links and memory channels are idle and can be reserved, has a timing
that depends on its plan and the shape of its sub-network only. It is recorded once (`composite_recorder.py`). Then the
composite is one event at its end. An interfering transfer on its links or to its memories, or another command on its
PE, interrupts it: the clock is rewound to its begin (`FabricEnvironment.rewind`), and its tiles are simulated up to
that instant and from there on. Times, records and counters are those of the tile-by-tile run.

Not memoised: composites that begin while the PE has something else to do; paths with delay rules, or over blocks that
store and forward; PEs with user components.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable
from functools import lru_cache, partial

from kernbench.common.messages import stream_of
from kernbench.common.units import on_grid
from kernbench.components.builtin.command_log import TileDescriber
from kernbench.components.builtin.operand_access import OperandAccess
from kernbench.components.builtin.pe_dma import PeDmaComponent
from kernbench.components.builtin.pe_scheduler import PeSchedulerComponent, TileFeed
from kernbench.components.memory_port import MemoryPort
from kernbench.sim_engine.bounded_dict import BoundedDict
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.reservations import Reservation
from kernbench.sim_engine.interleaved_port import InterleavedPort
from kernbench.sim_engine.memo.composite_recorder import CompositeRecorder
from kernbench.sim_engine.memo.composite_recording import CompositeRecording, RecordedTiles
from kernbench.sim_engine.memo.private_pe import MachineParts, PeBlocks
from kernbench.sim_engine.memo.sub_network import SubNetwork
from kernbench.sim_engine.memory_ports import DirectPort
from kernbench.sim_engine.simulation_stats import INTERRUPTED
from kernbench.topology.graph import TopologyGraph

LEAST_TILES = 4
PATIENCE_NS = 2048.0  # a composite without a recording is recorded after so long without interference
MOST_BACKOFF = 64  # composites of a PE that go tile by tile after one that was interrupted
BUILTIN_PREFIX = "kernbench.components.builtin."
BACKED_OFF = "composites of its PE were interrupted before"


MOST_KEPT_BYTES = 1 << 28  # of all recordings of a machine


class CompositeRecordings:
    """Recordings and sub-networks, shared by all engines on one machine."""

    def __init__(self) -> None:
        self.sub_network: dict[tuple[tuple[str, ...], ...], SubNetwork] = {}
        self.recordings: BoundedDict[Hashable, CompositeRecording] = BoundedDict(MOST_KEPT_BYTES)


@lru_cache(maxsize=4)
def composite_recordings(graph: TopologyGraph) -> CompositeRecordings:
    """What all engines on a machine know."""
    return CompositeRecordings()


class CompositeMemo:
    """Decides which composites of one machine are replayed."""

    def __init__(self, machine: MachineParts) -> None:
        self._machine = machine
        self._recorded = composite_recordings(machine.graph)
        self._blocks: dict[PeSchedulerComponent, PeBlocks] = {}
        self._under_way: dict[int, OneEventComposite] = {}
        self._count = 0
        self._backoffs: dict[PeSchedulerComponent, Backoff] = {}

    def begin(self, scheduler: object, feed: object, *, is_only_command: bool) -> OneEventComposite | None:
        """Make a composite that begins now one event; None where its tiles are simulated, which is counted."""
        assert isinstance(scheduler, PeSchedulerComponent)
        assert isinstance(feed, TileFeed)
        why_simulated = self.why_simulated(scheduler, feed, is_only_command=is_only_command)
        if why_simulated == BACKED_OFF:
            self._backoffs[scheduler].count()
        if not why_simulated:
            composite = self._replay(scheduler, feed)
            if composite is not None:
                return composite
            why_simulated = "its links or channels are in use"
        self._machine.stats.composites.given_up[why_simulated] += 1
        return None

    def why_simulated(self, scheduler: object, feed: object, *, is_only_command: bool) -> str:
        """Why a composite goes tile by tile; empty where it may be one event, if its links can be reserved."""
        assert isinstance(scheduler, PeSchedulerComponent)
        assert isinstance(feed, TileFeed)
        if not is_only_command:
            return "its PE has another command"
        if not self._has_built_in_engines(scheduler):
            return "an engine of its PE is not built in"
        if feed.plan.total_tiles < LEAST_TILES:
            return "it has few tiles"
        dma = feed.context.engines["pe_dma"]
        if not (isinstance(dma, PeDmaComponent) and dma.is_idle):
            return "its DMA engine is in use"
        backoff = self._backoffs.get(scheduler)
        if backoff is not None and not backoff.is_over:
            return BACKED_OFF
        ports = _ports_of(feed)
        if any(isinstance(port, InterleavedPort) for port in ports):
            return "an operand has a request for each channel or stack"
        if not all(isinstance(port, DirectPort) for port in ports):
            return "an operand is not reached directly"
        if any(self._machine.listeners.has_any(port.path[-1]) for port in ports):
            return "writes to a memory of its operands are awaited"
        sub_network = self._sub_network_of(ports)
        if not sub_network.can_be_reserved:
            return "its links cannot be reserved"
        if not sub_network.has_latency:
            return "its requests take no time"
        return ""

    def _replay(self, scheduler: PeSchedulerComponent, feed: TileFeed) -> OneEventComposite | None:
        """Reserve links and channels, and replay; None where they are in use."""
        blocks, ports = self._blocks_of(scheduler), _ports_of(feed)
        backoff = self._backoffs.setdefault(scheduler, Backoff())
        sub_network = self._sub_network_of(ports)
        composite = OneEventComposite(self, self._machine, blocks, feed, sub_network, ports, backoff)
        reservation = self._machine.fabric.reserve(sub_network.links, sub_network.memories, composite.on_interrupt)
        if reservation is None:
            return None
        pe = scheduler.pe
        cube_type = self._machine.graph.spec.cube_type(pe.sip, pe.cube)
        key = cube_type, self._key_of(sub_network, feed, ports)
        recording = self._recorded.recordings.get(key)
        composite.hold(reservation)
        if recording is not None:
            composite.begin(recording)
        else:
            composite.wait(_shortest_ns(sub_network, feed) / 2, key)
        self._count += 1
        self._under_way[self._count] = composite
        composite.number = self._count
        return composite

    def interrupt(self, sips: Collection[int] | None = None) -> None:
        """Have all composites that are under way, or those on some SIPs, go on tile by tile."""
        for composite in list(self._under_way.values()):
            if sips is None or composite.sip in sips:
                composite.interrupt()

    def earliest_begin_ns(self) -> float:
        """When the first of the composites that are under way began; infinity when there is none."""
        return min((composite.begin_ns for composite in self._under_way.values()), default=INFINITY)

    def forget(self, composite: OneEventComposite) -> None:
        """It is over, or goes on tile by tile."""
        del self._under_way[composite.number]

    def _has_built_in_engines(self, scheduler: PeSchedulerComponent) -> bool:
        """Whether all blocks of a PE that a composite uses are built in."""
        parts = ("pe_scheduler", *scheduler.engines, "pe_tcm", "pe_mmu")
        nodes = [node for part in parts if (node := scheduler.pe.part(part)) in self._machine.graph.nodes]
        return all(self._machine.class_of(node).__module__.startswith(BUILTIN_PREFIX) for node in nodes)

    def _blocks_of(self, scheduler: PeSchedulerComponent) -> PeBlocks:
        """The blocks of a PE, made by now."""
        if scheduler not in self._blocks:
            self._blocks[scheduler] = PeBlocks(scheduler)
        return self._blocks[scheduler]

    def _sub_network_of(self, ports: list[MemoryPort]) -> SubNetwork:
        paths = tuple(port.path for port in ports)
        sub_network = self._recorded.sub_network.get(paths)
        if sub_network is None:
            sub_network = self._recorded.sub_network[paths] = SubNetwork(self._machine.fabric.network, paths)
        return sub_network

    def _key_of(self, sub_network: SubNetwork, feed: TileFeed, ports: list[MemoryPort]) -> Hashable:
        """The cache key of a composite: everything that its timeline depends on."""
        groups = self._machine.fabric.engine.groups
        directions = tuple(
            groups[node].directions if groups[node].penalty_ns else () for _, node in sub_network.channels
        )
        places = tuple(self._place_of(x, sub_network, ports) for x in feed.context.operands)
        return sub_network.kind, feed.plan, places, directions

    def recording_of(
        self, key: Hashable, sub_network: SubNetwork, blocks: PeBlocks, feed: TileFeed, ports: list[MemoryPort]
    ) -> CompositeRecording:
        """The recording of a composite, made now unless another composite has made it since."""
        recording = self._recorded.recordings.get(key)
        if recording is None:
            recording = CompositeRecorder(self._machine, sub_network, blocks, feed, ports).run()
            self._recorded.recordings.put(key, recording, recording.nbytes)
        return recording

    def _place_of(self, access: OperandAccess | None, sub_network: SubNetwork, ports: list[MemoryPort]) -> Hashable:
        """Where an operand lies, as far as it matters: which memories, and where among their channels."""
        if access is None:
            return None
        found = []
        rounds = {str(at): spec[0] * spec[1] for at, spec in sub_network.kind[3]}
        paths = [port.path for port in ports]
        for start, nbytes, port, address in access.extents:
            way = paths.index(port.path)
            found.append((start, nbytes, way, address % rounds.get(sub_network.paths[way][-1], 1)))
        return tuple(found)


def _ports_of(feed: TileFeed) -> list[MemoryPort]:
    """The memories of a composite's operands, each once."""
    operands = feed.context.operands
    return list({e.port.path: e.port for x in operands if x is not None for e in x.extents}.values())


def _shortest_ns(sub_network: SubNetwork, feed: TileFeed) -> float:
    """A time that the composite takes at least: its largest operand passes a link, whole."""
    fastest = max((bw_gbs or 0.0 for _, _, bw_gbs, *_ in sub_network.kind[1]), default=0.0)
    sizes = (sum(e.nbytes for e in x.extents) for x in feed.context.operands if x is not None)
    return min(max(sizes, default=0) / fastest if fastest else 0.0, 2 * PATIENCE_NS)


class Backoff:
    """How often the composites of a PE are interrupted: those that are often go tile by tile at once."""

    __slots__ = ("_left", "_next")

    def __init__(self) -> None:
        self._left = self._next = 0

    @property
    def is_over(self) -> bool:
        """Whether to try again."""
        return not self._left

    def count(self) -> None:
        """A composite goes tile by tile because it is not over."""
        self._left -= 1

    def on_interrupt(self) -> None:
        self._next = self._left = min(2 * self._next + 1, MOST_BACKOFF)

    def ended(self) -> None:
        self._next >>= 1


class OneEventComposite:
    """One composite under way."""

    def __init__(
        self,
        composite_memo: CompositeMemo,
        machine: MachineParts,
        blocks: PeBlocks,
        feed: TileFeed,
        sub_network: SubNetwork,
        ports: list[MemoryPort],
        backoff: Backoff,
    ) -> None:
        self._backoff = backoff
        self._memo = composite_memo
        self._machine = machine
        self._blocks = blocks
        self._feed = feed
        self._sub_network = sub_network
        self._ports = ports
        self.begin_ns = machine.env.now
        self.sip = blocks.scheduler.pe.sip  # which its paths do not leave: endpoints between SIPs store and forward
        self._reservation: Reservation | None = None
        self.number = 0

    def hold(self, reservation: Reservation) -> None:
        """It has its links and channels to itself, until an interfering access."""
        self._reservation = reservation
        self._blocks.dma.access_observers.add(self.interrupt)

    def begin(self, recording: CompositeRecording) -> None:
        """Its recording is there: it ends as recorded."""
        self._machine.at(self.begin_ns + recording.end_ns, self._end, recording)

    def wait(self, ns: float, key: Hashable) -> None:
        """There is no recording: one is made if it is not interrupted for a while."""
        self._machine.at(on_grid(self.begin_ns + ns), self._record_now, key)

    def _record_now(self, key: Hashable) -> None:
        if self._reservation is not None:
            recording = self._memo.recording_of(key, self._sub_network, self._blocks, self._feed, self._ports)
            self.begin(recording)

    def interrupt(self) -> None:
        """Go on tile by tile from now on."""
        if self._reservation is not None:
            self._reservation.release()
            self._interrupt()

    def on_interrupt(self, now: float) -> None:
        """An interfering access reaches a reserved link or memory."""
        self._interrupt()

    def _interrupt(self) -> None:
        """Simulate the composite tile by tile from its begin."""
        self._over()
        self._backoff.on_interrupt()
        self._machine.stats.composites.given_up[INTERRUPTED] += 1
        self._machine.env.rewind(self.begin_ns, partial(self._blocks.scheduler.admit, self._feed), is_call=False)

    # ---- uninterrupted

    def _end(self, recording: CompositeRecording) -> None:
        if self._reservation is None:
            return
        self._reservation.release()
        self._over()
        self._backoff.ended()
        self._machine.stats.composites.one_event += 1
        blocks, feed = self._blocks, self._feed
        tiles, is_communication = feed.plan.total_tiles, feed.context.is_communication
        blocks.scheduler.skip_tiles(tiles)
        blocks.fetch_store.skip_tiles(tiles)
        blocks.dma.add_busy(recording.use.dma_ns)
        blocks.scheduler.compute_slots[0].add_busy(recording.use.slot_ns, is_communication=is_communication)
        use = recording.use
        blocks.tcm.add_busy(use.tcm_read_ns, use.tcm_write_ns, use.tcm_ns, is_communication=is_communication)
        self._count(recording)
        feed.finished(self._record(recording))

    def _record(self, recording: CompositeRecording) -> int:
        """Write the tiles down; returns the record of the last one."""
        log, feed = self._machine.log, self._feed
        if log is None:
            return -1
        context = feed.context
        describer = TileDescriber(str(self._blocks.scheduler.pe), context.addresses, stream_of(context.request))
        rows = RecordedTiles(recording, self.begin_ns, log.new_tokens(feed.plan.total_tiles), feed.cause)
        return log.record_composite(describer, feed.deps, rows)

    def _count(self, recording: CompositeRecording) -> None:
        """What links and channels have done."""
        engine, sub_network, begin_ns = self._machine.fabric.engine, self._sub_network, self.begin_ns
        network = self._machine.fabric.network
        for (way, is_read, kind_bytes, spare), (flits, transfers) in recording.moved.items():
            route = sub_network.routes[way][is_read]
            engine.counters.count(route.last_flit(network, kind_bytes, spare), flits, transfers)
        for at, wait, since in recording.waits:
            engine.links.note_wait(sub_network.links[at], wait, begin_ns + since)
        for (_, node), rows, directions in zip(
            sub_network.channels, recording.channels, recording.directions, strict=True
        ):
            group = engine.groups[node]
            group.add_done(rows, begin_ns)
            group.set_directions(directions)
        for at, place, times in recording.credits:
            assert engine.buffered is not None
            engine.buffered.expect_credits(sub_network.links[at], place, [begin_ns + time for time in times])

    def _over(self) -> None:
        self._reservation = None
        self._blocks.scheduler.replayed = None
        self._blocks.dma.access_observers.remove(self.interrupt)
        self._memo.forget(self)
