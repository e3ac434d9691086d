"""The shipped machine, laid out by hand: where things are, how far apart, how wide the links are."""

from collections import Counter

import pytest

from kernbench.common.ids import Place
from kernbench.topology import EdgeKind, TopologyGraph, build_mesh, load_spec, load_topology, mesh_as_yaml


@pytest.fixture(scope="module")
def graph() -> TopologyGraph:
    return load_topology()


def test_columns_are_pes_at_both_sides_and_two_relays_between() -> None:
    mesh = build_mesh(load_spec().cube)
    # PEs at 1.5 and 1.5 + 2.0, mirrored at 14 - 3.5 and 14 - 1.5; the gap of 7.0 is cut into 3 pieces of at most 3.0
    assert mesh.xs == pytest.approx([1.5, 3.5, 3.5 + 7 / 3, 3.5 + 14 / 3, 10.5, 12.5], abs=1e-6)


def test_rows_are_two_pe_rows_two_hbm_rows_and_their_mirror() -> None:
    mesh = build_mesh(load_spec().cube)
    # HBM rows at 7 -+ 1.5; the last PE row 1.5 above: 4.0; the first at the margin: 1.5
    assert mesh.ys == (1.5, 4.0, 5.5, 8.5, 10.0, 12.5)


def test_the_hbm_hole_is_the_middle_of_the_mesh() -> None:
    mesh = build_mesh(load_spec().cube)
    assert mesh.hole == ((2, 2), (2, 3), (3, 2), (3, 3))
    assert len(mesh.routers) == 6 * 6 - 4


def test_pes_sit_two_in_each_corner_on_a_row_of_their_own() -> None:
    mesh = build_mesh(load_spec().cube)
    assert mesh.pes == ((0, 0), (0, 1), (1, 4), (1, 5), (4, 0), (4, 1), (5, 4), (5, 5))
    assert (mesh.m_cpu, mesh.sram) == ((2, 0), (3, 0))


def test_ucie_connections_sit_on_the_pe_rows_and_the_outer_columns() -> None:
    conns = build_mesh(load_spec().cube).conns
    assert conns["N"] == ((0, 0), (0, 1), (0, 4), (0, 5))
    assert conns["S"] == ((5, 0), (5, 1), (5, 4), (5, 5))
    assert conns["E"] == ((0, 5), (1, 5), (4, 5), (5, 5))
    assert conns["W"] == ((0, 0), (1, 0), (4, 0), (5, 0))


def test_the_dumped_mesh_names_every_router_with_what_hangs_on_it() -> None:
    dump = mesh_as_yaml(build_mesh(load_spec().cube))
    assert "r0c0: { pos_mm: [1.5, 1.5], attach: [pe0.dma, pe0.cpu, pe0.hbm, ucie_n.c0, ucie_w.c0] }" in dump
    assert "r2c0: { pos_mm: [1.5, 5.5], attach: [m_cpu] }" in dump
    assert "r2c2:" not in dump
    assert dump.count("pos_mm") == 32


@pytest.mark.needs("shipped", reason="counts of the shipped machine's nodes and links")
def test_a_cube_has_134_nodes_and_the_tray_4336(graph: TopologyGraph) -> None:
    kinds = Counter(node.kind for node in graph.nodes.values() if node.place.cube == 3 and node.place.sip == 1)
    # 32 routers, 8 PEs x 9 parts, 8 hbm_ctrl, m_cpu, sram, 4 ports, 16 connections
    assert sum(kinds.values()) == 32 + 72 + 8 + 2 + 4 + 16
    assert kinds["noc_router"] == 32
    assert kinds["pe_tcm"] == kinds["hbm_ctrl"] == 8
    # an IO chiplet: pcie_ep, io_cpu, io_noc, 4 PHYs x (1 + 4 connections); plus host and switch
    assert len(graph.nodes) == 2 * (16 * 134 + 3 + 4 * 5) + 2


def test_every_link_has_both_directions_of_one_length(graph: TopologyGraph) -> None:
    assert len(graph.edge_map) == len(graph.edges)
    for edge in graph.edges:
        assert graph.edge(edge.dst, edge.src).distance_mm == edge.distance_mm


