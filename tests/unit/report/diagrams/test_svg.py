"""Pictures of machines of many shapes: well formed, the same twice, every label in its place."""

import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from itertools import pairwise
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernbench.common.engine_declaration import COMPUTE_WIRES, SELF, EngineDeclaration, Wire
from kernbench.common.errors import TopologyError
from kernbench.components.builtin.pe_compute import ComputeEngine
from kernbench.report.diagrams.svg import Picture, picture_of, render_svg
from kernbench.report.diagrams.svg_layout import DrawnBox, DrawnLine, is_outline, is_zone
from kernbench.report.diagrams.svg_legend import link_entries
from kernbench.report.diagrams.svg_route import crosses, link_points
from kernbench.report.diagrams.svg_style import COMPUTE, MOVER, link_px, link_style, role_of
from kernbench.report.diagrams.svg_text import READABLE_PX, Rect, Tag, fitted, shortened, width_px, wrapped
from kernbench.report.diagrams.view import MachineView, ViewEdge, ViewNode
from kernbench.report.diagrams.views import machine_views
from kernbench.topology import EdgeKind, TopologyGraph, load_topology

SVG = "{http://www.w3.org/2000/svg}"
PX = 0.01  # rounding

MACHINES: dict[str, dict[str, object]] = {
    "the shipped machine": {},
    "logical addresses and a router for each channel": {
        "system.address_model": "la",
        "cube.memory_map.hbm_mapping_mode": "one_to_one",
    },
    "64 channels with routers": {
        "cube.memory_map.hbm_mapping_mode": "one_to_one",
        "cube.memory_map.hbm_channels_per_pe": 64,
        "cube.pe_layout.pe_per_corner": 4,
    },
    "one of everything": {
        "system.sips.count": 1,
        "sip.cube_mesh": {"w": 1, "h": 1},
        "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 1},
        "cube.ucie.n_connections": 1,
        "io_chiplet.n_connections": 1,
    },
    "sixteen SIPs, sixteen PEs": {"system.sips.count": 16, "cube.pe_layout.pe_per_corner": 4},
    "3 x 2 cubes, chiplets north and east": {
        "sip.cube_mesh": {"w": 3, "h": 2},
        "sip.io_chiplets": [{"id": "io0", "side": "N"}, {"id": "io1", "side": "E"}],
    },
    "a row of cubes, eight connections": {"sip.cube_mesh": {"w": 16, "h": 1}, "cube.ucie.n_connections": 8},
    "a column of cubes, four chiplets": {
        "sip.cube_mesh": {"w": 1, "h": 16},
        "sip.io_chiplets": [{"id": f"io{n}", "side": "W"} for n in range(4)],
        "cube.ucie.n_connections": 3,
    },
    "chiplets on four sides, crowded cubes": {
        "sip.cube_mesh": {"w": 2, "h": 2},
        "sip.io_chiplets": [{"id": f"io{n}", "side": side} for n, side in enumerate("NSEW")],
        "cube.ucie.n_connections": 8,
        "cube.pe_layout.pe_per_corner": 4,
    },
    "seven PEs in one corner": {"cube.pe_layout": {"corners": ["SW"], "pe_per_corner": 7}},
    "a die of one column": {
        "cube.geometry": {"cube_mm": {"w": 3, "h": 14}, "hbm_mm": {"w": 1, "h": 1}},
        "cube.pe_layout": {"corners": ["NW", "SW"], "pe_per_corner": 1},
    },
    "a wide die": {"cube.geometry.cube_mm": {"w": 31, "h": 12}},
    "a port round the corner, a long name": {
        "system.name": "a machine with a name of sixty letters, no more and no less."[:60].replace(",", ""),
        "sip.io_chiplets": [
            {
                "id": "io7",
                "side": "S",
                "cube_ports": [
                    {"cube": {"xy": [2, 3]}, "phy": "A"},
                    {"cube": {"xy": [3, 1]}, "cube_side": "E", "phy": "LONG_PHY_NAME_01"},
                ],
            }
        ],
    },
}


