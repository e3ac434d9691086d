"""Machines of several types of cubes: times by hand, capacities, and fast paths that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kernbench
from kernbench.common.errors import AllocationError
from kernbench.policy.placement.dp import DPPolicy
from kernbench.probes.probe import run_probe
from kernbench.runtime_api.context import RuntimeContext
from kernbench.sim_engine.engine import GraphEngine
from kernbench.topology import load_topology

MACHINE = {
    "system.sips.count": 1,
    "sip.cube_mesh": {"w": 2, "h": 1},
    "cube.pe_layout": {"corners": ["NW"], "pe_per_corner": 2},
    "sip.cube_types": {"slow": [1]},
    "cube_types.slow": {
        "memory_map": {"hbm_total_gb_per_cube": 2, "hbm_channel_bw_gbs": 16.0, "sram_mb_per_cube": 64},
        "pe_template": {"components": {"pe_gemm": {"attrs": {"macs_per_ns": 512.0}}}},
    },
}


def test_a_load_takes_what_the_type_of_its_cube_says() -> None:
    """4096 bytes: a router of 2 ns each way, a flit of 1 ns on the PE's link, a burst of 256 bytes, and the bytes over
    the eight channels of the slice, of 32 or 16 GB/s each. Where channels have links of their own, a channel has two
    bursts, its second flit follows on its link, and the last flits of all channels share the PE's link.
    """
    graph = load_topology(None, MACHINE)
    times = {
        name: run_probe(graph, name, 4096, sweep=False).cases[0].total_ns
        for name in ("pe-local-hbm", "pe-local-hbm-slow", "pe-local-hbm-slow-write")
    }
    for name, gbs in (("pe-local-hbm", 32), ("pe-local-hbm-slow", 16)):
        over_one = 2 + 2 + 1 + 256 / gbs + 4096 / (8 * gbs)
        over_eight = 2 + 2 + 1 + 2 * 256 / gbs + 256 / gbs + 8 * 1
        assert times[name] == (over_eight if graph.spec.cube.has_channel_routers else over_one)
    assert times["pe-local-hbm-slow-write"] == times["pe-local-hbm-slow"]


def test_every_check_of_the_probe_holds() -> None:
    report = run_probe(load_topology(None, MACHINE), None, 4096, sweep=False)
    assert [check.name for check in report.checks if not check.ok] == []


def multiply(a: Any, b: Any, out: Any, tl: Any) -> None:
    tl.wait(tl.composite("gemm", tl.ref(a, (128, 128)), tl.ref(b, (128, 128)), out))


def products(torch: Any) -> None:
    """The same product on every PE, twice, so that composites and launches could be replayed."""
    policy = DPPolicy(cube="replicate", pe="replicate")
    x = np.arange(128 * 128, dtype=np.float16).reshape(128, 128) / 1e4
    a, b = torch.from_numpy(x, dp=policy), torch.from_numpy(x.T.copy(), dp=policy)
    for _ in range(2):
        out = torch.zeros(128, 128, dtype="f16", dp=policy)
        launch = torch.launch("multiply", kernbench.repeatable(multiply), a, b, out)
    by_cube = {cube: max(pe.end_ns - pe.start_ns for pe in launch.pes if pe.cube == cube) for cube in (0, 1)}
    assert by_cube[0] < by_cube[1]  # an eighth of the MACs per ns
    compute_ns = 128 * 128 * 128 / 512
    assert by_cube[1] > compute_ns
    assert by_cube[0] < compute_ns


@pytest.mark.parametrize("model", ["va", "pa", "la"])
def test_equal_composites_on_unequal_cubes_take_their_own_times_with_and_without_fast_paths(model: str) -> None:
    assert kernbench.run(products, overrides=MACHINE | {"system.address_model": model}, check_fast=True).ok


def test_launches_on_cubes_of_several_types_are_simulated() -> None:
    one_link = {"cube.memory_map.hbm_mapping_mode": "n_to_one"}  # else composites are simulated tile by tile
    result = kernbench.run(products, overrides=MACHINE | one_link)
    assert result.engine.stats.launches.as_json()["given_up"] == {"cubes are of several types": 2}
    assert result.engine.stats.composites.one_event == 2 * 2 * 2  # of each launch, one on each PE


def test_a_tensor_fits_where_its_cube_has_room() -> None:
    machine = MACHINE | {"cube_types.slow.memory_map.hbm_total_gb_per_cube": 1}
    with RuntimeContext(GraphEngine(load_topology(None, machine), data=False)) as torch:
        there = DPPolicy(cube="replicate", pe="column_wise", num_cubes=1)
        assert torch.empty(1 << 30, dtype="f16", dp=there).nbytes == 1 << 31  # 2 GiB over the two PEs of cube 0
        with pytest.raises(AllocationError, match=r"sip0\.cube1\.pe0 HBM"):
            torch.empty(1 << 30, dtype="f16", dp=DPPolicy(cube="replicate", pe="column_wise"))


def test_bytes_written_by_the_host_come_back_from_every_cube() -> None:
    def program(torch: Any) -> None:
        x = np.arange(4096, dtype=np.float32).reshape(16, 256)
        for space, pe in (("hbm", "row_wise"), ("sram", "replicate")):
            tensor = torch.from_numpy(x, dp=DPPolicy(cube="row_wise", pe=pe), space=space)
            assert (tensor.cpu() == x).all()

    kernbench.run(program, overrides=MACHINE)
