"""Which cases a machine has."""

from __future__ import annotations

from functools import cache

import pytest

from kernbench.policy.address.phyaddr import PhysAddr
from kernbench.probes.cases import cases_of
from kernbench.probes.probe import run_probe
from kernbench.probes.shape import hop_cubes
from kernbench.topology import load_topology


@cache
def machine(*settings):
    return load_topology(None, dict(settings))


def names(graph, nbytes=4096):
    return [case.name for case in cases_of(graph, nbytes)]


def target(graph, name):
    request = next(case for case in cases_of(graph, 4096) if case.name == name).requests[0]
    address = PhysAddr.decode(request.dst_pa)
    slice_bytes = graph.spec.cube.hbm_slice_bytes
    return address.sip_id, address.die_id, address.hbm_offset // slice_bytes


def test_host_cases_take_the_column_below_the_chiplet():
    assert hop_cubes(machine()) == (0, 4, 8, 12)
    assert names(machine())[:8] == [f"{way}-{hops}hop" for way in ("h2d", "d2h") for hops in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("pe-local-hbm", (0, 0, 0)),
        ("pe-same-half-hbm", (0, 0, 1)),
        ("pe-cross-half-hbm", (0, 0, 4)),
        ("pe-cross-cube-hbm-best", (0, 1, 0)),
        ("pe-cross-cube-hbm-worst", (0, 15, 0)),
        ("pe-cross-sip-hbm", (1, 0, 0)),
    ],
)
def test_pe_cases_of_the_default_machine_are_those_of_the_record(name, place):
    assert target(machine(), name) == place
    assert target(machine(), f"{name}-write") == place


def test_categories_and_directions():
    found = {case.name: (case.category, case.direction, len(case.requests)) for case in cases_of(machine(), 4096)}
    assert found["h2d-1hop"] == ("h2d", "write", 1)
    assert found["d2h-1hop"] == ("d2h", "read", 1)
    assert found["pe-sram"] == ("pe-sram", "read", 1)
    assert found["pe-cross-sip-hbm-write"] == ("pe-cross-sip-hbm", "write", 1)
    assert found["contention-3-to-slice"] == ("contention", "read", 3)
    assert found["contention-cube-to-next-write"] == ("contention", "write", 8)
    assert found["contention-sip-to-slice"] == ("contention", "read", 128)


@pytest.mark.parametrize(
    ("side", "cubes"), [("N", (0, 4, 8, 12)), ("S", (12, 8, 4, 0)), ("W", (0, 1, 2, 3)), ("E", (3, 2, 1, 0))]
)
def test_host_cases_lead_away_from_the_chiplets_side(side, cubes):
    graph = load_topology(None, {"sip.io_chiplets": [{"id": "io0", "side": side}]})
    assert hop_cubes(graph) == cubes


def test_the_line_ends_where_another_chiplet_is_nearer():
    graph = load_topology(None, {"sip.io_chiplets": [{"id": "io0", "side": "N"}, {"id": "io1", "side": "S"}]})
    assert hop_cubes(graph) == (0, 4)


def test_the_smallest_machine_has_no_case_for_what_it_lacks():
    graph = machine(
        ("system.sips.count", 1),
        ("sip.cube_mesh.w", 1),
        ("sip.cube_mesh.h", 1),
        ("cube.pe_layout.corners", ("NW",)),
        ("cube.pe_layout.pe_per_corner", 1),
    )
    reads = ["pe-local-hbm", "pe-sram"]
    writes = [f"{name}-write" for name in reads]
    contention = ["contention-1-to-slice", "contention-1-to-slice-write"]
    assert names(graph) == ["h2d-1hop", "d2h-1hop", *reads, *writes, *contention]


LEVELS = {
    "tray": {"count": 4, "bw_gbs": 64.0, "distance_mm": 500.0},
    "rack": {"count": 2, "bw_gbs": 32.0, "distance_mm": 2000.0},
}
NO_HBM = {"cube.memory_map.hbm_total_gb_per_cube": 0}
SHARED = {
    "cube.memory_map.hbm_mapping_mode": "n_to_one",
    "sip.hbm_stacks": {
        "places": [{"id": "s0", "side": "W"}], "gb": 8, "channels": 32, "channel_bw_gbs": 32.0, "link_bw_gbs": 256.0,
    },
}  # fmt: skip


@pytest.mark.parametrize(("memory", "keys"), [("hbm", {}), ("sram", NO_HBM), ("hbm", SHARED)])
def test_each_level_of_switches_has_a_case_across_it(memory: str, keys: dict[str, object]) -> None:
    """Eight SIPs: two below each tray, four below each rack."""
    sizes = {"system.sips.count": 8, "system.switch_levels": LEVELS, "sip.cube_mesh": {"w": 1, "h": 1}}
    graph = load_topology(None, sizes | keys)
    cases = {case.name: case.requests[0] for case in cases_of(graph, 4096)}
    across = [f"pe-cross-{part}-{memory}" for part in ("sip", "tray", "rack")]
    assert [PhysAddr.decode(cases[name].dst_pa).sip_id for name in across] == [1, 2, 4]
    assert {f"{name}-write" for name in across} <= set(cases)
    report = run_probe(graph, across, 4096, sweep=False)
    assert report.ok
    near, middle, far = (result.total_ns for result in report.cases)
    assert near < middle < far


def test_two_cubes_have_a_next_but_no_farthest_cube():
    graph = machine(("sip.cube_mesh.w", 2), ("sip.cube_mesh.h", 1))
    assert "pe-cross-cube-hbm-best" in names(graph)
    assert "pe-cross-cube-hbm-worst" not in names(graph)


def test_halves_follow_the_corners():
    graph = machine(("cube.pe_layout.corners", ("SW", "NW", "SE")), ("cube.pe_layout.pe_per_corner", 1))
    assert target(graph, "pe-same-half-hbm") == (0, 0, 2)  # SE, south as SW is
    assert target(graph, "pe-cross-half-hbm") == (0, 0, 1)  # NW


def test_sram_is_left_out_when_the_bytes_do_not_fit():
    assert "pe-sram" in names(machine(), 32 << 20)
    assert "pe-sram" not in names(machine(), (32 << 20) + 1)


def test_issuers_onto_one_slice_use_places_of_their_own_until_it_is_full():
    graph = machine(("cube.memory_map.hbm_total_gb_per_cube", 1))  # 8 slices of 128 MiB
    case = next(case for case in cases_of(graph, 40 << 20) if case.name == "contention-all-to-slice")
    offsets = [PhysAddr.decode(request.dst_pa).hbm_offset >> 20 for request in case.requests]
    assert offsets == [0, 40, 80, 0, 40, 80, 0, 40]  # three of 40 MiB fit


def test_host_cases_under_load_reach_every_slice_of_a_cube_and_of_the_row_beside_the_chiplet():
    found = {case.name: case for case in cases_of(machine(), 4096)}
    slice_bytes = machine().spec.cube.hbm_slice_bytes
    for suffix, field in (("", "src_pa"), ("-write", "dst_pa")):
        for name, cubes in (("contention-host-to-cube", (0,)), ("contention-host-to-row", (0, 1, 2, 3))):
            addresses = [PhysAddr.decode(getattr(request, field)) for request in found[name + suffix].requests]
            places = [(address.die_id, address.hbm_offset // slice_bytes) for address in addresses]
            assert places == [(cube, pe) for cube in cubes for pe in range(8)]