FURTHER = {"impl": "test_svg_engines:Engine"}
MACHINES |= {
    f"{n} further engines": {f"cube.pe_template.components.pe_unit{at}": FURTHER for at in range(n)} for n in (1, 2, 5)
}


class Engine(ComputeEngine):
    declaration = EngineDeclaration(wires=COMPUTE_WIRES)


class Prefetcher(ComputeEngine):
    declaration = EngineDeclaration(
        wires=(Wire("pe_cpu", SELF, "control"), Wire(SELF, "pe_tcm", "data")), role="data mover"
    )


@pytest.fixture(scope="module", autouse=True)
def _engines() -> Iterator[None]:
    module = ModuleType("test_svg_engines")
    module.Engine, module.Prefetcher = Engine, Prefetcher  # type: ignore[attr-defined]  # a module made for the test
    sys.modules["test_svg_engines"] = module
    yield
    del sys.modules["test_svg_engines"]


@pytest.fixture(scope="module", params=MACHINES.values(), ids=MACHINES.keys())
def graph(request: pytest.FixtureRequest) -> TopologyGraph:
    return load_topology(overrides=request.param)


def solid_boxes(view: MachineView, picture: Picture) -> dict[str, Rect]:
    """The boxes that stand for one component, by its name."""
    open_ = [node.id for node in view.nodes if is_outline(node) or is_zone(node)]
    named = {s.about.split(": ")[0]: s.rect for s in picture.shapes if isinstance(s, DrawnBox) and s.about}
    assert sorted(named) == sorted(node.id for node in view.nodes)
    return {name: rect for name, rect in named.items() if name not in open_}


def test_every_view_is_well_formed_and_the_same_twice(graph: TopologyGraph) -> None:
    again = load_topology(graph.spec)
    for name, view in machine_views(graph.spec).items():
        text = render_svg(view, graph.spec)
        assert text == render_svg(machine_views(again.spec)[name], again.spec)
        root = ET.fromstring(text)
        assert root.tag == f"{SVG}svg"
        assert root.findtext(f"{SVG}title") == view.title
        # a rectangle for each node, one for the paper, and the swatches of the legend
        assert len(root.findall(f"{SVG}rect")) > len(view.nodes) + 1


def test_every_node_has_its_label_inside_its_box(graph: TopologyGraph) -> None:
    for view in machine_views(graph.spec).values():
        picture = picture_of(view, graph.spec)
        boxes = solid_boxes(view, picture)
        first = {text.owner: text for text in reversed(picture.texts) if text.owner}
        for node in view.nodes:
            words = first[node.id].words
            short = words.removesuffix("…")
            assert words.startswith(node.label) or (words != short and len(short) >= 3 and node.label.startswith(short))
        for text in picture.texts:
            if text.owner in boxes:
                assert boxes[text.owner].holds(text.rect), text


def test_words_overlap_neither_each_other_nor_a_box_nor_the_edge(graph: TopologyGraph) -> None:
    for view in machine_views(graph.spec).values():
        picture = picture_of(view, graph.spec)
        canvas, boxes = Rect(0, 0, picture.w, picture.h), solid_boxes(view, picture)
        for n, text in enumerate(picture.texts):
            assert canvas.holds(text.rect), text
            assert [other.words for other in picture.texts[:n] if text.rect.overlaps(other.rect, PX)] == [], text
            assert [name for name, box in boxes.items() if name != text.owner and text.rect.overlaps(box, PX)] == [], (
                text
            )


def test_boxes_do_not_overlap_and_no_link_runs_under_one(graph: TopologyGraph) -> None:
    for view in machine_views(graph.spec).values():
        picture = picture_of(view, graph.spec)
        boxes = solid_boxes(view, picture)
        names = list(boxes)
        overlaps = [(a, b) for n, a in enumerate(names) for b in names[:n] if boxes[a].overlaps(boxes[b], PX)]
        assert overlaps == []
        links = [shape for shape in picture.shapes if isinstance(shape, DrawnLine) and shape.about]
        assert len(links) == len(view.edges)
        for link in links:
            ends = link.about.split(": ")[0].split(" - ")
            others = [boxes[name] for name in names if name not in ends]
            assert not any(crosses(box, a, b) for a, b in pairwise(link.points) for box in others), link.about


