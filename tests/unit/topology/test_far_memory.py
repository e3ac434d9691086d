"""Far memory: nodes, links, addresses, pictures, totals, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.common.errors import AddressError, RoutingError, TopologyError
from kernbench.common.units import GIB
from kernbench.policy.address.allocator import AddressConfig, FarMemoryAllocator
from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.policy.routing.router import AddressResolver, PathRouter
from kernbench.report.diagrams import machine_views
from kernbench.report.machine_facts import machine_facts_of
from kernbench.topology import load_topology
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import machine_hash

FAR: dict[str, Any] = {
    "gb": 64,
    "bw_gbs": 64.0,
    "distance_mm": 300.0,
    "overhead_ns": 60.0,
    "channels": 4,
    "channel_bw_gbs": 16.0,
}
TRAYS = {"system.sips.count": 4, "system.switch_levels": {"tray": {"count": 2, "bw_gbs": 64.0, "distance_mm": 0.0}}}


def at(place: str, **more: object) -> dict[str, object]:
    return {**TRAYS, "system.far_memory": {**FAR, "at": place, **more}}


def test_each_sip_has_a_node_at_its_chiplet() -> None:
    graph = load_topology(None, at("sip"))
    assert [node.id for node in graph.nodes.values() if node.kind == "far_memory"] == [
        f"sip{n}.io0.far" for n in range(4)
    ]
    link = graph.edge("sip1.io0.io_noc", "sip1.io0.far")
    assert (link.bw_gbs, link.distance_mm) == (64.0, 300.0)
    path = PathRouter(graph).find_path("sip1.cube5.pe0", "sip1.io0.far")
    assert path[-2:] == ["sip1.io0.io_noc", "sip1.io0.far"]
    other = PathRouter(graph).find_path("sip0.cube0.pe0", "sip1.io0.far")
    assert "fabric.tray0" in other


@pytest.mark.parametrize(
    ("place", "nodes"),
    [("switch", [0, 0, 0, 0]), ("tray", [0, 0, 1, 1])],
)
def test_sips_below_a_switch_share_its_node_in_equal_parts(place: str, nodes: list[int]) -> None:
    graph = load_topology(None, at(place))
    resolver, sizes = AddressResolver(graph), AddressConfig.from_spec(graph.spec)
    share = 64 * GIB * len(set(nodes)) // 4
    assert graph.spec.system.far_bytes_per_sip == share
    for sip, node in enumerate(nodes):
        address = FarMemoryAllocator(sip, sizes).address(4096)
        assert resolver.resolve(address) == f"fabric.far{node}"
        assert resolver.local_address(address) == nodes[:sip].count(node) * share + 4096
    path = PathRouter(graph).find_path("sip3.cube0.pe0", f"fabric.far{nodes[3]}")
    assert path[-2] == ("fabric.switch0" if place == "switch" else "fabric.tray1")


def test_its_addresses_are_in_the_window_of_its_chiplet() -> None:
    two = [{"id": "io0", "side": "N"}, {"id": "io1", "side": "S"}]
    graph = load_topology(None, at("sip", io="io1") | {"sip.io_chiplets": two})
    sizes, resolver = AddressConfig.from_spec(graph.spec), AddressResolver(graph)
    address = FarMemoryAllocator(2, sizes).alloc(256)
    assert (address.sip_id, address.die_id, address.chiplet_offset) == (2, 17, 2 * GIB)
    assert resolver.resolve(address) == "sip2.io1.far"
    sizes.check(PhysAddr.ual_addr(2, 17, 66 * GIB - 256), 256)
    with pytest.raises(AddressError, match="run past the end of the SIP's far memory"):
        sizes.check(PhysAddr.ual_addr(2, 17, 66 * GIB - 256), 257)
    with pytest.raises(AddressError, match="is in no far memory"):
        sizes.check(PhysAddr.ual_addr(2, 16, 2 * GIB), 1)
    with pytest.raises(RoutingError, match="no node serves"):
        resolver.resolve(PhysAddr.ual_addr(2, 16, 2 * GIB))


def test_a_larger_one_has_a_wider_window() -> None:
    graph = load_topology(None, at("sip", gb=4096))
    layout = graph.spec.address_layout
    assert layout.widths.chiplet_bits == 43
    last = FarMemoryAllocator(3, AddressConfig.from_spec(graph.spec)).address(4096 * GIB - 1)
    assert PhysAddr.decode(last.encode(), layout) == last
    assert last.far_offset == 4096 * GIB - 1


def test_the_summary_has_its_size_its_link_and_a_warning() -> None:
    packets = at("sip", header_bytes=4, payload_bytes=64)
    summary = machine_facts_of(load_topology(None, packets))
    assert (summary.memory["far_bytes_per_sip"], summary.memory["far_bytes"]) == (64 * GIB, 256 * GIB)
    assert summary.bandwidth_gbs["far_link"] == 64.0 * 64 / 68
    assert summary.bandwidth_gbs["far_memory"] == 64.0
    assert any(line.startswith("far memory gives 64 GB/s, and its link carries 60.2") for line in summary.warnings)
    assert summary.worst_paths[-1].name == "PE to far memory"
    assert "far_bytes" not in machine_facts_of(load_topology()).memory


@pytest.mark.parametrize(
    ("place", "view", "boxes"),
    [
        ("sip", "sip", ["sip0.io0.far"]),
        ("switch", "system", ["fabric.far0"]),
        ("tray", "system", ["fabric.far0", "fabric.far1"]),
    ],
)
def test_pictures_show_it(place: str, view: str, boxes: list[str]) -> None:
    views = machine_views(load_spec(None, at(place)))
    drawn = [node for node in views[view].nodes if node.kind == "far_memory"]
    assert [node.id for node in drawn] == boxes
    assert drawn[0].detail == "64 GB, 64 GB/s"
    (sip, *_) = [node for node in views["system"].nodes if node.kind == "sip"]
    assert sip.detail.endswith(", 64 GB of far memory") == (place == "sip")
    assert [edge.dst for edge in views[view].edges if edge.kind == "far_link"] == boxes
    left, right = drawn[0].x_mm - drawn[0].w_mm / 2, drawn[0].x_mm + drawn[0].w_mm / 2
    for other in views[view].nodes:
        apart_x = other.x_mm + other.w_mm / 2 <= left or other.x_mm - other.w_mm / 2 >= right
        apart_y = abs(other.y_mm - drawn[0].y_mm) >= (other.h_mm + drawn[0].h_mm) / 2
        assert other in (drawn[0],) or other.kind == "sip_outline" or apart_x or apart_y, other.id


def test_a_machine_without_it_is_the_one_it_was() -> None:
    as_shipped = {"system.address_model": "va", "cube.memory_map.hbm_mapping_mode": "n_to_one"}
    assert machine_hash(load_spec(None, as_shipped)) == "642e703b2d236af7"


@pytest.mark.parametrize(
    ("changes", "key", "what"),
    [
        (at("rack"), "system.far_memory.at", "there is no 'rack'"),
        (at("sip", io="io7"), "system.far_memory.io", "there is no IO chiplet 'io7'"),
        (at("switch", io="io0"), "system.far_memory.io", "far memory at a switch is on no IO chiplet"),
        (at("sip", channels=3), "system.far_memory.channels", "3 is not a power of two"),
        (at("sip", gb=4096) | {"system.address_map.chiplet_bits": 40}, "system.address_map.chiplet_bits",
         "4096 GB of far memory per SIP need 43 bits"),
    ],
)  # fmt: skip
def test_one_message_says_what_is_wrong(changes: dict[str, object], key: str, what: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(None, changes)
    ((found_key, found_what),) = [(fault.key, fault.what) for fault in caught.value.faults]
    assert found_key == key
    assert found_what.startswith(what)


def test_an_unknown_place_is_told_together_with_missing_keys() -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(None, {"system.far_memory": {"at": "nowhere", "gb": 8, "bw_gbs": 64.0, "channels": 4}})
    keys = [fault.key.rpartition(".")[2] for fault in caught.value.faults]
    assert keys == ["distance_mm", "channel_bw_gbs", "at"]
