"""Routes of one part of a network as another part has them that is built alike, for counting."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.sim_engine.fabric import Fabric, Network
from kernbench.sim_engine.fabric.routes import LastFlit


def two_parts() -> Network:
    """A chain of three nodes, twice, with a slower second link; the parts are joined."""
    network = Network(256)
    for part in ("a", "b"):
        for node in range(3):
            network.add_node(f"{part}.{node}", overhead_ns=2.0, part=part)
    for part in ("a", "b"):
        network.add_link(f"{part}.0", f"{part}.1", 256.0, 1.0)
        network.add_link(f"{part}.1", f"{part}.2", 128.0, 1.0)
    network.add_link("a.2", "b.0", 64.0, 1.0)
    return network


def counted(kinds: list[tuple[LastFlit, int, int]], network: Network) -> tuple[dict[Any, Any], ...]:
    fabric = Fabric(network)
    for last_flit, flits, transfers in kinds:
        fabric.engine.counters.count(last_flit, flits, transfers)
    before = fabric.engine.counters.done_so_far()
    empty = type(before)(before.flits[:0], before.transfers[:0])
    return fabric.all_link_counters(), fabric.busy_since(empty, ("b",)), fabric.busy_since(empty, ("a",))


@pytest.mark.parametrize("last_bytes", [256, 100])
def test_what_is_counted_there_is_what_a_route_of_its_own_would_count(last_bytes: int) -> None:
    network = two_parts()
    there = network.counterparts("a", "b").last_flit(
        network.route(("a.0", "a.1", "a.2")).last_flit(network, last_bytes)
    )
    own = network.route(("b.0", "b.1", "b.2")).last_flit(network, last_bytes)
    assert counted([(there, 3, 1)], network) == counted([(own, 3, 1)], network)
    links, in_b, in_a = counted([(there, 3, 1)], network)
    assert [ends for ends, _ in links.items()] == [("b.0", "b.1"), ("b.1", "b.2")]
    assert in_b == {("b.0", "b.1"): 3 + last_bytes / 256, ("b.1", "b.2"): 6 + last_bytes / 128}
    assert in_a == {}


def test_each_kind_is_made_once() -> None:
    network = two_parts()
    parts = network.counterparts("a", "b")
    route = network.route(("a.0", "a.1"))
    whole, part = route.last_flit(network, 256), route.last_flit(network, 64)
    assert parts.last_flit(whole) is network.counterparts("a", "b").last_flit(whole)
    assert parts.last_flit(whole) is not parts.last_flit(part)
    assert parts.last_flit(whole).route.path == ("b.0", "b.1")


def test_a_part_is_its_own_counterpart() -> None:
    network = two_parts()
    last_flit = network.route(("a.0", "a.1")).last_flit(network, 64)
    assert network.counterparts("a", "a").last_flit(last_flit) is last_flit
