"""Each routing rule on a network small enough to check by eye."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, cast

import pytest

from kernbench.common.errors import RoutingError
from kernbench.common.ids import Place
from kernbench.policy.routing.router import PathRouter
from kernbench.topology.graph import Edge, EdgeKind, Node, TopologyGraph

if TYPE_CHECKING:
    from kernbench.topology.spec import MachineSpec

C0, C1, C2 = "sip0.cube0", "sip0.cube1", "sip0.cube2"


class Net:
    """Nodes and two-way links, added by hand."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.edges: list[Edge] = []

    def node(self, node_id: str, kind: str, x: float = 0.0, y: float = 0.0) -> str:
        self.nodes[node_id] = Node(node_id, kind, "builtin.forwarding", {}, x, y, Place.of(node_id))
        return node_id

    def link(self, a: str, b: str, kind: EdgeKind, mm: float = 0.0) -> None:
        self.edges += [Edge(a, b, kind, 1.0, mm), Edge(b, a, kind, 1.0, mm)]

    def mesh(self, cube: str, w: int, h: int, mm: float = 1.0) -> None:
        for row in range(h):
            for col in range(w):
                here = self.node(f"{cube}.noc.r{row}c{col}", "noc_router", col * mm, row * mm)
                if col:
                    self.link(f"{cube}.noc.r{row}c{col - 1}", here, EdgeKind.ROUTER_MESH, mm)
                if row:
                    self.link(f"{cube}.noc.r{row - 1}c{col}", here, EdgeKind.ROUTER_MESH, mm)

    def pe(self, cube: str, pe: int, router: str, mm: float = 0.5) -> str:
        name = f"{cube}.pe{pe}"
        for part in ("pe_cpu", "pe_dma", "pe_tcm"):
            self.node(f"{name}.{part}", part)
        self.link(f"{name}.pe_cpu", f"{name}.pe_dma", EdgeKind.PE_INTERNAL)
        self.link(f"{name}.pe_dma", f"{name}.pe_tcm", EdgeKind.PE_INTERNAL)
        self.link(f"{name}.pe_cpu", f"{name}.pe_tcm", EdgeKind.PE_INTERNAL)
        self.link(f"{name}.pe_dma", f"{cube}.noc.{router}", EdgeKind.PE_TO_ROUTER, mm)
        self.link(f"{name}.pe_cpu", f"{cube}.noc.{router}", EdgeKind.COMMAND)
        hbm = self.node(f"{cube}.hbm_ctrl.pe{pe}", "hbm_ctrl")
        self.nodes[hbm] = replace(self.nodes[hbm], place=Place.of(name))  # it belongs to its PE, but stands outside
        self.link(f"{cube}.hbm_ctrl.pe{pe}", f"{cube}.noc.{router}", EdgeKind.ROUTER_TO_HBM)
        return name

    def port(self, cube: str, side: str, routers: list[str]) -> str:
        port = self.node(f"{cube}.ucie-{side}", "ucie")
        for n, router in enumerate(routers):
            conn = self.node(f"{port}.conn{n}", "ucie_conn")
            self.link(f"{cube}.noc.{router}", conn, EdgeKind.ROUTER_TO_UCIE_CONN)
            self.link(conn, port, EdgeKind.UCIE_INTERNAL)
        return port

    def router(self) -> PathRouter:
        # The router reads nodes and edges only, so these networks need no description.
        return PathRouter(TopologyGraph(cast("MachineSpec", None), self.nodes, tuple(self.edges)))


def short(path: list[str]) -> str:
    """The path without the names of the dies: 'r0c0 r0c1'."""
    return " ".join(node.removeprefix(f"{C0}.").removeprefix("noc.") for node in path)


def test_among_equal_ways_x_comes_before_y() -> None:
    net = Net()
    net.mesh(C0, 3, 3)
    router = net.router()
    way = router.find_node_path
    assert short(way(f"{C0}.noc.r0c0", f"{C0}.noc.r2c2")) == "r0c0 r0c1 r0c2 r1c2 r2c2"
    assert short(way(f"{C0}.noc.r2c2", f"{C0}.noc.r0c0")) == "r2c2 r2c1 r2c0 r1c0 r0c0"


def test_distance_counts_before_hops() -> None:
    net = Net()
    net.mesh(C0, 3, 2)
    net.link(f"{C0}.noc.r0c0", f"{C0}.noc.r0c2", EdgeKind.ROUTER_MESH, 2.5)
    assert short(net.router().find_node_path(f"{C0}.noc.r0c0", f"{C0}.noc.r0c2")) == "r0c0 r0c1 r0c2"


