"""Two searches, one rule: from a source to everywhere, and from everywhere to a destination."""

from __future__ import annotations

import random

import pytest

from kernbench.policy.routing.crossings import Crossings
from kernbench.policy.routing.roadmap import Roadmap, Traffic, Ways
from kernbench.policy.routing.router import PathRouter
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


def walk(start: int, ends: tuple[int, ...], following: Ways | dict[int, int]) -> list[int] | None:
    if start not in following:
        return None
    way = [start]
    while way[-1] not in ends:
        way.append(following[way[-1]])
    return way


@pytest.mark.parametrize("overrides", MACHINES)
@pytest.mark.parametrize("traffic", list(Traffic))
def test_a_route_is_the_same_from_whichever_end_it_is_searched(overrides: dict[str, object], traffic: Traffic) -> None:
    roads = Roadmap(load_topology(None, overrides))
    rng = random.Random(int(traffic))
    starts = [at for at in range(len(roads.index)) if len(roads.halves(at)) == 1]
    found = 0
    for _ in range(250):
        start, end = rng.choice(starts), rng.randrange(len(roads.index))
        if start == end:
            continue
        scope, ends = roads.scope(start, end), roads.halves(end)
        ways = roads.towards(end, traffic, scope)
        ways.reach(start)
        backwards = walk(start, ends, ways)
        cost = roads.costs_from(start, traffic, scope)
        assert walk(start, ends, roads.between(start, end, traffic, scope, cost)) == backwards
        found += backwards is not None
    assert found > 30


@pytest.mark.parametrize("overrides", MACHINES)
def test_a_route_between_sips_is_the_one_that_a_search_of_both_finds(overrides: dict[str, object]) -> None:
    """The router puts it together at the switch, which is the only way from one SIP to another."""
    graph = load_topology(None, {**overrides, "system.sips.count": 3})
    router, roads = PathRouter(graph), Roadmap(graph)
    assert roads.hub == roads.index["fabric.switch0"]
    rng = random.Random(7)
    pes = [name.removesuffix(".pe_dma") for name in roads.index if name.endswith(".pe_dma")]
    memories = [name for name, node in graph.nodes.items() if node.kind in ("hbm_ctrl", "sram", "pe_tcm")]
    found = 0
    for _ in range(200):
        pe, memory = rng.choice(pes), rng.choice(memories)
        start, end = roads.index[f"{pe}.pe_dma"], roads.index[memory]
        if roads.places[start].sip == roads.places[end].sip:
            continue
        ways = roads.towards(end, Traffic.DATA, roads.scope(start, end))
        ways.reach(start)
        way = walk(start, roads.halves(end), ways)
        assert way is not None
        nodes = Crossings(graph).straight([roads.ids[vertex] for vertex in way])
        assert router.find_path_with_distance(pe, memory) == (nodes, roads.length_mm(way))
        found += 1
    assert found > 50


def test_what_is_asked_for_later_is_found_as_if_it_had_been_asked_for_first() -> None:
    roads = Roadmap(load_topology(None, MACHINES[0]))
    rng = random.Random(3)
    end = roads.index["sip0.cube0.pe0.pe_tcm"]
    starts = [at for name, at in roads.index.items() if name.startswith("sip0.cube") and name.endswith(".pe_dma")]
    rng.shuffle(starts)
    scope = roads.scope(roads.index["sip0.cube1.pe0.pe_dma"], end)
    shared = roads.towards(end, Traffic.DATA, scope)
    for start in starts:
        alone = roads.towards(end, Traffic.DATA, scope)
        alone.reach(start)
        shared.reach(start)
        assert walk(start, roads.halves(end), shared) == walk(start, roads.halves(end), alone) is not None
