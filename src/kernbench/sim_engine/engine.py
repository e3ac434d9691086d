"""The engine: puts a machine's blocks on a clock, lets requests in at their entry, and tells when each is done.

It decides nothing about routes, fan-out or timing: requests enter at a PCIe endpoint or a PE's DMA engine, blocks do the rest.
Engines share a machine's routes and network but no state, so several can live in one process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import simpy

from kernbench.common.errors import MessageError, UsageError
from kernbench.common.messages import Completion, CubeDmaMsg, HostMessage, MemoryReadMsg, MemoryWriteMsg, PeDmaMsg, Request
from kernbench.components.base import ActiveComponent, Component, MemoryComponent, Packet, Process
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.sim_engine.fabric import Fabric, FabricEnvironment, HopTimes, LinkCounters, Transfer
from kernbench.sim_engine.fabric.trains import Mode
from kernbench.sim_engine.wiring import network_of, wiring_of
from kernbench.topology.graph import TopologyGraph


class EntryPoint(Protocol):
    """A block that serves what is submitted to it, and returns the path that was taken."""

    def serve(self, request: Request, legs: list[Any] | None) -> Process: ...


@dataclass(eq=False)
class Handle:
    """A request under way. Ask the engine for its completion."""

    number: int
    request: HostMessage
    done: simpy.Process | None = field(default=None, repr=False)
    start_ns: float = 0.0
    end_ns: float | None = None
    path: tuple[str, ...] = ()
    legs: list[Transfer] | None = field(default=None, repr=False)


class GraphEngine:
    """Runs requests on a compiled machine.

    `trace_hops` keeps when the first and last flit arrived at and left every node; `mode` is the fabric's.
    """

    def __init__(self, graph: TopologyGraph, *, trace_hops: bool = False, mode: Mode = "adaptive") -> None:
        wiring = wiring_of(graph)
        self.graph = graph
        self.router, self.resolver = wiring.router, wiring.resolver
        self.trace_hops = trace_hops
        self._wiring = wiring
        self._components: dict[str, Component] = {}
        self._handles: list[Handle] = []
        self.env: FabricEnvironment = FabricEnvironment()
        for node in wiring.eager:
            self.component(node)
        self.fabric = Fabric(network_of(graph, wiring, self._components, self), mode=mode)
        self.env.fabric = self.fabric
        for component in self._components.values():
            component.start()

    # ---- requests

    @property
    def now_ns(self) -> float:
        return self.env.now

    def submit(self, msg: HostMessage) -> Handle:
        """Let a request in now; raises MessageError, AddressError or RoutingError for one that cannot be served."""
        number = len(self._handles)
        msg = replace(
            msg, correlation_id=msg.correlation_id or f"c{number}", request_id=msg.request_id or f"r{number}"
        )
        entry = self._entry_of(msg)
        handle = Handle(number, msg, start_ns=self.env.now, legs=[] if self.trace_hops else None)
        handle.done = self.env.process(self._follow(handle, entry))
        self._handles.append(handle)
        return handle

    def wait(self, handle: Handle) -> Completion:
        """Let time pass until the request is done."""
        if handle.done is None or handle not in self._handles[handle.number : handle.number + 1]:
            raise UsageError("that handle is not one of this engine's", mend="wait for what this engine's submit returned")
        if not handle.done.processed:
            self.env.run(until=handle.done)
        return Completion(ok=True)

    def wait_all(self) -> None:
        """Let time pass until every request is done."""
        for handle in self._handles:
            self.wait(handle)

    def get_completion(self, handle: Handle) -> tuple[Completion, dict[str, Any]]:
        """How a request ended, and its trace: `total_ns`, `start_ns`, `end_ns`, `path`, and `hops` when they are traced."""
        if handle.end_ns is None:
            raise UsageError(f"request {handle.request.request_id} is not done", mend="wait for it first")
        trace: dict[str, Any] = {
            "total_ns": handle.end_ns - handle.start_ns,
            "start_ns": handle.start_ns,
            "end_ns": handle.end_ns,
            "path": list(handle.path),
        }
        if handle.legs is not None:
            trace["hops"] = [self._leg(transfer) for transfer in handle.legs]
        return Completion(ok=True), trace

    def _leg(self, transfer: Transfer) -> dict[str, Any]:
        hops: list[HopTimes] = self.fabric.hop_times(transfer) if transfer.times is not None else []
        return {
            "from": transfer.route.path[0],
            "to": transfer.route.path[-1],
            "nbytes": transfer.nbytes,
            "start_ns": transfer.at_ns,
            "end_ns": transfer.done_ns,
            "nodes": [
                {
                    "node": hop.node,
                    "first_arrival_ns": hop.first_arrival_ns,
                    "first_departure_ns": hop.first_departure_ns,
                    "last_arrival_ns": hop.last_arrival_ns,
                    "last_departure_ns": hop.last_departure_ns,
                }
                for hop in hops
            ],
        }

    def _follow(self, handle: Handle, entry: EntryPoint) -> Process:
        handle.path = yield from entry.serve(handle.request, handle.legs)
        handle.end_ns = self.env.now

    # ---- counters

    def link_counters(self) -> dict[tuple[Any, Any], LinkCounters]:
        """What every link that carried bytes has done: bytes, busy time, longest queue."""
        return self.fabric.all_link_counters()

    def channel_counters(self, hbm_ctrl: str) -> list[LinkCounters]:
        """What each pseudo channel of an HBM controller has done."""
        return self.fabric.channel_counters(hbm_ctrl)

    # ---- entries

    def _entry_of(self, msg: HostMessage) -> EntryPoint:
        if isinstance(msg, PeDmaMsg):
            self._check_target(msg.dst_pa, msg.nbytes)
            node = self.resolver.find_pe_dma(msg.src_sip, msg.src_cube, msg.src_pe)
        elif isinstance(msg, MemoryWriteMsg):
            node = self._endpoint_for(msg.dst_pa, msg.nbytes, (msg.dst_sip, msg.dst_cube, msg.dst_pe))
        elif isinstance(msg, MemoryReadMsg):
            node = self._endpoint_for(msg.src_pa, msg.nbytes, (msg.src_sip, msg.src_cube, msg.src_pe))
        elif isinstance(msg, CubeDmaMsg):
            node = self._command_endpoint(msg)
        else:
            raise MessageError(f"the engine cannot take a {type(msg).__name__}", mend="submit one of the host messages")
        entry = self.component(node)
        if not hasattr(entry, "serve"):
            raise MessageError(
                f"{node} serves no requests", where=f"impl {entry.node.impl}", mend="give its class a serve method"
            )
        return entry  # type: ignore[return-value]  # checked by its method, as a user's class may be

    def _check_target(self, pa: int, nbytes: int) -> PhysAddr:
        """The address decodes, lies inside this machine, and belongs to a memory."""
        address = PhysAddr.decode(pa)
        self._wiring.sizes.check(address, nbytes)
        node = self.resolver.resolve(address)
        if not isinstance(self.component(node), MemoryComponent):
            raise MessageError(f"{address} is {node}, which is not a memory", mend="use an address in HBM, SRAM or TCM")
        return address

    def _endpoint_for(self, pa: int, nbytes: int, tag: tuple[int, int, int]) -> str:
        """The PCIe endpoint nearest to the memory that a host request is for; its tag must agree with its address."""
        address = self._check_target(pa, nbytes)
        node = self.resolver.resolve(address)
        place = self.graph.node(node).place
        pe = place.pe if place.pe >= 0 else self._slice_of(address)
        sip, cube, tagged_pe = tag
        if (sip, cube) != (place.sip, place.cube) or (pe is not None and pe != tagged_pe):
            where = f"sip {place.sip}, cube {place.cube}" + (f", pe {pe}" if pe is not None else "")
            raise MessageError(
                f"the request names sip {sip}, cube {cube}, pe {tagged_pe}, but its address {address} is in {where}",
                mend="make the tag and the address agree",
            )
        endpoints = [self.resolver.find_pcie_ep(sip, chiplet.id) for chiplet in self.graph.spec.sip.io_chiplets]
        return min(endpoints, key=lambda ep: (self._distance_mm(self.router.find_memory_path(ep, node)), ep))

    def _slice_of(self, address: PhysAddr) -> int | None:
        """The PE whose HBM slice an address is in; None for memories that no single PE owns."""
        return None if address.hbm_offset is None else address.hbm_offset // self._wiring.sizes.hbm_slice_bytes

    def _command_endpoint(self, msg: CubeDmaMsg) -> str:
        sizes = self._wiring.sizes
        for name, ids, limit in (("cube", msg.target_cubes, sizes.n_cubes), ("pe", msg.target_pes, sizes.n_pes)):
            for item in () if ids == "all" else ids:
                if item >= limit:
                    raise MessageError(f"the machine has no {name} {item}", mend=f"use 0 to {limit - 1}")
        if msg.offset + msg.nbytes > sizes.hbm_slice_bytes:
            raise MessageError(
                f"{msg.nbytes} bytes at offset {msg.offset} run past an HBM slice of {sizes.hbm_slice_bytes} bytes",
                mend="move less, or from a lower offset",
            )
        return self.resolver.find_pcie_ep(msg.sip, self.graph.spec.sip.io_chiplets[0].id)

    def _distance_mm(self, path: Sequence[str]) -> float:
        return sum(edge.distance_mm for edge in self.router.links(path))

    # ---- what blocks use (components.base.Context)

    def component(self, node_id: str) -> Component:
        """The block at a node, made when it is first needed."""
        found = self._components.get(node_id)
        if found is None:
            node = self.graph.node(node_id)
            found = self._components[node_id] = self._wiring.classes[node_id](node, self)
        return found

    def latency_ns(self, path: Sequence[str]) -> float:
        return self.fabric.network.route(path).control_ns

    def send(self, packet: Packet) -> None:
        """Let a packet travel to the next block on its path that takes packets, and hand it over there."""
        path, place = packet.path, packet.place
        stops = self._wiring.stops
        stop = place + 1
        while stop < len(path) - 1 and path[stop] not in stops:
            stop += 1
        # Addresses matter to the fabric where there are channels: at the end of a write, at the start of a read's reply.
        read_from = write_to = None
        if packet.nbytes:
            if packet.is_reply:
                read_from = packet.address if path[place] in self._wiring.banked else None
            elif path[stop] in self._wiring.banked:
                write_to = packet.address
        event = self.env.transfer(
            path[place : stop + 1],
            packet.nbytes,
            read_from=read_from,
            write_to=write_to,
            trace=packet.legs is not None,
            tag=packet,
        )
        packet.place = stop
        assert event.callbacks is not None
        event.callbacks.append(self._arrived)

    def _arrived(self, event: simpy.Event) -> None:
        transfer: Transfer = event.value
        packet = transfer.tag
        assert isinstance(packet, Packet)
        if packet.legs is not None:
            packet.legs.append(transfer)
        if packet.is_reply and packet.at_end:
            assert packet.answer is not None
            packet.answer.succeed(packet)
            return
        component = self.component(packet.node)
        assert isinstance(component, ActiveComponent)
        process = component.handle(packet)
        if process is not None:
            self.env.process(process)