def test_hops_count_when_distance_is_equal() -> None:
    net = Net()
    net.mesh(C0, 3, 2)
    net.link(f"{C0}.noc.r0c0", f"{C0}.noc.r0c2", EdgeKind.ROUTER_MESH, 2.0)
    assert short(net.router().find_node_path(f"{C0}.noc.r0c0", f"{C0}.noc.r0c2")) == "r0c0 r0c2"


def test_distances_that_differ_only_by_float_noise_are_equal() -> None:
    net = Net()
    for row, col in ((0, 0), (0, 1), (1, 0), (1, 1)):
        net.node(f"{C0}.noc.r{row}c{col}", "noc_router", col, row)
    # 0.1 + 0.2 and 0.3 + 0.0 differ in their last bit; the way along x is the longer one in floats
    for a, b, mm in (("r0c0", "r0c1", 0.1), ("r0c1", "r1c1", 0.2), ("r0c0", "r1c0", 0.3), ("r1c0", "r1c1", 0.0)):
        net.link(f"{C0}.noc.{a}", f"{C0}.noc.{b}", EdgeKind.ROUTER_MESH, mm)
    path = net.router().find_node_path(f"{C0}.noc.r0c0", f"{C0}.noc.r1c1")
    assert short(path) == "r0c0 r0c1 r1c1"
    assert [edge.distance_mm for edge in net.router().links(path)] == [0.1, 0.2]


def test_links_of_no_length_do_not_make_a_route_circle() -> None:
    net = Net()
    net.mesh(C0, 4, 4, mm=0.0)
    assert len(net.router().find_node_path(f"{C0}.noc.r0c0", f"{C0}.noc.r3c3")) == 7


def test_the_lower_node_is_taken_when_nothing_else_decides() -> None:
    net = Net()
    for col in (0, 2, 1, 3):  # r0c2 comes before r0c1, in the same place
        net.node(f"{C0}.noc.r0c{col}", "noc_router")
    for a, b in ((0, 1), (0, 2), (1, 3), (2, 3)):
        net.link(f"{C0}.noc.r0c{a}", f"{C0}.noc.r0c{b}", EdgeKind.ROUTER_MESH, 1.0)
    assert short(net.router().find_node_path(f"{C0}.noc.r0c0", f"{C0}.noc.r0c3")) == "r0c0 r0c2 r0c3"


def test_a_dma_goes_over_the_mesh_to_another_slice() -> None:
    net = Net()
    net.mesh(C0, 2, 2)
    pe0, _ = net.pe(C0, 0, "r0c0"), net.pe(C0, 1, "r1c1")
    path, distance_mm = net.router().find_path_with_distance(pe0, f"{C0}.hbm_ctrl.pe1")
    assert short(path) == "pe0.pe_dma r0c0 r0c1 r1c1 hbm_ctrl.pe1"
    assert distance_mm == 0.5 + 1.0 + 1.0 + 0.0


def test_no_route_passes_through_a_pe_an_m_cpu_or_a_memory() -> None:
    net = Net()
    net.mesh(C0, 3, 1, mm=10.0)
    pe0, pe1 = net.pe(C0, 0, "r0c0"), net.pe(C0, 1, "r0c2")
    m_cpu = net.node(f"{C0}.m_cpu", "m_cpu")
    for end in ("r0c0", "r0c2"):  # shortcuts, all far shorter than the mesh
        net.link(m_cpu, f"{C0}.noc.{end}", EdgeKind.COMMAND)
        net.link(f"{pe1}.pe_dma", f"{C0}.noc.{end}", EdgeKind.PE_TO_ROUTER)
        net.link(f"{C0}.hbm_ctrl.pe1", f"{C0}.noc.{end}", EdgeKind.ROUTER_TO_HBM)
    sram = net.node(f"{C0}.sram", "sram")
    net.link(sram, f"{C0}.noc.r0c2", EdgeKind.ROUTER_TO_SRAM)
    router = net.router()
    assert short(router.find_path(pe0, sram)) == "pe0.pe_dma r0c0 r0c1 r0c2 sram"
    assert short(router.find_node_path(f"{C0}.hbm_ctrl.pe0", sram)) == "hbm_ctrl.pe0 r0c0 r0c1 r0c2 sram"
    assert short(router.find_memory_path(f"{C0}.noc.r0c0", sram)) == "r0c0 r0c1 r0c2 sram"
    assert short(router.find_mcpu_dma_path(m_cpu, sram)) == "m_cpu r0c2 sram"


def test_not_even_the_memory_of_the_destinations_own_pe_is_a_way() -> None:
    net = Net()
    net.mesh(C0, 3, 1, mm=10.0)
    pe0, pe1 = net.pe(C0, 0, "r0c0"), net.pe(C0, 1, "r0c2")
    net.link(f"{C0}.hbm_ctrl.pe1", f"{C0}.noc.r0c0", EdgeKind.ROUTER_TO_HBM)
    expected = "pe0.pe_dma r0c0 r0c1 r0c2 pe1.pe_dma pe1.pe_tcm"
    assert short(net.router().find_path(pe0, f"{pe1}.pe_tcm")) == expected