@settings(max_examples=10, deadline=None)
@given(
    corners=st.lists(st.sampled_from(["NW", "NE", "SW", "SE"]), min_size=1, max_size=4, unique=True),
    per_corner=st.integers(1, 5),
    connections=st.integers(1, 8),
    w=st.integers(6, 40),
    h=st.integers(9, 30),
    m_cpu=st.tuples(st.integers(0, 6), st.integers(0, 9)),
)
def test_no_cube_has_a_link_under_a_box(
    corners: list[str], per_corner: int, connections: int, w: int, h: int, m_cpu: tuple[int, int]
) -> None:
    overrides = {
        "system.sips.count": 1,
        "sip.cube_mesh": {"w": 1, "h": 1},
        "cube.pe_layout": {"corners": corners, "pe_per_corner": per_corner},
        "cube.ucie.n_connections": connections,
        "cube.geometry.cube_mm": {"w": w, "h": h},
        "cube.placement.m_cpu.pos_mm": list(m_cpu),
    }
    try:
        graph = load_topology(overrides=overrides)
    except TopologyError:
        return  # not every mix fits on every die
    test_boxes_do_not_overlap_and_no_link_runs_under_one(graph)
    test_words_overlap_neither_each_other_nor_a_box_nor_the_edge(graph)


def test_labels_are_readable_as_shown(graph: TopologyGraph) -> None:
    for view in machine_views(graph.spec).values():
        picture = picture_of(view, graph.spec)
        assert min(text.size_px for text in picture.texts) * picture.zoom >= 0.8 * READABLE_PX


def test_the_legend_lists_exactly_the_kinds_of_link_there_are(graph: TopologyGraph) -> None:
    for view in machine_views(graph.spec).values():
        entries = link_entries(view)
        assert [entry.kind for entry in entries] == sorted(
            (entry.kind for entry in entries), key=list(EdgeKind).index
        ), "in the order of EdgeKind"
        listed = {(entry.kind, entry.words) for entry in entries}
        assert len(listed) == len(entries)
        assert {kind for kind, _ in listed} == {edge.kind for edge in view.edges}
        words = [text.words for text in picture_of(view, graph.spec).texts]
        assert [entry.words for entry in entries] == [w for w in words if w in {e.words for e in entries}]


def test_the_scale_is_one_for_both_directions_and_the_positions_are_the_views(graph: TopologyGraph) -> None:
    for view in machine_views(graph.spec).values():
        boxes = solid_boxes(view, picture_of(view, graph.spec))
        nodes = {node.id: node for node in view.nodes}
        first = next(iter(boxes))
        scale = boxes[first].w / nodes[first].w_mm
        x0, y0 = boxes[first].middle
        for name, box in boxes.items():
            node = nodes[name]
            assert box.w == pytest.approx(node.w_mm * scale)
            assert box.h == pytest.approx(node.h_mm * scale)
            assert box.middle[0] - x0 == pytest.approx((node.x_mm - nodes[first].x_mm) * scale, abs=1e-6)
            assert box.middle[1] - y0 == pytest.approx((node.y_mm - nodes[first].y_mm) * scale, abs=1e-6)


def test_the_cube_of_the_shipped_machine_shows_its_width_and_a_scale_bar() -> None:
    graph = load_topology()
    words = [text.words for text in picture_of(machine_views(graph.spec)["cube"], graph.spec).texts]
    assert words.count("14 mm") == 2  # as wide as high
    assert "2 mm, 0.2 ns of wire" in words  # 0.1 ns/mm
    assert "router to router: 256 GB/s" in words
    assert "command: 128 GB/s" in words


