"""Types of cubes and of SIPs: what they inherit, what they change, and what is refused."""

from __future__ import annotations

import json

import pytest

from kernbench.common.errors import TopologyError
from kernbench.report.diagrams import machine_views, view_of
from kernbench.report.machine_facts import machine_facts_as_json, machine_facts_of
from kernbench.report.machine_facts_text import machine_facts_as_text
from kernbench.report.price import price_of
from kernbench.report.roofline import peak_of
from kernbench.report.silicon import dies_of
from kernbench.sweep.cost import resources_of
from kernbench.topology import load_topology
from kernbench.topology.layers import shipped
from kernbench.topology.load import load_spec
from kernbench.topology.machine_hash import machine_hash

GEMM = "pe_template.components.pe_gemm.attrs.macs_per_ns"
MIXED = {
    "system.sips": {"count": 2, "types": {"near_memory": [1]}},
    "sip.cube_mesh": {"w": 2, "h": 2},
    "sip.cube_types": {"wide": [0, 1]},
    "sip_types": {"near_memory": {"cube_types": {"roomy": [2, 3]}}},
    f"cube_types.wide.{GEMM}": 8192.0,
    "cube_types.roomy.memory_map": {"hbm_total_gb_per_cube": 192, "hbm_channel_bw_gbs": 16.0, "sram_mb_per_cube": 64},
}


def faults(changes: dict[str, object]) -> list[tuple[str, str]]:
    with pytest.raises(TopologyError) as caught:
        load_topology(None, MIXED | changes)
    return [(fault.key, fault.what) for fault in caught.value.faults]


def test_a_type_has_its_own_values_and_inherits_the_rest() -> None:
    one_link = {"cube.memory_map.hbm_mapping_mode": "n_to_one"}
    graph = load_topology(None, MIXED | one_link | {"cube.components.router.attrs.overhead_ns": 3.0})
    macs = {cube: graph.node(f"sip0.cube{cube}.pe0.pe_gemm").attrs["macs_per_ns"] for cube in range(4)}
    assert macs == {0: 8192.0, 1: 8192.0, 2: 4096.0, 3: 4096.0}
    assert graph.node("sip1.cube0.pe0.pe_gemm").attrs["macs_per_ns"] == 4096.0  # its SIP has another map of types
    assert all(graph.node(f"sip0.cube{cube}.noc.r0c0").overhead_ns == 3.0 for cube in range(4))
    port = {cube: graph.edge(f"sip1.cube{cube}.noc.r0c0", f"sip1.cube{cube}.hbm_ctrl.pe0").bw_gbs for cube in (0, 2)}
    assert port == {0: 8 * 32.0, 2: 8 * 16.0}
    assert graph.spec.type_counts() == {"": 4, "wide": 2, "roomy": 2}
    assert (graph.spec.type_counts(0), graph.spec.type_counts(1)) == ({"": 2, "wide": 2}, {"": 2, "roomy": 2})


def test_totals_are_sums_over_types() -> None:
    graph = load_topology(None, MIXED)
    summary = machine_facts_of(graph)
    assert summary.memory["hbm_bytes"] == (6 * 48 + 2 * 192) << 30
    assert summary.memory["sram_bytes"] == (6 * 32 + 2 * 64) << 20
    assert summary.bandwidth_gbs["hbm"] == 8 * (6 * 256.0 + 2 * 128.0)
    assert {name: of["cubes"] for name, of in summary.types.items()} == {"cube": 4, "wide": 2, "roomy": 2}
    assert peak_of(graph.spec).gflops == 2 * 8 * (6 * 4096.0 + 2 * 8192.0)
    assert peak_of(graph.spec, [(0, 0), (0, 2)]).gflops == 2 * (8192.0 + 4096.0)
    assert resources_of(graph.spec)["macs_per_ns"] == 8 * (6 * 4096.0 + 2 * 8192.0)
    names = [die.name for die in dies_of(graph)]
    assert names == ["cube", "cube wide", "cube roomy", "io_chiplet"]
    plain = load_topology(None, {"system.sips.count": 2, "sip.cube_mesh": {"w": 2, "h": 2}})
    memory = [price_of(each).usd["memory"].value for each in (plain, graph)]
    assert memory[1] / memory[0] == pytest.approx((6 * 48 + 2 * 192) / (8 * 48))


def test_addresses_have_room_for_the_largest_type() -> None:
    assert load_spec(None, MIXED).address_widths.hbm_bits == 38  # 192 GB; 37 bits are 128 GB
    assert (
        load_spec(None, MIXED | {"cube_types.roomy.memory_map.hbm_total_gb_per_cube": 96}).address_widths.hbm_bits == 37
    )


def test_a_spec_that_is_loaded_again_still_inherits() -> None:
    again = load_spec(load_spec(None, MIXED), {"cube.components.router.attrs.overhead_ns": 4.0})
    assert again.cube_types["wide"].components.router.number_attr("overhead_ns") == 4.0
    assert again.cube_types["wide"].pe_template.components.pe_gemm.number_attr("macs_per_ns") == 8192.0
    assert load_spec(load_spec(None, MIXED)) == load_spec(None, MIXED)