def test_data_enters_a_pe_by_its_dma_and_commands_by_the_command_wire() -> None:
    net = Net()
    net.mesh(C0, 2, 1)
    pe0, pe1 = net.pe(C0, 0, "r0c0"), net.pe(C0, 1, "r0c1")
    router = net.router()
    assert short(router.find_path(pe0, f"{pe1}.pe_tcm")) == "pe0.pe_dma r0c0 r0c1 pe1.pe_dma pe1.pe_tcm"
    assert short(router.find_path(pe0, f"{pe0}.pe_tcm")) == "pe0.pe_dma pe0.pe_tcm"
    assert short(router.find_node_path(f"{C0}.noc.r0c0", f"{pe1}.pe_tcm")) == "r0c0 r0c1 pe1.pe_cpu pe1.pe_tcm"


def test_a_ucie_port_is_no_bus_between_the_routers_of_one_die() -> None:
    net = Net()
    for cube in (C0, C1):
        net.mesh(cube, 3, 1, mm=5.0)
    pe0 = net.pe(C0, 0, "r0c0")
    net.pe(C0, 1, "r0c2")
    net.pe(C1, 0, "r0c0")
    net.port(C0, "N", ["r0c0", "r0c2"])  # of no length: r0c0 to r0c2 in three hops, instead of 10 mm
    net.link(net.port(C0, "E", ["r0c2"]), net.port(C1, "W", ["r0c0"]), EdgeKind.UCIE_MESH, 1.0)
    router = net.router()
    assert short(router.find_path(pe0, f"{C0}.hbm_ctrl.pe1")) == "pe0.pe_dma r0c0 r0c1 r0c2 hbm_ctrl.pe1"
    assert short(router.find_node_path(f"{C0}.noc.r0c0", f"{C0}.noc.r0c2")) == "r0c0 r0c1 r0c2"
    assert router.find_path(pe0, f"{C1}.hbm_ctrl.pe0") == [
        *(f"{C0}.{part}" for part in ("pe0.pe_dma", "noc.r0c0", "noc.r0c1", "noc.r0c2", "ucie-E.conn0", "ucie-E")),
        *(f"{C1}.{part}" for part in ("ucie-W", "ucie-W.conn0", "noc.r0c0", "hbm_ctrl.pe0")),
    ]


def test_a_ucie_port_can_be_an_end_of_a_route() -> None:
    net = Net()
    for cube in (C0, C1):
        net.mesh(cube, 2, 1)
    east, west = net.port(C0, "E", ["r0c1"]), net.port(C1, "W", ["r0c0"])
    net.link(east, west, EdgeKind.UCIE_MESH, 1.0)
    router = net.router()
    assert short(router.find_node_path(f"{C0}.noc.r0c0", east)) == "r0c0 r0c1 ucie-E.conn0 ucie-E"
    assert short(router.find_node_path(east, f"{C0}.noc.r0c0")) == "ucie-E ucie-E.conn0 r0c1 r0c0"
    assert router.find_node_path(east, west) == [east, west]
    assert router.find_node_path(east, f"{C1}.noc.r0c0")[-2:] == [f"{C1}.ucie-W.conn0", f"{C1}.noc.r0c0"]


def with_io(net: Net, sip: int, cubes: list[str], io: str = "io0") -> str:
    """An IO chiplet that reaches the north port of each cube; everything in it has no length."""
    chip = f"sip{sip}.{io}"
    ep, noc = net.node(f"{chip}.pcie_ep", "pcie_ep"), net.node(f"{chip}.io_noc", "io_noc")
    net.link(ep, noc, EdgeKind.IO_INTERNAL)
    net.link(net.node(f"{chip}.io_cpu", "io_cpu"), noc, EdgeKind.IO_INTERNAL)
    for n, cube in enumerate(cubes):
        phy, conn = net.node(f"{chip}.io_ucie.P{n}", "io_ucie"), net.node(f"{chip}.conn.P{n}.0", "io_ucie_conn")
        net.link(noc, conn, EdgeKind.IO_INTERNAL)
        net.link(conn, phy, EdgeKind.IO_INTERNAL)
        net.link(phy, net.port(cube, "N", ["r0c0"]), EdgeKind.IO_TO_CUBE, 2.0)
    return ep


def row_of_cubes(net: Net, names: list[str]) -> None:
    for cube in names:
        net.mesh(cube, 2, 1, mm=5.0)
        net.pe(cube, 0, "r0c0")
    for left, right in pairwise(names):
        net.link(net.port(left, "E", ["r0c1"]), net.port(right, "W", ["r0c0"]), EdgeKind.UCIE_MESH, 1.0)


