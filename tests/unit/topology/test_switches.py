"""Levels of switches: who is below which, which way bytes take, what is shown, what is refused."""

from __future__ import annotations

import pytest

from kernbench.common.errors import TopologyError
from kernbench.policy.routing.router import PathRouter
from kernbench.report.diagrams.views import machine_views
from kernbench.report.machine_facts import machine_facts_of
from kernbench.report.machine_facts_text import machine_facts_as_text
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph
from kernbench.topology.machine_hash import machine_hash

ONE_CUBE = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
TRAY = {"count": 4, "bw_gbs": 64.0, "distance_mm": 2000.0}
RACK = {"count": 2, "bw_gbs": 32.0, "distance_mm": 5000.0, "header_bytes": 20, "payload_bytes": 236}


def machine(count: int = 8, **levels: object) -> TopologyGraph:
    return load_topology(None, {**ONE_CUBE, "system.sips.count": count, "system.switch_levels": levels})


def switches(path: list[str]) -> list[str]:
    return [node.removeprefix("fabric.") for node in path if node.startswith("fabric.")]


@pytest.mark.parametrize(
    ("src", "dst", "passed"),
    [
        (0, 1, ["tray0"]),
        (1, 2, ["tray0", "rack0", "tray1"]),
        (6, 1, ["tray3", "rack1", "switch0", "rack0", "tray0"]),
    ],
)
def test_bytes_between_sips_pass_the_lowest_switch_that_both_are_below(src: int, dst: int, passed: list[str]) -> None:
    """The order in which levels are written does not matter: the one with fewer switches is above."""
    for levels in ({"tray": TRAY, "rack": RACK}, {"rack": RACK, "tray": TRAY}):
        router = PathRouter(machine(**levels))
        assert switches(router.find_path(f"sip{src}.cube0.pe0", f"sip{dst}.cube0.hbm_ctrl.pe0")) == passed


def test_requests_of_the_host_pass_the_switches_of_the_sip_that_they_are_for() -> None:
    router = PathRouter(machine(tray=TRAY, rack=RACK))
    for sip, passed in ((0, ["switch0", "rack0", "tray0"]), (5, ["switch0", "rack1", "tray2"])):
        assert switches(router.find_memory_path("host", f"sip{sip}.cube0.hbm_ctrl.pe0")) == passed
        assert switches(router.find_node_path("host", f"sip{sip}.cube0.m_cpu")) == passed


def test_a_link_between_levels_has_the_bandwidth_length_and_packets_of_the_lower_one() -> None:
    graph = machine(tray=TRAY, rack=RACK)
    up, top = graph.edge("fabric.tray3", "fabric.rack1"), graph.edge("fabric.switch0", "fabric.rack1")
    assert (up.bw_gbs, up.distance_mm, graph.payload_gbs(up)) == (64.0, 2000.0, 64.0)
    assert (top.bw_gbs, top.distance_mm) == (32.0, 5000.0)
    assert graph.payload_gbs(top) == pytest.approx(32.0 * 236 / 256)
    assert graph.payload_gbs(graph.edge("fabric.tray0", "sip0.io0.pcie_ep")) == 128.0


def test_a_switch_of_a_level_is_the_one_of_the_top_unless_it_is_given() -> None:
    own = {"kind": "switch", "impl": "builtin.switch", "attrs": {"overhead_ns": 105.0}}
    graph = machine(tray=TRAY, rack={**RACK, "switch": own})
    found = {name: graph.node(f"fabric.{name}").overhead_ns for name in ("switch0", "rack0", "tray0")}
    assert found == {"switch0": 5.0, "rack0": 105.0, "tray0": 5.0}


def test_the_summary_counts_switches_and_halves_the_machine_at_its_narrowest_level() -> None:
    graph = machine(tray=TRAY, rack=RACK)
    summary = machine_facts_of(graph)
    assert summary.bandwidth_gbs["tray_bisection"] == 32.0  # one of two racks, where four SIPs have 4 x 128
    assert "levels of switches: 4 tray, 2 rack, 1 at the top" in machine_facts_as_text(summary, graph.spec)


def test_the_picture_has_every_switch_above_its_sips() -> None:
    view = machine_views(machine(tray=TRAY, rack=RACK).spec)["system"]
    boxes = {node.id: node for node in view.nodes}
    above = {edge.dst: edge.src for edge in view.edges}
    assert [node.label for node in view.nodes if node.kind == "switch"] == [
        "switch", "rack 0", "rack 1", "tray 0", "tray 1", "tray 2", "tray 3",
    ]  # fmt: skip
    assert (above["sip5"], above["fabric.tray2"], above["fabric.rack1"]) == (
        "fabric.tray2", "fabric.rack1", "fabric.switch0",
    )  # fmt: skip
    for name, parent in above.items():
        if parent != "host":
            box, over = boxes[name], boxes[parent]
            assert over.y_mm + over.h_mm / 2 < box.y_mm - box.h_mm / 2
            assert abs(over.x_mm - box.x_mm) <= over.w_mm / 2


def test_the_hash_of_a_machine_without_levels_is_as_before_there_were_any() -> None:
    assert machine_hash(load_topology().spec) == machine_hash(load_topology(None, {"system.switch_levels": {}}).spec)
    assert machine_hash(machine(tray=TRAY).spec) != machine_hash(machine().spec)


@pytest.mark.parametrize(
    ("levels", "key", "what"),
    [
        ({"tray": {**TRAY, "count": 3}}, "tray.count", "3 switches do not divide 8 SIPs evenly"),
        ({"tray": {**TRAY, "count": 16}}, "tray.count", "16 switches do not divide 8 SIPs evenly"),
        ({"tray": TRAY, "rack": {**RACK, "count": 4}}, ".count", "as many switches as"),
        ({"switch": TRAY}, "switch", "the name of the switch at the top"),
        ({"tray": {**TRAY, "header_bytes": 20}}, "tray.header_bytes", "no length of the packets"),
    ],
)
def test_levels_that_do_not_divide_the_sips_are_refused(levels: dict[str, object], key: str, what: str) -> None:
    with pytest.raises(TopologyError) as refused:
        machine(**levels)
    assert f"system.switch_levels.{key}" in str(refused.value) or key == ".count"
    assert what in str(refused.value)


def test_levels_divide_those_above_them_evenly() -> None:
    with pytest.raises(TopologyError, match="4 switches do not divide evenly over the 3 above them"):
        machine(12, tray=TRAY, rack={**RACK, "count": 3})