def test_a_machine_without_types_is_the_one_it_was() -> None:
    plain = shipped().plain()
    assert isinstance(plain, dict)
    assert (plain["cube_types"], plain["sip_types"]) == ({}, {})
    as_shipped = {"system.address_model": "va", "cube.memory_map.hbm_mapping_mode": "n_to_one"}
    assert machine_hash(load_spec(None, as_shipped)) == "642e703b2d236af7"
    assert machine_hash(load_spec(None, MIXED)) != machine_hash(
        load_spec(None, MIXED | {f"cube_types.wide.{GEMM}": 4.0})
    )


def test_a_file_may_add_types_to_its_base() -> None:
    derived = load_spec(load_spec(None, MIXED), {"cube_types.slow": {"links": {"router_bw_gbs": 64.0}},
                                                 "sip.cube_types.slow": [3]})  # fmt: skip
    assert derived.cube_of(0, 3).links.router_bw_gbs == 64.0
    assert derived.cube_type(0, 0) == "wide"


def test_every_type_has_its_picture() -> None:
    spec = load_spec(None, MIXED)
    views = machine_views(spec)
    assert list(views) == ["system", "sip", "cube", "pe", "sip-near_memory", "cube-wide", "pe-wide", "cube-roomy",
                           "pe-roomy"]  # fmt: skip
    details = {node.id: node.detail for node in views["sip-near_memory"].nodes}
    assert (details["sip0.cube1"], details["sip0.cube2"]) == ("8 PEs, 48 GB HBM", "roomy: 8 PEs, 192 GB HBM")
    assert (view_of(spec, "sip", 1, -1), view_of(spec, "cube", 1, 2), view_of(spec, "pe", 0, 3)) == (
        "sip-near_memory", "cube-roomy", "pe",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "key", "what"),
    [
        ({"sip.cube_types.wide": [4]}, "sip.cube_types.wide[0]", "there is no cube 4"),
        ({"sip.cube_types.roomy": [1]}, "sip.cube_types.roomy[0]", "cube 1 is of two types, 'wide' and 'roomy'"),
        ({"sip.cube_types.wide": [0, 0]}, "sip.cube_types.wide[1]", "cube 0 is listed twice"),
        ({"sip.cube_types.wyde": [2]}, "sip.cube_types.wyde", "there is no type of cube 'wyde' (did you mean 'wide'?)"),
        ({"system.sips.types.other": [0]}, "system.sips.types.other", "there is no type of SIP 'other'"),
        ({"cube_types.idle": {}}, "cube_types.idle", "no cube is of the type 'idle'"),
        ({"sip_types.idle": {}}, "sip_types.idle", "no SIP is of the type 'idle'"),
        (
            {"cube_types.wide.pe_layout.pe_per_corner": 4},
            "cube_types.wide.pe_layout",
            "the type 'wide' differs from cube in pe_layout",
        ),
        (
            {"cube_types.wide.memory_map.tcm_scheduler_reserved_mb": 2},
            "cube_types.wide.memory_map.tcm_scheduler_reserved_mb",
            "2 MB kept of a TCM of 2 MB leaves nothing",
        ),
        ({"cube_types.wide.memory_map.tcm_mb_per_pe": "much"}, "cube_types.wide.memory_map.tcm_mb_per_pe", "expected"),
        ({"cube_types.wide.colour": "red"}, "cube_types.wide.colour", "unknown key 'colour'"),
        ({"cube_types.wide": 7}, "cube_types.wide", "expected keys and values, got 7"),
    ],
)  # fmt: skip
def test_one_message_says_what_is_wrong_with_a_type(changes: dict[str, object], key: str, what: str) -> None:
    ((found_key, found_what),) = faults(changes)
    assert found_key == key
    assert found_what.startswith(what)


def test_a_fault_of_cube_is_reported_once_and_not_for_every_type() -> None:
    assert faults({"cube.memory_map.tcm_mb_per_pe": "much"}) == [
        ("cube.memory_map.tcm_mb_per_pe", "expected a number, got 'much'")
    ]
    (only,) = faults({"cube.memory_map.tcm_scheduler_reserved_mb": 2})
    assert only[0] == "cube.memory_map.tcm_scheduler_reserved_mb"


def test_the_totals_name_the_keys_in_which_types_differ() -> None:
    """Also one that no column of the table has."""
    graph = load_topology(None, MIXED | {"cube_types.wide.links.router_bw_gbs": 512.0})
    summary = machine_facts_of(graph)
    assert summary.changed["wide"]["links.router_bw_gbs"] == (256.0, 512.0)
    assert list(summary.changed["roomy"]) == [
        f"memory_map.{key}" for key in ("hbm_total_gb_per_cube", "hbm_channel_bw_gbs", "sram_mb_per_cube")
    ]
    text = machine_facts_as_text(summary, graph.spec)
    (line,) = [line for line in text.splitlines() if "links.router_bw_gbs" in line]
    assert line.split() == ["wide", "links.router_bw_gbs", "256.0", "512.0"]
    found = json.loads(json.dumps(machine_facts_as_json(summary)))["cube_type_keys"]
    assert found["wide"]["links.router_bw_gbs"] == [256.0, 512.0]