def test_an_io_chiplet_is_a_door_and_not_a_corridor() -> None:
    net = Net()
    row_of_cubes(net, [C0, C1, C2])
    ep = with_io(net, 0, [C0, C1, C2])  # cube0 to cube2 by the chiplet: 4 mm; by the cubes: 5 + 1 + 5 + 1 = 12 mm
    router = net.router()
    path = router.find_path(f"{C0}.pe0", f"{C2}.hbm_ctrl.pe0")
    assert not any(Place.of(node).io for node in path)
    assert f"{C1}.noc.r0c1" in path
    assert short(router.find_memory_path(ep, f"{C0}.hbm_ctrl.pe0")) == (
        "sip0.io0.pcie_ep sip0.io0.io_noc sip0.io0.conn.P0.0 sip0.io0.io_ucie.P0 ucie-N ucie-N.conn0 r0c0 hbm_ctrl.pe0"
    )


def test_two_sips_meet_at_the_switch_by_their_nearest_chiplets() -> None:
    net = Net()
    net.node("host", "host")
    net.node("fabric.switch0", "switch")
    net.link("host", "fabric.switch0", EdgeKind.PCIE)
    for sip in (0, 1, 2):
        cubes = [f"sip{sip}.cube{n}" for n in range(3)]
        row_of_cubes(net, cubes)
        net.link(with_io(net, sip, cubes[:1], "io0"), "fabric.switch0", EdgeKind.PCIE)
        net.link(with_io(net, sip, cubes[2:], "io1"), "fabric.switch0", EdgeKind.PCIE)
    router = net.router()
    path = router.find_path("sip0.cube0.pe0", "sip1.cube2.hbm_ctrl.pe0")
    crossing = ["sip0.io0.pcie_ep", "fabric.switch0", "sip1.io1.pcie_ep"]
    assert [node for node in path if node.endswith("pcie_ep") or node.startswith("fabric")] == crossing
    assert {Place.of(node).sip for node in path} == {-1, 0, 1}
    host = router.find_memory_path("host", "sip2.cube0.hbm_ctrl.pe0")
    assert host[:3] == ["host", "fabric.switch0", "sip2.io0.pcie_ep"]
    # from a given endpoint the way stays in the SIP, although the other chiplet is nearer by the switch
    inside = router.find_memory_path("sip0.io0.pcie_ep", "sip0.cube2.hbm_ctrl.pe0")
    assert {Place.of(node).io for node in inside} == {"", "io0"}
    assert "fabric.switch0" not in inside


def test_what_cannot_be_reached_is_an_error_that_names_both_ends() -> None:
    net = Net()
    net.mesh(C0, 2, 1)
    pe0 = net.pe(C0, 0, "r0c0")
    router = net.router()
    with pytest.raises(RoutingError, match=rf"no path from '{C0}\.noc\.r0c1' to '{pe0}\.pe_dma' for host") as caught:
        router.find_memory_path(f"{C0}.noc.r0c1", f"{pe0}.pe_dma")
    assert "reaches no PE" in str(caught.value.hint)


def test_unknown_nodes_are_errors() -> None:
    net = Net()
    net.mesh(C0, 2, 1)
    pe0 = net.pe(C0, 0, "r0c0")
    router = net.router()
    here = f"{C0}.noc.r0c0"
    for src, dst in ((here, "nowhere"), ("nowhere", here)):
        for find in (router.find_node_path, router.find_memory_path):
            with pytest.raises(RoutingError, match="no node 'nowhere'"):
                find(src, dst)
    with pytest.raises(RoutingError, match=r"no node 'sip0\.cube0\.pe9\.pe_dma'"):
        router.find_path(f"{C0}.pe9", here)
    for bad in (f"{pe0}.pe_dma", C0, "", "host", f"{pe0}."):
        with pytest.raises(RoutingError, match="is not a PE"):
            router.find_path(bad, here)
    with pytest.raises(RoutingError, match="no link"):
        router.links([here, f"{pe0}.pe_tcm"])


def test_a_node_is_zero_from_itself() -> None:
    net = Net()
    net.mesh(C0, 2, 1)
    pe0 = net.pe(C0, 0, "r0c0")
    assert net.router().find_path_with_distance(pe0, f"{pe0}.pe_dma") == ([f"{pe0}.pe_dma"], 0.0)


def test_a_path_that_was_handed_out_can_be_changed_without_harm() -> None:
    net = Net()
    net.mesh(C0, 3, 1)
    router = net.router()
    ends = f"{C0}.noc.r0c0", f"{C0}.noc.r0c2"
    first = router.find_node_path(*ends)
    expected = list(first)
    first.clear()
    assert router.find_node_path(*ends) == expected
