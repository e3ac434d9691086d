"""Machines beyond the record's counts and sizes compute the right numbers, and their parts grow linearly."""

from __future__ import annotations

import numpy as np

from kernbench.benches.registry import resolve
from kernbench.runtime_api.bench_runner import RunOptions, run_bench
from kernbench.topology import load_topology
from kernbench.topology.graph import TopologyGraph

WIDE = {
    "system.sips.count": 17,
    "sip.cube_mesh": {"w": 1, "h": 1},
    "cube.geometry.cube_mm": {"w": 28, "h": 28},
    "cube.pe_layout": {"pe_per_corner": 6, "rows_per_corner": 2},
    "cube.memory_map": {"hbm_total_gb_per_cube": 192, "tcm_mb_per_pe": 4, "sram_mb_per_cube": 40},
}


def test_a_machine_of_17_sips_and_24_pes_per_cube_computes_what_it_should() -> None:
    graph = load_topology(None, WIDE)
    assert graph.spec.address_layout.address_bits == 42 + 5 + 5  # 4 + 1 bits of die, 5 of SIP
    spec = resolve("va-offset-verify")
    for device in ("sip:0", "sip:16"):
        result = run_bench(spec.run, graph, RunOptions(device=device, verify_data=True), name=spec.name)
        assert result.ok
        assert result.data
        assert all(check.ok for check in result.data)


def test_a_ring_of_cubes_computes_what_it_should_and_with_and_without_fast_paths_in_the_same_time() -> None:
    ring = {"system.sips.count": 1, "sip.cube_mesh": {"w": 4, "h": 1, "wrap": "x"}, "cube.pe_layout.pe_per_corner": 1}
    graph, spec = load_topology(None, ring), resolve("va-offset-verify")
    fast, plain = (
        run_bench(spec.run, graph, RunOptions(device="sip:0", verify_data=True, fast=fast), name=spec.name)
        for fast in (True, False)
    )
    assert fast.ok
    assert all(check.ok for check in fast.data)
    assert fast.total_ns == plain.total_ns
    line = run_bench(spec.run, load_topology(None, ring | {"sip.cube_mesh.wrap": "none"}), name=spec.name)
    assert fast.total_ns <= line.total_ns


def _sizes(sips: int, cubes: int) -> tuple[int, int]:
    graph: TopologyGraph = load_topology(None, {"system.sips.count": sips, "sip.cube_mesh": {"w": cubes, "h": 1}})
    return len(graph.nodes), len(graph.edges)


def test_nodes_and_links_grow_linearly_with_sips_and_cubes() -> None:
    by_sips = np.array([_sizes(n, 2) for n in (2, 4, 8, 16, 32)])
    per_sip = np.diff(by_sips, axis=0) / np.array([[2], [4], [8], [16]])
    assert (per_sip == per_sip[0]).all()
    by_cubes = np.array([_sizes(1, n) for n in (8, 16, 32)])
    per_cube = np.diff(by_cubes, axis=0) / np.array([[8], [16]])
    assert (per_cube == per_cube[0]).all()
