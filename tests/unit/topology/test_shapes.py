"""Machines of many shapes: each compiles, is one connected whole, and is drawn without overlaps."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.errors import TopologyError
from kernbench.report.diagrams.view import MachineView
from kernbench.report.diagrams.views import CONTAINER_KINDS, machine_views
from kernbench.topology import TopologyGraph, build_mesh, load_spec, load_topology

SHAPES: dict[str, dict[str, object]] = {
    "one of everything": {
        "system.sips.count": 1,
        "sip.cube_mesh": {"w": 1, "h": 1},
        "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
        "cube.ucie.n_connections": 1,
        "io_chiplet.n_connections": 1,
    },
    "sixteen SIPs of one cube": {"system.sips.count": 16, "sip.cube_mesh": {"w": 1, "h": 1}},
    "a torus": {"system.sips": {"count": 6, "topology": "torus_2d", "w": 3, "h": 2}, "sip.cube_mesh": {"w": 2, "h": 1}},
    "a row of cubes": {"sip.cube_mesh": {"w": 16, "h": 1}, "system.sips.count": 1},
    "a column of cubes": {"sip.cube_mesh": {"w": 1, "h": 7}, "system.sips.count": 1},
    "four PEs": {"cube.pe_layout.pe_per_corner": 1},
    "sixteen PEs": {"cube.pe_layout.pe_per_corner": 4},
    "three PEs": {"cube.pe_layout": {"corners": ["SE", "NW", "SW"], "pe_per_corner": 1}},
    "seven PEs in one corner": {"cube.pe_layout": {"corners": ["SW"], "pe_per_corner": 7}},
    "four chiplets on four sides": {
        "sip.io_chiplets": [{"id": f"io{n}", "side": side} for n, side in enumerate("NSEW")],
        "sip.cube_mesh": {"w": 3, "h": 2},
    },
    "three chiplets on one side": {"sip.io_chiplets": [{"id": f"io{n}", "side": "E"} for n in range(3)]},
    "a chiplet with named ports": {
        "sip.io_chiplets": [
            {"id": "io7", "side": "S", "cube_ports": [{"cube": {"xy": [2, 3]}, "phy": "A", "distance_mm": 5}]}
        ]
    },
    "eight connections": {"cube.ucie.n_connections": 8},
    "three connections": {"cube.ucie.n_connections": 3},
    "a small die": {"cube.geometry.cube_mm": {"w": 10, "h": 10}},
    "a wide die": {"cube.geometry.cube_mm": {"w": 31, "h": 12}},
    "a die of one column": {
        "cube.geometry": {"cube_mm": {"w": 3, "h": 14}, "hbm_mm": {"w": 1, "h": 1}},
        "cube.pe_layout": {"corners": ["NW", "SW"], "pe_per_corner": 1},
    },
    "many channels": {"cube.memory_map.hbm_channels_per_pe": 32},
}


def connected(graph: TopologyGraph) -> bool:
    ways: dict[str, list[str]] = {node: [] for node in graph.nodes}
    for edge in graph.edges:
        ways[edge.src].append(edge.dst)
    seen, queue = {"host"}, deque(["host"])
    while queue:
        for there in ways[queue.popleft()]:
            if there not in seen:
                seen.add(there)
                queue.append(there)
    return len(seen) == len(graph.nodes)


def overlaps(view: MachineView) -> list[tuple[str, str]]:
    boxes = [node for node in view.nodes if node.kind not in CONTAINER_KINDS]
    found = []
    for i, a in enumerate(boxes):
        for b in boxes[:i]:
            apart_x = abs(a.x_mm - b.x_mm) - (a.w_mm + b.w_mm) / 2
            apart_y = abs(a.y_mm - b.y_mm) - (a.h_mm + b.h_mm) / 2
            if max(apart_x, apart_y) < -1e-9:
                found.append((a.id, b.id))
    return found


def outside(view: MachineView) -> list[str]:
    return [
        n.id
        for n in view.nodes
        if n.x_mm - n.w_mm / 2 < -1e-9
        or n.y_mm - n.h_mm / 2 < -1e-9
        or n.x_mm + n.w_mm / 2 > view.w_mm + 1e-9
        or n.y_mm + n.h_mm / 2 > view.h_mm + 1e-9
    ]


@pytest.mark.parametrize("overrides", SHAPES.values(), ids=SHAPES.keys())
def test_a_machine_of_any_shape_is_connected_and_drawn_apart(overrides: dict[str, object]) -> None:
    graph = load_topology(overrides=overrides)
    assert connected(graph)
    for view in machine_views(graph.spec).values():
        assert overlaps(view) == []
        assert outside(view) == []
        names = {node.id for node in view.nodes}
        assert len(names) == len(view.nodes)
        assert all(edge.src in names and edge.dst in names for edge in view.edges)


@settings(max_examples=15, deadline=None)
@given(
    corners=st.lists(st.sampled_from(["NW", "NE", "SW", "SE"]), min_size=1, max_size=4, unique=True),
    per_corner=st.integers(1, 5),
    connections=st.integers(1, 8),
    w=st.integers(5, 40),
    h=st.integers(8, 30),
)
def test_a_cube_that_loads_has_a_router_for_everything(
    corners: list[str], per_corner: int, connections: int, w: int, h: int
) -> None:
    overrides = {
        "system.sips.count": 1,
        "sip.cube_mesh": {"w": 1, "h": 1},
        "cube.pe_layout": {"corners": corners, "pe_per_corner": per_corner},
        "cube.ucie.n_connections": connections,
        "cube.geometry.cube_mm": {"w": w, "h": h},
    }
    try:
        graph = load_topology(overrides=overrides)
    except TopologyError:
        return  # not every mix fits on every die; test_faults.py has those
    mesh = build_mesh(graph.spec.cube)
    routers = set(mesh.routers)
    assert len(set(mesh.pes)) == graph.spec.cube.n_pes == len(corners) * per_corner
    assert routers.issuperset(mesh.pes)
    assert {mesh.m_cpu, mesh.sram} <= routers
    assert all(len(slots) == connections and routers.issuperset(slots) for slots in mesh.conns.values())
    assert list(mesh.xs) == sorted(set(mesh.xs))
    assert list(mesh.ys) == sorted(set(mesh.ys))
    assert connected(graph)
    assert overlaps(machine_views(graph.spec)["cube"]) == []


@pytest.mark.parametrize(("connections", "rows"), [(1, 4), (2, 4), (3, 6), (4, 6), (5, 8), (8, 10)])
def test_rows_grow_with_the_ucie_connections(connections: int, rows: int) -> None:
    # two HBM rows, and ceil(max(n, 2) / 2) PE rows above and below
    assert len(build_mesh(load_spec(overrides={"cube.ucie.n_connections": connections}).cube).ys) == rows


def test_several_chiplets_on_a_side_share_its_cubes() -> None:
    two = [{"id": "io0", "side": "N"}, {"id": "io1", "side": "N"}]
    graph = load_topology(overrides={"sip.io_chiplets": two})
    assert graph.edge("sip0.io0.io_ucie.P1", "sip0.cube1.ucie-N").distance_mm == 2.0
    assert graph.edge("sip0.io1.io_ucie.P0", "sip0.cube2.ucie-N").distance_mm == 2.0


def test_chiplets_stand_on_the_side_they_name() -> None:
    graph = load_topology(overrides={"sip.cube_mesh": {"w": 3, "h": 2}, "sip.io_chiplets.0.side": "E"})
    # the east column of a 3 x 2 mesh is cubes 2 and 5
    assert graph.edge("sip0.io0.io_ucie.P0", "sip0.cube2.ucie-E")
    assert graph.edge("sip0.io0.io_ucie.P1", "sip0.cube5.ucie-E")
    box = {node.id: node for node in machine_views(graph.spec)["sip"].nodes}
    assert box["sip0.io0"].x_mm > box["sip0.cube2"].x_mm


def test_an_odd_number_of_columns_keeps_the_hole_in_the_middle() -> None:
    mesh = build_mesh(load_spec(overrides={"cube.pe_layout.pe_per_corner": 1}).cube)
    # columns at 1.5 and 12.5, and 11 / 4 apart between them
    assert mesh.xs == (1.5, 4.25, 7.0, 9.75, 12.5)
    assert mesh.hole == ((2, 2), (3, 2))


def test_a_slice_of_an_uneven_hbm_is_whole_mebibytes() -> None:
    spec = load_spec(overrides={"cube.pe_layout": {"corners": ["SW"], "pe_per_corner": 7}})
    # 48 GiB / 7 = 7021.71 MiB
    assert spec.cube.hbm_slice_bytes == 7021 << 20


def test_a_grid_without_sizes_is_a_square() -> None:
    spec = load_spec(overrides={"system.sips.count": 9, "system.sips.topology": "mesh_2d_no_wrap"})
    assert spec.system.sips.grid == (3, 3)


def test_sixteen_sips_hold_each_set_of_parameters_once() -> None:
    graph = load_topology(overrides={"system.sips.count": 16, "sip.cube_mesh": {"w": 2, "h": 2}})
    routers = [node for node in graph.nodes.values() if node.kind == "noc_router"]
    assert len(routers) == 16 * 4 * 32
    assert len({id(node.attrs) for node in routers}) == 1
    with pytest.raises(TypeError):
        routers[0].attrs["overhead_ns"] = 1.0  # type: ignore[index]  # the point: it cannot be done
