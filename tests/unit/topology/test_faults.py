"""What is wrong with a description: each kind of fault, with its line, its key and its hint, all together."""

from pathlib import Path

import pytest

from kernbench.common.errors import Fault, TopologyError
from kernbench.components.table import BUILTIN
from kernbench.topology import MachineSpec, compile_spec, load_spec, load_topology
from kernbench.topology.attrs import impl_fault


def faults(text: str, tmp_path: Path) -> list[Fault]:
    path = tmp_path / "m.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    for fault in caught.value.faults:
        assert fault.what
        assert fault.hint
        assert fault.where
    return list(caught.value.faults)


def keys_of(overrides: dict[str, object]) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        load_spec(overrides=overrides)
    return [fault.key for fault in caught.value.faults]


def test_all_faults_of_a_file_come_together_with_their_lines(tmp_path: Path) -> None:
    found = faults(
        "system:\n"
        "  sips:\n"
        "    count: minus one\n"  # 3
        "    colour: red\n"  # 4
        "sip:\n"
        "  cube_mesh: { w: 50, h: 40 }\n"  # 6
        "cube:\n"
        "  components:\n"
        "    router: { attrs: { overhead_ns: -1 } }\n"  # 9
        "  links:\n"
        "    router_bw_gbs: 0\n",  # 11
        tmp_path,
    )
    assert {(fault.key, fault.where.rsplit(":", 1)[1]) for fault in found} == {
        ("system.sips.count", "3"),
        ("system.sips.colour", "4"),
        ("sip.cube_mesh", "6"),
        ("cube.components.router.attrs.overhead_ns", "9"),
        ("cube.links.router_bw_gbs", "11"),
    }
    by_key = {fault.key: fault for fault in found}
    assert by_key["system.sips.count"].what == "expected a whole number, got 'minus one'"
    assert by_key["system.sips.count"].hint == "give a whole number from 1 to 1024"
    assert by_key["system.sips.colour"].what.startswith("unknown key 'colour'")
    assert "2000 cubes" in by_key["sip.cube_mesh"].what


def test_an_unknown_key_suggests_the_one_that_was_meant(tmp_path: Path) -> None:
    (fault,) = faults("system:\n  sips:\n    cuont: 4\n", tmp_path)
    assert fault.what == "unknown key 'cuont' (did you mean 'count'?)"
    assert "topology" in fault.hint


