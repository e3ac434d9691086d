"""The probe on machines of many shapes: every check holds, every figure is sound, the contract's keys are there."""

from __future__ import annotations

import json
from itertools import cycle

import pytest

from kernbench.probes.as_json import report_as_json
from kernbench.probes.probe import run_probe
from kernbench.topology import load_topology

ONE_CUBE = {"sip.cube_mesh.w": 1, "sip.cube_mesh.h": 1}
FOUR_SIDES = [{"id": f"io{n}", "side": side} for n, side in enumerate("NSEW")]
CORNER_PORT = [{"id": "io0", "side": "N", "cube_ports": [{"cube": {"xy": [2, 1]}, "cube_side": "S"}]}]

MACHINES = {
    "one of each": {
        **ONE_CUBE,
        "system.sips.count": 1,
        "cube.pe_layout.corners": ["NW"],
        "cube.pe_layout.pe_per_corner": 1,
    },
    "two cubes": {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1},
    "3 x 2 cubes": {"sip.cube_mesh.w": 3, "sip.cube_mesh.h": 2},
    "a column of four": {"system.sips.count": 1, "sip.cube_mesh.w": 1, "sip.cube_mesh.h": 4},
    "a torus of four SIPs": {**ONE_CUBE, "system.sips.count": 4, "system.sips.topology": "torus_2d"},
    "a ring of three SIPs with direct links, and packets on all links between dies": {
        **ONE_CUBE,
        "sip.cube_mesh.w": 2,
        "system.sips.count": 3,
        "system.sips.links": {"bw_gbs": 12.5, "distance_mm": 50.0, "header_bytes": 298, "payload_bytes": 6144},
        "system.links.io_ep_to_switch.header_bytes": 24,
        "system.links.io_ep_to_switch.payload_bytes": 256,
        "sip.links.cube_to_cube.header_bytes": 20,
        "sip.links.cube_to_cube.payload_bytes": 236,
    },
    "chiplet in the south": {
        "system.sips.count": 1,
        "sip.cube_mesh.w": 3,
        "sip.cube_mesh.h": 1,
        "sip.io_chiplets": [{"id": "io0", "side": "S"}],
    },
    "chiplet in the east": {
        "system.sips.count": 1,
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 2,
        "sip.io_chiplets": [{"id": "io0", "side": "E"}],
    },
    "chiplets all around": {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 3, "sip.io_chiplets": FOUR_SIDES},
    "one port in a corner": {"sip.cube_mesh.w": 3, "sip.cube_mesh.h": 2, "sip.io_chiplets": CORNER_PORT},
    "one PE a cube": {
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 2,
        "cube.pe_layout.corners": ["SE"],
        "cube.pe_layout.pe_per_corner": 1,
    },
    "three PEs a cube": {**ONE_CUBE, "cube.pe_layout.corners": ["SW", "NW", "SE"], "cube.pe_layout.pe_per_corner": 1},
    "sixteen PEs a cube": {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 4},
    "one connection": {**ONE_CUBE, "cube.ucie.n_connections": 1, "io_chiplet.n_connections": 1},
    "64 slow channels": {
        **ONE_CUBE,
        "cube.memory_map.hbm_channels_per_pe": 64,
        "cube.memory_map.hbm_channel_bw_gbs": 1.7,
    },
    "one channel, small flits": {
        **ONE_CUBE,
        "cube.memory_map.hbm_channels_per_pe": 1,
        "system.flit_bytes": 64,
        "cube.components.hbm_ctrl.attrs.burst_bytes": 64,
    },
    "a router for each channel": {**ONE_CUBE, "cube.memory_map.hbm_mapping_mode": "one_to_one"},
    "logical addresses, four channels with routers": {
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 1,
        "system.sips.count": 1,
        "system.address_model": "la",
        "cube.memory_map.hbm_mapping_mode": "one_to_one",
        "cube.memory_map.hbm_channels_per_pe": 4,
        "cube.components.channel_router.attrs.overhead_ns": 1.5,
    },
    "slow channels with routers behind slow links": {
        **ONE_CUBE,
        "system.sips.count": 1,
        "cube.pe_layout": {"corners": ["NW", "SE"], "pe_per_corner": 1},
        "cube.memory_map.hbm_mapping_mode": "one_to_one",
        "cube.memory_map.hbm_channels_per_pe": 16,
        "cube.memory_map.hbm_channel_bw_gbs": 1.7,
        "cube.links.router_bw_gbs": 3.7,
    },
    "physical addresses": {**ONE_CUBE, "system.sips.count": 1, "system.address_model": "pa"},
    "slow routers": {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 2, "cube.components.router.attrs.overhead_ns": 101.3},
    "a mesh narrower than its ports": {  # the cube next door is nearer in flit times than the far corner of one's own
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 1,
        "cube.pe_layout": {"corners": ["NW", "SE"], "pe_per_corner": 1},
        "system.ns_per_mm": 0.0,
        "cube.links.router_bw_gbs": 0.37,
    },
    "routers that cost everything": {  # the farthest cube in mm is reached by turns that pass fewer routers
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 2,
        "cube.pe_layout": {"corners": ["SW", "NE"], "pe_per_corner": 2},
        "system.ns_per_mm": 0.0,
        "cube.components.router.attrs.overhead_ns": 1e6,
    },
    "no latency": {
        "sip.cube_mesh.w": 2,
        "sip.cube_mesh.h": 2,
        "system.ns_per_mm": 0.0,
        "cube.components.router.attrs.overhead_ns": 0.0,
        "cube.components.ucie.attrs.overhead_ns": 0.0,
        "io_chiplet.components.io_ucie.attrs.overhead_ns": 0.0,
        "io_chiplet.components.pcie_ep.attrs.overhead_ns": 0.0,
    },
    "a small SRAM": {**ONE_CUBE, "cube.memory_map.sram_mb_per_cube": 0.0625},
}
REQUIRED = (
    "name", "category", "direction", "nbytes", "issuers", "total_ns", "overhead_ns", "wire_ns", "drain_ns",
    "bottleneck_gbs", "effective_gbs", "utilization", "utilization_aggregate", "path",
)  # fmt: skip


