"""HBM stacks that PEs share: nodes, links, sizes, pictures, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from kernbench.common.errors import TopologyError
from kernbench.policy.routing.router import AddressResolver, PathRouter
from kernbench.report.diagrams import machine_views
from kernbench.report.machine_facts import machine_facts_of
from kernbench.report.memory_times import memories_gbs
from kernbench.report.price import price_of
from kernbench.report.roofline import peak_of
from kernbench.topology import load_topology
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import machine_hash

SIX = [{"id": f"s{n}", "side": "WE"[n // 3], "at": (0.2, 0.5, 0.8)[n % 3]} for n in range(6)]
STACKS: dict[str, Any] = {
    "places": SIX,
    "gb": 36,
    "channels": 32,
    "channel_bw_gbs": 37.5,
    "link_bw_gbs": 600.0,
    "links": 2,
}
ONE_SIP = {
    "system.sips.count": 1,
    "system.address_model": "va",
    "cube.memory_map.hbm_mapping_mode": "n_to_one",
}
ONE_DIE = {**ONE_SIP, "sip.cube_mesh": {"w": 1, "h": 1}, "sip.hbm_stacks": STACKS}
CORNERS = [{"id": "s0", "cube": 0, "side": "W"}, {"id": "s1", "cube": 2, "side": "E"}]
ROW = {**ONE_SIP, "sip.cube_mesh": {"w": 3, "h": 1}, "sip.hbm_stacks": {**STACKS, "places": CORNERS}}


def faults(changes: dict[str, object], base: dict[str, object] = ONE_DIE) -> list[tuple[str, str]]:
    with pytest.raises(TopologyError) as caught:
        load_topology(None, base | changes)
    return [(fault.key, fault.what) for fault in caught.value.faults]


def test_a_stack_is_a_controller_with_links_to_the_routers_beside_it() -> None:
    graph = load_topology(None, ONE_DIE)
    stacks = [node for node in graph.nodes.values() if node.kind == "hbm_ctrl"]
    assert [node.id for node in stacks] == [f"sip0.hbm_ctrl.s{n}" for n in range(6)]
    assert (stacks[0].attrs["num_pcs"], stacks[0].attrs["pc_bw_gbs"]) == (32, 37.5)
    ends = [edge.src for edge in graph.edges if edge.dst == "sip0.hbm_ctrl.s0"]
    assert ends == ["sip0.cube0.noc.r0c0", "sip0.cube0.noc.r1c0"]  # at 0.2 of 14 mm; rows are at 1.5 and 4 mm
    assert graph.edge(ends[0], "sip0.hbm_ctrl.s0").bw_gbs == 600.0
    # From the router, 1.5 mm from the edge, to the edge, 1 mm on, and along the edge from 1.5 to 2.8 mm.
    assert graph.edge(ends[0], "sip0.hbm_ctrl.s0").distance_mm == pytest.approx(1.5 + 1.0 + (2.8 - 1.5), abs=1e-5)
    assert "sip0.cube0.noc.r2c2" in graph.nodes  # no HBM in the middle of the die


def test_every_pe_has_an_equal_part_of_all_stacks() -> None:
    graph = load_topology(None, ONE_DIE)
    cube, summary = graph.spec.cube, machine_facts_of(graph)
    assert cube.hbm_bytes == 6 * 36 << 30
    assert cube.hbm_slice_bytes == (6 * 36 << 30) // 8
    assert cube.hbm_link_bw_gbs == 6 * 32 * 37.5 / 8
    assert summary.bandwidth_gbs["hbm"] == 7200.0
    assert summary.counts["hbm_pseudo_channels"] == 6 * 32
    assert memories_gbs(graph, ["sip0.hbm_ctrl.s0", "sip0.hbm_ctrl.s3"]) == 2400.0
    assert peak_of(graph.spec).gbs == 8 * 256.0  # what the DMA ports carry
    shipped = price_of(load_topology(None, {"system.sips.count": 1, "sip.cube_mesh": {"w": 1, "h": 1}}))
    assert price_of(graph).usd["memory"].value / shipped.usd["memory"].value == pytest.approx(216 / 48)


def test_cubes_without_a_stack_have_their_part_of_those_at_the_edge() -> None:
    graph = load_topology(None, ROW)
    assert graph.spec.cube.hbm_bytes == 2 * 36 * (1 << 30) // 3
    resolver, layout = AddressResolver(graph), graph.spec.address_layout
    for cube in range(3):
        assert resolver.find_hbm_ctrl(0, cube, 0) == "sip0.hbm_ctrl.s0"
        first = resolver.address((cube << layout.die_shift) | 1 << layout.hbm_shift)
        assert resolver.local_address(first) == cube * graph.spec.cube.hbm_bytes  # in the range of both stacks
    path = PathRouter(graph).find_path("sip0.cube1.pe0", "sip0.hbm_ctrl.s1")
    assert "sip0.cube1.ucie-E" in path
    assert path[-2].startswith("sip0.cube2.noc.")


def test_with_stacks_of_its_own_a_cube_keeps_to_itself() -> None:
    places = [{"id": f"s{n}", "cube": n, "side": "S"} for n in range(3)]
    graph = load_topology(None, ROW | {"sip.hbm_stacks": {**STACKS, "places": places, "shared_by": "cube"}})
    assert graph.spec.cube.hbm_bytes == 36 << 30
    assert [AddressResolver(graph).find_hbm_ctrl(0, cube, 5) for cube in range(3)] == [
        f"sip0.hbm_ctrl.s{n}" for n in range(3)
    ]


def test_pictures_show_stacks_beside_their_cubes() -> None:
    views = machine_views(load_spec(None, ONE_DIE))
    boxes = {node.id: node for node in views["sip"].nodes}
    cube = boxes["sip0.cube0"]
    assert boxes["sip0.hbm_ctrl.s0"].x_mm < cube.x_mm - cube.w_mm / 2
    assert boxes["sip0.hbm_ctrl.s5"].x_mm > cube.x_mm + cube.w_mm / 2
    assert boxes["sip0.hbm_ctrl.s0"].detail == "36 GB, 1200 GB/s"
    assert not any(node.kind in ("hbm_ctrl", "hbm_zone") for name in ("cube", "pe") for node in views[name].nodes)


def test_a_machine_without_stacks_is_the_one_it_was() -> None:
    as_shipped = {"system.address_model": "va", "cube.memory_map.hbm_mapping_mode": "n_to_one"}
    assert machine_hash(load_spec(None, as_shipped)) == "642e703b2d236af7"


def stacks(**changes: object) -> dict[str, object]:
    return {"sip.hbm_stacks": {**STACKS, **changes}}


@pytest.mark.parametrize(
    ("changes", "key", "what"),
    [
        (stacks(places=[]), "sip.hbm_stacks.places", "HBM stacks without a place"),
        (stacks(places=[SIX[0], SIX[0]]), "sip.hbm_stacks.places[1].id", "the id 's0' is taken"),
        (stacks(places=[{"id": "s0", "side": "N"}]), "sip.hbm_stacks.places[0].side", "side N of the package has"),
        (stacks(places=[{"id": "s0", "cube": 1, "side": "W"}]), "sip.hbm_stacks.places[0].cube", "there is no cube 1"),
        (stacks(places=SIX[:1], links=16), "sip.hbm_stacks.links", "16 links to side W, which has 6 routers"),
        (stacks(interleave_bytes=128), "sip.hbm_stacks.interleave_bytes", "128 bytes on a stack are less than a burst"),
        ({"cube.memory_map.hbm_total_gb_per_cube": 24}, "cube.memory_map.hbm_total_gb_per_cube", "stacks that PEs"),
        ({"cube.memory_map.hbm_mapping_mode": "one_to_one"}, "cube.memory_map.hbm_mapping_mode", "it does not go"),
    ],
)  # fmt: skip
def test_one_message_says_what_is_wrong_with_stacks(changes: dict[str, object], key: str, what: str) -> None:
    ((found_key, found_what),) = faults(changes)
    assert found_key == key
    assert found_what.startswith(what)


def test_stacks_stand_at_the_edge_of_the_package_and_cubes_that_keep_theirs_have_equally_many() -> None:
    inside = [{"id": "s0", "cube": 1, "side": "W"}]
    ((key, what),) = faults(stacks(places=inside), ROW)
    assert (key, what) == ("sip.hbm_stacks.places[0].side", "side W of cube 1 faces another cube")
    ((key, what),) = faults(stacks(places=CORNERS, shared_by="cube"), ROW)
    assert (key, what) == ("sip.hbm_stacks.places", "cube 1 has 0 stacks and cube 0 has 1")


def test_the_rule_for_names_of_stacks_is_told() -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(None, ONE_DIE | stacks(places=[{**SIX[0], "id": "west"}]))
    (fault,) = caught.value.faults
    assert (fault.key, fault.hint) == (
        "sip.hbm_stacks.places[0].id", "give s and a number of up to three digits, such as s0",
    )  # fmt: skip
