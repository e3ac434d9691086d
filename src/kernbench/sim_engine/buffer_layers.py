"""Layers of a machine's links, so that finite buffers cannot deadlock: static, one for each pair of dies and direction.

A leg is what one transfer passes: from an engine to a memory or a block that stores and forwards, or back. All legs of
one direction between two dies share a layer: the first, in sorted order of (direction, source die, destination die),
in which no cycle of dependencies arises (`fabric.buffers`). SIPs are alike, so the layers of the first serve all. A leg
to another SIP ends where the first block stores and forwards it: at a PCIe endpoint, or at the port of a direct link.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, pairwise

from kernbench.policy.routing.router import PathRouter
from kernbench.sim_engine.fabric import Network
from kernbench.sim_engine.fabric.buffers import Channel, Dependencies, LayerRule
from kernbench.topology.graph import Node, TopologyGraph
from kernbench.topology.machine_hash import machine_hash
from kernbench.topology.spec_fabric import FabricSpec

MEMORIES = frozenset({"hbm_ctrl", "sram", "pe_tcm", "far_memory"})
LayerKey = tuple[bool, int, int]  # whether it comes from a memory, source die, destination die


_tables: dict[str, dict[LayerKey, int]] = {}  # by fingerprint of the machine without its buffers: the latest few
_MOST_TABLES = 4


def layers_of_machine(
    graph: TopologyGraph, router: PathRouter, stops: frozenset[str], network: Network
) -> tuple[int, LayerRule]:
    """How many layers the machine needs, and the layer of each link of a leg."""
    name = machine_hash(graph.spec.model_copy(update={"fabric": FabricSpec()}))
    of_key = _tables.get(name)
    if of_key is None:
        while len(_tables) >= _MOST_TABLES:
            del _tables[next(iter(_tables))]
        of_key = _tables[name] = _table(graph, router, stops, network)

    def layer_rule(path: tuple[object, ...]) -> tuple[int, ...]:
        leg = tuple(str(node) for node in path)
        return (of_key.get(_key(graph, leg), 0),) * (len(leg) - 1)

    return max(of_key.values(), default=0) + 1, layer_rule


def _table(graph: TopologyGraph, router: PathRouter, stops: frozenset[str], network: Network) -> dict[LayerKey, int]:
    """The layer of every pair of dies and direction."""
    legs: dict[LayerKey, dict[tuple[Channel, ...], None]] = {}
    for leg in _legs(graph, router, stops):
        links = network.along(leg)[1]
        channels = tuple(
            (link, 0) for link, onward in pairwise((*links, -1)) if network.sole_feeder.get(onward) != link
        )
        if len(channels) > 2:  # no shorter one makes a buffer depend on another
            legs.setdefault(_key(graph, leg), {})[channels] = None
    layers: list[Dependencies] = []
    of_key: dict[LayerKey, int] = {}
    for key in sorted(legs, key=lambda key: (key[2] < 0 and not key[0], key)):  # paths out of the SIP come last
        layer = next((at for at, known in enumerate(layers) if not known.cycle_with(legs[key])), len(layers))
        if layer == len(layers):
            layers.append(Dependencies(str))
            layers[-1].cycle_with(legs[key])
        of_key[key] = layer
    return of_key


def _key(graph: TopologyGraph, leg: tuple[str, ...]) -> LayerKey:
    first, last = graph.node(leg[0]), graph.node(leg[-1])
    return first.kind in MEMORIES, _die_of(graph, first), _die_of(graph, last)


def _die_of(graph: TopologyGraph, node: Node) -> int:
    """The cube that a node is in; of an HBM stack that PEs share, the one that it is attached to; -1 outside."""
    stacks = graph.spec.sip.hbm_stacks
    if stacks is None or node.kind != "hbm_ctrl":
        return node.place.cube
    return next(place.cube for place in stacks.places if node.id.endswith(f".{place.id}"))


def _legs(graph: TopologyGraph, router: PathRouter, stops: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """All legs of data on the first SIP, there and back, and those of its paths to and from other SIPs."""
    nodes = [node for node in graph.nodes.values() if node.place.sip == 0]
    memories = [node for node in nodes if node.kind in MEMORIES]
    for path in chain(_paths(nodes, memories, router), _paths_between_sips(graph, nodes, memories, router)):
        cuts = [0, *(at for at in range(1, len(path) - 1) if path[at] in stops), len(path) - 1]
        for start, end in pairwise(cuts):
            leg = tuple(path[start : end + 1])
            if len(leg) > 1:
                yield leg
                yield leg[::-1]


def _paths(nodes: list[Node], memories: list[Node], router: PathRouter) -> Iterator[list[str]]:
    for node in nodes:
        if node.kind == "pe_dma":
            pe = node.id.removesuffix(".pe_dma")
            for memory in memories:
                yield router.find_path(pe, memory.id)
        elif node.kind == "pcie_ep":
            for memory in memories:
                if memory.kind != "pe_tcm":
                    yield router.find_memory_path(node.id, memory.id)


def _paths_between_sips(
    graph: TopologyGraph, nodes: list[Node], memories: list[Node], router: PathRouter
) -> Iterator[list[str]]:
    """From every PE of the first SIP to each other SIP, from each to every memory, and from SIP to SIP, which has all
    paths through the SIPs between. Behind one switch all others are alike.
    """
    system = graph.spec.system
    is_uniform = system.sips.links is None and not system.switch_levels
    sips = range(min(system.sips.count, 2) if is_uniform else system.sips.count)
    end = next(memory.id for memory in memories if memory.kind != "far_memory").removeprefix("sip0")
    for sip in sips[1:]:
        for node in nodes:
            if node.kind == "pe_dma":
                yield router.find_path(node.id.removesuffix(".pe_dma"), f"sip{sip}{end}")
        for memory in memories:
            yield router.find_path(f"sip{sip}.cube0.pe0", memory.id)
        for other in sips:
            if other != sip:
                yield router.find_path(f"sip{sip}.cube0.pe0", f"sip{other}{end}")
