"""A simulated machine: its blocks and their clock, the context that blocks use, and its counters.

Blocks are created when they are first needed. They reach the fabric, the routes and each other only through this class,
their context (`components.base.Context`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import count, pairwise
from typing import Any, TypeVar

from kernbench.common.blocked import BlockedKernel
from kernbench.common.channel_traffic import ChannelTraffic
from kernbench.common.errors import ComponentError
from kernbench.common.ipcq import Communicator
from kernbench.common.messages import KernelLaunchMsg, LaunchStream, RequestId
from kernbench.common.writers import MachineWriters, Writers
from kernbench.components.base import ActiveComponent, Component, Packet
from kernbench.components.builtin.ipcq_trace import traces_messages
from kernbench.components.builtin.pe_cpu import PeCpuComponent
from kernbench.components.memory_port import Listener, MemoryPort, OnLeft
from kernbench.components.replays import LaunchReplayer
from kernbench.components.table import make_component
from kernbench.sim_engine.blank_memory import BlankMemory
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment, LinkCounters, Transfer
from kernbench.sim_engine.fabric.activity import Activity
from kernbench.sim_engine.fabric.agenda import INFINITY
from kernbench.sim_engine.fabric.done_tally import DoneCounts
from kernbench.sim_engine.fabric.fabric import MANY_EVENTS
from kernbench.sim_engine.fast_paths import ALL, FastPaths
from kernbench.sim_engine.host_ahead import HostAhead
from kernbench.sim_engine.interleaving import Interleaving, interleaving
from kernbench.sim_engine.launch_order import LaunchOrder
from kernbench.sim_engine.machine_memories import MachineMemories
from kernbench.sim_engine.memo.composite_memo import CompositeMemo
from kernbench.sim_engine.memory_ports import make_port
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.sim_engine.memory_traffic import MemoryTraffic
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_tally import OpTally
from kernbench.sim_engine.simulation_stats import OFF, SimulationStats
from kernbench.sim_engine.wiring import PacketLegs, network_of, wiring_of
from kernbench.sim_engine.write_listeners import WriteListeners
from kernbench.topology.graph import TopologyGraph
from kernbench.triton_emu.registry import Kernel
from kernbench.values.graph import ValueGraph

T = TypeVar("T")
RANK_BITS = 28  # of a node's sequence numbers: more transfers than a block ever injects


class Machine(MachineMemories):
    """Blocks, fabric, memory and log of one engine."""

    def __init__(
        self,
        graph: TopologyGraph,
        op_log: OpLog | None,
        data: bool,
        check_races: bool = False,
        fast: FastPaths = ALL,
        activity: Activity | None = None,
    ) -> None:
        wiring = wiring_of(graph)
        super().__init__(graph, wiring.sizes)
        self.router, self.resolver = wiring.router, wiring.resolver
        self.log = op_log
        self.tally = OpTally(op_log) if op_log is not None else None
        self.writers: Writers | None = MachineWriters() if op_log is not None else None
        self.races = LaunchOrder() if check_races else None
        self.data = data
        self.may_compile = fast.compiled
        self.values = ValueGraph()
        self.memory: MemoryStore | BlankMemory = MemoryStore(self.values) if data else BlankMemory(self.values)
        self.kernels: dict[str, Kernel] = {}
        self.communicators: dict[str, Communicator] = {}
        self._wiring = wiring
        self._components: dict[str, Component] = {}
        self._ports: dict[tuple[str, ...], MemoryPort] = {}
        self._interleavings: dict[tuple[str, ...], Interleaving | None] = {}
        self._sequences: dict[str, Iterator[int]] = {}  # sequence numbers by injecting node
        self.listeners = WriteListeners()
        self.env: FabricEnvironment = FabricEnvironment()
        self._control_bytes = graph.spec.fabric.control_bytes
        for node in wiring.eager:
            self.component(node)
        self.activity = activity
        network = network_of(graph, wiring, self._components, self)
        compile_after = MANY_EVENTS if fast.compiled else INFINITY
        self.fabric = Fabric(network, mode=fast.mode, activity=activity, compile_after=compile_after)
        self.env.fabric = self.fabric
        self.fast_paths = fast
        self.stats = SimulationStats()
        self.why_not_ahead = self._why_not_ahead()
        self.stats.composites.why_not = self.why_not_ahead or ("" if fast.composites else OFF)
        self.composite_replayer = None if self.stats.composites.why_not else CompositeMemo(self)
        if op_log is not None and not self.why_not_ahead:
            op_log.before_read.append(self.interrupt_replays)
            if self.composite_replayer is not None:
                op_log.not_before.append(self.composite_replayer.earliest_begin_ns)
        self.launch_replayer: LaunchReplayer | None = None
        self.host_ahead = HostAhead(allowed=fast.workers)
        self.traffic = MemoryTraffic(graph, self.fabric, wiring.with_channels)
        self._legs = wiring.legs if self.fabric.network is wiring.network else {}
        for component in self._components.values():
            component.start()

    def _why_not_ahead(self) -> str:
        """Why nothing may be replayed or forecast here; empty where it may."""
        if not self.fast_paths.trains:
            return "fast paths are off"
        if self.activity is not None:
            return "every flit is watched"
        if traces_messages():
            return "messages are traced"
        if self.graph.spec.hbm.model == "banks":
            return "the memory has banks"
        if self.graph.spec.fabric.control_bytes:
            return "requests take bandwidth"
        if self.log is not None and self.log.lines:
            return "the op log keeps lines"
        return ""

    # ---- what blocks use

    def at(self, at_ns: float, action: Callable[[T], object], subject: T) -> None:
        """Call `action` with `subject` at a time of now or later."""
        self.env.at(at_ns, action, subject)

    def component(self, node_id: str) -> Component:
        """The block at a node, made when it is first needed."""
        found = self._components.get(node_id)
        if found is None:
            node = self.graph.node(node_id)
            found = self._components[node_id] = make_component(self._wiring.classes[node_id], node, self)
        return found

    def class_of(self, node_id: str) -> type[Component]:
        """The class of the block at a node."""
        return self._wiring.classes[node_id]

    def begin_launch(self, pe: str, launch: RequestId, stream: LaunchStream) -> None:
        if self.tally is not None:
            self.tally.begin(pe, launch, stream)

    def note_launch(self, launch: KernelLaunchMsg, how: str) -> None:
        """How a launch is simulated, for `stats`: REPLAYED, RECORDED, or why in full."""
        stats = self.stats.launches if launch.stream == "compute" else self.stats.collectives
        stats.note(launch.id, how)

    def component_so_far(self, node_id: str) -> Component | None:
        return self._components.get(node_id)

    def latency_ns(self, path: Sequence[str]) -> float:
        return self.fabric.network.route(path).control_ns

    def memory_port(self, path: tuple[str, ...]) -> MemoryPort:
        port = self._ports.get(path)
        if port is None:
            port = self._ports[path] = make_port(self, self._wiring, path, self._interleaving(path))
        return port

    def requests_of(
        self, path: tuple[str, ...], address: int, nbytes: int
    ) -> Sequence[tuple[tuple[str, ...], int, int]]:
        found = self._interleaving(path)
        if found is None:
            return ((path, address, nbytes),)
        return [(found.paths[at], start, size) for at, start, size in found.requests(address, nbytes)]

    def _interleaving(self, path: tuple[str, ...]) -> Interleaving | None:
        if path not in self._interleavings:
            self._interleavings[path] = interleaving(self.graph, self.router, self._wiring.with_channels, path)
        return self._interleavings[path]

    def sequence_of(self, node: str) -> Iterator[int]:
        """Sequence numbers for a node's transfers, which break ties among simultaneous ones: nodes in machine order."""
        sequence = self._sequences.get(node)
        if sequence is None:
            rank = self._wiring.ranks.get(node)
            sequence = self._sequences[node] = self.fabric.sequence if rank is None else count(rank << RANK_BITS)
        return sequence

    def listen(self, memory: str, address: int, nbytes: int, listener: Listener) -> Callable[[], None]:
        return self.listeners.add(memory, address, nbytes, listener)

    def send(self, packet: Packet) -> None:
        """Send a packet to the next block on its path that accepts packets, and deliver it there."""
        path, place = packet.path, packet.place
        if packet.leg_routes is None:
            packet.leg_routes = self.legs_of(path)
        stop, route = packet.leg_routes[place]
        is_whole_path = stop - place == len(path) - 1
        # An address matters where there are channels: at the end of a write, at the start of a read's reply.
        read_from = write_to = None
        if packet.nbytes:
            if packet.is_reply:
                read_from = packet.address if path[place] in self._wiring.with_channels else None
            elif path[stop] in self._wiring.with_channels:
                write_to = packet.address
            if not is_whole_path and packet.is_reply and path[place] in self._wiring.counted:
                self.traffic.count_leg(packet)
        slot = packet.slot if is_whole_path else None  # a block that stores and forwards takes one after the other
        packet.place = stop
        is_traced = packet.trace is not None
        on_left = partial(_left, packet.on_left, path[place]) if packet.on_left else None
        now, arrived, nbytes = self.env.now, self._arrived, packet.nbytes
        is_control = not nbytes and packet.address is not None  # requests of memory accesses, acknowledgements
        if is_control:
            nbytes = self._control_bytes
        self.fabric.inject(
            route, nbytes, now, read_from=read_from, write_to=write_to, on_done=arrived, on_left=on_left,
            trace=is_traced, tag=packet, slot=slot, granules=packet.granules, is_control=is_control,
        )  # fmt: skip

    def legs_of(self, path: tuple[str, ...]) -> PacketLegs:
        """From each block on a path that accepts packets: up to which one they travel, and how."""
        legs = self._legs.get(path)
        if legs is None:
            stops, end = self._wiring.stops, len(path) - 1
            places = [0, *[place for place, node in enumerate(path) if node in stops and 0 < place < end], end]
            route = self.fabric.network.route
            legs = self._legs[path] = {at: (stop, route(path[at : stop + 1])) for at, stop in pairwise(places)}
        return legs

    def forwarded_ns(self, path: tuple[str, ...]) -> float:
        """How long a control message takes along a path on which blocks forward it at once."""
        return sum(route.control_ns for _, route in self.legs_of(path).values())

    def _arrived(self, transfer: Transfer) -> None:
        packet = transfer.tag
        assert isinstance(packet, Packet)
        if packet.trace is not None:
            packet.trace.append(transfer)
        node = packet.node
        if packet.at_end:
            if packet.is_reply:
                assert packet.answer is not None
                packet.answer(packet)
                return
            if packet.on_arrival is not None:
                packet.on_arrival()
            if packet.nbytes and packet.address is not None:
                if node in self._wiring.counted and len(packet.leg_routes) > 1:
                    self.traffic.count_leg(packet)
                if packet.on_arrival is None:
                    self.listeners.notify(node, packet.address, packet.nbytes, packet.payload)
        component = self._components.get(node) or self.component(node)
        if not isinstance(component, ActiveComponent):
            raise ComponentError(
                f"{node} is sent a {type(packet.request).__name__} and takes no packets",
                where=f"impl {component.node.impl}",
                hint="derive its class from kernbench.components.base.ActiveComponent",
            )
        process = component.handle(packet)
        if process is not None:
            self.env.process(process)

    # ---- blocked kernels

    def blocked_kernels(self) -> tuple[BlockedKernel, ...]:
        """The kernels that wait now, by PE, and what each waits for: for the deadlock report."""
        if self.launch_replayer is not None:
            self.launch_replayer.interrupt()
        return self.standing_kernels()

    def standing_kernels(self) -> tuple[BlockedKernel, ...]:
        """The same without kernels of replayed launches. It changes nothing, so it may be called at any time."""
        cpus = [component for component in self._components.values() if isinstance(component, PeCpuComponent)]
        return tuple(kernel for cpu in sorted(cpus, key=lambda cpu: cpu.key) for kernel in cpu.blocked())

    # ---- counters

    def simulation_stats(self) -> SimulationStats:
        """What was replayed so far, what was simulated, and why."""
        engine, stats = self.fabric.engine, self.stats
        stats.is_compiled = stats.is_compiled or engine.is_compiled
        if not self.fast_paths.compiled:
            stats.not_compiled = OFF
        elif engine.lacks_numba:
            stats.not_compiled = "numba is not installed: pip install 'kernbench[fast]'"
        elif self.activity is not None:
            stats.not_compiled = "every flit is watched"
        else:
            stats.not_compiled = f"{engine.events:,} flit events are few; from {MANY_EVENTS:,} on it pays"
        return stats

    def interrupt_replays(self, sips: Collection[int] | None = None) -> None:
        """Interrupt the replays on some SIPs, or on all, so that counters and state are exact as of now."""
        if self.launch_replayer is not None:
            self.launch_replayer.interrupt(sips)
        if self.composite_replayer is not None:
            self.composite_replayer.interrupt(sips)

    def link_counters(self) -> dict[tuple[Any, Any], LinkCounters]:
        """What every link that carried bytes has done: bytes, busy time, longest queue."""
        self.interrupt_replays()
        return self.fabric.all_link_counters()

    def done_so_far(self, sips: Collection[int] | None = None) -> DoneCounts:
        """Which transfers are done, for `links_busy_since`; on SIPs that are not asked for, not all may be counted."""
        self.interrupt_replays(sips)
        return self.fabric.done_so_far()

    def links_busy_since(self, before: DoneCounts, sips: Collection[int] | None = None) -> dict[tuple[str, str], float]:
        """The links that were busy since `done_so_far` returned `before`, and for how long; of the same SIPs."""
        self.interrupt_replays(sips)
        return {(str(src), str(dst)): ns for (src, dst), ns in self.fabric.busy_since(before, sips).items()}

    def channel_counters(self, hbm_ctrl: str) -> list[LinkCounters]:
        """What each pseudo channel of an HBM controller has done."""
        self.interrupt_replays()
        return self.fabric.channel_counters(hbm_ctrl)

    def hbm_bytes(self, sip: int) -> int:
        """What the HBM channels of a SIP have moved, in whole bursts."""
        self.interrupt_replays()
        return self.traffic.hbm_on_sip(sip)

    def far_bytes(self) -> int:
        """What the channels of far memory have moved, in whole bursts."""
        self.interrupt_replays()
        return self.traffic.far_bytes()

    def memory_traffic_by(self, node_id: str) -> dict[str, ChannelTraffic]:
        """What a block has moved to and from memories (`Wiring.counted`), by node; of transfers that are done."""
        return self.traffic.by(node_id)


def _left(observers: Sequence[OnLeft], node: str, left_ns: float) -> None:
    """A packet has left a node."""
    for observer in observers:
        observer(node, left_ns)