def test_text_from_outside_is_escaped() -> None:
    graph = load_topology()
    node = ViewNode("a<b", "sip", "<&>", '"quoted" & more', 5, 5, 8, 8)
    view = MachineView("system", "<script>", 10, 10, (node,), (ViewEdge("a<b", "a<b", EdgeKind.PCIE, "&", 1.0),))
    root = ET.fromstring(render_svg(view, graph.spec))
    assert root.findtext(f"{SVG}title") == "<script>"
    assert "<&>" in [text.text for text in root.iter(f"{SVG}text")]


def test_control_is_dashed_and_bandwidth_widens_a_line() -> None:
    for kind in EdgeKind:
        assert link_style(ViewEdge("a", "b", kind, "", None)).dash
    assert link_style(ViewEdge("a", "b", EdgeKind.ROUTER_MESH, "", 1.0)).dash == ""
    widths = [link_px(bw) for bw in (1, 64, 128, 512, 4096)]
    assert widths == sorted(set(widths))


def test_a_link_runs_straight_between_boxes_that_face_each_other() -> None:
    a, b = Rect(0, 0, 10, 10), Rect(4, 30, 24, 40)
    assert link_points(a, b) == ((7, 10), (7, 30))  # they share x from 4 to 10
    assert link_points(b, a) == ((7, 30), (7, 10))


def test_a_link_goes_round_a_box_in_its_way() -> None:
    a, b, between = Rect(0, 0, 10, 10), Rect(0, 40, 10, 50), Rect(-10, 20, 20, 30)
    points = link_points(a, b, [between])
    assert points[0][1] in (5, 10)
    assert points[-1][1] in (40, 45)
    assert not any(crosses(between, p, q) for p, q in pairwise(points))
    assert all(p[0] == q[0] or p[1] == q[1] for p, q in pairwise(points))


def test_crossing_means_passing_through_the_inside() -> None:
    box = Rect(10, 10, 20, 20)
    assert crosses(box, (0, 15), (30, 15))
    assert crosses(box, (0, 0), (30, 30))
    assert not crosses(box, (0, 10), (30, 10))  # along its edge
    assert not crosses(box, (0, 15), (9, 15))
    assert not crosses(box, (0, 25), (30, 25))


def test_words_are_wrapped_after_commas_then_at_spaces_and_shortened_last() -> None:
    room = width_px("48 GB HBM", 10)
    assert wrapped("8 PEs, 48 GB HBM", room, 10) == ["8 PEs,", "48 GB HBM"]
    assert wrapped("8 PEs, 48 GB HBM", width_px("GB HBM", 10), 10) == ["8 PEs,", "48 GB", "HBM"]
    assert wrapped("indivisible", 10, 10) is None
    assert shortened("indivisible", width_px("indiv…", 10), 10) == "indiv…"


def test_boxes_of_one_kind_have_labels_of_one_size() -> None:
    wide, narrow = Rect(0, 0, 200, 40), Rect(0, 50, 40, 90)
    texts = fitted([Tag("a", wide, "PE10", ""), Tag("b", narrow, "PE11", "")], READABLE_PX)
    assert len({text.size_px for text in texts}) == 1
    assert narrow.holds(texts[1].rect)


def test_a_further_part_is_drawn_as_what_it_declares_to_be() -> None:
    parts = {"pe_unit": FURTHER, "pe_prefetch": {"impl": "test_svg_engines:Prefetcher"}}
    spec = load_topology(overrides={f"cube.pe_template.components.{name}": part for name, part in parts.items()}).spec
    view = machine_views(spec)["pe"]
    nodes = {node.label: node for node in view.nodes}
    assert (role_of(nodes["pe_unit"]), role_of(nodes["pe_prefetch"])) == (COMPUTE, MOVER)
    assert nodes["pe_unit"].y_mm == nodes["pe_gemm"].y_mm == nodes["pe_math"].y_mm
    names = {node.id: node.label for node in view.nodes}
    drawn = {(names[edge.src], names[edge.dst], edge.bw_gbs) for edge in view.edges}
    assert {("pe_scheduler", "pe_unit", None), ("pe_unit", "pe_fetch_store", 512.0)} <= drawn
    assert {("pe_cpu", "pe_prefetch", None), ("pe_prefetch", "pe_tcm", 512.0)} <= drawn