def test_the_error_says_what_where_and_mend(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text("system: { flit_bytes: 300 }\n")
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    assert str(caught.value).splitlines()[:3] == [
        "300 is not a power of two",
        f"  where: {path}:1  system.flit_bytes",
        "  hint:  give a power of two, say 256 or 512",
    ]


def test_a_cross_check_that_rests_on_a_wrong_value_is_not_reported() -> None:
    assert keys_of({"system.sips.count": "x", "system.sips.topology": "torus_2d", "system.sips.w": 3}) == [
        "system.sips.count"
    ]


@pytest.mark.parametrize(("packet_bytes", "refused"), [(0, False), (255, True), (256, False)])
def test_a_packet_of_less_than_a_flit_is_refused(packet_bytes: int, refused: bool, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(f"fabric:\n  buffers: {{ slots: 4, ownership: packet, packet_bytes: {packet_bytes} }}\n")
    if not refused:
        load_topology(path)
        return
    with pytest.raises(TopologyError) as caught:
        load_topology(path)
    assert str(caught.value).splitlines() == [
        "packets of 255 bytes hold no flit of 256",
        f"  where: {path}:2  fabric.buffers.packet_bytes",
        "  hint:  give at least 256, or 0 for one packet per transfer",
    ]


def test_a_clash_with_an_inherited_value_names_the_users_line(tmp_path: Path) -> None:
    (fault,) = faults("system:\n  flit_bytes: 512\n", tmp_path)
    assert fault.key == "system.flit_bytes"
    assert fault.where.endswith("m.yaml:2")
    assert "burst of 256" in fault.what


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("system.sips.count", 0),
        ("system.sips.count", 1025),
        ("system.sips.count", 10**9),
        ("system.sips.count", 2.5),
        ("system.sips.count", True),
        ("system.sips.count", None),
        ("system.sips.topology", "ring"),
        ("system.ns_per_mm", float("nan")),
        ("system.ns_per_mm", "1e300"),
        ("system.ns_per_mm", "1e999"),
        ("system.address_model", "xa"),
        ("system.name", ""),
        ("system.links.host_to_switch.bw_gbs", float("inf")),
        ("system.links.host_to_switch.bw_gbs", 10**400),
        ("system.links.host_to_switch.distance_mm", -1),
        ("sip.cube_mesh.w", -3),
        ("io_chiplet.n_connections", 9),
        ("cube.ucie.n_connections", 0),
        ("cube.memory_map.hbm_total_gb_per_cube", 4097),
        ("cube.memory_map.hbm_channels_per_pe", 6),
        ("cube.memory_map.hbm_mapping_mode", "two_to_one"),
        ("cube.memory_map.sram_mb_per_cube", 65537),
        ("cube.memory_map.tcm_mb_per_pe", 1025),
        ("cube.memory_map.tcm_scheduler_reserved_mb", 2),
        ("cube.components.hbm_ctrl.attrs.burst_bytes", 100),
        ("cube.components.hbm_ctrl.attrs.efficiency", 1.5),
        ("cube.components.router.impl", "my router"),
        ("cube.components.router.kind", "switch"),
        ("cube.pe_template.components.pe_mmu.attrs.page_size", 3000),
        ("cube.pe_template.components.pe_cpu.attrs.overhead_ns", None),
        ("cube.pe_layout.corners", ["NW", "XX"]),
        ("cube.pe_layout.corners", []),
        ("cube.pe_layout.corners", ["NW", "NW"]),
        ("cube.placement.sram.pos_mm", [1.5, 99]),
        ("cube.geometry.hbm_mm.w", 15),
        ("cube.geometry.cube_mm.h", 7),
        ("cube.geometry.margin_mm", 0.5),
        ("cube.geometry.margin_mm", 8),
        ("cube.geometry.pe_pitch_mm", 1.0),
    ],
)
def test_a_value_out_of_place_is_a_fault_of_its_key(key: str, value: object) -> None:
    found = keys_of({key: value})
    assert any(name.startswith(key) for name in found), found


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"cube.pe_layout.pe_per_corner": 65}, "260 PEs are too many for one cube"),
        ({"cube.pe_layout": {"corners": ["NW", "NE"], "pe_per_corner": 8}}, "PEs of 1.5 mm overlap"),
        ({"cube.memory_map.hbm_slices_per_cube": 4}, "4 HBM slices for 8 PEs"),
        ({"cube.memory_map.hbm_pseudo_channels": 48}, "not a power of two for each"),
        (
            {"cube.memory_map": {"hbm_pseudo_channels": 128, "hbm_channels_per_pe": 8}},
            "128 pseudo channels are not 8 slices x 8 channels",
        ),
        ({"cube.memory_map": {"hbm_pseudo_channels": None, "hbm_channels_per_pe": None}}, "channels is not given"),
        ({"system.sips.count": 6, "system.sips.topology": "torus_2d"}, "not a square, so it needs w and h"),
        ({"system.sips": {"count": 6, "topology": "torus_2d", "w": 2, "h": 2}}, "2 x 2 does not hold 6 SIPs"),
        ({"system.sips.h": 5}, "does not hold 2 SIPs"),
        ({"sip.cube_mesh": {"w": 64, "h": 32}}, "2048 cubes are too many for one SIP"),
        ({"system.sips.count": 17, "system.address_map.sip_bits": 4}, "17 SIPs need 5 bits, the field has 4"),
        ({"system.sips.count": 300}, "300 SIPs of 16 cubes of 8 PEs are 38,400 PEs"),
        ({"system.address_map.tcm_bits": 20}, "2 MB of TCM per PE need 21 bits, the field has 20"),
        ({"system.address_map": {"sip_bits": 16, "hbm_bits": 48}}, "has 70 bits, more than 63"),
        ({"cube.pe_layout.rows_per_corner": 3}, "2 PEs do not fill 3 rows of a corner"),
        ({"sip.io_chiplets": []}, "nothing reaches the cubes"),
        ({"sip.io_chiplets": [{"id": f"io{n}", "side": "N"} for n in range(5)]}, "5 IO chiplets are too many"),
        ({"sip.io_chiplets": [{"id": "io0", "side": "N"}, {"id": "io0", "side": "S"}]}, "'io0' is taken"),
        ({"sip.io_chiplets": [{"id": "io0", "side": "N", "cube_ports": []}]}, "connected to no cube"),
        (
            {"sip.io_chiplets": [{"id": f"io{n}", "side": "N"} for n in range(2)], "sip.cube_mesh.w": 1},
            "connected to no cube",
        ),
        ({"cube.geometry.hbm_mm": {"w": 10, "h": 8}}, "HBM overlaps PE"),
        ({"cube.geometry.max_spacing_mm": 0.1}, "more than 64 router columns"),
        ({"cube.components.router.attrs.overhed_ns": 1}, "did you mean 'overhead_ns'?"),
    ],
)
def test_values_that_do_not_go_together_are_a_fault(overrides: dict[str, object], words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_spec(overrides=overrides)
    assert any(words in fault.what for fault in caught.value.faults), str(caught.value)


def port(x: int, y: int, side: str, phy: str = "P0") -> dict[str, object]:
    return {"cube": {"xy": [x, y]}, "cube_side": side, "phy": phy}


@pytest.mark.parametrize(
    ("ports", "key", "words"),
    [
        ([port(4, 0, "N")], "sip.io_chiplets[0].cube_ports[0].cube.xy", "there is no cube at (4, 0)"),
        ([port(0, 0, "S")], "sip.io_chiplets[0].cube_ports[0].cube_side", "faces another cube"),
        ([port(0, 0, "X")], "sip.io_chiplets[0].cube_ports[0].cube_side", "'X' is not a choice"),
        ([port(0, 0, "N"), port(0, 0, "N", "P1")], "sip.io_chiplets[0].cube_ports[1]", "is taken by"),
        ([port(0, 0, "N"), port(1, 0, "N")], "sip.io_chiplets[0].cube_ports[1].phy", "appears twice"),
        ([{"cube_side": "N"}], "sip.io_chiplets[0].cube_ports[0].cube", "is missing"),
    ],
)
def test_a_port_to_something_that_is_not_there_is_a_fault(ports: list[object], key: str, words: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_spec(overrides={"sip.io_chiplets": [{"id": "io0", "side": "N", "cube_ports": ports}]})
    assert any(fault.key == key and words in fault.what for fault in caught.value.faults), str(caught.value)


def test_a_users_own_class_may_have_attrs_of_its_own() -> None:
    spec = {
        "cube.components.router": {"impl": "my_pkg.routers:Slow", "attrs": {"jitter_ns": 3, "mode": "x", "on": True}}
    }
    graph = load_topology(overrides=spec)
    router = graph.node("sip0.cube0.noc.r0c0")
    assert router.impl == "my_pkg.routers:Slow"
    assert dict(router.attrs) == {"overhead_ns": 2.0, "jitter_ns": 3, "mode": "x", "on": True}
    assert keys_of({"cube.components.router": {"impl": "a:B", "attrs": {"x": [1]}}}) == [
        "cube.components.router.attrs.x"
    ]
    assert keys_of({"cube.components.router": {"impl": "a:B", "attrs": {"x": "..nan", "overhead_ns": "slow"}}}) == [
        "cube.components.router.attrs.overhead_ns"
    ]


def test_a_spec_made_in_python_is_checked_when_it_is_compiled() -> None:
    spec = load_spec()
    mesh = spec.sip.cube_mesh.model_copy(update={"w": 900})
    wrong = spec.model_copy(update={"sip": spec.sip.model_copy(update={"cube_mesh": mesh})})
    assert isinstance(wrong, MachineSpec)
    for load in (compile_spec, load_topology):
        with pytest.raises(TopologyError) as caught:
            load(wrong)
        assert caught.value.faults[0].key == "sip.cube_mesh"


def test_a_wrong_entry_of_a_list_hides_no_fault_of_the_others(tmp_path: Path) -> None:
    found = faults(
        "sip:\n"
        "  io_chiplets:\n"
        "    - { id: io0, side: Q }\n"  # 3
        "    - { id: io1, side: N, cube_ports: [{ cube: { xy: [9, 9] } }] }\n"  # 4
        "    - { id: io1, side: S, cube_ports: [] }\n",  # 5
        tmp_path,
    )
    assert [(fault.key, fault.where.rsplit(":", 1)[1]) for fault in found] == [
        ("sip.io_chiplets[0].side", "3"),
        ("sip.io_chiplets[1].cube_ports[0].cube.xy", "4"),
        ("sip.io_chiplets[2].id", "5"),
        ("sip.io_chiplets[2].cube_ports", "5"),
    ]


def test_what_rests_on_a_wrong_side_is_not_reported(tmp_path: Path) -> None:
    # Whether the cube at (1, 1) has that side open cannot be known.
    chiplet = "{ id: io0, side: Q, cube_ports: [{ cube: { xy: [1, 1] } }] }"
    (fault,) = faults(f"sip: {{ io_chiplets: [{chiplet}] }}\n", tmp_path)
    assert fault.key == "sip.io_chiplets[0].side"


@pytest.mark.parametrize(
    ("key", "impl", "says"),
    [
        ("cube.components.m_cpu", "builtin.mcpu", "did you mean 'builtin.m_cpu'?"),
        ("cube.components.router", "builtin.sram", "no builtin 'builtin.sram' models a noc_router"),
        ("cube.components.sram", "builtin.hbm_ctrl", "models a sram"),
        ("system.switch", "builtin.host", "models a switch"),
    ],
)
def test_a_builtin_that_does_not_model_the_block_is_a_fault(key: str, impl: str, says: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_spec(overrides={f"{key}.impl": impl})
    (fault,) = caught.value.faults
    assert fault.key == f"{key}.impl"
    assert says in fault.what
    assert "builtin.forwarding" in fault.hint


def test_every_builtin_there_is_models_some_block() -> None:
    joined = load_spec(None, {"system.sips.links": {"bw_gbs": 12.5, "distance_mm": 0.0}})
    kinds = [kind for _, kind, _ in joined.components()]
    assert [impl for impl in BUILTIN if all(impl_fault(kind, impl) for kind in kinds)] == []


def test_pes_that_do_not_fit_are_reported_with_the_width_that_the_die_needs() -> None:
    # 13 PEs of 1.5 mm side by side have 12 gaps: 12 x 1.5 mm between two margins of 1.5 mm.
    layout = {"corners": ["NW"], "pe_per_corner": 13}
    with pytest.raises(TopologyError) as caught:
        load_spec(overrides={"cube.pe_layout": layout})
    assert caught.value.hint == "put fewer PEs in a corner, or set cube.geometry.cube_mm.w to 21 or more"
    assert load_spec(overrides={"cube.pe_layout": layout, "cube.geometry.cube_mm.w": 21}).cube.n_pes == 13
    with pytest.raises(TopologyError, match=r"set cube\.geometry\.cube_mm\.w to 7\.5 or more"):
        load_spec(overrides={"cube.geometry.cube_mm.w": 3})  # no room at all between the margins