@pytest.mark.needs("shipped", reason="counts of the shipped machine's nodes and links")
def test_an_edge_per_kind_has_the_width_of_the_table(graph: TopologyGraph) -> None:
    c = "sip0.cube0"
    wanted = {
        ("host", "fabric.switch0"): (EdgeKind.PCIE, 128.0),
        ("fabric.switch0", "sip1.io0.pcie_ep"): (EdgeKind.PCIE, 128.0),
        ("sip0.io0.pcie_ep", "sip0.io0.io_noc"): (EdgeKind.IO_INTERNAL, 256.0),
        ("sip0.io0.io_cpu", "sip0.io0.io_noc"): (EdgeKind.IO_INTERNAL, None),
        ("sip0.io0.io_noc", "sip0.io0.conn.P2.3"): (EdgeKind.IO_INTERNAL, 128.0),
        ("sip0.io0.conn.P2.3", "sip0.io0.io_ucie.P2"): (EdgeKind.IO_INTERNAL, 128.0),
        ("sip0.io0.io_ucie.P2", "sip0.cube2.ucie-N"): (EdgeKind.IO_TO_CUBE, 512.0),
        ("sip0.cube2.ucie-N", "sip0.io0.io_ucie.P2"): (EdgeKind.CUBE_TO_IO, 512.0),
        (f"{c}.ucie-E", "sip0.cube1.ucie-W"): (EdgeKind.UCIE_MESH, 512.0),
        (f"{c}.ucie-S", "sip0.cube4.ucie-N"): (EdgeKind.UCIE_MESH, 512.0),
        (f"{c}.noc.r0c5", f"{c}.ucie-E.conn0"): (EdgeKind.ROUTER_TO_UCIE_CONN, 128.0),
        (f"{c}.ucie-E.conn0", f"{c}.noc.r0c5"): (EdgeKind.UCIE_CONN_TO_ROUTER, 128.0),
        (f"{c}.ucie-E.conn0", f"{c}.ucie-E"): (EdgeKind.UCIE_INTERNAL, 128.0),
        (f"{c}.noc.r0c0", f"{c}.noc.r0c1"): (EdgeKind.ROUTER_MESH, 256.0),
        (f"{c}.noc.r1c4", f"{c}.hbm_ctrl.pe2"): (EdgeKind.ROUTER_TO_HBM, 256.0),
        (f"{c}.sram", f"{c}.noc.r3c0"): (EdgeKind.ROUTER_TO_SRAM, 128.0),
        (f"{c}.m_cpu", f"{c}.noc.r2c0"): (EdgeKind.COMMAND, 128.0),
        (f"{c}.noc.r0c0", f"{c}.pe0.pe_cpu"): (EdgeKind.COMMAND, None),
        (f"{c}.pe0.pe_mmu", f"{c}.noc.r0c0"): (EdgeKind.COMMAND, None),
        (f"{c}.pe0.pe_dma", f"{c}.noc.r0c0"): (EdgeKind.PE_TO_ROUTER, 256.0),
        (f"{c}.pe0.pe_dma", f"{c}.pe0.pe_tcm"): (EdgeKind.PE_INTERNAL, 512.0),
        (f"{c}.pe0.pe_cpu", f"{c}.pe0.pe_scheduler"): (EdgeKind.PE_INTERNAL, None),
    }
    for (src, dst), (kind, bw_gbs) in wanted.items():
        edge = graph.edge(src, dst)
        assert (edge.kind, edge.bw_gbs) == (kind, bw_gbs), f"{src} -> {dst}"


