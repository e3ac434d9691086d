"""The engine: puts a machine's blocks on a clock, lets requests in at their entry, and tells when each is done.

It decides nothing about routes, fan-out or timing: requests enter at a PCIe endpoint or a PE's DMA engine, blocks do
the rest. Engines share a machine's routes and network but no state, so several can live in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import simpy
from simpy.core import EmptySchedule

from kernbench.common.bank_use import BankUse
from kernbench.common.errors import ComponentError, MessageError, UsageError
from kernbench.common.messages import (
    Completion,
    HostMessage,
    KernelLaunchMsg,
    MemoryWriteMsg,
    PeResult,
    Request,
    RequestId,
)
from kernbench.common.writers import Writers
from kernbench.components.base import (
    ActiveComponent,
    Arrival,
    Component,
    Kernel,
    Legs,
    MemoryComponent,
    Packet,
    Process,
    Served,
    Way,
)
from kernbench.components.builtin.pcie_ep import PcieEpComponent
from kernbench.components.table import make_component
from kernbench.sim_engine.blank_memory import BlankMemory
from kernbench.sim_engine.collector import patient_collector
from kernbench.sim_engine.entry import entry_node, with_envelope
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment, LinkCounters, Transfer
from kernbench.sim_engine.fabric.model import Route
from kernbench.sim_engine.fabric.rails import Mode
from kernbench.sim_engine.handles import Handle
from kernbench.sim_engine.hbm_use import HbmUse
from kernbench.sim_engine.hop_trace import leg_trace
from kernbench.sim_engine.memory_store import MemoryStore
from kernbench.sim_engine.op_log import OpLog
from kernbench.sim_engine.op_tally import OpTally
from kernbench.sim_engine.patterns import pattern_value
from kernbench.sim_engine.wiring import network_of, wiring_of
from kernbench.topology.graph import Node, TopologyGraph
from kernbench.values.graph import Value, ValueGraph

__all__ = ["EntryPoint", "GraphEngine", "Handle"]

STEPS_PER_REPORT = 1024

T = TypeVar("T")


class EntryPoint(Protocol):
    """A block that serves what is submitted to it, and returns a `Served`, or only the path that was taken."""

    node: Node

    def serve(self, request: Request, legs: Legs) -> Process: ...


class GraphEngine:
    """Runs requests on a compiled machine.

    `trace_hops` keeps when the first and last flit arrived at and left every node; `mode` is the fabric's; `op_log`
    takes what every engine of every PE did. `data=False` keeps no tensor contents: every load reads zeros.
    """

    def __init__(
        self,
        graph: TopologyGraph,
        *,
        trace_hops: bool = False,
        mode: Mode = "adaptive",
        op_log: OpLog | None = None,
        data: bool = True,
    ) -> None:
        wiring = wiring_of(graph)
        self.graph = graph
        self.router, self.resolver = wiring.router, wiring.resolver
        self.trace_hops = trace_hops
        self.progress: Callable[[float], None] | None = None  # is told the time now and then while time passes
        self.log = op_log
        self.tally = OpTally(op_log) if op_log is not None else None
        self.writers = Writers() if op_log is not None else None
        self.data = data
        self.values = ValueGraph()
        self.memory = MemoryStore(self.values) if data else BlankMemory(self.values)
        self.kernels: dict[str, Kernel] = {}
        self._wiring = wiring
        self._components: dict[str, Component] = {}
        self._handles: list[Handle] = []
        self._ways: dict[tuple[str, ...], Way | None] = {}
        self.env: FabricEnvironment = FabricEnvironment()
        for node in wiring.eager:
            self.component(node)
        self.fabric = Fabric(network_of(graph, wiring, self._components, self), mode=mode)
        self.env.fabric = self.fabric
        self._hbm_use = HbmUse(graph, self.fabric, wiring.banked)
        self._legs = wiring.legs if self.fabric.network is wiring.network else {}
        for component in self._components.values():
            component.start()

    # ---- requests

    @property
    def now_ns(self) -> float:
        return self.env.now

    def submit(self, msg: HostMessage, value: Value | None = None) -> Handle:
        """Let a request in now; raises MessageError, AddressError or RoutingError for one that cannot be served.

        `value` is what a write leaves in memory when it is done, instead of its pattern.
        """
        number = len(self._handles)
        msg = with_envelope(msg, number)
        self._check_kernel(msg)
        entry = self._entry_of(msg)
        handle = Handle(number, msg, entry.node.id, value, start_ns=self.env.now, legs=[] if self.trace_hops else None)
        handle.done = self.env.process(self._follow(handle, entry))
        self._handles.append(handle)
        return handle

    def submit_together(self, launches: Sequence[KernelLaunchMsg]) -> list[Handle]:
        """Let launches on several SIPs in now, all of whose PEs start at one instant: when the last of them can."""
        leads = []
        for launch in launches:
            entry = self._entry_of(with_envelope(launch, 0))
            leads.append(entry.lead_ns(launch) if isinstance(entry, PcieEpComponent) else 0.0)
        start_ns = self.env.now + max(leads, default=0.0)
        return [self.submit(replace(launch, target_start_ns=start_ns)) for launch in launches]

    def wait(self, handle: Handle) -> Completion:
        """Let time pass until the request is done; raises ComponentError when it can never be."""
        self._check_ours(handle)
        if handle.done is not None and not self.run_until_done(handle.done):
            raise ComponentError(
                f"request {handle.request.request_id} is never answered",
                where=f"{handle.entry}, {type(handle.request).__name__} submitted at {handle.start_ns} ns",
                mend="a block on its way takes a packet and neither answers it nor sends it on",
            )
        return handle.completion

    def run_until_done(self, event: simpy.Event) -> bool:
        """Let time pass until `event` has happened; False when nothing is left that could."""
        if event.callbacks is None:
            return True
        happened: list[simpy.Event] = []
        event.callbacks.append(happened.append)
        return self.run_until(happened)

    def run_until(self, happened: Collection[object]) -> bool:
        """Let time pass until there is something in `happened`, which callbacks fill; False when nothing is left that
        could happen.
        """
        step, progress = self.env.step, self.progress
        steps = 0
        with patient_collector():
            while not happened:
                try:
                    step()
                except EmptySchedule:
                    return False
                steps += 1
                if progress is not None and steps % STEPS_PER_REPORT == 0:
                    progress(self.env.now)
        return True

    def wait_all(self) -> None:
        """Let time pass until every request is done."""
        for handle in self._handles:
            self.wait(handle)

    def get_completion(self, handle: Handle) -> tuple[Completion, dict[str, Any]]:
        """How a request ended, and its trace: `total_ns`, `start_ns`, `end_ns`, `path`; `hops` when they are traced.

        The trace of a launch also has `pes`, one PeResult each, and the longest of their `pe_exec_ns`, `dma_ns` and
        `compute_ns`.
        """
        self._check_ours(handle)
        if handle.end_ns is None:
            raise UsageError(f"request {handle.request.request_id} is not done", mend="wait for it first")
        trace: dict[str, Any] = {
            "total_ns": handle.end_ns - handle.start_ns,
            "start_ns": handle.start_ns,
            "end_ns": handle.end_ns,
            "path": list(handle.path),
        }
        if isinstance(handle.request, KernelLaunchMsg):
            trace["pes"] = list(handle.results)
            for name in ("pe_exec_ns", "dma_ns", "compute_ns"):
                trace[name] = max((getattr(result, name) for result in handle.results), default=0.0)
        if handle.legs is not None:
            trace["hops"] = [leg_trace(self.fabric, transfer) for transfer in handle.legs]
        return handle.completion, trace

    def _check_ours(self, handle: Handle) -> None:
        number = handle.number if isinstance(handle, Handle) else len(self._handles)
        if not any(handle is ours for ours in self._handles[number : number + 1]):
            raise UsageError("that handle is not one of this engine's", mend="ask the engine whose submit returned it")

    def _entry_of(self, msg: HostMessage) -> EntryPoint:
        node = entry_node(self.graph, self._wiring, msg)
        entry = self.component(node)
        if not hasattr(entry, "serve"):
            raise ComponentError(
                f"{node} serves no requests", where=f"impl {entry.node.impl}", mend="give its class a serve method"
            )
        return entry

    def _check_kernel(self, msg: HostMessage) -> None:
        if isinstance(msg, KernelLaunchMsg) and msg.kernel_ref.name not in self.kernels:
            known = ", ".join(self.kernels) or "none yet"
            raise MessageError(f"no kernel '{msg.kernel_ref.name}' is known here", mend=f"known kernels: {known}")

    def _follow(self, handle: Handle, entry: EntryPoint) -> Process:
        served = yield from entry.serve(handle.request, handle.legs)
        if isinstance(served, Served):
            handle.path = served.path
            if isinstance(served.payload, tuple):
                handle.results = tuple(item for item in served.payload if isinstance(item, PeResult))
        else:
            handle.path = served
        handle.end_ns = self.env.now
        if isinstance(handle.request, MemoryWriteMsg):
            if self.writers is not None:
                self.writers.note(handle.request.dst_pa, handle.request.nbytes, None)
            if self.data:
                self._leave_in_memory(handle, handle.request)

    def _leave_in_memory(self, handle: Handle, write: MemoryWriteMsg) -> None:
        value, handle.value = handle.value, None  # a handle outlives its write and must not hold the tensor
        if value is None and write.pattern is not None and write.src_kind == "pattern":
            value = pattern_value(self.values, write.pattern, write.nbytes)
        if value is not None:
            self.memory.write(write.dst_pa, value)

    # ---- counters

    def link_counters(self) -> dict[tuple[Any, Any], LinkCounters]:
        """What every link that carried bytes has done: bytes, busy time, longest queue."""
        return self.fabric.all_link_counters()

    def link_busy_ns(self) -> list[float]:
        """How long every link has been busy, in the network's order."""
        return self.fabric.link_busy_ns()

    def links_busy_since(self, before: list[float]) -> dict[tuple[str, str], float]:
        """The links that were busy since `link_busy_ns` said `before`, and for how long."""
        after = self.fabric.link_busy_ns()
        if before == after:
            return {}
        names, ends = self.fabric.network.names, self.fabric.network.link_ends
        pairs = enumerate(zip(before, after, strict=True))
        return {(str(names[ends[i][0]]), str(names[ends[i][1]])): now - then for i, (then, now) in pairs if now != then}

    def channel_counters(self, hbm_ctrl: str) -> list[LinkCounters]:
        """What each pseudo channel of an HBM controller has done."""
        return self.fabric.channel_counters(hbm_ctrl)

    def hbm_bytes(self, sip: int) -> int:
        """What the HBM channels of a SIP have moved, in whole bursts."""
        return self._hbm_use.on_sip(sip)

    def hbm_use_by(self, node_id: str) -> dict[str, BankUse]:
        """What a block has moved to and from HBM, by controller; of transfers that are done."""
        return self._hbm_use.by(node_id)

    # ---- what blocks use (components.base.Context)

    def component(self, node_id: str) -> Component:
        """The block at a node, made when it is first needed."""
        found = self._components.get(node_id)
        if found is None:
            node = self.graph.node(node_id)
            found = self._components[node_id] = make_component(self._wiring.classes[node_id], node, self)
        return found

    def begin_launch(self, pe: str, launch: RequestId) -> None:
        if self.tally is not None:
            self.tally.begin(pe, launch)

    def component_so_far(self, node_id: str) -> Component | None:
        return self._components.get(node_id)

    def at(self, at_ns: float, action: Callable[[T], object], subject: T) -> None:
        self.env.at(at_ns, action, subject)

    def latency_ns(self, path: Sequence[str]) -> float:
        return self.fabric.network.route(path).control_ns

    def way(self, path: tuple[str, ...]) -> Way | None:
        if path not in self._ways:
            self._ways[path] = self._way(path)
        return self._ways[path]

    def _way(self, path: tuple[str, ...]) -> Way | None:
        wiring = self._wiring
        memory = wiring.classes[path[-1]]
        if not issubclass(memory, MemoryComponent) or not wiring.stops.isdisjoint(path[1:-1]):
            return None
        if memory.accept is not MemoryComponent.accept or memory.handle is not MemoryComponent.handle:
            return None
        there, back = self.fabric.network.route(path), self.fabric.network.route(path[::-1])
        banked = path[-1] in wiring.banked

        def write(nbytes: int, address: int, at_ns: float, done: Callable[[Arrival], None], tag: object) -> None:
            def acknowledge(transfer: Transfer) -> None:
                self.env.at(transfer.done_ns + back.control_ns, done, transfer)

            bank = address if banked else None
            self.fabric.inject(there, nbytes, at_ns, write_to=bank, on_done=acknowledge, tag=tag)

        # Whoever has a way mostly reads, one tile after the other.
        return Way(self.fabric.lane(back, banked=banked, lead_ns=there.control_ns).read, write)

    def send(self, packet: Packet) -> None:
        """Let a packet travel to the next block on its path that takes packets, and hand it over there."""
        path, place = packet.path, packet.place
        leg = self._legs.get((path, place))
        if leg is None:
            leg = self._legs[path, place] = self._leg(path, place)
        stop, route = leg
        # An address matters where there are channels: at the end of a write, at the start of a read's reply.
        read_from = write_to = None
        if packet.nbytes:
            if packet.is_reply:
                read_from = packet.address if path[place] in self._wiring.banked else None
            elif path[stop] in self._wiring.banked:
                write_to = packet.address
            if stop - place < len(path) - 1 and (read_from if write_to is None else write_to) is not None:
                self._hbm_use.count_leg(packet)
        packet.place = stop
        trace = packet.legs is not None
        now, arrived = self.env.now, self._arrived
        self.fabric.inject(
            route, packet.nbytes, now, read_from=read_from, write_to=write_to, on_done=arrived, trace=trace, tag=packet
        )

    def _leg(self, path: tuple[str, ...], place: int) -> tuple[int, Route]:
        """Up to which block on a path a packet travels from `place`, and how."""
        stops = self._wiring.stops
        stop = place + 1
        while stop < len(path) - 1 and path[stop] not in stops:
            stop += 1
        return stop, self.fabric.network.route(path[place : stop + 1])

    def _arrived(self, transfer: Transfer) -> None:
        packet = transfer.tag
        assert isinstance(packet, Packet)
        if packet.legs is not None:
            packet.legs.append(transfer)
        if packet.is_reply and packet.at_end:
            assert packet.answer is not None
            packet.answer(packet)
            return
        component = self.component(packet.node)
        if not isinstance(component, ActiveComponent):
            raise ComponentError(
                f"{packet.node} is sent a {type(packet.request).__name__} and takes no packets",
                where=f"impl {component.node.impl}",
                mend="derive its class from kernbench.components.base.ActiveComponent",
            )
        process = component.handle(packet)
        if process is not None:
            self.env.process(process)
