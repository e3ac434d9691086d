"""Addresses and routes on compiled machines: the shipped one, and some of other shapes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product

import pytest

from kernbench.common.errors import RoutingError
from kernbench.common.ids import CubeId, IoId, PeId, Place
from kernbench.common.units import GIB
from kernbench.policy.address.allocator import AddressConfig
from kernbench.policy.address.phyaddr import IocpuSubUnit, McpuSubUnit, PhysAddr
from kernbench.policy.routing.router import AddressResolver, PathRouter
from kernbench.policy.routing.routing_graph import RoutingGraph
from kernbench.topology import load_topology
from kernbench.topology.graph import EdgeKind, TopologyGraph

MACHINES: dict[str, dict[str, object]] = {
    "smallest": {
        "system.sips.count": 1,
        "sip.cube_mesh": {"w": 1, "h": 1},
        "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
    },
    "flat, two chiplets": {
        "sip.cube_mesh": {"w": 3, "h": 1},
        "sip.io_chiplets": [{"id": "io0", "side": "N"}, {"id": "io7", "side": "S"}],
        "cube.ucie.n_connections": 2,
    },
    "16 PEs, four chiplets": {
        "system.sips.count": 3,
        "sip.cube_mesh": {"w": 2, "h": 2},
        "sip.io_chiplets": [{"id": f"io{n}", "side": side} for n, side in enumerate("NSEW")],
        "cube.pe_layout.pe_per_corner": 4,
    },
}


@cache
def machine(name: str = "") -> TopologyGraph:
    return load_topology(overrides=MACHINES[name] if name else None)


@cache
def router(name: str = "") -> PathRouter:
    return PathRouter(machine(name))


def routers_of(path: list[str], cube: str = "sip0.cube0") -> str:
    head = f"{cube}.noc."
    return " ".join(node.removeprefix(head) for node in path if node.startswith(head))


# ------------------------------------------------------------------------------------------------------- addresses


def test_addresses_resolve_to_the_nodes_that_serve_them() -> None:
    find = AddressResolver(machine()).resolve
    assert find(PhysAddr.hbm_addr(0, 3, 0)) == "sip0.cube3.hbm_ctrl.pe0"
    assert find(PhysAddr.hbm_addr(1, 15, 6 * GIB - 1)) == "sip1.cube15.hbm_ctrl.pe0"
    assert find(PhysAddr.hbm_addr(1, 15, 6 * GIB)) == "sip1.cube15.hbm_ctrl.pe1"
    assert find(PhysAddr.pe_hbm_addr(0, 0, 7, 5, 6 * GIB)) == "sip0.cube0.hbm_ctrl.pe7"
    assert find(PhysAddr.pe_tcm_addr(0, 2, 5, 0)) == "sip0.cube2.pe5.pe_tcm"
    assert find(PhysAddr.cube_sram_addr(0, 2, 0)) == "sip0.cube2.sram"
    assert find(PhysAddr.mcpu_resource_addr(0, 2, McpuSubUnit.MCPU_SRAM, 0)) == "sip0.cube2.m_cpu"
    assert find(PhysAddr.iocpu_resource_addr(1, 16, IocpuSubUnit.IO_SRAM, 0)) == "sip1.io0.io_cpu"


@pytest.mark.parametrize(
    "addr",
    [
        PhysAddr.hbm_addr(2, 0, 0),
        PhysAddr.hbm_addr(0, 0, 48 * GIB),
        PhysAddr.pe_tcm_addr(0, 0, 8, 0),
        PhysAddr.iocpu_resource_addr(0, 17, 0, 0),
        PhysAddr.ual_addr(0, 16, 2 * GIB),
    ],
    ids=str,
)
def test_addresses_that_no_node_serves_are_errors(addr: PhysAddr) -> None:
    with pytest.raises(RoutingError) as caught:
        AddressResolver(machine()).resolve(addr)
    assert caught.value.hint


def test_io_dies_count_chiplets_in_the_order_of_the_description() -> None:
    find = AddressResolver(machine("flat, two chiplets")).resolve
    assert find(PhysAddr.iocpu_resource_addr(0, 16, 0, 0)) == "sip0.io0.io_cpu"
    assert find(PhysAddr.iocpu_resource_addr(0, 17, 0, 0)) == "sip0.io7.io_cpu"


def test_places_are_named_only_when_they_exist() -> None:
    find = AddressResolver(machine())
    assert find.find_m_cpu(1, 15) == "sip1.cube15.m_cpu"
    assert find.find_sram(0, 1) == "sip0.cube1.sram"
    assert find.find_pe_dma(0, 1, 7) == "sip0.cube1.pe7.pe_dma"
    assert find.find_pe_part(0, 1, 7, "pe_tcm") == "sip0.cube1.pe7.pe_tcm"
    assert find.find_hbm_ctrl(0, 1, 7) == "sip0.cube1.hbm_ctrl.pe7"
    assert (find.find_pcie_ep(1), find.find_io_cpu(1)) == ("sip1.io0.pcie_ep", "sip1.io0.io_cpu")
    missing: tuple[Callable[[], str], ...] = (
        lambda: find.find_m_cpu(2, 0),
        lambda: find.find_pe_dma(0, 0, 8),
        lambda: find.find_pe_part(0, 0, 0, "pe_oven"),
        lambda: find.find_pcie_ep(0, "io1"),
        lambda: find.find_io_cpu(-1),
    )
    for lookup in missing:
        with pytest.raises(RoutingError, match="the machine has no node") as caught:
            lookup()
        assert caught.value.hint == "it has SIPs 0..1, each with cubes 0..15 of PEs 0..7, and 1 IO chiplets"


def test_pcie_endpoints_are_listed_in_natural_order() -> None:
    graph = load_topology(
        overrides={
            "system.sips.count": 11,
            "sip.cube_mesh": {"w": 2, "h": 1},
            "sip.io_chiplets": [{"id": "io10", "side": "N"}, {"id": "io2", "side": "S"}],
        }
    )
    expected = [f"sip{sip}.{io}.pcie_ep" for sip in range(11) for io in ("io2", "io10")]
    assert AddressResolver(graph).find_all_pcie_eps() == expected


def test_sizes_are_read_from_the_description() -> None:
    mib = 1 << 20
    expected = AddressConfig(2, 16, 1, 8, 6 * GIB, 32 * mib, 2 * mib, 1 * mib)
    sizes = AddressConfig.from_spec(machine().spec)
    assert sizes == expected
    sizes.check(PhysAddr.hbm_addr(0, 15, 42 * GIB), 6 * GIB)  # the last slice of a cube, whole


# ---------------------------------------------------------------------------------------------------------- routes


def test_pe0_reaches_the_slice_of_pe2_along_x_first() -> None:
    path, distance_mm = router().find_path_with_distance("sip0.cube0.pe0", "sip0.cube0.hbm_ctrl.pe2")
    assert routers_of(path) == "r0c0 r0c1 r0c2 r0c3 r0c4 r1c4"
    assert (path[0], path[-1]) == ("sip0.cube0.pe0.pe_dma", "sip0.cube0.hbm_ctrl.pe2")
    # r0c0 is at (1.5, 1.5) and r1c4 at (10.5, 4.0): 9 mm along x, 2.5 mm along y
    assert distance_mm == 11.5


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_a_pe_reaches_its_own_slice_through_its_own_router_only() -> None:
    assert router().find_path("sip0.cube0.pe0", "sip0.cube0.hbm_ctrl.pe0") == [
        "sip0.cube0.pe0.pe_dma",
        "sip0.cube0.noc.r0c0",
        "sip0.cube0.hbm_ctrl.pe0",
    ]


def test_pes_on_different_rows_cross_by_different_ucie_connections() -> None:
    used = {}
    for pe in (0, 2, 4, 6):  # one PE of each row: r0, r1, r4, r5
        path = router().find_path(f"sip0.cube0.pe{pe}", f"sip0.cube1.hbm_ctrl.pe{pe}")
        used[pe] = [node for node in path if ".conn" in node]
    assert used == {
        pe: [CubeId(0, 0).ucie_conn("E", n), CubeId(0, 1).ucie_conn("W", n)] for n, pe in enumerate((0, 2, 4, 6))
    }


def cubes_of(path: list[str]) -> list[int]:
    return list(dict.fromkeys(Place.of(node).cube for node in path))


def test_a_cube_across_the_corner_is_reached_along_x_first() -> None:
    # the cubes are square and PE0 stands on the diagonal, so by cube 1 and by cube 4 it is equally far
    assert cubes_of(router().find_path("sip0.cube0.pe0", "sip0.cube5.hbm_ctrl.pe0")) == [0, 1, 5]
    assert cubes_of(router().find_path("sip0.cube5.pe0", "sip0.cube0.hbm_ctrl.pe0")) == [5, 4, 0]


def test_a_turn_between_two_ports_is_shorter_than_a_straight_pass() -> None:
    # Ports are in the middle of their edges: W at (0, 7), E at (14, 7), S at (7, 14). W to S by r5c0 at (1.5, 12.5) is
    # 7 + 7 = 14 mm. W to E by row 1, at y = 4, is 14 + 2 * 3 = 20 mm. So the path to cube 10 turns in every cube.
    path, distance_mm = router().find_path_with_distance("sip0.cube0.pe0", "sip0.cube10.hbm_ctrl.pe0")
    assert cubes_of(path) == [0, 1, 5, 6, 10]
    # out of cube 0 from r0c0 at (1.5, 1.5): 12.5 + 5.5; four seams of 1; three turns of 14; in to r0c0: 5.5 + 1.5
    assert distance_mm == 18 + 4 + 3 * 14 + 7


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
def test_host_memory_traffic_goes_past_io_cpu_and_m_cpu() -> None:
    path = router().find_memory_path("sip0.io0.pcie_ep", "sip0.cube1.hbm_ctrl.pe0")
    kinds = [machine().nodes[node].kind for node in path]
    assert kinds[:7] == ["pcie_ep", "io_noc", "io_ucie_conn", "io_ucie", "ucie", "ucie_conn", "noc_router"]
    assert kinds[-1] == "hbm_ctrl"
    assert set(kinds[6:-1]) == {"noc_router"}


def test_another_sip_is_reached_through_both_chiplets_and_the_switch() -> None:
    path = router().find_path("sip0.cube5.pe0", "sip1.cube5.hbm_ctrl.pe0")
    at = path.index("fabric.switch0")
    assert path[at - 2 : at + 3] == [
        "sip0.io0.io_noc",
        "sip0.io0.pcie_ep",
        "fabric.switch0",
        "sip1.io0.pcie_ep",
        "sip1.io0.io_noc",
    ]


def test_commands_use_the_command_wires() -> None:
    path = router().find_node_path("sip0.cube0.m_cpu", "sip0.cube0.pe0.pe_cpu")
    kinds = [edge.kind for edge in router().links(path)]
    assert kinds[0] == kinds[-1] == EdgeKind.COMMAND
    assert set(kinds[1:-1]) <= {EdgeKind.ROUTER_MESH}
    to_cube = router().find_node_path("sip0.io0.io_cpu", "sip0.cube5.m_cpu")
    assert to_cube[1] == "sip0.io0.io_noc"


def test_remote_tcm_is_reached_through_its_pes_dma() -> None:
    for cube in (0, 6):
        path = router().find_path("sip0.cube0.pe0", f"sip0.cube{cube}.pe5.pe_tcm")
        assert path[-2:] == [f"sip0.cube{cube}.pe5.pe_dma", f"sip0.cube{cube}.pe5.pe_tcm"]
        assert path[-3].startswith(f"sip0.cube{cube}.noc.")


TRANSIT = {"noc_router", "ucie", "ucie_conn", "io_noc", "io_ucie", "io_ucie_conn", "switch", "pcie_ep"}


@pytest.mark.needs("n_to_one", reason="times and paths with one link per HBM slice")
@pytest.mark.parametrize("name", ["", *MACHINES])
def test_every_pair_of_ends_has_a_route_that_passes_transit_nodes_only(name: str) -> None:
    graph, paths_of = machine(name), router(name)
    spec = graph.spec
    sips, cubes, pes = range(spec.n_sips), range(spec.sip.n_cubes), range(spec.cube.n_pes)
    some_pes = sorted({0, spec.cube.n_pes // 2, spec.cube.n_pes - 1})
    memories = [CubeId(s, c).hbm_ctrl(p) for s, c, p in product(sips, cubes, some_pes)]
    memories += [CubeId(s, c).sram() for s, c in product(sips, cubes)]
    paths = [paths_of.find_path(str(PeId(0, c, p)), memory) for c in cubes[:2] for p in some_pes for memory in memories]
    paths += [paths_of.find_path(str(PeId(0, 0, p)), CubeId(0, 0).hbm_ctrl(q)) for p, q in product(pes, pes)]
    eps = [IoId(sip, io.id).pcie_ep() for sip in sips for io in spec.sip.io_chiplets]
    paths += [paths_of.find_memory_path(ep, memory) for ep in eps for memory in memories[:: len(some_pes)]]
    paths += [paths_of.find_memory_path("host", memory) for memory in memories[:: len(some_pes)]]
    paths += [paths_of.find_node_path(a, b) for a, b in product(eps, eps) if a != b]
    for path in paths:
        assert len(path) == len(set(path)) >= 2
        assert {graph.nodes[node].kind for node in path[1:-1]} <= TRANSIT
        assert all(edge.bw_gbs for edge in paths_of.links(path))  # a data path has no control-only wire


@pytest.mark.parametrize("name", ["", "flat, two chiplets"])
def test_the_way_back_is_as_long_as_the_way_there(name: str) -> None:
    graph, paths_of = machine(name), router(name)
    last = graph.spec.sip.n_cubes - 1
    ends = [PeId(0, 0, 0), PeId(0, 0, 5), PeId(0, last, 3), PeId(1, last, 7)]
    for a, b in product(ends, ends):
        _, there = paths_of.find_path_with_distance(str(a), b.part("pe_dma"))
        _, back = paths_of.find_path_with_distance(str(b), a.part("pe_dma"))
        assert there == back


def test_routes_do_not_depend_on_what_was_asked_before() -> None:
    pairs = [
        (str(PeId(0, c, p)), CubeId(s, 15 - c).hbm_ctrl(7 - p)) for c in (0, 5, 12) for p in (0, 3) for s in (0, 1)
    ]
    forward, backward = PathRouter(machine()), PathRouter(machine())
    first = {pair: forward.find_path(*pair) for pair in pairs}
    assert {pair: backward.find_path(*pair) for pair in reversed(pairs)} == first


def test_a_route_is_looked_up_the_second_time() -> None:
    paths_of = PathRouter(machine())
    first = paths_of.find_path("sip0.cube0.pe0", "sip1.cube15.hbm_ctrl.pe7")
    paths_of._trees.clear()
    paths_of._routing = None  # type: ignore[assignment]  # without its map the router can only remember
    assert paths_of.find_path("sip0.cube0.pe0", "sip1.cube15.hbm_ctrl.pe7") == first


def test_what_is_found_in_one_sip_or_cube_is_so_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes are searched for in the first SIP and cube only; a search in the place itself finds the same."""
    graph = machine("16 PEs, four chiplets")
    pes = [str(PeId(sip, cube, pe)) for sip, cube, pe in product((0, 2), (0, 3), (0, 13))]
    memories = [f"sip{sip}.cube{cube}.hbm_ctrl.pe{pe}" for sip, cube, pe in product((0, 1, 2), (0, 2, 3), (1, 14))]
    ends = [f"sip{sip}.io{io}.pcie_ep" for sip, io in product((0, 2), (0, 3))] + ["host"]
    blocks = [f"sip{sip}.cube{cube}.m_cpu" for sip, cube in product((0, 1, 2), (0, 3))]

    def routes() -> list[object]:
        of = PathRouter(graph)
        found: list[object] = [of.find_path_with_distance(pe, memory) for pe, memory in product(pes, memories)]
        found += [of.find_memory_path(end, memory) for end, memory in product(ends[:-1], memories)]
        return found + [of.find_node_path(*path) for a, b in product(ends, blocks) for path in ((a, b), (b, a))]

    short = routes()
    monkeypatch.setattr(RoutingGraph, "shift", lambda *_: 0)
    assert short == routes()


def test_a_command_finds_its_way_from_a_connection_of_no_length() -> None:
    path = PathRouter(machine()).find_node_path("sip0.io0.conn.P0.0", "host")
    assert (path[0], path[-1]) == ("sip0.io0.conn.P0.0", "host")