@pytest.mark.needs("n_to_one", reason="figures of the shipped machine")
def test_distances_are_those_of_the_layout(graph: TopologyGraph) -> None:
    def mm(src: str, dst: str) -> float:
        return graph.edge(src, dst).distance_mm

    c = "sip0.cube0"
    assert mm(f"{c}.noc.r0c0", f"{c}.noc.r0c1") == 2.0
    assert mm(f"{c}.noc.r0c0", f"{c}.noc.r1c0") == 2.5
    assert mm(f"{c}.noc.r2c0", f"{c}.noc.r3c0") == 3.0
    # from r0c0 at (1.5, 1.5) to the middle of the north edge at (7, 0), along x and y
    assert mm(f"{c}.ucie-N.conn0", f"{c}.ucie-N") == 5.5 + 1.5
    assert mm(f"{c}.ucie-N.conn1", f"{c}.ucie-N") == 3.5 + 1.5
    # from r1c5 at (12.5, 4.0) to the middle of the east edge at (14, 7)
    assert mm(f"{c}.ucie-E.conn1", f"{c}.ucie-E") == 3.0 + 1.5
    assert mm(f"{c}.noc.r0c0", f"{c}.hbm_ctrl.pe0") == mm(f"{c}.pe0.pe_dma", f"{c}.noc.r0c0") == 0.0
    assert mm(f"{c}.ucie-E", "sip0.cube1.ucie-W") == 1.0
    assert mm("sip0.io0.io_ucie.P0", f"{c}.ucie-N") == 2.0
    # a chiplet of 10 x 4: io_noc in the middle (5, 2); PHY 0 of 4 at (1.25, 4): 3.75 + 2
    assert mm("sip0.io0.io_noc", "sip0.io0.conn.P0.0") == 5.75
    assert mm("sip0.io0.io_noc", "sip0.io0.conn.P1.0") == 1.25 + 2.0


def test_a_way_through_a_ucie_port_is_longer_than_the_mesh_beside_it(graph: TopologyGraph) -> None:
    c = "sip0.cube0"
    across = sum(graph.edge(f"{c}.noc.r0c{i}", f"{c}.noc.r0c{i + 1}").distance_mm for i in range(5))
    through = 2 * graph.edge(f"{c}.ucie-N.conn0", f"{c}.ucie-N").distance_mm
    assert across == 11.0
    assert through == 14.0


@pytest.mark.needs("n_to_one", reason="figures of the shipped machine")
def test_nodes_carry_place_position_and_parameters(graph: TopologyGraph) -> None:
    hbm = graph.node("sip1.cube5.hbm_ctrl.pe6")
    assert hbm.place == Place(sip=1, cube=5)
    assert graph.node("sip1.cube5.pe6.pe_dma").place == Place(sip=1, cube=5, pe=6)
    assert (hbm.x_mm, hbm.y_mm) == (10.5, 12.5)
    assert dict(hbm.attrs) == {
        "overhead_ns": 0.0,
        "burst_bytes": 256,
        "switch_penalty_ns": 0.0,
        "efficiency": 1.0,
        "num_pcs": 8,
        "pc_bw_gbs": 32.0,
        "slice_bytes": 6 << 30,
    }
    assert graph.node("sip0.cube0.sram").attrs["size_bytes"] == 32 << 20
    assert graph.node("sip0.cube0.pe0.pe_tcm").attrs["size_bytes"] == 2 << 20
    assert graph.node("sip0.io0.io_cpu").place == Place(sip=0, io="io0")
    assert graph.node("sip0.io0.io_cpu").overhead_ns == 10.0
    port = graph.node("sip0.cube0.ucie-S")
    assert (port.x_mm, port.y_mm) == (7.0, 14.0)
    for node in graph.nodes.values():
        assert node.place == Place.of(node.id)


def test_derived_sizes_are_those_of_the_table() -> None:
    spec = load_spec()
    assert (spec.n_sips, spec.n_cubes, spec.n_pes) == (2, 32, 256)
    assert (spec.cube.hbm_slices, spec.cube.hbm_pseudo_channels, spec.cube.hbm_channels_per_pe) == (8, 64, 8)
    assert spec.cube.hbm_link_bw_gbs == 8 * 32.0
    assert spec.cube.tcm_allocatable_bytes == 1 << 20
    assert spec.system.sips.grid == (2, 1)


@pytest.mark.needs("n_to_one", reason="figures of the shipped machine")
def test_efficiency_narrows_the_channels_and_their_link() -> None:
    graph = load_topology(overrides={"cube.components.hbm_ctrl.attrs.efficiency": 0.75})
    assert graph.edge("sip0.cube0.noc.r0c0", "sip0.cube0.hbm_ctrl.pe0").bw_gbs == 192.0
    assert graph.node("sip0.cube0.hbm_ctrl.pe0").attrs["pc_bw_gbs"] == 24.0


def test_the_same_description_gives_the_same_graph() -> None:
    one, two = load_topology(), load_topology()
    assert list(one.nodes) == list(two.nodes)
    assert one.edges == two.edges
