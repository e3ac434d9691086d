"""Which connection of an IO chiplet a route takes: the one opposite the cube connection that its end is nearest to."""

from __future__ import annotations

import pytest

from kernbench.common.ids import CubeId, IoId, PeId
from kernbench.policy.routing.router import PathRouter
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph


def connections(graph: TopologyGraph, path: list[str]) -> list[str]:
    """The connections of IO chiplets and cubes on a path, as `io 2`, `cube 2`; their names end in their number."""
    names = {"io_ucie_conn": "io", "ucie_conn": "cube"}
    kinds = [(graph.node(node).kind, node) for node in path]
    return [f"{names[kind]} {node[-1]}" for kind, node in kinds if kind in names]


def test_host_routes_to_one_cube_spread_over_all_connections_of_its_phy() -> None:
    graph = load_topology()
    router = PathRouter(graph)
    found = [
        connections(graph, router.find_memory_path("sip0.io0.pcie_ep", CubeId(0, 0).hbm_ctrl(pe))) for pe in range(8)
    ]
    # PEs 0 and 1 stand in columns 0 and 1, PEs 2 and 3 in columns 4 and 5, and PEs 4 to 7 below them. The N port has
    # its connections in columns 0, 1, 4 and 5.
    assert found == [[f"io {c}", f"cube {c}"] for c in (0, 1, 2, 3, 0, 1, 2, 3)]


def test_the_way_back_takes_the_same_connections() -> None:
    graph = load_topology()
    router = PathRouter(graph)
    for pe in range(8):
        there = router.find_memory_path("sip0.io0.pcie_ep", CubeId(0, 5).hbm_ctrl(pe))
        back = router.find_memory_path(CubeId(0, 5).hbm_ctrl(pe), "sip0.io0.pcie_ep")
        assert connections(graph, back[::-1])[:2] == connections(graph, there)[:2]


def test_routes_between_sips_spread_by_the_position_of_both_ends() -> None:
    graph = load_topology()
    router = PathRouter(graph)
    used = set()
    for pe in range(8):
        path = router.find_path(str(PeId(0, 0, pe)), CubeId(1, 0).hbm_ctrl(7 - pe))
        out, into = connections(graph, path)[:2], connections(graph, path)[-2:]
        assert out[0].removeprefix("cube") == out[1].removeprefix("io")
        assert into[0].removeprefix("io") == into[1].removeprefix("cube")
        used.add((out[1], into[0]))
    assert {io for io, _ in used} == {io for _, io in used} == {"io 0", "io 1", "io 2", "io 3"}


@pytest.mark.parametrize(
    ("n", "expected"), [(1, [0, 0, 0, 0]), (2, [0, 0, 1, 1]), (3, [0, 1, 1, 2]), (8, [1, 3, 5, 7])]
)
def test_edges_with_unlike_numbers_of_connections_meet_at_the_same_fraction(n: int, expected: list[int]) -> None:
    # Cube connection c of 4 stands at 1/8, 3/8, 5/8 and 7/8 of its edge. Of n, that is number n times as much.
    graph = load_topology(overrides={"io_chiplet.n_connections": n})
    router = PathRouter(graph)
    paths = [router.find_memory_path("sip0.io0.pcie_ep", CubeId(0, 0).hbm_ctrl(pe)) for pe in range(4)]
    assert [connections(graph, path)[0] for path in paths] == [f"io {c}" for c in expected]


def test_connections_stand_apart_along_the_edge_on_wires_of_one_length() -> None:
    graph = load_topology()
    io = IoId(0, "io0")
    # 10 mm of edge for 4 PHYs of 4 connections: 0.625 mm each.
    places = [graph.node(io.conn(f"P{p}", c)).x_mm for p in range(4) for c in range(4)]
    assert places == [0.625 * (n + 0.5) for n in range(16)]
    for phy in range(4):
        wires = {graph.edge(io.io_noc(), io.conn(f"P{phy}", c)).distance_mm for c in range(4)}
        assert wires == {
            abs(2.5 * (phy + 0.5) - 5.0) + 2.0
        }  # along x to the PHY's middle, and half the chiplet's depth


def test_a_longer_wire_is_not_taken_for_the_sake_of_position() -> None:
    graph = load_topology(overrides={"system.sips.count": 1, "sip.cube_mesh": {"w": 1, "h": 1}})
    io = IoId(0, "io0")
    longer = [io.conn("P0", c) for c in (1, 2, 3)]
    edges = [
        edge
        if edge.src not in longer and edge.dst not in longer
        else type(edge)(edge.src, edge.dst, edge.kind, edge.bw_gbs, edge.distance_mm + 1.0)
        for edge in graph.edges
    ]
    uneven = TopologyGraph(graph.spec, graph.nodes, tuple(edges))
    path = PathRouter(uneven).find_memory_path("sip0.io0.pcie_ep", CubeId(0, 0).hbm_ctrl(3))
    assert connections(uneven, path) == ["io 0", "cube 3"]


def test_a_phy_is_as_wide_as_its_connections_unless_its_link_is_given() -> None:
    def phy_gbs(**links: object) -> float | None:
        overrides = {f"io_chiplet.{key.replace('__', '.')}": value for key, value in links.items()}
        return load_topology(overrides=overrides).edge("sip0.io0.io_ucie.P0", "sip0.cube0.ucie-N").bw_gbs

    assert phy_gbs() == 4 * 128.0
    assert phy_gbs(n_connections=2) == 2 * 128.0
    assert phy_gbs(links__per_connection_bw_gbs=64.0) == 4 * 64.0
    assert phy_gbs(links__io_ucie_to_cube_bw_gbs=100.0) == 100.0
