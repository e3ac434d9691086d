"""Layers of links: no cycle of buffers that wait for one another, on any route of a machine."""

from itertools import pairwise
from random import Random

import pytest

from kernbench.sim_engine.buffer_layers import layers_of_machine
from kernbench.sim_engine.fabric import Network
from kernbench.sim_engine.fabric.buffers import Dependencies
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
