"""Both searches, from one source and to one destination, find the same routes."""

from __future__ import annotations

import random

import pytest

from kernbench.policy.routing.io_connections import IoConnections
from kernbench.policy.routing.router import PathRouter
from kernbench.policy.routing.routing_graph import NextHops, RoutingGraph, Traffic
from kernbench.topology import load_topology

MACHINES = [
    {"sip.cube_mesh": {"w": 2, "h": 2}},
    {
        "sip.cube_mesh": {"w": 2, "h": 1},
        "sip.io_chiplets": [{"id": "io0", "side": "W"}, {"id": "io1", "side": "E"}],
        "cube.pe_layout.pe_per_corner": 3,
        "cube.ucie.n_connections": 3,
    },
]


def walk(start: int, ends: tuple[int, ...], following: NextHops | dict[int, int]) -> list[int] | None:
    if start not in following:
        return None
    path = [start]
    while path[-1] not in ends:
        path.append(following[path[-1]])
    return path


@pytest.mark.parametrize("overrides", MACHINES)
@pytest.mark.parametrize("traffic", list(Traffic))
def test_a_route_is_the_same_from_whichever_end_it_is_searched(overrides: dict[str, object], traffic: Traffic) -> None:
    routing_graph = RoutingGraph(load_topology(None, overrides))
    rng = random.Random(int(traffic))
    starts = [at for at in range(len(routing_graph.index)) if len(routing_graph.halves(at)) == 1]
    found = 0
    for _ in range(250):
        start, end = rng.choice(starts), rng.randrange(len(routing_graph.index))
        if start == end:
            continue
        scope, ends = routing_graph.scope(start, end), routing_graph.halves(end)
        next_hops = routing_graph.next_hops_to(end, traffic, scope)
        next_hops.extend_to(start)
        backwards = walk(start, ends, next_hops)
        cost = routing_graph.costs_from(start, traffic, scope)
        assert walk(start, ends, routing_graph.next_hops_between(start, end, traffic, scope, cost)) == backwards
        found += backwards is not None
    assert found > 20  # commands reach few nodes, and no router of a channel


@pytest.mark.parametrize("overrides", MACHINES)
def test_a_route_between_sips_is_the_one_that_a_search_of_both_finds(overrides: dict[str, object]) -> None:
    """The router puts it together at the switch, which is the only path from one SIP to another."""
    graph = load_topology(None, {**overrides, "system.sips.count": 3})
    router, routing_graph = PathRouter(graph), RoutingGraph(graph)
    assert routing_graph.hubs == (routing_graph.index["fabric.switch0"],)
    rng = random.Random(7)
    pes = [name.removesuffix(".pe_dma") for name in routing_graph.index if name.endswith(".pe_dma")]
    memories = [name for name, node in graph.nodes.items() if node.kind in ("hbm_ctrl", "sram", "pe_tcm")]
    found = 0
    for _ in range(200):
        pe, memory = rng.choice(pes), rng.choice(memories)
        start, end = routing_graph.index[f"{pe}.pe_dma"], routing_graph.index[memory]
        if routing_graph.places[start].sip == routing_graph.places[end].sip:
            continue
        next_hops = routing_graph.next_hops_to(end, Traffic.DATA, routing_graph.scope(start, end))
        next_hops.extend_to(start)
        path = walk(start, routing_graph.halves(end), next_hops)
        assert path is not None
        nodes = IoConnections(graph).aligned([routing_graph.ids[vertex] for vertex in path])
        assert router.find_path_with_distance(pe, memory) == (nodes, routing_graph.length_mm(path))
        found += 1
    assert found > 50


def test_what_is_asked_for_later_is_found_as_if_it_had_been_asked_for_first() -> None:
    routing_graph = RoutingGraph(load_topology(None, MACHINES[0]))
    rng = random.Random(3)
    end = routing_graph.index["sip0.cube0.pe0.pe_tcm"]
    starts = [
        at for name, at in routing_graph.index.items() if name.startswith("sip0.cube") and name.endswith(".pe_dma")
    ]
    rng.shuffle(starts)
    scope = routing_graph.scope(routing_graph.index["sip0.cube1.pe0.pe_dma"], end)
    shared = routing_graph.next_hops_to(end, Traffic.DATA, scope)
    for start in starts:
        single = routing_graph.next_hops_to(end, Traffic.DATA, scope)
        single.extend_to(start)
        shared.extend_to(start)
        assert (
            walk(start, routing_graph.halves(end), shared) == walk(start, routing_graph.halves(end), single) is not None
        )
