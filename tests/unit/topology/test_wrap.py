"""Rings of cubes: which rows and columns are closed, over which links, and what is refused."""

from __future__ import annotations

import pytest

from kernbench.common.errors import TopologyError
from kernbench.policy.routing.router import PathRouter
from kernbench.report.machine_facts import machine_facts_of
from kernbench.topology import load_topology
from kernbench.topology.graph import Edge, EdgeKind, TopologyGraph
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import machine_hash

ONE = {"system.sips.count": 1, "sip.cube_mesh": {"w": 4, "h": 3}}
ON_TWO = [{"id": "io0", "side": "N", "cube_ports": [{"cube": {"xy": [0, 0]}}, {"cube": {"xy": [1, 0]}}]}]


def closing(graph: TopologyGraph) -> list[Edge]:
    """Links between cubes that are not neighbours on the grid."""
    w = graph.spec.sip.cube_mesh.w
    found = []
    for edge in graph.edges:
        a, b = graph.node(edge.src).place.cube, graph.node(edge.dst).place.cube
        if edge.kind is EdgeKind.UCIE_MESH and abs(a % w - b % w) + abs(a // w - b // w) > 1:
            found.append(edge)
    return found


def test_every_row_is_closed_by_one_link_each_way() -> None:
    graph = load_topology(None, ONE | {"sip.cube_mesh.wrap": "x"})
    pairs = {(edge.src, edge.dst) for edge in closing(graph)}
    ends = [(3, 0), (7, 4), (11, 8)]
    there = {(f"sip0.cube{last}.ucie-E", f"sip0.cube{first}.ucie-W") for last, first in ends}
    assert pairs == there | {(b, a) for a, b in there}
    assert {(edge.bw_gbs, edge.distance_mm) for edge in closing(graph)} == {(512.0, 2 * 1.0 + 14.0)}


def test_columns_whose_end_an_io_chiplet_takes_stay_open() -> None:
    graph = load_topology(None, ONE | {"sip.cube_mesh.wrap": "xy", "sip.io_chiplets": ON_TWO})
    columns = {graph.node(edge.src).place.cube % 4 for edge in closing(graph) if "ucie-S" in edge.src}
    assert columns == {2, 3}


def test_the_link_of_a_ring_may_be_given() -> None:
    given = {"sip.cube_mesh.wrap": "x", "sip.links.wrap": {"bw_gbs": 256.0, "distance_mm": 20.0}}
    assert {(edge.bw_gbs, edge.distance_mm) for edge in closing(load_topology(None, ONE | given))} == {(256.0, 20.0)}


def test_routes_take_the_ring_where_it_is_shorter() -> None:
    open_, closed = (load_topology(None, ONE | {"sip.cube_mesh.wrap": wrap}) for wrap in ("none", "x"))
    path, distance_mm = PathRouter(closed).find_path_with_distance("sip0.cube0.pe0", "sip0.cube3.hbm_ctrl.pe0")
    assert "sip0.cube0.ucie-W" in path
    assert distance_mm < PathRouter(open_).find_path_with_distance("sip0.cube0.pe0", "sip0.cube3.hbm_ctrl.pe0")[1]
    near = PathRouter(closed).find_path_with_distance("sip0.cube0.pe0", "sip0.cube1.hbm_ctrl.pe0")
    assert near == PathRouter(open_).find_path_with_distance("sip0.cube0.pe0", "sip0.cube1.hbm_ctrl.pe0")


def test_rings_add_to_the_bisection_of_their_axis() -> None:
    def bisection(wrap: str) -> float | None:
        graph = load_topology(None, {"system.sips.count": 1, "sip.cube_mesh": {"w": 4, "h": 1, "wrap": wrap}})
        return machine_facts_of(graph).bandwidth_gbs["sip_bisection"]

    assert (bisection("none"), bisection("x")) == (512.0, 1024.0)


def test_a_machine_without_rings_keeps_its_fingerprint() -> None:
    assert machine_hash(load_spec(overrides={"sip.cube_mesh.wrap": "none"})) == machine_hash(load_spec())
    assert machine_hash(load_spec(overrides={"sip.cube_mesh.wrap": "x"})) != machine_hash(load_spec())


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"sip.cube_mesh.wrap": "y"}, "no row or column can be closed by wrap: y"),  # io0 takes all ports of side N
        ({"sip.cube_mesh": {"w": 1, "h": 1, "wrap": "x"}}, "no row or column can be closed"),
        ({"sip.links.wrap": {"bw_gbs": 1.0, "distance_mm": 0.0}}, "and none is closed"),
        ({"sip.cube_mesh.wrap": "x", "fabric.buffers": {"slots": 16, "credit_ns": 1.0}}, "can block each other"),
        ({"sip.cube_mesh.wrap": "z"}, "z"),
    ],
)
def test_rings_that_cannot_be_are_faults(overrides: dict[str, object], words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_spec(overrides=overrides)
    assert any(words in fault.what for fault in caught.value.faults), str(caught.value)
