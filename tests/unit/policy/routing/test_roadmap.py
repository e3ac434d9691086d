"""Two searches, one rule: from a source to everywhere, and from everywhere to a destination."""

from __future__ import annotations

import random

import pytest

from kernbench.policy.routing.roadmap import Roadmap, Traffic
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


def walk(start: int, ends: tuple[int, ...], following: dict[int, int]) -> list[int] | None:
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
        backwards = walk(start, ends, roads.towards(end, traffic, scope))
        cost = roads.costs_from(start, traffic, scope)
        assert walk(start, ends, roads.between(start, end, traffic, scope, cost)) == backwards
        found += backwards is not None
    assert found > 30
