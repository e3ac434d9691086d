"""Direct links between SIPs: who is joined, which way bytes take, what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest

from kernbench.common.errors import TopologyError
from kernbench.policy.routing.router import PathRouter
from kernbench.report.diagrams.views import machine_views
from kernbench.report.machine_facts import machine_facts_of
from kernbench.report.machine_facts_text import machine_facts_as_text
from kernbench.topology import load_topology
from kernbench.topology.graph import EdgeKind, TopologyGraph
from kernbench.topology.machine_hash import machine_hash
from kernbench.topology.sip_links import sides_between

LINK = {"bw_gbs": 12.5, "distance_mm": 100.0}
PORT = {"kind": "sip_port", "impl": "builtin.sip_port"}
CUT_THROUGH = {"kind": "sip_port", "impl": "builtin.forwarding"}
ONE_CUBE = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
GRIDS = {
    "ring": {"system.sips.count": 8, "system.sips.topology": "ring_1d"},
    "line": {"system.sips.count": 8, "system.sips.topology": "mesh_2d_no_wrap", "system.sips.w": 8, "system.sips.h": 1},
    "mesh": {"system.sips.count": 6, "system.sips.topology": "mesh_2d_no_wrap", "system.sips.w": 3, "system.sips.h": 2},
    "torus": {"system.sips.count": 12, "system.sips.topology": "torus_2d", "system.sips.w": 4, "system.sips.h": 3},
    "ring of two": {"system.sips.count": 2, "system.sips.topology": "ring_1d"},
}


def tray(name: str, **link: object) -> TopologyGraph:
    return load_topology(None, {**ONE_CUBE, **GRIDS[name], "system.sips.links": {**LINK, **link}})


def joined(graph: TopologyGraph) -> list[tuple[int, int]]:
    links = [edge for edge in graph.edges if edge.kind is EdgeKind.SIP_LINK]
    return [(graph.node(edge.src).place.sip, graph.node(edge.dst).place.sip) for edge in links]


@pytest.mark.parametrize(
    ("name", "links"), [("ring", 16), ("line", 14), ("mesh", 14), ("torus", 48), ("ring of two", 4)]
)
def test_neighbours_are_joined_both_ways(name: str, links: int) -> None:
    found = joined(tray(name))
    assert len(found) == links
    assert sorted(found) == sorted((b, a) for a, b in found)


def test_a_ring_joins_the_last_sip_with_the_first_and_a_line_does_not() -> None:
    assert (7, 0) in joined(tray("ring"))
    assert (7, 0) not in joined(tray("line"))


def sips_on(graph: TopologyGraph, src: int, dst: int) -> list[int]:
    path = PathRouter(graph).find_path(f"sip{src}.cube0.pe0", f"sip{dst}.cube0.hbm_ctrl.pe1")
    for a, b in pairwise(path):
        graph.edge(a, b)
    return list(dict.fromkeys(graph.node(node).place.sip for node in path))


@pytest.mark.parametrize(
    ("name", "src", "dst", "through"),
    [
        ("ring", 6, 1, [6, 7, 0, 1]),
        ("ring", 1, 6, [1, 0, 7, 6]),
        ("ring", 0, 4, [0, 1, 2, 3, 4]),  # equally long: towards rising numbers
        ("line", 6, 1, [6, 5, 4, 3, 2, 1]),
        ("mesh", 0, 5, [0, 1, 2, 5]),  # along x, then along y
        ("mesh", 5, 0, [5, 4, 3, 0]),
        ("torus", 0, 11, [0, 3, 11]),  # both around the edge
        ("ring of two", 1, 0, [1, 0]),
    ],
)
def test_bytes_pass_the_sips_on_the_shortest_way(name: str, src: int, dst: int, through: list[int]) -> None:
    assert sips_on(tray(name), src, dst) == through


@pytest.mark.parametrize("name", list(GRIDS))
def test_every_way_has_as_many_links_as_there_are_steps(name: str) -> None:
    sips = tray(name).spec.system.sips
    w, h = sips.linked_grid
    for src in range(sips.count):
        for dst in range(sips.count):
            steps = [abs(dst % w - src % w), abs(dst // w - src // w)]
            if sips.wraps:
                steps = [min(step, size - step) for step, size in zip(steps, (w, h), strict=True)]
            assert len(sides_between(sips, src, dst)) == sum(steps)


def test_commands_between_sips_take_the_links_too_and_the_host_takes_the_switch() -> None:
    graph = tray("line")
    router = PathRouter(graph)
    command = router.find_node_path("sip0.cube0.pe0.pe_dma", "sip2.cube0.pe0.pe_ipcq")
    assert not any(node in ("fabric.switch0", "host") for node in command)
    assert "sip1.io0.io_noc" in command
    host = router.find_node_path("host", "sip7.cube0.m_cpu")
    assert host[1] == "fabric.switch0"
    assert not any("sip_port" in node for node in host)


def test_bytes_inside_a_sip_never_leave_it() -> None:
    graph = tray("ring")
    assert sips_on(graph, 3, 3) == [3]


@pytest.mark.needs("shipped", reason="the fingerprint of the shipped machine")
def test_the_machine_that_ships_has_no_direct_links_and_the_fingerprint_it_had() -> None:
    spec = load_topology(None).spec
    assert machine_hash(spec) == "642e703b2d236af7"
    assert machine_hash(spec) != machine_hash(load_topology(None, {"system.sips.links": LINK}).spec)
    packets = {"sip.links.cube_to_cube.header_bytes": 20, "sip.links.cube_to_cube.payload_bytes": 236}
    assert machine_hash(spec) != machine_hash(load_topology(None, packets).spec)


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ({"system.sips.count": 1, "system.sips.links": LINK}, "direct links of a tray with one SIP"),
        (
            {"system.sips.links": {**LINK, "port": {**CUT_THROUGH, "attrs": {}}}, "fabric.buffers": {"slots": 4}},
            "rings of SIPs could wait for ever",
        ),
        ({"system.sips.links": {**LINK, "header_bytes": 8}}, "headers of 8 bytes, but no length"),
        ({"system.links.host_to_switch.payload_bytes": 256}, "packets without a header change nothing"),
        ({"system.sips.links": {"bw_gbs": 1.0}}, "distance_mm"),
        (
            {"system.sips.links": {**LINK, "port": {**CUT_THROUGH, "attrs": {"overhead_ns": 0, "slots": 4}}}},
            "slots for",
        ),
        (
            {"system.sips.links": {**LINK, "port": {**PORT, "attrs": {"overhead_ns": 0, "credit_ns": 4}}}},
            "without slots",
        ),
        ({"system.sips.links": {**LINK, "port": {**PORT, "attrs": {"slots": 4}}}}, "needs the attr 'overhead_ns'"),
    ],
)
def test_settings_that_contradict_each_other_or_do_nothing_are_faults(overrides: dict[str, object], match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        load_topology(None, overrides)


def test_the_picture_of_the_tray_shows_the_links() -> None:
    view = machine_views(tray("ring").spec)["system"]
    links = [(edge.src, edge.dst) for edge in view.edges if edge.kind is EdgeKind.SIP_LINK]
    assert links == [("sip0", "sip1"), ("sip0", "sip7"), *((f"sip{n}", f"sip{n + 1}") for n in range(1, 7))]
    switch = next(node for node in view.nodes if node.kind == "switch")
    assert "logical" not in switch.detail
    two = machine_views(tray("ring of two").spec)["system"]
    assert [edge.label for edge in two.edges if edge.kind is EdgeKind.SIP_LINK] == ["2 x 12.5 GB/s"]


@pytest.mark.parametrize(
    ("name", "gbs"), [("ring", 2 * 12.5), ("line", 12.5), ("torus", 10 * 12.5), ("ring of two", 2 * 12.5)]
)
def test_the_summary_counts_direct_links_across_the_middle(name: str, gbs: float) -> None:
    """Of a torus of 4 x 3, 0 to 5 and 6 to 11: two links along the second row, eight between rows."""
    graph = tray(name)
    summary = machine_facts_of(graph)
    assert "of direct links" in machine_facts_as_text(summary, graph.spec)
    assert summary.bandwidth_gbs["tray_bisection"] == gbs
