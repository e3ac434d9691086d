"""From a compiled machine to a network: nodes with what they charge, links with their times, memory channels.

What depends on the machine alone is built once and shared by all engines on it: routes, names, and the network, unless
a block has its own delay rule, which may keep state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from kernbench.common.errors import ComponentError
from kernbench.common.messages import Targets
from kernbench.components.base import Component, Context, TransitComponent
from kernbench.components.builtin.hbm_ctrl import HbmCtrlComponent
from kernbench.components.builtin.op_servers import op_servers
from kernbench.components.table import BUILTIN, component_class, make_component
from kernbench.policy.address.capacity import AddressConfig
from kernbench.policy.routing.router import AddressResolver, PathRouter
from kernbench.sim_engine.buffer_layers import layers_of_machine
from kernbench.sim_engine.fabric import BETWEEN, DelayRule, Network
from kernbench.sim_engine.fabric.routes import Route
from kernbench.sim_engine.plain_network import buffers_of
from kernbench.topology.graph import FRAMED_KINDS, TopologyGraph

CONNECTION_KINDS = frozenset({"ucie_conn", "io_ucie_conn"})
PORT_KINDS = frozenset({"ucie", "io_ucie"})
SERIES_KINDS = CONNECTION_KINDS | PORT_KINDS | {"channel_router", "sip_port"}

PacketLegs = dict[int, tuple[int, Route]]  # of a path, by place: up to which stop, and how


@dataclass(eq=False)
class Wiring:
    """What all engines on one machine share."""

    router: PathRouter
    resolver: AddressResolver
    sizes: AddressConfig
    classes: dict[str, type[Component]]  # by node
    stops: frozenset[str]  # nodes that store and forward
    with_channels: frozenset[str]  # nodes with memory channels
    counted: frozenset[str]  # those, SRAM, and TCM where tensors lie in it: memories whose traffic is counted
    eager: tuple[str, ...]  # nodes whose block is created before time 0
    ranks: dict[str, int]  # of nodes that inject transfers, from 1 up
    network: Network | None = None
    legs: dict[tuple[str, ...], PacketLegs] = field(default_factory=dict)  # of packets on that network, by path
    command_endpoints: dict[tuple[int, Targets], str] = field(default_factory=dict)  # by SIP and target cubes


@lru_cache(maxsize=4)  # bounded: a sweep has many machines
def wiring_of(graph: TopologyGraph) -> Wiring:
    """The shared part of a machine, built at the first call; raises ComponentError for an impl that cannot be loaded,
    and for engines whose declarations contradict each other.
    """
    classes: dict[str, type[Component]] = {}
    for node in graph.nodes.values():
        try:
            classes[node.id] = component_class(node.impl)
        except ComponentError as error:
            error.where = f"{node.id}, a {node.kind}"
            raise
    for cube in (graph.spec.cube, *graph.spec.cube_types.values()):
        op_servers(cube.pe_template.components)
    plain = ("sram", "pe_tcm") if graph.spec.cube.home.space == "tcm" else ("sram",)
    with_channels = frozenset(node for node, cls in classes.items() if issubclass(cls, HbmCtrlComponent))
    return Wiring(
        PathRouter(graph),
        AddressResolver(graph),
        AddressConfig.from_spec(graph.spec),
        classes,
        stops=frozenset(node for node, cls in classes.items() if cls.stores_and_forwards),
        with_channels=with_channels,
        counted=with_channels | {node.id for node in graph.nodes.values() if node.kind in plain},
        eager=tuple(node for node, cls in classes.items() if cls.start is not Component.start or _has_rule(cls)),
        ranks={node.id: rank for rank, node in enumerate((n for n in graph.nodes.values() if n.kind == "pe_dma"), 1)},
    )


def network_of(graph: TopologyGraph, wiring: Wiring, components: dict[str, Component], ctx: Context) -> Network:
    """The machine as plain nodes, links and channel groups."""
    if wiring.network is not None:
        return wiring.network
    network = Network(graph.spec.system.flit_bytes)
    rules = False
    alike: dict[tuple[str, int], Component] = {}  # builtin blocks with equal attrs have equal costs
    for node in graph.nodes.values():
        component = components.get(node.id) or alike.get((node.impl, id(node.attrs)))
        if component is None:
            component = make_component(wiring.classes[node.id], node, ctx)
            if node.impl in BUILTIN:
                alike[node.impl, id(node.attrs)] = component
        rule: DelayRule | None = None
        if isinstance(component, TransitComponent) and _has_rule(type(component)):
            rule, rules = component.flit_delay_ns, True
        network.add_node(node.id, component.entry_ns, rule, node.place.sip if node.place.sip >= 0 else BETWEEN)
        if isinstance(component, HbmCtrlComponent):
            spec = component.channels
            network.add_channels(
                node.id, spec.channels, spec.burst_ns, spec.switch_penalty_ns, separate=spec.separate,
                granule_bytes=spec.granule_bytes, open_ns=spec.open_ns, drain_bytes=spec.drain_bytes,
            )  # fmt: skip
        elif node.id in wiring.counted:
            network.count_traffic_at(node.id)
    ns_per_mm = graph.spec.system.ns_per_mm
    network.add_links((src, dst, bw_gbs, distance_mm * ns_per_mm) for src, dst, _, bw_gbs, distance_mm in graph.edges)
    for edge in graph.edges:
        if edge.kind in FRAMED_KINDS and (framing := graph.framing_of(edge)) is not None:
            network.set_framing(edge.src, edge.dst, framing)
    for src, via, dst in _series(graph, wiring):
        network.add_series(src, via, dst)
    if graph.spec.fabric.buffers is not None:
        layers, layer_rule = layers_of_machine(graph, wiring.router, wiring.stops, network)
        network.set_buffers(buffers_of(graph.spec.fabric.buffers, layers), layer_rule)
    if not rules:
        wiring.network = network
    return network


def _series(graph: TopologyGraph, wiring: Wiring) -> Iterator[tuple[str, str, str]]:
    """Links in series, as three nodes: all bytes from the second to the third come from the first.

    They are at UCIe ports and their connections, at ports of direct links and at channel routers, where a route goes in
    at one side and out at the other (`policy.routing.routing_graph`), and nothing begins or ends.
    """
    kinds = {node.id: node.kind for node in graph.nodes.values()}
    vias = [node for node, kind in kinds.items() if kind in SERIES_KINDS and _passes(node, wiring)]
    into: dict[str, list[str]] = {via: [] for via in vias}
    out_of: dict[str, list[str]] = {via: [] for via in vias}
    for src, dst, _, bw_gbs, _ in graph.edges:
        if bw_gbs is not None:
            if dst in into:
                into[dst].append(src)
            if src in out_of:
                out_of[src].append(dst)
    for via in vias:
        for dst in out_of[via]:
            feeders = [src for src in into[via] if src != dst]
            if kinds[via] in PORT_KINDS:  # from die to die only
                inwards = kinds[dst] in CONNECTION_KINDS
                feeders = [src for src in feeders if (kinds[src] in CONNECTION_KINDS) != inwards]
            if len(feeders) == 1:
                yield feeders[0], via, dst


def _passes(node: str, wiring: Wiring) -> bool:
    """Whether flits pass a node one by one, in order."""
    cls = wiring.classes[node]
    return issubclass(cls, TransitComponent) and node not in wiring.stops and not _has_rule(cls)


def _has_rule(cls: type[Component]) -> bool:
    return issubclass(cls, TransitComponent) and cls.flit_delay_ns is not TransitComponent.flit_delay_ns
