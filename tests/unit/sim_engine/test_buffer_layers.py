"""Layers of links: no cycle of buffers that wait for one another, on any route of a machine."""

from itertools import pairwise
from random import Random

import pytest

from kernbench.sim_engine.buffer_layers import MEMORIES, layers_of_machine
from kernbench.sim_engine.fabric import Network
from kernbench.sim_engine.fabric.buffers import Dependencies
from kernbench.sim_engine.machine import Machine
from kernbench.sim_engine.wiring import wiring_of
from kernbench.topology import load_topology


def layered(w, h):
    """The number of layers of a SIP of w x h cubes."""
    graph = load_topology(None, {"sip.cube_mesh.w": w, "sip.cube_mesh.h": h, "system.sips.count": 1})
    wiring, network = wiring_of(graph), Network(graph.spec.system.flit_bytes)
    for node in graph.nodes:
        network.add_node(node)
    network.add_links((src, dst, bw_gbs, 0.0) for src, dst, _, bw_gbs, _ in graph.edges)
    return layers_of_machine(graph, wiring.router, wiring.stops, network)[0]


def test_few_cubes_need_two_layers():
    assert layered(2, 1) == 2


@pytest.mark.slow
def test_four_columns_of_cubes_need_three_layers():
    assert layered(4, 2) == 3  # as the shipped 4 x 4, in an eighth of the time


@pytest.mark.parametrize("links", [None, {"bw_gbs": 12.5, "distance_mm": 100.0}], ids=["switch", "ring"])
def test_ways_to_other_sips_have_layers_that_all_others_leave_free(links):
    sip = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2, "cube.pe_layout": {"corners": ["NW", "SE"], "pe_per_corner": 1}}
    overrides = {**sip, "system.sips.count": 3, "system.sips.links": links, "fabric.buffers": {"slots": 4}}
    graph = load_topology(None, overrides)
    network, wiring = Machine(graph, None, data=False).fabric.network, wiring_of(graph)
    router, stops = wiring.router, wiring.stops
    pes, memories = ([node for node in graph.nodes.values() if node.kind in kinds] for kinds in (["pe_dma"], MEMORIES))
    legs = 0
    for pe in pes:
        for memory in memories:
            path = router.find_path(pe.id.removesuffix(".pe_dma"), memory.id)
            cuts = [0, *(at for at in range(1, len(path) - 1) if path[at] in stops), len(path) - 1]
            for start, end in pairwise(cuts):
                for leg in (path[start : end + 1], path[end : start - 1 if start else None : -1]):
                    if len(leg) > 1:
                        network.layers_of(network.route(leg))  # raises where it could deadlock with those before
                        legs += 1
    assert legs > len(pes) * len(memories)


def has_cycle(edges):
    """By brute force: whether a walk along edges comes back."""
    reached = {edge: {edge[1]} for edge in edges}
    for _ in edges:
        for edge in edges:
            reached[edge] |= {b for a, b in edges if a in reached[edge]}
    return any(a in reached[a, b] for a, b in edges)


def test_a_dependency_is_refused_exactly_where_it_closes_a_cycle():
    for seed in range(20):
        random, known, edges = Random(seed), Dependencies(str), []
        for _ in range(25):
            a, b = random.sample(range(8), 2)
            cycle = known.cycle_with([[(a, 0), (b, 0), (99, 0)]])  # the last link of a route has no buffer
            assert bool(cycle) == has_cycle([*edges, (a, b)])
            if cycle:
                assert cycle[0] == cycle[-1]
                assert {(x[0], y[0]) for x, y in pairwise(cycle)} <= {*edges, (a, b)}
            else:
                edges.append((a, b))


def test_routes_are_added_together_or_not_at_all():
    known = Dependencies(str)
    assert known.cycle_with([[(0, 0), (1, 0), (9, 0)]]) == []
    assert known.cycle_with([[(1, 0), (2, 0), (9, 0)], [(2, 0), (0, 0), (9, 0)]])
    # Neither of the two is there: 2 may depend on 1 now.
    assert known.cycle_with([[(2, 0), (1, 0), (9, 0)]]) == []