@pytest.mark.parametrize(("name", "nbytes"), list(zip(MACHINES, cycle([8192, 1000, 4096]), strict=False)))
def test_every_check_holds(name, nbytes):
    report = run_probe(load_topology(None, MACHINES[name]), nbytes=nbytes, sweep=nbytes == 1000)
    assert [(check.name, check.detail) for check in report.checks if not check.ok] == []
    data = json.loads(json.dumps(report_as_json(report), allow_nan=False))
    assert len(data["checks"]) >= 7  # a check that a shape cannot answer is left out
    for case in data["cases"]:
        assert [key for key in REQUIRED if key not in case] == []
        assert case["total_ns"] > 0
        assert 0 < case["utilization_aggregate"] <= 1
        assert sum(case["breakdown"].values()) == case["total_ns"]
        assert case["total_ns"] >= case["formula_ns"]


@pytest.mark.parametrize(
    ("model", "mode"),  # the other two pairs: "physical addresses" above, and "logical addresses, four channels ..."
    [("va", "n_to_one"), ("va", "one_to_one"), ("pa", "one_to_one"), ("la", "n_to_one")],
)
def test_every_check_holds_in_all_address_models_and_channel_mappings(model, mode):
    """On two SIPs, so that there are cases of all categories."""
    changes = {"sip.cube_mesh.w": 2, "sip.cube_mesh.h": 1, "cube.pe_layout.pe_per_corner": 1}
    changes |= {"system.address_model": model, "cube.memory_map.hbm_mapping_mode": mode}
    report = run_probe(load_topology(None, changes), nbytes=2048, sweep=False)
    assert [(check.name, check.detail) for check in report.checks if not check.ok] == []
    assert len(report.checks) == 11  # without sweeps
